"""The wheel works where the checkout is not: built, installed into an empty environment, used."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}


def command(*arguments: str | Path, at: Path) -> str:
    done = subprocess.run(
        [str(a) for a in arguments], cwd=at, env=ENVIRONMENT, capture_output=True, text=True,
        timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is left in the checkout."""
    copy = tmp_path_factory.mktemp("copy")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(
        ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    command(sys.executable, "-m", "build", "--wheel", "--no-isolation", at=copy)
    (found,) = (copy / "dist").glob("fedtailor-*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment with nothing but the wheel and what it needs."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False, symlinks=os.name != "nt")
    variables = {"base": str(home), "platbase": str(home)}
    programs = Path(sysconfig.get_path("scripts", "venv", variables))
    pip = [sys.executable, "-m", "pip", "--python", programs / "python"]
    command(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, at=home)
    # What it needs is lent, as a plain path: an editable install there stays out of sight.
    lent = Path(sysconfig.get_path("purelib", "venv", variables)) / "lent.pth"
    lent.write_text(sysconfig.get_path("purelib") + "\n")
    return programs


def test_every_file_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    source = ROOT / "src"
    files = {
        path.relative_to(source).as_posix()
        for path in (source / "fedtailor").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert {"fedtailor/py.typed", "fedtailor/cli/__init__.py"} <= files
    assert files - set(zipfile.ZipFile(wheel).namelist()) == set()


def test_the_console_script_is_installed(installed: Path, tmp_path: Path) -> None:
    assert "fedala" in command(installed / "fedtailor", "list", at=tmp_path)


# One process for all: loading torch anew for every command would be most of the time.
COMMANDS = """
import sys
from pathlib import Path
import fedtailor
from fedtailor.cli import main

print(fedtailor.__file__)
for line in Path("commands").read_text().splitlines():
    try:
        main(line.split())
    except SystemExit as end:
        assert not end.code, (line, end.code)
"""


def test_the_installed_package_does_its_work(installed: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "new.npz", x=np.zeros((2, 8, 8), np.uint8))
    (tmp_path / "commands").write_text(
        "show fedala\n"
        "reproduce --list\n"
        "run fedala --data digits --clients 3 --partition iid --model mlp --rounds 2 --epochs 1 "
        "--device cpu --set max_ala_epochs=2 --out small\n"
        "report small\n"
        "predict small new.npz --client client-0\n"
    )
    said = command(installed / "python", "-c", COMMANDS, at=tmp_path)
    where = Path(said.splitlines()[0]).resolve()
    assert installed.parent.resolve() in where.parents
    assert "FedALA" in said and "pfedla" in said and "new.npz:2" in said
    assert (tmp_path / "small" / "report.html").stat().st_size > 10_000
