"""Reading the YAML file: what is accepted, and errors that name the file and the line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rankloom.config import ResolvedConfig, load, load_layout
from rankloom.errors import UserError

GOOD = """\
cluster: {world_size: 2}
train:
  global_batch_size: 4
  max_steps: 3
"""


@pytest.fixture
def loaded(tmp_path: Path) -> Callable[[str], ResolvedConfig]:
    """The config resolved from a file of this text; its name is run.yaml."""

    def read(text: str) -> ResolvedConfig:
        path = tmp_path / "run.yaml"
        path.write_text(text)
        return load(path)

    return read


def refusal(read: Callable[[str], object], text: str) -> str:
    with pytest.raises(UserError) as refused:
        read(text)
    return str(refused.value)


def test_a_file_resolves_like_a_mapping(loaded: Callable[[str], ResolvedConfig]) -> None:
    resolved = loaded(GOOD)
    assert (resolved.train.max_steps, resolved.sources["train.max_steps"]) == (3, "file")
    assert resolved.origin.endswith("run.yaml")


def test_exponents_are_numbers_everywhere(loaded: Callable[[str], ResolvedConfig]) -> None:
    resolved = loaded(
        f"{GOOD}optimizer: {{lr: 3e-4, eps: 1E-8}}\n"
        "model: {config: {model_type: llama, rms_norm_eps: 1e-5, rope_theta: 1.5e6}}\n"
    )
    assert (resolved.optimizer.lr, resolved.optimizer.eps) == (3e-4, 1e-8)
    assert resolved.model.config == {"model_type": "llama", "rms_norm_eps": 1e-5, "rope_theta": 1.5e6}


def test_a_date_can_be_a_folder(loaded: Callable[[str], ResolvedConfig]) -> None:
    assert loaded(f"{GOOD}checkpoint: {{dir: 2026-11-29}}\n").checkpoint.dir == "2026-11-29"


def test_a_key_twice_in_one_mapping_names_both_lines(loaded: Callable[[str], ResolvedConfig]) -> None:
    message = refusal(loaded, f"{GOOD}  global_batch_size: 8\n")
    assert message.endswith("run.yaml:5: global_batch_size is set twice, first in line 3")
    assert refusal(loaded, f"{GOOD}train: {{}}\n").endswith("run.yaml:5: train is set twice, first in line 2")


def test_one_key_in_two_mappings_and_merge_keys_are_fine(loaded: Callable[[str], ResolvedConfig]) -> None:
    anchors = "data: &seeds {seed: 1}\n" + GOOD + "  <<: *seeds\n"
    resolved = loaded(anchors)
    assert (resolved.data.seed, resolved.train.seed) == (1, 1)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("train:\n  a: b: c\n", 2, "mapping values are not allowed here"),
        ("train: {a: 1\n", 2, "expected ',' or '}'"),
        ("train:\n\tmax_steps: 1\n", 2, "cannot start any token"),
        ("a: 1\n---\nb: 2\n", 2, "but found another document"),
        ("train: *nowhere\n", 1, "undefined alias"),
        ("train: !!python/object:os.system {}\n", 1, "could not determine a constructor"),
        ("a: 1\n? [x]\n: 2\n", 2, "found unhashable key"),
    ],
)
def test_bad_yaml_names_file_and_line(
    loaded: Callable[[str], ResolvedConfig], text: str, line: int, words: str
) -> None:
    message = refusal(loaded, text)
    assert f"run.yaml:{line}: " in message
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize("text", ["- train\n", "train\n", "3\n"])
def test_a_file_must_be_a_mapping(loaded: Callable[[str], ResolvedConfig], text: str) -> None:
    assert "run.yaml must be a mapping of sections (model, parallel," in refusal(loaded, text)


def test_an_empty_file_lacks_what_is_required(loaded: Callable[[str], ResolvedConfig]) -> None:
    assert "train.global_batch_size is required" in refusal(loaded, "")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config file .*none\.yaml does not exist"):
        load(tmp_path / "none.yaml")
    with pytest.raises(UserError, match=r"config file .* is a folder; name the file in it"):
        load(tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"binary\.yaml"):
        load(binary)
    control = tmp_path / "control.yaml"
    control.write_text("a: \x01\n")
    with pytest.raises(UserError, match=r"control\.yaml: not valid YAML"):
        load(control)


def test_a_layout_is_loaded_from_a_file_without_a_train_section(tmp_path: Path) -> None:
    path = tmp_path / "layout.yaml"
    path.write_text("cluster: {world_size: 4}\n")
    assert load_layout(path, cli={"parallel.context_parallel_size": 2}).layout.batch_parallel_size == 2
