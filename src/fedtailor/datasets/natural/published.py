"""Data sets that are read from their owners' files, found in a folder or fetched into it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fedtailor.datasets.cache import verify
from fedtailor.datasets.download import PublishedFile, download
from fedtailor.datasets.formats.images import visible
from fedtailor.datasets.known import simple_name
from fedtailor.datasets.source import Source


class PublishedData(NamedTuple):
    """A data set as its owner publishes it."""

    folder: str  # the name of its folder in the data folder
    aliases: tuple[str, ...]  # other names of that folder, in the form `simple_name` gives
    files: tuple[PublishedFile, ...]  # what it consists of
    read: Callable[..., Source]  # makes a source of the files, given as paths in that order

    def found_in(self, root: Path) -> tuple[Path, ...] | None:
        """Its files, in a folder of one of its names or in `root` itself; None unless all are."""
        if not root.is_dir():
            return None
        called = (simple_name(self.folder), *self.aliases)
        named = [p for p in visible(root) if p.is_dir() and simple_name(p.name) in called]
        # an owner's `input.txt` says what it is in a folder of its own only
        places = [(folder, True) for folder in named]
        places.append((root, simple_name(root.resolve().name) in called))
        for folder, own in places:
            found = [_path_in(folder, file, own) for file in self.files]
            paths = tuple(path for path in found if path is not None)
            if len(paths) == len(self.files):
                return paths
        return None

    def load(self, root: Path, fetch: bool) -> Source | None:
        """The data in `root`; None where they are not there and are not to be fetched."""
        paths = self.found_in(root)
        if paths is None:
            if not fetch:
                return None
            folder = root / self.folder
            for file in self.files:
                if not (folder / file.name).is_file():
                    download(file, folder)
            paths = tuple(folder / file.name for file in self.files)
        for path in paths:
            verify(path)
        return self.read(*paths)


def _path_in(folder: Path, file: PublishedFile, own: bool) -> Path | None:
    names = (file.name, *(file.also if own else ()))
    return next((folder / name for name in names if (folder / name).is_file()), None)
