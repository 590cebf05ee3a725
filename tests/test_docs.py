"""Tables and pages in the docs are made from results and docstrings, and are up to date."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("script", ["tables.py", "pages.py"])
def test_docs_are_what_their_sources_say(script: str) -> None:
    run = [sys.executable, str(ROOT / "benchmarks" / script), "--check"]
    done = subprocess.run(run, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, f"run python benchmarks/{script}: {done.stdout}{done.stderr}"


def test_the_readme_shows_the_two_commands_and_a_picture() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text and "make test" in text
    for line in text.splitlines():
        if line.startswith("!["):
            assert (ROOT / line.split("(")[1].rstrip(")")).exists(), line
