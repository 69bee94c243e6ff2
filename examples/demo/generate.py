"""Asks a trained model one question, with plain transformers: what `rankloom train` writes is a model folder.

python examples/demo/generate.py runs/demo/model "What does `os.path.join(a, *p)` do?"
"""

from __future__ import annotations

import argparse

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

QUESTION = "What does `json.dumps(obj)` do?"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="a model folder")
    parser.add_argument("question", nargs="?", default=QUESTION)
    parser.add_argument("--max-new-tokens", type=int, default=48)
    arguments = parser.parse_args()
    disable_progress_bar()
    answer = generate(arguments.folder, arguments.question, max_new_tokens=arguments.max_new_tokens)
    print(f"\nquestion {arguments.question}\nanswer   {answer}")


def generate(folder: str, question: str, *, max_new_tokens: int) -> str:
    """The likeliest answer, token by token; a penalty keeps a young model from repeating itself."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt"
    )
    with torch.inference_mode():
        tokens = model.generate(
            **prompt,
            do_sample=False,
            repetition_penalty=1.2,
            max_new_tokens=max_new_tokens,
        )
    return str(tokenizer.decode(tokens[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)).strip()


if __name__ == "__main__":
    main()
