"""Folders and modules have a size that one can read."""

from __future__ import annotations

from pathlib import Path

SRC = Path(__file__).resolve().parent.parent / "src" / "fedtailor"
MODULES = sorted(SRC.rglob("*.py"))


def test_no_folder_holds_more_than_sixteen_modules() -> None:
    held = {folder: len(list(folder.glob("[!_]*.py"))) for folder in {m.parent for m in MODULES}}
    many = {str(folder.relative_to(SRC)): n for folder, n in held.items() if n > 16}
    assert many == {}


def test_no_module_is_longer_than_four_hundred_lines() -> None:
    lengths = {m: len(m.read_text(encoding="utf-8").splitlines()) for m in MODULES}
    assert {str(m.relative_to(SRC)): n for m, n in lengths.items() if n > 400} == {}
