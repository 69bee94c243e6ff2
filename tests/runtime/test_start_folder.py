"""What a model folder holds beside its weights is in the exported folder too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from tests.parity.own_tokenizer import write_tokenizer
from tests.runtime.runs import TINY, WORDS, run, settings, write_chats


def test_generation_config_is_kept(ranks: Any, tmp_path: Path) -> None:
    write_chats(tmp_path / "chats.jsonl", count=20)
    start = tmp_path / "start"
    sizes = {k: v for k, v in TINY.items() if k != "model_type"}
    AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **sizes)).save_pretrained(start)
    write_tokenizer(start, list(WORDS), vocab_size=TINY["vocab_size"])
    GenerationConfig(eos_token_id=[2, 5], do_sample=True, temperature=0.6, top_p=0.9).save_pretrained(start)
    config = settings(tmp_path, parallel={}, world_size=1)
    config["model"] = {"path": str(start)}
    config["train"] |= {"max_steps": 1}
    ranks(1, run, config)
    kept = GenerationConfig.from_pretrained(tmp_path / "run" / "model")
    assert (kept.eos_token_id, kept.do_sample, kept.temperature, kept.top_p) == ([2, 5], True, 0.6, 0.9)
