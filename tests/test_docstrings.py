"""Every docstring opens with a summary line."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parent.parent / "src" / "fedtailor"
HEADINGS = ("Args", "Attributes", "Deviations", "Example", "Raises", "Reference", "Returns")
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def without_summary(path: Path) -> list[str]:
    """What in a module has a docstring that opens with a heading, or with several lines."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, Documented) and (text := ast.get_docstring(node)) is not None:
            first, *rest = text.splitlines()
            if first.partition(":")[0] in HEADINGS or (rest and rest[0]):
                found.append(getattr(node, "name", "the module"))
    return found


@pytest.mark.parametrize(
    "package", sorted({p.parent for p in SRC.rglob("*.py")}), ids=lambda p: p.name
)
def test_docstrings_open_with_a_summary(package: Path) -> None:
    offenders = {
        path.name: names
        for path in sorted(package.glob("*.py"))
        if (names := without_summary(path))
    }
    assert offenders == {}


def test_modules_say_what_they_are() -> None:
    silent = [
        str(path.relative_to(SRC))
        for path in SRC.rglob("*.py")
        if ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) is None
    ]
    assert silent == []
