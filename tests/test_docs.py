"""The docs are what their sources say, and build as a site without a warning."""

import os
import re
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


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """A broken link, an unlisted page or a docstring that cannot be read is an error."""
    pytest.importorskip("mkdocs")
    run = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(run, capture_output=True, text=True, check=False, cwd=ROOT, env=quiet)
    assert done.returncode == 0, done.stdout + done.stderr
    for page in ("index", "guide", "methods/fedala", "api/index", "api/core", "howto/method"):
        assert (tmp_path / f"{page}.html").exists(), page
    fetched = re.compile(r'<(?:script|img|link)[^>]+(?:src|href)="https?://')
    for page in tmp_path.rglob("*.html"):
        assert not fetched.search(page.read_text(encoding="utf-8")), f"{page} needs the network"
