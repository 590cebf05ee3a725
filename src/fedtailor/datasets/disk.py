"""Finding and reading a known data set on disk, in any of its common forms."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from fedtailor.core.errors import BadInput
from fedtailor.datasets.cache import verify
from fedtailor.datasets.formats import cifar, idx
from fedtailor.datasets.formats.arrays import array_parts, read_npz
from fedtailor.datasets.formats.delimited import csv_rows
from fedtailor.datasets.formats.images import image_folder, image_parts, stacked, visible
from fedtailor.datasets.formats.tables import (
    RawTable,
    class_names_in,
    label_names,
    read_raw_table,
    texts,
)
from fedtailor.datasets.formats.tiny_imagenet import tiny_imagenet
from fedtailor.datasets.join import join_parts
from fedtailor.datasets.known import EMNIST, NEWS, KnownDataset, guessed_emnist
from fedtailor.datasets.own_files import TEST_FOLDERS, encoded_images
from fedtailor.datasets.parts import SourcePart
from fedtailor.datasets.source import Raw, Source, kind_of
from fedtailor.datasets.wording import listed, quoted, reason

ENDINGS = (".npz", ".tar.gz", ".tgz", ".csv", ".parquet")
INNER_FOLDERS = ("raw", "gzip", "data", "plain_text")  # where downloaders put the files


def find_on_disk(known: KnownDataset, root: Path, image_size: int | None) -> Source | None:
    """The data set in `root`, or None where nothing is called or looks like it."""
    if not root.is_dir():
        return None
    named = [p for p in visible(root) if p.is_dir() and known.is_called(p.name)]
    inner = [
        p
        for folder in named
        for p in visible(folder)
        if p.is_dir() and (p.name in INNER_FOLDERS or known.is_called(p.name))
    ]
    # One more level: torchvision's MNIST/raw may itself lie in a folder called after the set.
    deeper = [p / n for p in inner for n in INNER_FOLDERS if (p / n).is_dir()]
    for folder in (*named, *inner, *deeper, root):
        parts = _parts_in(
            known, folder, image_size, named=folder != root or known.is_called(root.name)
        )
        if parts:
            return as_source(known, *parts)
    return None


def as_source(known: KnownDataset, parts: Sequence[SourcePart], classes: tuple[str, ...]) -> Source:
    for part in parts:
        if kind_of(part.raw) != known.kind:
            raise BadInput(
                f"{part.where} holds {kind_of(part.raw)} data but {known.name} is {known.kind}: "
                "put the right file there"
            )
    classes = known.classes or classes
    if known.name == "emnist" and not classes:
        parts, classes = guessed_emnist(parts)
    if not classes and parts[0].labels.dtype.kind != "U":
        # Numbers only: all that can be said is how many classes there are.
        classes = tuple(str(i) for i in range(max(int(p.labels.max()) for p in parts) + 1))
    return join_parts(known.name, parts, classes, task="classification")


Found = tuple[list[SourcePart], tuple[str, ...]]


def _parts_in(
    known: KnownDataset, folder: Path, image_size: int | None, *, named: bool
) -> Found | None:
    files = [p for p in visible(folder) if p.is_file()]
    for ending in ENDINGS:
        for path in files:
            stem = path.name.removesuffix(ending)
            if path.name.endswith(ending) and known.is_called(stem):
                return _from_file(known, path)
    arrays = [p for p in files if p.suffix == ".npz"]
    if named and len(arrays) == 1:
        return _from_file(known, arrays[0])
    readers: Sequence[Callable[[], Found | None]] = (
        lambda: _from_idx(known, folder),
        lambda: _from_batches(known, folder),
        lambda: _from_folders(known, folder, image_size),
        lambda: _from_tables(known, files, ".parquet"),
        lambda: _from_tables(known, files, ".csv"),
    )
    return next((found for found in (read() for read in readers) if found), None)


def _from_file(known: KnownDataset, path: Path) -> Found:
    verify(path)
    if path.suffix == ".npz":
        arrays = read_npz(path)
        names = arrays.get("classes")
        classes = tuple(str(n) for n in names) if names is not None and names.ndim == 1 else ()
        return array_parts(arrays, path), classes
    if path.suffix in (".gz", ".tgz"):
        if known.name not in cifar.LAYOUTS:
            raise BadInput(f"{quoted(path)} is an archive: unpack it for {known.name}")
        return cifar.parts_from_archive(path, known.name), ()
    return _parts_of_tables(known, [path])


def _from_idx(known: KnownDataset, folder: Path) -> Found | None:
    if known.kind != "image" or known.channels != 1:
        return None
    present = idx.variants_in(folder)
    if known.name != "emnist":
        return (idx.idx_parts(folder), ()) if "" in present else None
    variant = next((v for v in EMNIST if v in present), None)
    return (idx.idx_parts(folder, variant), EMNIST[variant]) if variant else None


def _from_batches(known: KnownDataset, folder: Path) -> Found | None:
    if not cifar.holds_batches(folder, known.name):
        return None
    return cifar.parts_from_folder(folder, known.name), ()


def _from_folders(known: KnownDataset, folder: Path, image_size: int | None) -> Found | None:
    train = folder / "train"
    if known.kind != "image" or not train.is_dir():
        return None
    if (folder / "val" / "val_annotations.txt").is_file():
        return tiny_imagenet(folder, image_size), ()
    tests = [folder / name for name in TEST_FOLDERS if (folder / name).is_dir()]
    folders = [image_folder(train)] + [image_folder(t, test=True) for t in tests[:1]]
    return image_parts(folders, image_size), ()


def _is_called(path: Path, words: str) -> bool:
    return re.search(rf"(^|[-_.])({words})([-_.]|$)", path.name.lower()) is not None


def _is_train(path: Path) -> bool:
    return _is_called(path, "train")


def _is_test(path: Path) -> bool:
    return _is_called(path, "test|val|valid|validation") and not _is_train(path)


def _from_tables(known: KnownDataset, files: Sequence[Path], ending: str) -> Found | None:
    tables = [p for p in files if p.suffix == ending]
    train = [p for p in tables if _is_train(p)]
    tests = [p for p in tables if _is_test(p)]
    # A hub folder may have both; the split called test is the official one.
    official = [p for p in tests if "test" in p.name.lower()] or tests
    return _parts_of_tables(known, [*train, *official]) if train else None


def _parts_of_tables(known: KnownDataset, paths: Sequence[Path]) -> Found:
    parts: list[SourcePart] = []
    classes: tuple[str, ...] = ()
    for path in paths:
        if path.suffix == ".parquet":
            part, classes = _parquet_part(known, path)
            parts.append(part)
        elif known.kind == "text":
            parts += _news_parts(path)
        else:
            parts.append(_pixel_part(known, path))
    return parts, classes


def _column(table: RawTable, usual: Sequence[str], role: str) -> str:
    for name in usual:
        if name in table.columns:
            return name
    raise BadInput(
        f"{table.where} has no {role} column among {listed(table.columns)}: call it '{usual[0]}'"
    )


def _parquet_part(known: KnownDataset, path: Path) -> tuple[SourcePart, tuple[str, ...]]:
    """The hub's layout: an image struct or a text, and a label."""
    table = read_raw_table(path)
    label = _column(table, ("label", "fine_label", "labels"), "label")
    labels = label_names(table, label)
    if all(name.isdigit() for name in np.unique(labels)):
        labels = labels.astype(np.int64)
    raw: Raw
    if known.kind == "text":
        raw = texts(table, _column(table, ("text",), "text"))
    else:
        column = _column(table, ("image", "img"), "image")
        raw = stacked(encoded_images(table, column), channels=known.channels).pixels
    part = SourcePart(raw, labels, quoted(path), _is_test(path))
    return part, class_names_in(path, label)


