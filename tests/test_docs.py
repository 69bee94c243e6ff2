"""The documentation holds: commands run and print what is shown, settings resolve, links lead somewhere."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from rankloom.cli.overrides import parse_overrides
from rankloom.config import load, resolve
from rankloom.config.keys import KEYS
from rankloom.config.schema import SECTIONS

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("examples/*/README.md")),
)
FENCE = re.compile(r"^```(\S*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
LEFT_OUT = "..."


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; ``exit_code`` is what its commands are said to end with."""

    page: str
    line: int
    language: str
    text: str
    exit_code: int = 0

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    def commands(self) -> list[tuple[str, list[str]]]:
        """Each command with the lines shown below it; in ``sh`` blocks every line is a command."""
        joined = self.text.replace("\\\n", " ").splitlines()
        if self.language == "sh":
            return [(line, []) for line in joined if line]
        found: list[tuple[str, list[str]]] = []
        for line in joined:
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif found:
                found[-1][1].append(line.rstrip())
        return found


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        said = re.search(r"exit=(\d+)", match[2])
        line = text.count("\n", 0, match.start()) + 1
        code = int(said[1]) if said else 0
        found.append(Block(str(page.relative_to(ROOT)), line, match[1], match[3], code))
    return found


def without_fences(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
COMMANDS = [
    pytest.param(block, shlex.split(command, comments=True), shown, id=f"{block} {command[:60]}")
    for block in BLOCKS
    if block.language in ("console", "sh")
    for command, shown in block.commands()
]


def is_training(words: list[str]) -> bool:
    return words[0] in ("make", "torchrun", "pip") or words[:2] == ["rankloom", "train"]


@pytest.mark.parametrize(
    ("block", "words", "shown"), [case for case in COMMANDS if not is_training(case.values[1])]
)
def test_command_prints_what_is_shown(block: Block, words: list[str], shown: list[str]) -> None:
    assert words[0] == "rankloom", "a page shows only commands that this test knows how to run"
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == block.exit_code, done.stderr
    printed = [line.rstrip() for line in (done.stdout + done.stderr).splitlines()]
    for part in parts_of(shown):
        assert "\n".join(part) in "\n".join(printed)


def parts_of(shown: list[str]) -> list[list[str]]:
    """The runs of lines between those left out."""
    parts: list[list[str]] = [[]]
    for line in shown:
        if line == LEFT_OUT:
            parts.append([])
        else:
            parts[-1].append(line)
    return parts


@pytest.mark.parametrize(("block", "words", "shown"), [c for c in COMMANDS if is_training(c.values[1])])
def test_training_command_resolves(
    block: Block, words: list[str], shown: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if words[0] == "make":
        targets = re.findall(r"^([\w-]+)(?=[\w -]*:)", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(words[1:]) <= {*targets}
        return
    if "train" not in words:
        return
    path, *overrides = words[words.index("train") + 1 :]
    if path == "run.yaml":  # the page's own config, or any
        monkeypatch.chdir(tmp_path)
        Path(path).write_text("train: {global_batch_size: 8}\ncluster: {world_size: 8}\n")
    else:
        monkeypatch.chdir(ROOT)
    load(path, cli=parse_overrides(overrides))


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "yaml"], ids=str)
def test_yaml_resolves(block: Block) -> None:
    mapping = yaml.safe_load(block.text)
    needed = {"train.global_batch_size": 8, "cluster.world_size": 8}
    assert set(mapping) <= set(SECTIONS)
    resolve(mapping, defaults=needed)


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "python"], ids=str)
def test_python_runs(block: Block) -> None:
    exec(compile(block.text, str(block), "exec"), {})


def test_every_setting_is_described_with_its_default() -> None:
    rows = re.findall(
        r"^\| `(\w+\.\w+)` \| (`[^`]*`|required) \|", (ROOT / "docs/config.md").read_text(), re.M
    )
    assert [key for key, _ in rows] == list(KEYS)
    for key, written in rows:
        section, name = key.split(".")
        field = SECTIONS[section].model_fields[name]
        assert (written == "required") == field.is_required(), key
        if not field.is_required():
            default = field.default
            value = yaml.safe_load(written.strip("`"))
            assert value == (list(default) if isinstance(default, tuple) else default) or (
                isinstance(default, float) and float(value) == default
            ), key


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(without_fences(page)):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors_of(target), link


def anchors_of(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", without_fences(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
