"""A folder for a run: what cannot be one is told with the cure, and commands can be copied."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from fedtailor.core.errors import BadInput
from fedtailor.results.folder import open_folder, resume_command


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    taken = tmp_path / "notes.txt"
    taken.write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(BadInput, match=r"notes.txt' is a file: name a folder with --out$"):
            open_folder(taken, overwrite=overwrite)
    with pytest.raises(
        BadInput, match=r"notes.txt/run' cannot be written to \(.*\): choose another"
    ):
        open_folder(taken / "run")
    assert taken.read_text() == "mine"


@pytest.mark.parametrize("name", ["runs/a", "my runs/50% off", "back\\", "it's", "größe $HOME"])
def test_what_goes_on_with_a_run_can_be_copied(name: str) -> None:
    assert shlex.split(resume_command(name)) == ["fedtailor", "resume", name]
