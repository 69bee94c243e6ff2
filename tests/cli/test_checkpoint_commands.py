"""``rankloom checkpoint``, ``export`` and ``import`` as a person uses them."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rankloom.checkpoint.folders import prepare_partial
from rankloom.cli import main
from rankloom.cli.export import size_in_bytes
from rankloom.errors import UserError
from rankloom.plan.amounts import bytes_text
from tests.checkpoint.small import hf_logits, hf_model, logits, write_checkpoint


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    code = ended.value.code
    return (code if isinstance(code, int) else 0), captured.out, captured.err


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Steps 1 to 3, the second damaged, and a save that did not end."""
    for step in (1, 2, 3):
        write_checkpoint(tmp_path, step)
    (tmp_path / "step-00000002" / "rank-00000.safetensors").write_bytes(b"2" * 99)
    prepare_partial(tmp_path / "step-00000004")
    return tmp_path


def test_list(capsys: pytest.CaptureFixture[str], directory: Path) -> None:
    code, out, err = run(capsys, "checkpoint", "list", directory)
    assert (code, err) == (0, "")
    size = sum(file.stat().st_size for file in (directory / "step-00000001").iterdir())
    layout = "8 ranks: TP 2, W 4, Q 2, CP 2"
    damaged = f"the checkpoint {directory / 'step-00000002'} is damaged"
    assert [" ".join(line.split()) for line in out.splitlines()] == [
        "name step size samples saved on",
        f"step-00000001 1 {bytes_text(size)} 1,000 {layout} complete",
        f"step-00000002 2 {bytes_text(size - 1)} incomplete: {damaged}: rank-00000.safetensors has 99 bytes "
        "instead of 100",
        f"step-00000003 3 {bytes_text(size)} 3,000 {layout} latest",
        "step-00000004.partial 4 0 B incomplete: its save did not end",
    ]


def test_list_for_machines_and_of_nothing(capsys: pytest.CaptureFixture[str], directory: Path) -> None:
    code, out, _ = run(capsys, "checkpoint", "list", directory, "--json")
    facts = json.loads(out)
    assert code == 0
    assert [(f["step"], f["complete"], f["latest"]) for f in facts] == [
        (1, True, False),
        (2, False, False),
        (3, True, True),
        (4, False, False),
    ]
    assert facts[2]["consumed_samples"] == 3000
    (directory / "empty").mkdir()
    code, out, _ = run(capsys, "checkpoint", "list", directory / "empty")
    assert (code, out) == (0, f"no checkpoints in {directory / 'empty'}\n")
    code, _, err = run(capsys, "checkpoint", "list", directory / "nowhere")
    assert (code, err) == (2, f"rankloom checkpoint: {directory / 'nowhere'}: no such folder\n")


def test_show(capsys: pytest.CaptureFixture[str], directory: Path) -> None:
    code, out, _ = run(capsys, "checkpoint", "show", directory)
    assert code == 0
    lines = dict(line.split(maxsplit=1) for line in out.splitlines() if len(line.split()) > 1)
    assert lines["checkpoint"] == str(directory / "step-00000003")
    assert "saved on          8 ranks: TP 2, W 4, Q 2, CP 2" in out
    assert "model             qwen3, " in out
    assert '    "consumed_samples": 3000' in out.replace("\n  ", "\n    ")
    code, out, _ = run(capsys, "checkpoint", "show", directory / "step-00000001", "--json")
    assert json.loads(out)["state"] == {"consumed_samples": 1000}


def test_verify(capsys: pytest.CaptureFixture[str], directory: Path) -> None:
    code, out, err = run(capsys, "checkpoint", "verify", directory)
    assert code == 2
    assert out.splitlines() == [
        "step-00000001: whole (1 file, 100 B, every checksum is right)",
        "step-00000003: whole (1 file, 100 B, every checksum is right)",
        "step-00000004.partial: left over (its save did not end); the next save or prune removes it",
    ]
    damaged = directory / "step-00000002"
    assert err == (
        f"rankloom checkpoint: the checkpoint {damaged} is damaged: rank-00000.safetensors has 99 bytes "
        "instead of 100\n"
    )
    code, out, _ = run(capsys, "checkpoint", "verify", directory / "step-00000001")
    assert (code, len(out.splitlines())) == (0, 1)


def test_prune(capsys: pytest.CaptureFixture[str], directory: Path) -> None:
    code, out, _ = run(capsys, "checkpoint", "prune", directory, "--keep", 1, "--dry-run")
    going = [directory / "step-00000004.partial", directory / "step-00000001"]
    assert (code, out.splitlines()) == (0, [f"would remove {path}" for path in going])
    code, out, _ = run(capsys, "checkpoint", "prune", directory, "--keep", 1)
    assert (code, out.splitlines()) == (0, [f"removed {path}" for path in going])
    code, out, _ = run(capsys, "checkpoint", "prune", directory)
    assert (code, out) == (0, "nothing to remove\n")
    with (directory / ".lock").open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        code, _, err = run(capsys, "checkpoint", "prune", directory, "--keep", 1)
    assert (code, err) == (
        2,
        f"rankloom checkpoint: a run is using this folder: {directory}; wait for its end\n",
    )


def test_import_and_export(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = hf_model("mistral")
    model.save_pretrained(tmp_path / "hf")
    capsys.readouterr()
    code, out, _ = run(capsys, "import", tmp_path / "hf", tmp_path / "run")
    assert (code, out) == (0, f"imported {tmp_path / 'hf'} as {tmp_path / 'run' / 'step-00000000'}\n")
    code, out, _ = run(capsys, "export", tmp_path / "run", tmp_path / "out", "--shard-size", "50KB")
    assert (code, out) == (0, f"exported {tmp_path / 'run' / 'step-00000000'} to {tmp_path / 'out'}\n")
    assert len(list((tmp_path / "out").glob("model-*-of-*.safetensors"))) > 1
    torch.testing.assert_close(hf_logits(tmp_path / "out")[0], logits(model), rtol=0, atol=1e-6)
    code, _, _ = run(capsys, "export", tmp_path / "run", tmp_path / "half", "--dtype", "bfloat16")
    half = load_file(tmp_path / "half" / "model.safetensors")
    named = dict(model.named_parameters())
    assert code == 0
    assert all(torch.equal(t, named[name].bfloat16()) for name, t in half.items())


def test_refusals(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(capsys, "export", tmp_path, tmp_path / "out")[::2] == (
        2,
        f"rankloom export: {tmp_path} holds no complete checkpoint\n",
    )
    assert run(capsys, "export", tmp_path / "no", tmp_path / "out")[::2] == (
        2,
        f"rankloom export: {tmp_path / 'no'}: no such folder\n",
    )
    assert run(capsys, "import", tmp_path / "no", tmp_path / "out")[::2] == (
        2,
        f"rankloom import: {tmp_path / 'no'}: no such folder\n",
    )
    assert not (tmp_path / "out").exists()


def test_sizes() -> None:
    assert [size_in_bytes(t) for t in ("5GB", "500 mb", "2GiB", "1.5KB", "100")] == [
        5 * 10**9,
        5 * 10**8,
        2**31,
        1500,
        100,
    ]
    for text in ("", "GB", "5XB", "0GB", "-1GB"):
        with pytest.raises(UserError, match=r"--shard-size must be a size such as 5GB, 500MB or 2GiB, not"):
            size_in_bytes(text)
