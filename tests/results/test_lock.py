"""One process at a time in a run's folder."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedtailor.core.errors import BadInput
from fedtailor.results.folder import open_folder
from fedtailor.results.lock import LOCK, FolderLocked, check_free, is_held, lock_folder
from tests.runs.runlab import held


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with held(tmp_path / "run") as process:
        yield process


def test_who_comes_second_is_told_who_is_there(
    other: subprocess.Popen[str], tmp_path: Path
) -> None:
    said = rf"is being played by process {other.pid} on .*: wait"
    with pytest.raises(FolderLocked, match=said), lock_folder(tmp_path / "run"):
        raise AssertionError("never reached")
    with pytest.raises(FolderLocked):
        check_free(tmp_path)  # also one further down


def test_a_killed_process_holds_nothing(other: subprocess.Popen[str], tmp_path: Path) -> None:
    other.kill()
    other.wait()
    assert (tmp_path / "run" / LOCK).exists()  # it had no time to remove it
    check_free(tmp_path / "run")
    with lock_folder(tmp_path / "run"):
        (tmp_path / "run" / "file").touch()
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["file"]


def test_whether_a_folder_is_held_can_be_asked(
    other: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert is_held(tmp_path / "run")
    other.kill()
    other.wait()
    assert is_held(tmp_path / "run") is False  # although its lock file is still there
    assert (tmp_path / "run" / LOCK).exists()
    with lock_folder(tmp_path / "own"):
        assert is_held(tmp_path / "own")
    assert is_held(tmp_path / "own") is False  # nor is it there any more


def test_who_asks_is_in_nobodys_way(tmp_path: Path) -> None:
    """Somebody who looks at a run has its lock for a moment."""
    (tmp_path / LOCK).touch()
    file = os.open(tmp_path / LOCK, os.O_RDONLY)
    fcntl.flock(file, fcntl.LOCK_SH)
    threading.Timer(0.03, os.close, [file]).start()
    with lock_folder(tmp_path):
        assert is_held(tmp_path)


def test_an_ended_process_leaves_nothing(other: subprocess.Popen[str], tmp_path: Path) -> None:
    assert other.stdin is not None
    other.stdin.close()
    assert other.wait(60) == 0
    assert not (tmp_path / "run").exists()  # made for nothing


def test_a_run_that_goes_on_is_not_overwritten(
    other: subprocess.Popen[str], tmp_path: Path
) -> None:
    (tmp_path / "run" / "config.toml").write_text("# FedTailor\n")
    with pytest.raises(BadInput, match="is being played by process"):
        open_folder(tmp_path / "run", overwrite=True)
    assert (tmp_path / "run" / "config.toml").exists()


def test_the_same_process_may_enter_again(tmp_path: Path) -> None:
    with lock_folder(tmp_path):
        with lock_folder(tmp_path):
            pass
        assert (tmp_path / LOCK).exists()  # the outer one still holds it
        (tmp_path / "file").touch()
    assert not (tmp_path / LOCK).exists()


def test_it_is_free_again_after_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), lock_folder(tmp_path):
            raise ZeroDivisionError


def test_a_folder_that_is_removed_meanwhile_is_no_error(tmp_path: Path) -> None:
    with lock_folder(tmp_path / "run"):
        shutil.rmtree(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_where_nothing_can_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(BadInput, match="cannot be written to"),
        lock_folder(tmp_path / "file" / "run"),
    ):
        raise AssertionError("never reached")
