"""The code of the how-to pages runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "docs" / "own-method.md", *sorted((ROOT / "docs" / "howto").glob("*.md"))]
QUOTED = re.compile(r"<!-- code: .*?<!-- end -->", re.DOTALL)  # an example, which has its own test
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def code_of(page: Path) -> str:
    """All blocks of a page, as one script: later ones use what earlier ones made."""
    return "\n".join(BLOCK.findall(QUOTED.sub("", page.read_text(encoding="utf-8"))))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_how_to(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if not request.config.getoption("--slow"):
        request.getfixturevalue("without_pictures")
    monkeypatch.chdir(tmp_path)  # what it writes must not land in the repository
    exec(compile(code_of(page), page.name, "exec"), {"__name__": "__main__"})
