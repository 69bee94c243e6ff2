"""The scripts of `examples/` as modules, to test their functions."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

__all__ = ["example_script"]

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def example_script(name: str) -> ModuleType:
    """``examples/<name>.py``, run anew as a module."""
    path = EXAMPLES / f"{name}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
