"""A method is a short file: what is longer hides a part that the core is missing."""

from __future__ import annotations

import ast
import tokenize
from pathlib import Path

import pytest

import fedtailor.methods

FOLDER = Path(fedtailor.methods.__file__).parent
FILES = sorted(path for path in FOLDER.glob("*.py") if path.name != "__init__.py")
LIMIT = 60
# tokens that make no line a line of code
NOTHING = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING, tokenize.ENDMARKER,
}  # fmt: skip


def _is_text(node: ast.AST) -> bool:
    """A string that stands alone: a docstring."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def code_lines(path: Path) -> int:
    """Lines without docstrings, comments, blank lines and imports."""
    with path.open("rb") as file:
        tokens = [t for t in tokenize.tokenize(file.readline) if t.type not in NOTHING]
    lines = {n for t in tokens for n in range(t.start[0], t.end[0] + 1)}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.Import, ast.ImportFrom)) or _is_text(node):
            lines -= set(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def test_the_count(tmp_path: Path) -> None:
    """Three lines of code: the statement over two lines counts twice."""
    path = tmp_path / "some.py"
    path.write_text(
        '"""What it is.\n\nAt length.\n"""\n\nfrom a import (\n    b,\n)\n\n\n'
        '# why\ndef f():\n    """Says."""\n    import c\n    return b(\n        c)  # so\n',
        encoding="utf-8",
    )
    assert code_lines(path) == 3


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_method_is_short(path: Path) -> None:
    count = code_lines(path)
    assert count <= LIMIT, f"{path.name} has {count} lines of code, over {LIMIT}: move a part out"
