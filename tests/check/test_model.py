"""A model against the layout, from its config alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankloom.check import read_model_config
from rankloom.config.findings import Finding
from rankloom.errors import UserError
from tests.check.jobs import LLAMA, look, model_folder, told, trained, world

TP, PP = "tensor_model_parallel_size", "pipeline_model_parallel_size"


@pytest.mark.parametrize(
    ("heads", "kv_heads", "width", "tp", "message"),
    [
        (32, 2, 128, 4, "num_key_value_heads 2 of the model; allowed: 1, 2"),
        (20, 10, 40, 4, "num_key_value_heads 10 of the model; allowed: 1, 2, 5, 10"),
        (4, 2, 3, 2, "intermediate_size 3 of the model; allowed: 1"),  # gate and up together are 6
        (4, 2, 96, 8, "num_attention_heads 4 and num_key_value_heads 2 of the model; allowed: 1, 2"),
    ],
)
def test_heads_and_widths_that_tp_cannot_cut(
    tmp_path: Path, heads: int, kv_heads: int, width: int, tp: int, message: str
) -> None:
    folder = model_folder(
        tmp_path,
        hidden_size=heads * 16,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=width,
    )
    (finding,) = told(look(world(tp * 2, **{TP: tp}), model=folder), severity="error")
    assert finding == Finding(
        "error",
        "model",
        f"{TP} {tp} does not divide {message}",
        (f"parallel.{TP}",),
        f"parallel section of run.yaml; {folder}/config.json",
    )


def test_gtp_remat_cuts_no_heads(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, hidden_size=512, num_attention_heads=32, num_key_value_heads=2)
    parallel = {TP: 2, "tensor_parallel_num_weight_shards": 8}
    assert told(look(world(8, **parallel), model=folder), "model") == []


def test_heads_are_looked_at_where_the_layout_is_impossible_too() -> None:
    report = look(trained(8, parallel={TP: 3}), files=False)
    assert [(f.topic, f.message.split("; ")[0]) for f in told(report, severity="error")] == [
        ("layout", "world_size 8 is not a multiple of 3 = tensor_model_parallel_size 3 x "
         "context_parallel_size 1 x pipeline_model_parallel_size 1"),
        ("model", f"{TP} 3 does not divide num_attention_heads 4 and num_key_value_heads 2 of the model"),
    ]  # fmt: skip


@pytest.mark.parametrize(("stages", "tries"), [(3, "2 or 4"), (8, "4")])
def test_stages_that_cannot_share_the_layers(tmp_path: Path, stages: int, tries: str) -> None:
    folder = model_folder(tmp_path)
    report = look(world(stages, **{PP: stages}), model=folder)
    (finding,) = told(report, "model")
    assert finding == Finding(
        "error",
        "model",
        f"num_hidden_layers 4 of the model is not a multiple of {PP} {stages}; try {tries}",
        (f"parallel.{PP}",),
        f"parallel section of run.yaml; {folder}/config.json",
    )
    assert told(look(world(4, **{PP: 4}), model=folder), "model") == []


def test_keys_and_values_of_a_config_in_the_file() -> None:
    wrong = {**LLAMA, "num_hiden_layers": 4}
    (finding,) = told(look(trained(2, model={"config": wrong}), files=False), "model")
    assert finding == Finding(
        "error",
        "model",
        "model.config.num_hiden_layers is not a key of a llama config; did you mean num_hidden_layers?",
        ("model.config",),
        "model section of run.yaml",
    )
    report = look(trained(2), cli={"model.config.hidden_size": "64"}, files=False)
    (finding,) = told(report, "model")
    assert finding.message == "hidden_size of the model's config must be an integer of at least 1, not '64'"
    assert finding.where == "--model.config.hidden_size"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 10**7}, "num_hidden_layers 10000000 of the model's config is more than 10000"),
        ({"num_attention_heads": 10**9, "hidden_size": 10**9}, "num_attention_heads 1000000000 of the"),
        ({"model_type": "mixtral"}, "model_type 'mixtral' is not supported"),
        ({"model_type": None}, "the model's config has no model_type; supported: llama, qwen2, qwen3"),
        ({"num_attention_heads": True}, "num_attention_heads of the model's config must be an integer"),
        ({"num_attention_heads": 4.0}, "num_attention_heads of the model's config must be an integer"),
    ],
)
def test_configs_that_make_no_model(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    folder = model_folder(tmp_path, **changes)
    (finding,) = told(look(world(2), model=folder), "model")
    assert finding.message.startswith(message)
    assert (finding.severity, finding.where) == ("error", f"{folder}/config.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[1]", "{file} holds no JSON object, and so no model's config"),
        (b'{"model_type": "\xff"}', "{file} is not UTF-8 text (byte 16)"),
        (b"", "{file}, line 1: not valid JSON: Expecting value"),
        (b'{\n"model_type":\n}', "{file}, line 3: not valid JSON: Expecting value"),
        (b"[" * 100_000, "{file} is nested too deeply to be a model's config"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "--model {folder} cannot be read: Exceeds the limit"),
    ],
)
def test_files_that_hold_no_config(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    (finding,) = told(look(world(2), model=tmp_path), "model")
    assert finding.message.startswith(message.format(file=file, folder=tmp_path))
    assert (finding.severity, finding.keys) == ("error", ())


def test_paths_that_hold_no_model(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("model", "step-00000010", "step-00000020", "step-00000030.partial"):
        (tmp_path / "run" / name).mkdir(parents=True)
    (tmp_path / "loop").symlink_to("loop")
    for path, message in (
        (tmp_path / "nowhere", "is not a folder; it must hold a Hugging Face model"),
        (tmp_path / "empty", "holds no config.json; it must hold a Hugging Face model"),
        (
            tmp_path / "run",
            "holds no config.json; it must hold a Hugging Face model, as "
            f"{tmp_path / 'run/model'} or {tmp_path / 'run/step-00000020'} may",
        ),
        (tmp_path / "loop", "is not a folder; it must hold a Hugging Face model"),
        (Path("/dev/null"), "is not a folder; it must hold a Hugging Face model"),
    ):
        (finding,) = told(look(world(2), model=path), "model")
        assert finding.message == f"--model {path} {message}"
    (finding,) = told(look(world(2), model=Path("x" * 5000)), "model")
    assert finding.message == f"--model ...{'x' * 117} cannot be read: File name too long"


def test_a_file_stands_for_a_model_on_the_command_line_only(tmp_path: Path) -> None:
    file = model_folder(tmp_path) / "config.json"
    assert told(look(world(2), model=file), "model") == []
    with pytest.raises(UserError, match=r"model\.path .*config\.json is not a folder"):
        read_model_config(file, what="model.path")


def test_a_model_folder_named_in_the_file(tmp_path: Path) -> None:
    config = trained(2, model={"config": None, "path": str(tmp_path)})
    (finding,) = told(look(config, files=False), "model")
    assert finding == Finding(
        "error",
        "model",
        f"model.path {tmp_path} holds no config.json; it must hold a Hugging Face model",
        ("model.path",),
        "model section of run.yaml",
    )
    model_folder(tmp_path)
    assert told(look(config, files=False), "model") == []


def test_what_is_not_known_about_a_model_is_said() -> None:
    def lines(config: dict[str, dict[str, object]], word: str) -> list[str]:
        return [line for line in look(config, files=False).not_looked_at if line.startswith(word)]

    assert lines(world(2), "model") == [
        "model: none is named (heads, widths and bytes; --model FOLDER names one)"
    ]
    sizeless = {key: value for key, value in LLAMA.items() if key != "vocab_size"}
    assert lines(trained(2, model={"config": sizeless}), "vocabulary") == [
        "vocabulary: its size is the tokenizer's, which is not known yet; bytes count 262 rows"
    ]
    assert lines({**world(2), "model": {"config": LLAMA}}, "bytes") == [
        "bytes of a step: they are not counted without a global batch"
    ]
    assert lines(trained(2, train={"global_batch_size": 7}), "bytes") == [
        "bytes of a step: they are not counted without a global batch that fits"
    ]
    assert lines(trained(2, data={"max_seq_length": 9}, parallel={"context_parallel_size": 2}), "bytes") == [
        "bytes of a step: they are not counted without a row length that fits"
    ]
    staged = trained(2, parallel={"pipeline_model_parallel_size": 2})
    assert lines(staged, "bytes") == []
    assert lines(trained(2, model={"config": [1]}), "model") == []  # it is named, and wrong
