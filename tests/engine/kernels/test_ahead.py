"""What copies of a process make is on disk, and nothing of it stays with the first one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from fedtailor.engine.kernels import ahead, support
from fedtailor.engine.kernels.ahead import make_ahead


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The copies that were made, none of which stays; this process may have other children."""
    made, fork = [], os.fork

    def noted() -> int:
        made.append(fork())
        return made[-1]

    monkeypatch.setattr(os, "fork", noted)
    yield made
    for child in made:
        with pytest.raises(ChildProcessError):
            os.waitpid(child, os.WNOHANG)


def nothing() -> None:
    pass


def write(path: Path) -> None:
    path.write_text(f"{support.are_only_made()} {support.has_kernels(torch.device('meta'))}")


def fail() -> None:
    raise RuntimeError("no such kernel")


def test_calls_are_shared_among_processes(tmp_path: Path, made: list[int]) -> None:
    files = [tmp_path / str(i) for i in range(5)]
    assert (
        make_ahead([partial(write, f) for f in files], support.only_make, nothing, processes=2) == 2
    )
    assert len(made) == 2
    assert [f.read_text() for f in files] == ["True True"] * 5
    assert not support.are_only_made() and not support.has_kernels(torch.device("meta"))


def test_a_process_that_fails_is_no_hindrance(tmp_path: Path) -> None:
    calls = [partial(write, tmp_path / "0"), fail, partial(write, tmp_path / "2"), fail]
    assert make_ahead(calls, nothing, nothing, processes=2) == 1
    assert sorted(f.name for f in tmp_path.iterdir()) == ["0", "2"]


def test_a_process_that_does_not_end_is_ended(tmp_path: Path) -> None:
    began = time.monotonic()
    calls = [partial(time.sleep, 60), partial(write, tmp_path / "1")]
    assert make_ahead(calls, nothing, nothing, processes=2, wait=0.5) == 1
    assert time.monotonic() - began < 20


def test_this_process_has_something_to_do_meanwhile(tmp_path: Path) -> None:
    def wait_for_it() -> None:
        until = time.monotonic() + 20
        while not (tmp_path / "0").exists():
            assert time.monotonic() < until
            time.sleep(0.01)

    calls = [partial(write, tmp_path / str(i)) for i in range(2)]
    assert make_ahead(calls, nothing, wait_for_it, processes=2) == 2


def test_copies_are_waited_for_whatever_goes_wrong_meanwhile(tmp_path: Path) -> None:
    calls = [partial(write, tmp_path / str(i)) for i in range(2)]
    with pytest.raises(RuntimeError, match="no such kernel"):
        make_ahead(calls, nothing, fail, processes=2)
    assert len(list(tmp_path.iterdir())) == 2


def test_one_processor_has_no_use_for_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "processors", lambda: 1)
    calls = [partial(write, tmp_path / str(i)) for i in range(2)]
    assert make_ahead(calls, nothing, nothing) == 0
    assert make_ahead(calls[:1], nothing, nothing, processes=4) == 0
    assert not list(tmp_path.iterdir())
