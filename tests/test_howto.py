"""The code of the how-to pages runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs" / "howto").glob("*.md"))
QUOTED = re.compile(r"<!-- code: .*?<!-- end -->", re.DOTALL)  # an example, which has its own test
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def code_of(page: Path) -> str:
    """All blocks of a page, as one script: later ones use what earlier ones made."""
    return "\n".join(BLOCK.findall(QUOTED.sub("", page.read_text(encoding="utf-8"))))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_how_to(page: Path, tmp_path: Path) -> None:
    script = tmp_path / "howto.py"
    script.write_text(code_of(page), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
