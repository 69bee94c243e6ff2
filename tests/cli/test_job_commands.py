"""``rankloom explain`` and ``rankloom compare`` where they cannot do what is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankloom.cli import main

DEMO = str(Path(__file__).resolve().parents[2] / "examples/demo/demo.yaml")
Capture = pytest.CaptureFixture[str]


def run(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([*arguments])
    captured = capsys.readouterr()
    code = ended.value.code
    return (code if isinstance(code, int) else 0), captured.out, captured.err


@pytest.mark.parametrize(
    ("output", "named"), [("", "no file"), ("-", "standard output"), ("FOLDER", "the folder FOLDER")]
)
def test_places_of_a_page_that_are_none(capsys: Capture, tmp_path: Path, output: str, named: str) -> None:
    output, named = (text.replace("FOLDER", str(tmp_path)) for text in (output, named))
    message = f"rankloom explain: -o names {named}; name a file for the page, as in -o page.html\n"
    assert run(capsys, "explain", DEMO, "-o", output) == (2, "", message)


def test_a_comparison_says_which_job_is_wrong(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "other.yaml"
    path.write_text("cluster: {world_size: 8, nodes: 2}\nparallel: {context_parallel_size: 3}\n")
    for jobs, name in (([DEMO, str(path)], "B"), ([str(path), DEMO], "A")):
        code, out, err = run(capsys, "compare", *jobs)
        assert (code, out) == (2, "")
        lines = err.removeprefix("rankloom compare: ").splitlines()
        assert len(lines) == 2
        assert all(line.startswith(f"{name}: ") for line in lines)
    code, _, err = run(capsys, "compare", DEMO, "--parallel.context_parallel_size", "3")
    assert err.startswith("rankloom compare: B: world_size 8 is not a multiple of 12")
    code, _, err = run(capsys, "compare", str(tmp_path / "no.yaml"), DEMO)
    assert err == f"rankloom compare: A: config file {tmp_path / 'no.yaml'} does not exist\n"


def test_a_caption_of_many_ranks_names_a_command_that_lists_them(capsys: Capture) -> None:
    code, out, _ = run(capsys, "explain", "--world-size", "128")
    assert code == 0
    assert "the first 64 of 128 ranks; rankloom layout --json prints all" in out