def _news_parts(path: Path) -> list[SourcePart]:
    """AG News as published (class 1..4, title, description), or with a header naming `text`."""
    rows = list(csv_rows(path))
    header = [name.strip().lower() for name in rows[0][1]]
    if "text" in header:
        return _headed_news_parts(path)
    if len(header) != 3:
        raise BadInput(
            f"{quoted(path)} line 1 has {len(header)} fields: give class, title and description"
        )
    if not header[0].isdigit():
        rows = rows[1:]
    labels = []
    for line, (label, _, _) in rows:
        if label.strip() not in ("1", "2", "3", "4"):
            raise BadInput(
                f"{quoted(path)} line {line} has class {quoted(label)}, which is out of range: "
                f"use 1..4 ({', '.join(NEWS)})"
            )
        labels.append(int(label) - 1)
    raw = tuple(f"{title} {description}" for _, (_, title, description) in rows)
    numbers_of = np.array(labels, dtype=np.int64)
    return [SourcePart(raw, numbers_of, quoted(path), _is_test(path))]


def _headed_news_parts(path: Path) -> list[SourcePart]:
    table = read_raw_table(path)
    labels, raw = label_names(table, _column(table, ("label",), "label")), texts(table, "text")
    if "split" not in table.columns:
        return [SourcePart(raw, labels, quoted(path), _is_test(path))]
    split = np.array([str(cell) for cell in table.columns["split"]])
    parts = []
    for test in (False, True):
        rows = np.flatnonzero((split == "test") == test)
        if len(rows):
            chosen = tuple(raw[i] for i in rows)
            parts.append(SourcePart(chosen, labels[rows], quoted(path), test))
    return parts


def _pixel_part(known: KnownDataset, path: Path) -> SourcePart:
    """Images as csv: a label column, then one column per pixel (row by row, channels last).

    Read row by row into bytes: as Python strings such a file would fill gigabytes.
    """
    rows = csv_rows(path)
    label, *columns = next(rows)[1]
    side = math.isqrt(len(columns) // known.channels)
    if not columns or side * side * known.channels != len(columns):
        raise BadInput(
            f"{quoted(path)} has {len(columns)} columns after {quoted(label)}, which make no "
            f"square image of {known.channels} channels: give one column per pixel"
        )
    labels, places, pixels = [], [], bytearray()
    for line, (name, *cells) in rows:
        try:
            pixels += bytes(map(int, cells))
        except ValueError as error:
            raise BadInput(
                f"{quoted(path)} line {line} holds a pixel that is no whole number in 0..255 "
                f"({reason(error)}): mend the line"
            ) from error
        labels.append(name)
        places.append(f"line {line}")
    grid = np.frombuffer(bytes(pixels), np.uint8).reshape(-1, side, side, known.channels)
    images = np.ascontiguousarray(grid.transpose(0, 3, 1, 2))
    names = label_names(RawTable(quoted(path), {label: labels}, places, typed=False), label)
    return SourcePart(images, names, quoted(path), _is_test(path))
