"""A chat set made from the docstrings of the installed Python standard library: real text, no download.

The question holds a qualified name with its signature, the answer is the cleaned docstring. Sources are
parsed, never imported.
"""

from __future__ import annotations

import ast
import inspect
import os
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from rankloom.errors import UserError
from rankloom.records.chat import messages_of
from rankloom.records.record import BadRecordError, ChatRecord

__all__ = ["SKIPPED_FOLDERS", "python_docs", "stdlib_folder"]

SKIPPED_FOLDERS = frozenset(
    {
        *("__pycache__", "dist-packages", "site-packages", "lib-dynload", "pydoc_data"),
        *("ensurepip", "idlelib", "idle_test", "lib2to3", "test", "tests", "turtledemo"),
    }
)
MIN_ANSWER_CHARS = 10
MAX_SIGNATURE_CHARS = 160

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def stdlib_folder() -> Path:
    """Where the sources of the running Python's standard library lie."""
    return Path(sysconfig.get_path("stdlib"))


def python_docs(folder: Path | None = None) -> list[ChatRecord]:
    """The chats, in the order of file names and lines; the same installation always gives the same list.

    A docstring that occurs more than once is kept where it occurs first.

    Raises:
        UserError: the installation has no standard library sources.
    """
    root = stdlib_folder() if folder is None else folder
    records: list[ChatRecord] = []
    seen: set[str] = set()
    for path in _sources(root):
        for question, answer, name in _entries(path, root):
            if len(answer) < MIN_ANSWER_CHARS or answer in seen:
                continue
            seen.add(answer)
            turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            try:
                messages = messages_of({"messages": turns})
            except BadRecordError:
                continue  # a docstring with an unpaired surrogate cannot be written as UTF-8
            records.append(ChatRecord(index=len(records), messages=messages, source=name, line=None))
    if not records:
        raise UserError(f"python-docs: no docstrings found under {root}; this Python has no library sources")
    return records


def _sources(root: Path) -> list[Path]:
    found: list[tuple[str, ...]] = []
    for folder, folders, files in os.walk(root):
        folders[:] = [
            name for name in folders if name not in SKIPPED_FOLDERS and not name.startswith("config-")
        ]
        place = Path(folder).relative_to(root).parts
        found += [(*place, name) for name in files if name.endswith(".py")]
    return [root.joinpath(*parts) for parts in sorted(found)]


def _entries(path: Path, root: Path) -> Iterator[tuple[str, str, str]]:
    """Question, answer and qualified name of every documented definition of one file."""
    parts = path.relative_to(root).with_suffix("").parts
    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in old library code are not ours to report
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            return  # installations carry a few files that are broken on purpose, as test data
    answer = _docstring(tree)
    if answer:
        yield f"What is the module `{module}` for?", answer, module
    yield from _definitions(tree.body, module)


def _definitions(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, str, str]]:
    for node in body:
        if not isinstance(node, Definition):
            continue
        name = f"{prefix}.{node.name}"
        answer = _docstring(node)
        if answer:
            yield _question(node, name), answer, name
        if isinstance(node, ast.ClassDef):
            yield from _definitions(node.body, name)


def _question(node: Definition, name: str) -> str:
    if not isinstance(node, ast.ClassDef):
        return f"What does `{name}({_signature(node)})` do?"
    made_by = [item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"]
    signature = _signature(made_by[0], method=True) if made_by else ""
    return f"What is the class `{name}({signature})` for?"


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef, *, method: bool = False) -> str:
    text = ast.unparse(node.args)
    if method:
        text = text.partition(", ")[2]
    return text if len(text) <= MAX_SIGNATURE_CHARS else text[: MAX_SIGNATURE_CHARS - 3] + "..."


def _docstring(node: Definition | ast.Module) -> str:
    text = ast.get_docstring(node, clean=False)
    return inspect.cleandoc(text).strip() if text else ""
