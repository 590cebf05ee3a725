"""The docs are what their sources say, and build as a site without a warning."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.scripts import load

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("script", ["tables", "pages"])
def test_docs_are_what_their_sources_say(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [script, "--check"])
    with pytest.raises(SystemExit) as end:
        load(script).main()
    assert not end.value.code, f"run python benchmarks/{script}.py: {end.value.code}"


def test_the_readme_shows_the_two_commands_and_a_picture() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text and "make test" in text
    for line in text.splitlines():
        if line.startswith("!["):
            assert (ROOT / line.split("(")[1].rstrip(")")).exists(), line


# Signatures are not laid out: a process of ruff for each would take most of the time. Nobody
# searches here, and what is searched is read from finished pages: that takes a fifth of the rest.
MKDOCS = """
import sys
sys.modules["ruff"] = None
from material.plugins.search.plugin import SearchIndex
SearchIndex.add_entry_from_context = lambda *page: None
from mkdocs.__main__ import cli
cli()
"""


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """A broken link, an unlisted page or a docstring that cannot be read is an error."""
    pytest.importorskip("mkdocs")
    run = [sys.executable, "-c", MKDOCS, "build", "--strict", "--quiet", "-d", str(tmp_path)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(run, capture_output=True, text=True, check=False, cwd=ROOT, env=quiet)
    assert done.returncode == 0, done.stdout + done.stderr
    for page in ("index", "guide", "methods/fedala", "api/index", "api/core", "own-method"):
        assert (tmp_path / f"{page}.html").exists(), page
    fetched = re.compile(r'<(?:script|img|link)[^>]+(?:src|href)="https?://')
    for page in tmp_path.rglob("*.html"):
        assert not fetched.search(page.read_text(encoding="utf-8")), f"{page} needs the network"


OLD = {"fedtailor.sites.node", "fedtailor.sites.superlink"}  # the guide from 0.1 names them
NAME = re.compile(r"`(fedtailor(?:\.\w+)+)`")
FILE = re.compile(r"`((?:[\w-]+/)*\w+\.py)`")
ELSEWHERE = ("src", "tests", "benchmarks", "examples")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def found(name: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    parts = name.split(".")
    for last in range(len(parts), 0, -1):
        try:
            value: object = importlib.import_module(".".join(parts[:last]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[last:]:
            if not hasattr(value, attribute):
                return False
            value = getattr(value, attribute)
        return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_names_of_code_in_the_docs_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [
        name for name in sorted(set(NAME.findall(text))) if name not in OLD and not found(name)
    ] == []
    lies = {str(p) for folder in ELSEWHERE for p in ROOT.glob(f"{folder}/**/*.py")}
    files = sorted(set(FILE.findall(text)))
    assert [f for f in files if not any(path.endswith(f"/{f}") for path in lies)] == []
