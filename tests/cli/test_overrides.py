"""``--key.sub VALUE`` arguments."""

from __future__ import annotations

import pytest

from rankloom.cli.overrides import parse_overrides, split_settings
from rankloom.errors import UserError


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], {}),
        (["--train.max_steps", "20"], {"train.max_steps": 20}),
        (["--train.max_steps=20"], {"train.max_steps": 20}),
        (["--optimizer.lr", "3e-4"], {"optimizer.lr": "3e-4"}),  # YAML 1.1; the schema makes it a number
        (["--optimizer.lr", "3.0e-4"], {"optimizer.lr": 3.0e-4}),
        (["--optimizer.weight_decay", "-1"], {"optimizer.weight_decay": -1}),
        (["--optimizer.betas", "[0.9, 0.99]"], {"optimizer.betas": [0.9, 0.99]}),
        (["--train.epochs", "null"], {"train.epochs": None}),
        (["--data.packing", "false"], {"data.packing": False}),
        (["--data.train", "a=b.jsonl"], {"data.train": "a=b.jsonl"}),
        (["--data.train=a=b.jsonl"], {"data.train": "a=b.jsonl"}),
        (["--train.seed", "1", "--train.seed", "2"], {"train.seed": 2}),
        (["--train.max-steps", "5"], {"train.max_steps": 5}),
        (["--model.config.hidden_size", "64"], {"model.config.hidden_size": 64}),
        (["--checkpoint.dir="], {"checkpoint.dir": ""}),
        (["--checkpoint.dir", ""], {"checkpoint.dir": ""}),
        (["--optimizer.no_decay", "['*']"], {"optimizer.no_decay": ["*"]}),
        (
            ["--optimizer.no_decay", "*.bias"],
            "the value of --optimizer.no_decay starts with *, which means something else in YAML; quote it: "
            """'"*.bias"', or as an entry of a list '["*.bias"]'""",
        ),
        (["--data.train", "--x.y=1"], "--data.train has no value; write --data.train VALUE"),
        (["--data.train"], "--data.train has no value; write --data.train VALUE"),
        (["stray"], "'stray' does not belong to any --key.sub; write --key.sub VALUE"),
        (["-x"], "'-x' does not belong to any --key.sub; write --key.sub VALUE"),
        (["--"], "'--' does not belong to any --key.sub; write --key.sub VALUE"),
        (["--train.seed", "1", "2"], "'2' does not belong to any --key.sub; write --key.sub VALUE"),
        (
            ["--max_steps", "3"],
            "--max_steps is not an option of this command; a setting is written with its section,"
            " as in --train.max_steps 20",
        ),
        (["--train..x", "3"], "--train..x is not an option of this command; a setting is written with its"
            " section, as in --train.max_steps 20"),
        (
            ["--optimizer.betas", "[0.9"],
            "the value of --optimizer.betas is not valid YAML: '[0.9'"
            " (expected ',' or ']', but got '<stream end>')",
        ),
    ],
)  # fmt: skip
def test_parse(args: list[str], expected: object) -> None:
    if isinstance(expected, str):
        with pytest.raises(UserError) as refused:
            parse_overrides(args)
        assert str(refused.value) == expected
    else:
        assert parse_overrides(args) == expected


OPTIONS = ("--json", "--world-size", "-o")


@pytest.mark.parametrize(
    ("args", "own", "settings"),
    [
        (["--train.seed", "3", "run.yaml", "--json"], ["run.yaml", "--json"], ["--train.seed", "3"]),
        (["run.yaml", "--a.b", "-1", "-o", "p.html"], ["run.yaml", "-o", "p.html"], ["--a.b", "-1"]),
        (["--a.b=[0.9, 1]", "--world-size", "8"], ["--world-size", "8"], ["--a.b=[0.9, 1]"]),
        (["--world-size=8", "--a.b", "--json"], ["--world-size=8", "--json"], ["--a.b"]),
        (["--fast", "run.yaml"], ["run.yaml"], ["--fast"]),
        (["--tp-size 4 --seq-length=8"], ["--tp-size 4 --seq-length=8"], []),
        (["run.yaml", "--", "x", "-"], ["run.yaml", "--", "x", "-"], []),
    ],
)
def test_settings_may_stand_anywhere(args: list[str], own: list[str], settings: list[str]) -> None:
    assert split_settings(args, options=OPTIONS) == (own, settings)
