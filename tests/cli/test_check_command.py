"""``rankloom check`` as a person and as a program use it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rankloom.cli import main
from rankloom.config import load, resolve

DEMO = str(Path(__file__).resolve().parents[2] / "examples/demo/demo.yaml")
CHAT = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
Capture = pytest.CaptureFixture[str]


def run(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["check", *arguments])
    captured = capsys.readouterr()
    code = ended.value.code
    return (code if isinstance(code, int) else 0), captured.out, captured.err


def report(capsys: Capture, *arguments: str) -> Any:
    code, out, err = run(capsys, *arguments, "--json")
    assert err == ""
    assert out.count("\n") == 1
    printed = json.loads(out)
    assert printed["exit_code"] == code
    return printed


def written(folder: Path, *, chats: str = CHAT, **changes: dict[str, object]) -> tuple[Path, dict[str, Any]]:
    (folder / "chats.jsonl").write_text(chats)
    config: dict[str, Any] = {
        "model": {
            "config": {
                "model_type": "llama",
                "hidden_size": 64,
                "intermediate_size": 96,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "vocab_size": 512,
            }
        },
        "parallel": {"tensor_parallel_num_weight_shards": 2},
        "data": {"train": str(folder / "chats.jsonl")},
        "train": {"global_batch_size": 8, "max_steps": 2},
        "checkpoint": {"dir": str(folder / "run")},
        "cluster": {"world_size": 4},
    }
    for name, body in changes.items():
        config[name] = {**config.get(name, {}), **body}
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config))
    return path, config


def test_a_clean_config(capsys: Capture, tmp_path: Path) -> None:
    path, _ = written(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert run(capsys, str(path)) == (
        0,
        "4 GPUs hold 2 copies of the weights, each cut 2 ways, and train on 4 lanes; no\nrow is cut.\n\n"
        f"{path}: nothing to mend\n",
        "",
    )
    assert sorted(tmp_path.rglob("*")) == before  # nothing was made


def test_everything_wrong_is_told_in_one_run(capsys: Capture, tmp_path: Path) -> None:
    path, _ = written(tmp_path, chats=CHAT + "nope\n", parallel={"tensor_parallel_num_weight_shards": 3})
    code, out, err = run(capsys, str(path))
    assert (code, err) == (2, "")
    words = " ".join(out.split())
    assert (
        "error world_size 4 is not a multiple of 3 = tensor_parallel_num_weight_shards 3 x "
        "context_parallel_size 1 x pipeline_model_parallel_size 1; try world_size 3 or 6, or "
        "tensor_parallel_num_weight_shards 2 or 4 "
    ) in words
    assert (
        f"error {tmp_path / 'chats.jsonl'}, line 2: not valid JSON: Expecting value at column 1; mend it, or "
        f"leave it out with data.bad_records: skip data section of {path}"
    ) in words
    assert out.splitlines()[-1] == f"{path}: 2 errors"
    assert max(map(len, (line for line in out.splitlines() if "/" not in line))) <= 80


def test_exit_codes(capsys: Capture) -> None:
    assert run(capsys, DEMO)[0] == 0
    assert run(capsys, "--world-size", "8")[0] == 0
    assert run(capsys, "--world-size", "6", "--gpus-per-node", "8")[0] == 1
    assert run(capsys, "--world-size", "6", "--gpus-per-node", "8", "--context-parallel-size", "4")[0] == 2


def test_what_is_left_out_is_neither_a_warning_nor_an_error(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("")
    assert run(capsys, str(path)) == (
        0,
        "Not looked at\n"
        "  layout: the number of ranks is not said; give --world-size\n"
        "  batch: there is no batch size (train.global_batch_size)\n"
        "  model: none is named (heads, widths and bytes; --model FOLDER names one)\n"
        f"\n{path}: nothing to mend\n",
        "",
    )


def test_json(capsys: Capture, tmp_path: Path) -> None:
    path, _ = written(tmp_path, train={"global_batch_size": 6})
    printed = report(capsys, str(path), "--world-size", "8")
    assert list(printed) == [
        "program",
        "origin",
        "exit_code",
        "counts",
        "findings",
        "not_looked_at",
        "read",
        "ignored",
        "rank_order",
        "sizes",
        "sources",
        "crossings",
        "driver",
        "calls",
    ]
    assert (printed["program"], printed["origin"], printed["exit_code"]) == ("rankloom", str(path), 2)
    assert printed["counts"] == {"error": 1, "warning": 0, "note": 0}
    message = (
        "train.global_batch_size 6 is not a multiple of 8 = train.micro_batch_size 1 x 8 lanes; try 8 (8 "
        "lanes = 8 / (1 x 1 x 1): cluster.world_size / (pipeline x runtime context x tensor parallel size))"
    )
    where, micro = f"train section of {path}", "train.micro_batch_size"
    assert printed["findings"] == [
        {
            "severity": "error",
            "topic": "batch",
            "message": message,
            "where": where,
            "places": [
                {
                    "key": "train.global_batch_size",
                    "spelled": "train.global_batch_size",
                    "value": 6,
                    "source": "file",
                    "where": where,
                },
                {"key": micro, "spelled": micro, "value": 1, "source": "derived", "where": ""},
            ],
        }
    ]
    assert printed["sizes"]["batch_parallel_size"] == 8
    assert printed["rank_order"] == "tp-gtp-cp-dp-pp"
    assert printed["sources"]["cluster.world_size"] == "cli"
    assert [crossing["group"] for crossing in printed["crossings"]] == [
        "gtp_remat",
        "replica",
        "gtp_remat_replica",
        "world",
    ]
    assert (printed["driver"], printed["calls"], printed["read"], printed["ignored"]) == (None, [], [], [])


def test_json_of_values_that_json_has_no_word_for(capsys: Capture, tmp_path: Path) -> None:
    path, _ = written(tmp_path, data={"train": [{"path": "none.jsonl", "weight": 2}]})
    path.write_text(path.read_text() + "optimizer: {lr: .nan, eps: !!binary aGk=, name: !!set {a, b}}\n")
    printed = report(capsys, str(path), "--schedule.min_lr", ".inf")
    values = {f["places"][0]["key"]: f["places"][0]["value"] for f in printed["findings"]}
    assert values == {
        "data.train": [{"path": "none.jsonl", "weight": 2.0}],
        "optimizer.lr": "nan",
        "optimizer.eps": "b'hi'",
        "optimizer.name": values["optimizer.name"],
        "schedule.min_lr": "inf",
    }


def test_two_calls_of_one_name_are_refused(capsys: Capture) -> None:
    calls = ["--call", "train: shard=dp replicate=cp,tp,pp", "--call", "train: replicate=dp,cp,tp,pp"]
    printed = report(capsys, "--world-size", "8", *calls)
    told = [found["message"] for found in printed["findings"] if found["severity"] == "error"]
    assert told == ["call train is given twice; give each call a name of its own"]
    assert len(printed["calls"]) == 1


def test_control_characters_are_shown_and_not_obeyed(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[31m\x07.yaml"
    path.write_text('"x\\e[2Jy": 1\ndata: {train: "b\\e]0;title\\a.jsonl", "k\\u202e": 2}\n')
    for arguments in ([], ["--resolved"], ["--json"]):
        code, out, err = run(capsys, str(path), *arguments)
        assert code == 2
        assert not {"\x1b", "\x07", "\u202e"} & {*out, *err}
    _, out, _ = run(capsys, str(path))
    assert "x\\x1b[2Jy is not" in " ".join(out.split())
    code, _, err = run(capsys, str(tmp_path / "no\x1b[31m.yaml"))
    assert (code, "\x1b" in err) == (2, False)
    assert err.endswith("no\\x1b[31m.yaml does not exist\n")


def test_many_keys_that_are_none_are_counted(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    many = {f"setting{i}": 1 for i in range(3_000)}
    config = {"model_type": "llama", "vocab_size": 512, **many}
    path.write_text(yaml.safe_dump({"train": many, "logging": 7, "model": {"config": config}}))
    printed = report(capsys, str(path), "--world-size", "1")
    told = [found["message"] for found in printed["findings"]]
    assert sum(message.startswith("train.setting") for message in told) == 19  # and logging
    assert "2981 more keys are no settings" in told
    assert "logging is a section of settings, not a value: 7" in told
    assert sum(message.startswith("model.config.setting") for message in told) == 20
    assert "2980 more keys of model.config are not keys of a llama config" in told


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data: {train: " + "[" * 60 + "]" * 60 + "}", "its lists and mappings are nested too deeply"),
        ("data: {train: " + "[" * 9000 + "]" * 9000 + "}", "its lists and mappings are nested too deeply"),
        ("a: &a [*a]", "an alias stands inside what it stands for"),
        (
            "\n".join(["a0: &a0 [1, 1]", *(f"a{i + 1}: &a{i + 1} [*a{i}, *a{i}]" for i in range(40))]),
            "it has more than 1000000 entries",
        ),
    ],
)
def test_files_that_nobody_writes(capsys: Capture, tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    code, out, err = run(capsys, str(path), "--json")
    assert (code, out) == (2, "")
    assert message in err
    assert "internal error" not in err


@pytest.mark.parametrize("value", ["[" * 60 + "]" * 60, "[" * 9000 + "]" * 9000])
def test_values_that_nobody_writes(capsys: Capture, value: str) -> None:
    code, _, err = run(capsys, "--world-size", "1", "--data.train", value)
    assert code == 2
    assert "the value of --data.train is not valid YAML" in err


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("-", "- is standard input, which is read with --from alone; name a config file"),
        ("", "the name of the job is empty; name a file"),
    ],
)
def test_sources_that_are_no_files(capsys: Capture, source: str, message: str) -> None:
    assert run(capsys, source) == (2, "", f"rankloom check: {message}\n")


def test_a_setting_is_refused_as_it_was_typed(capsys: Capture) -> None:
    code, _, err = run(capsys, DEMO, "--global-batch-size", "64")
    assert code == 2
    assert err.startswith("rankloom check: --global-batch-size is not an option of this command")


def test_json_without_a_layout(capsys: Capture) -> None:
    printed = report(capsys, "--world-size", "7", "--context-parallel-size", "2")
    assert (printed["sizes"], printed["rank_order"], printed["crossings"]) == (None, None, [])
    (place, *_) = printed["findings"][0]["places"]
    assert (place["key"], place["value"], place["source"]) == ("cluster.world_size", 7, "cli")


def test_json_of_a_driver_and_calls(capsys: Capture) -> None:
    printed = report(
        capsys,
        "--world-size", "8", "--context-parallel-size", "2", "--tensor-parallel-num-weight-shards", "2",
        "--driver", "pp,-1,cp,tp",
        "--call", "sync: shard=data_parallel replicate=context_parallel",
    )  # fmt: skip
    driver = printed["driver"]
    assert (driver["agrees"], driver["num_lanes"], driver["num_driver_lanes"]) == (False, 4, 4)
    assert [row["rank"] for row in driver["wrong_ranks"]] == [1, 2, 5, 6]
    assert driver["wrong_ranks"][0] == {"rank": 1, "lane": 1, "driver_lane": 0}
    (call,) = printed["calls"]
    assert (call["name"], call["num_reached"], call["not_reached"]) == ("sync", 8, [])


def test_the_resolved_config_is_input_again(capsys: Capture, tmp_path: Path) -> None:
    path, _ = written(tmp_path, optimizer={"no_decay": ["*.bias", "näm e"], "betas": [0.8, 0.9]})
    arguments = [str(path), "--train.seed", "3", "--world-size", "2", "--nvlink-domains", "0;1"]
    code, out, err = run(capsys, *arguments, "--resolved")
    lines = {line.split(":")[0].strip(): line for line in out.splitlines()}
    assert lines["world_size"] == "  world_size: 2  # cli"
    assert lines["global_batch_size"] == "  global_batch_size: 8  # file"
    assert lines["decay_samples"] == "  decay_samples: 16  # derived"
    assert lines["nvlink_domains"] == "  nvlink_domains: [[0], [1]]  # cli"
    assert lines["lr"] == "  lr: 0.0003  # derived"
    assert err.splitlines()[0].startswith("warning: 1 of 1 gtp_remat groups (2 ranks each) cross NVLink")
    cli = {"train.seed": 3, "cluster.world_size": 2, "cluster.nvlink_domains": "0;1"}
    assert resolve(yaml.safe_load(out)).to_mapping() == load(path, cli=cli).to_mapping()
    again = tmp_path / "resolved.yaml"
    again.write_text(out)
    first, second = report(capsys, *arguments), report(capsys, str(again))
    assert (first["exit_code"], first["sizes"]) == (code, second["sizes"])
    told = [[f["message"] for f in each["findings"] if f["severity"] != "note"] for each in (first, second)]
    assert told[0] == told[1]
    _, resolved_again, _ = run(capsys, str(again), "--resolved")
    assert yaml.safe_load(resolved_again) == yaml.safe_load(out)


def test_the_translation_of_another_programs_job(capsys: Capture) -> None:
    job = (
        "torchrun --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 2 --sequence-parallel"
        " --micro-batch-size 1 --global-batch-size 64 --seq-length 4096 --train-iters 500"
        " --num-layers 4 --hidden-size 512 --ffn-hidden-size 1024 --num-attention-heads 8 --swiglu"
        " --normalization RMSNorm --disable-bias-linear --position-embedding-type rope"
        " --untie-embeddings-and-output-weights --tokenizer-type NullTokenizer --vocab-size 32000"
        " --max-position-embeddings 4096"
    )
    _, out, _ = run(capsys, "--from", "megatron", f"{job} --bf16", "--resolved")
    assert out.splitlines()[:3] == [
        '# What "the command line" (megatron) says, in settings of rankloom.',
        "# It is no whole config: the optimizer and its schedule are not translated.",
        "# A run needs besides: data.train",
    ]
    said = yaml.safe_load(out)
    assert said["model"]["dtype"] == "bfloat16"
    assert said["model"]["config"]["hidden_size"] == 512
    assert said["train"] == {"micro_batch_size": 1, "global_batch_size": 64, "max_steps": 500}
    assert said["data"] == {"max_seq_length": 4096}
    assert said["cluster"] == {"world_size": 8, "gpus_per_node": 8}
    assert said["parallel"]["tensor_model_parallel_size"] == 2
    assert "  max_steps: 500  # --train-iters in the command line\n" in out
    assert "optimizer" not in said
    said["data"]["train"] = "python-docs"
    assert resolve(said).layout.batch_parallel_size == 4

    _, out, _ = run(capsys, "--from", "megatron", job, "--resolved", "--data.train", "chats.jsonl")
    assert yaml.safe_load(out)["model"]["dtype"] == "float32"
    assert "A run needs" not in out
    _, out, _ = run(capsys, "--from", "megatron", f"{job} --fp16", "--resolved")
    assert "dtype" not in yaml.safe_load(out)["model"]
    assert "# A run needs besides: model.dtype, data.train\n" in out


def test_what_was_refused_is_not_resolved(capsys: Capture, tmp_path: Path) -> None:
    path, _ = written(tmp_path, train={"max_steps": "many", "seed": 4}, data={"cache_dir": "a\nb # c"})
    code, out, err = run(capsys, str(path), "--resolved")
    assert code == 2
    assert "  # max_steps: refused\n" in out
    assert "  seed: 4  # file\n" in out
    assert yaml.safe_load(out)["data"]["cache_dir"] == "a\nb # c"
    assert err.startswith("error: train.max_steps must be an integer of at least 1, or null, not 'many' (")
    assert (
        "# train: cannot be resolved"
        in run(capsys, str(path), "--train.global_batch_size", "x", "--resolved")[1]
    )


@pytest.mark.parametrize(
    "arguments",
    [
        [DEMO, "--train.global_batch_size", "16", "--world-size", "16"],
        ["--train.global_batch_size", "16", "--world-size", "16", DEMO],
        ["--train.global-batch-size=16", DEMO, "--world-size=16"],
        ["--cluster.world_size", "16", "--train.global_batch_size=16", DEMO],
        [DEMO, "--", "--cluster.world_size", "16", "--train.global_batch_size=16"],
    ],
)
def test_settings_and_flags_may_stand_anywhere(capsys: Capture, arguments: list[str]) -> None:
    printed = json.loads(run(capsys, "--json", *arguments)[1])
    assert printed["exit_code"] == 0
    assert printed["sizes"]["batch_parallel_size"] == 4
    assert printed["sources"]["train.global_batch_size"] == "cli"


def test_a_job_of_flags_alone(capsys: Capture) -> None:
    printed = report(capsys, "--world-size", "8", "--train.global_batch_size", "12", "--train.max_steps", "3")
    (finding,) = printed["findings"]
    assert printed["origin"] == "the command line"
    assert finding["message"].startswith("train.global_batch_size 12 is not a multiple of 8 =")
    assert finding["where"] == "--train.global_batch_size"
    code, _, err = run(capsys)
    assert (code, err) == (
        2,
        "rankloom check: the number of ranks is missing; give --world-size, or a config file with "
        "cluster.world_size\n",
    )
    assert run(capsys, "--fold-whole-cp")[0] == 2


@pytest.mark.parametrize("flag", ["--context-parallel-size", "--parallel.context_parallel_size"])
def test_older_spellings_are_translated_and_shown(capsys: Capture, flag: str) -> None:
    printed = report(
        capsys, "--world-size", "16", flag, "8", "--tensor-parallel-num-weight-shards", "4",
        "--gtp-remat-fold-cp",
    )  # fmt: skip
    assert printed["findings"][0]["message"] == (
        "--gtp-remat-fold-cp means tensor_parallel_num_weight_shards 4, tensor_parallel_num_sequence_shards "
        "4, context_parallel_size 2"
    )
    assert printed["findings"][0]["severity"] == "note"
    assert printed["sizes"]["runtime_context_parallel_size"] == 8
    printed = report(capsys, "--world-size", "8", flag, "4", "--fold-whole-cp")
    assert printed["sizes"]["tensor_parallel_num_weight_shards"] == 4
    assert printed["sizes"]["context_parallel_size"] == 1


@pytest.mark.parametrize("value", ["0", "-4"])
def test_older_spellings_of_impossible_sizes(capsys: Capture, value: str) -> None:
    for flag in ("--context-parallel-size", "--tensor-parallel-num-weight-shards"):
        printed = report(capsys, "--world-size", "8", flag, value, "--fold-whole-cp")
        (finding,) = printed["findings"]
        key = f"parallel.{flag.removeprefix('--').replace('-', '_')}"
        assert finding["message"].startswith(f"{key} must be an integer of at least 1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--learning-rate", "3", DEMO], "--learning-rate is not an option of this command; a setting is"),
        ([DEMO, "--fast"], "--fast is not an option of this command; a setting is written with its section"),
        ([DEMO, "more.yaml"], "'more.yaml' does not belong to any --key.sub; write --key.sub VALUE"),
        ([DEMO, "--train.seed", "[&x [*x]]"], "the value of --train.seed is not valid YAML: '[&x [*x]]' ("),
        ([DEMO, "--train.seed", "[" * 3000], "the value of --train.seed is not valid YAML: '[[["),
        ([DEMO, "--train.seed", "9" * 5000], "the value of --train.seed is not valid YAML: '999"),
        ([DEMO, "--train.seed"], "--train.seed has no value; write --train.seed VALUE"),
        (["--from", "deepspeed", DEMO], "--from 'deepspeed' is not known; it is one of rankloom, megatron"),
        (["--world-size", "8", "--sequence-parallel", "maybe"], "--sequence-parallel is true or false, not"),
        ([DEMO, "--fold-whole-cp"], "--fold-whole-cp translates flags, not a config file"),
        (["none.yaml"], "config file none.yaml does not exist"),
        (["/dev"], "config file /dev is a folder; name the file in it"),
        (["x" * 5000], f"config file {'x' * 5000} cannot be read: File name too long"),
    ],
)
def test_what_cannot_be_looked_at_ends_in_one_message(
    capsys: Capture, arguments: list[str], message: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"rankloom check: {message}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe\x00", "is not UTF-8 text (byte 0xff at 0); is it a YAML file?"),
        (b"- a\n- b\n", "must be a mapping of sections (model, parallel, data, train, optimizer"),
        (b"train: {}\ntrain: {}\n", ":2: train is set twice, first in line 1"),
        (b"train: &t\n  seed: *t\n", ":1: an alias stands inside what it stands for"),
        (b"train: " + b"[" * 3000, ": its lists and mappings are nested too deeply"),
        (b"train: {seed: " + b"9" * 5000 + b"}", ": not valid YAML: Exceeds the limit"),
        (b"train: !!python/name:os.system {}", ":1: could not determine a constructor for the tag"),
    ],
)
def test_files_that_are_no_config(capsys: Capture, tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(content)
    code, out, err = run(capsys, str(path))
    assert (code, out) == (2, "")
    assert message in err
    assert "internal error" not in err


@pytest.mark.parametrize(
    "text",
    [
        "1: 2\ntrue: 3\nnull: 4\n1.5: 6\n2020-01-01: 5\n",
        "train: {1: 2, null: 3, global_batch_size: 8, max_steps: 1}\n",
        "train: {global_batch_size: {a: 1}, max_steps: [1]}\ncluster: {world_size: {}}\n",
        "cluster: {world_size: 99999999999999999999999}\n",
        "cluster: {world_size: 8}\ntrain: {global_batch_size: 10000000000000000000000000, max_steps: .nan}\n",
        'checkpoint: {dir: "x\\0y"}\ntrain: {global_batch_size: 8, max_steps: 1}\n',
        'model: {path: "x\\0y"}\n',
        "model: {config: [1]}\ntrain: {global_batch_size: 8, max_steps: 1}\n",
        "model: {config: {model_type: [a]}}\n",
        "parallel: {context_parallel_size: 100000000000000000000}\ncluster: {world_size: 8}\n",
        "cluster: {world_size: 8, gpus_per_node: 10000000000000000000000, keys: 1}\n",
        "cluster: {world_size: 8, nvlink_domain_size: 10000000000000000000000, keys: 1}\n",
    ],
)
def test_odd_values_are_findings(capsys: Capture, tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    printed = report(capsys, str(path))
    assert printed["exit_code"] == 2
    assert all(len(finding["message"]) < 400 for finding in printed["findings"])


def test_a_world_of_one_and_a_very_large_one(capsys: Capture) -> None:
    assert report(capsys, "--world-size", "1")["counts"] == {"error": 0, "warning": 0, "note": 0}
    shards = ["--tensor-parallel-num-weight-shards", "64", "--context-parallel-size", "2"]
    code, out, _ = run(capsys, "--world-size", "131072", *shards)
    assert code == 1
    assert len(out) < 2500


MEGATRON = (
    "torchrun --nproc-per-node 8 p.py --tensor-model-parallel-size 2 --micro-batch-size 1 --log-interval 5"
)


@pytest.mark.parametrize("command", ["layout", "explain", "compare"])
def test_every_command_says_what_it_read_and_passed_over(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    given = [command, "--from", "megatron", MEGATRON]
    given += ["--parallel.context_parallel_size", "2"] * (command == "compare")
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert not ended.value.code
    told = capsys.readouterr().err
    for name in ("A: ", "B: ") if command == "compare" else ("",):
        assert (
            f"{name}Read from the command line (megatron)\n"
            f"{name}--nproc-per-node 8, --tensor-model-parallel-size 2, --micro-batch-size 1\n"
            f"{name}ignored: --log-interval\n"
        ) in told


def test_a_rank_order_that_was_typed_is_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check", "--from", "megatron", "--json", "--rank-order", "tp-gtp-cp-dp-pp", MEGATRON])
    report = json.loads(capsys.readouterr().out)
    assert report["sources"]["parallel.rank_order"] == "cli"
    (finding,) = [f for f in report["findings"] if f["message"].startswith("with rank order")]
    assert finding["where"] == "given on the command line"
