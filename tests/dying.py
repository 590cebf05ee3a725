"""A process that dies while it writes: at any step of it, half of what it writes may be there."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest


class Killed(BaseException):
    """Nothing that a process does after this reaches the disk."""


class _DyingFile:
    """A file that takes half of what is written when the process dies."""

    def __init__(self, file: Any, step: Callable[[], None]) -> None:
        self._file, self._step = file, step

    def write(self, content: Any) -> Any:
        try:
            self._step()
        except Killed:
            if not self._file.closed:
                self._file.write(content[: len(content) // 2])
            raise
        return self._file.write(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _DyingFile:
        return self

    def __exit__(self, *_: Any) -> None:
        self._file.close()


@contextmanager
def death_at(number: int) -> Iterator[None]:
    """Within, the process dies at its `number`-th step that changes files, and stays dead."""
    steps = count()
    dead = False

    def step() -> None:
        nonlocal dead
        dead = dead or next(steps) == number
        if dead:
            raise Killed

    def before(function: Callable[..., Any]) -> Callable[..., Any]:
        def stepping(*args: Any, **kwargs: Any) -> Any:
            step()
            return function(*args, **kwargs)

        return stepping

    def opening(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if not set(mode) & set("wax+"):
            return real_open(file, mode, *args, **kwargs)
        step()
        return _DyingFile(real_open(file, mode, *args, **kwargs), step)

    real_open = io.open
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "replace", "rename", "unlink", "remove", "truncate", "mkdir"):
            patch.setattr(os, name, before(getattr(os, name)))
        patch.setattr(io, "open", opening)
        yield


def deaths(
    tmp_path: Path, old: Callable[[Path], object], new: Callable[[Path], object]
) -> Iterator[Path]:
    """A folder for each step of `new` that a process may die at, after `old` was done in it.

    The last one is of a process that did not die.
    """
    for number in count():
        folder = tmp_path / str(number)
        folder.mkdir()
        old(folder)
        try:
            with death_at(number):
                new(folder)
        except Killed:
            yield folder
        else:
            yield folder
            assert number > 0, "it changed no file"
            return
