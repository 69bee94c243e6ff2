"""The chat set made of docstrings."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankloom.errors import UserError
from rankloom.records import PYTHON_DOCS, load_records, python_docs

MODULE = '''
"""Things to say politely."""

def greet(name, *, loudly: bool = False) -> str:
    """
    Greet somebody.

        Indented example.
    """

async def wait(): "Wait for a polite while."

class Guest(object):
    """Somebody who is greeted."""
    def __init__(self, name, age=None): pass
    def leave(self):
        "Things to say politely."
    def stay(self):
        """Say \\udc80, which is no character."""

def quiet(): "short"
'''


def test_questions_and_answers(tmp_path: Path) -> None:
    (tmp_path / "polite").mkdir()
    (tmp_path / "test").mkdir()
    (tmp_path / "polite" / "__init__.py").write_text(MODULE)
    (tmp_path / "test" / "skipped.py").write_text('"""Never seen by anybody."""')
    (tmp_path / "broken.py").write_text("def (:")
    records = python_docs(tmp_path)
    assert [record.index for record in records] == list(range(4))
    assert [(r.source, r.messages[0].content, r.messages[1].content) for r in records] == [
        ("polite", "What is the module `polite` for?", "Things to say politely."),
        (
            "polite.greet",
            "What does `polite.greet(name, *, loudly: bool=False)` do?",
            "Greet somebody.\n\n    Indented example.",
        ),
        ("polite.wait", "What does `polite.wait()` do?", "Wait for a polite while."),
        (
            "polite.Guest",
            "What is the class `polite.Guest(name, age=None)` for?",
            "Somebody who is greeted.",
        ),
    ]


def test_no_sources(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"python-docs: no docstrings found under .*; this Python has no library"
    ):
        python_docs(tmp_path)


@pytest.mark.long
def test_the_installed_library() -> None:
    records = load_records(PYTHON_DOCS).records
    assert len(records) > 3000
    assert len({record.messages[1].content for record in records}) == len(records)
    by_name = {record.source: record for record in records}
    assert "json.loads" in by_name
    assert by_name["json.loads"].messages[1].content.startswith("Deserialize")
    assert not any(record.source.startswith(("test.", "idlelib", "lib2to3")) for record in records)
