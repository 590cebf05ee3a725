"""Known data sets from the Hugging Face hub, kept in the data folder afterwards.

`datasets` resumes a broken download by itself; here the result is converted once and stored as
npz (images) or csv (text). Code from the hub is never run.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedtailor.core.errors import BadInput
from fedtailor.datasets.cache import store
from fedtailor.datasets.disk import as_source
from fedtailor.datasets.formats.images import pixels
from fedtailor.datasets.known import KnownDataset
from fedtailor.datasets.parts import SourcePart
from fedtailor.datasets.source import Source
from fedtailor.datasets.wording import listed, optional, reason

TEST_SPLITS = ("test", "validation", "valid")


def fetch(known: KnownDataset, root: Path) -> Source:
    """Load the data set from the hub and store it in `root` under its name."""
    library = optional("datasets", f"fetching {known.name} from the hub")
    try:
        splits = library.load_dataset(known.repository)
    except Exception as error:  # the library lets through whatever its transports raise
        raise BadInput(
            f"'{known.repository}' cannot be fetched from the hub ({reason(error)}): check the "
            f"connection, or put {known.name} in the data folder yourself"
        ) from error
    if "train" not in splits:
        raise BadInput(
            f"'{known.repository}' has the splits {listed(splits)} but no 'train': "
            f"put {known.name} in the data folder yourself"
        )
    chosen = ["train", *[s for s in TEST_SPLITS if s in splits][:1]]
    label = _column(splits["train"], ("label", "fine_label", "labels"), known)
    names = getattr(splits["train"].features[label], "names", None) or ()
    parts = [_part(known, splits[s], label, test=s != "train") for s in chosen]
    source = as_source(known, parts, tuple(map(str, names)))
    _keep(source, root, known.repository)
    return source


def _column(split: Any, usual: Iterable[str], known: KnownDataset) -> str:
    for name in usual:
        if name in split.features:
            return name
    raise BadInput(
        f"'{known.repository}' has the columns {listed(split.features)}, none of {listed(usual)}: "
        f"put {known.name} in the data folder yourself"
    )


def _part(known: KnownDataset, split: Any, label: str, *, test: bool) -> SourcePart:
    where = f"'{known.repository}' split '{'test' if test else 'train'}'"
    rows: list[Mapping[str, Any]] | Any = split
    labels = np.empty(len(split), dtype=np.int64)
    if known.kind == "text":
        found = []
        for i, row in enumerate(rows):
            labels[i] = row[label]
            found.append(str(row["text"]))
        return SourcePart(tuple(found), labels, where, test)
    column = _column(split, ("image", "img"), known)
    images = None
    for i, row in enumerate(rows):
        picture = row[column]
        if images is None:
            shape = (len(split), known.channels, picture.height, picture.width)
            images = np.empty(shape, dtype=np.uint8)
        labels[i] = row[label]
        images[i] = pixels(picture, known.channels, (images.shape[3], images.shape[2]))
    if images is None:
        raise BadInput(f"{where} is empty: put {known.name} in the data folder yourself")
    return SourcePart(images, labels, where, test)


def _keep(source: Source, root: Path, origin: str) -> None:
    raw = source.raw
    if isinstance(raw, tuple):
        store(root / f"{source.name}.csv", lambda f: _write_csv(source, raw, f), origin)
    else:
        store(root / f"{source.name}.npz", lambda f: _write_npz(source, f), origin)


def _write_npz(source: Source, file: BinaryIO) -> None:
    test = source.official_test
    arrays = {
        "x_train": np.asarray(source.raw)[~test],
        "y_train": source.labels[~test],
        "classes": np.array(source.classes),
    }
    if test.any():
        arrays |= {"x_test": np.asarray(source.raw)[test], "y_test": source.labels[test]}
    np.savez_compressed(file, allow_pickle=False, **arrays)


def _write_csv(source: Source, texts: tuple[str, ...], file: BinaryIO) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("split", "label", "text"))
    for label, test, words in zip(source.labels, source.official_test, texts, strict=True):
        writer.writerow(("test" if test else "train", source.classes[label], words))
    text.detach()
