"""`load`: a data set by name or by path."""

from __future__ import annotations

import functools
import importlib.util
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedtailor.core.errors import BadInput, unknown
from fedtailor.datasets import hub as hugging_face
from fedtailor.datasets.disk import ENDINGS, find_on_disk
from fedtailor.datasets.features.choices import ColumnChoices
from fedtailor.datasets.formats.images import check_size, resized
from fedtailor.datasets.formats.roles import NamedColumns
from fedtailor.datasets.join import join_parts
from fedtailor.datasets.known import DIGITS, SETS, KnownDataset
from fedtailor.datasets.labels import checked_task
from fedtailor.datasets.natural import NATURAL
from fedtailor.datasets.own_files import load_own
from fedtailor.datasets.parts import SourcePart
from fedtailor.datasets.source import Source
from fedtailor.datasets.wording import listed, one_line, quoted

FOLDER_VARIABLE = "FEDTAILOR_DATA"
KNOWN: tuple[str, ...] = ("digits", *SETS, *NATURAL)


def load(
    name: str,
    *,
    data_dir: Path | None = None,
    label: str | None = None,
    client: str | None = None,
    text: str | None = None,
    image_size: int | None = None,
    hub: bool = False,
    task: str = "auto",
    time: str | None = None,
    event: str | None = None,
    group: str | None = None,
    moment: str | None = None,
    columns: ColumnChoices = ColumnChoices(),
) -> Source:
    """A known data set, or the user's own data.

    Args:
      name: one of `KNOWN`, or a path (it holds a separator or exists) to the user's own data.
      data_dir: where known data sets lie; else $FEDTAILOR_DATA, else ./data.
      label: the label column of a table of one's own.
      client: the column that names the client of each row.
      text: the column whose text is to be classified; other feature columns are then left out.
      image_size: side in pixels that images are resized to; else files of unequal size are
        brought to the size of the first one.
      hub: fetch a known data set that is not on disk: from the Hugging Face hub, or from its owner.
      task: `classification`, `regression` or `survival`; `auto` tells it from the labels.
      time: for survival, the column with the time until the event, or until the row was seen last.
      event: the column that has 1 where the event came, and 0 where it was not seen.
      group: the column that says whose rows stay on one side of a split, e.g. the patient.
      moment: the column that says when a row was, to train on the past and test on what follows.
      columns: which columns of a table are features, and what they are.

    Example:
      >>> digits = load("digits")
      >>> digits.kind, digits.raw.shape, len(digits.classes)
      ('image', (1797, 1, 8, 8), 10)
    """
    check_size(image_size)
    named = NamedColumns(label, client, text, time, event, group, moment)
    chosen = checked_task(task)
    # A known name wins over a folder of the same name: `mnist` is never by accident one's own.
    if name in KNOWN:
        named.refuse(f"is for tables of your own, not for '{name}'")
        columns.refuse(f"is for tables of your own, not for '{name}'")
        source = _digits() if name == "digits" else _load_known(name, data_dir, image_size, hub)
        if chosen not in ("auto", source.task):
            raise BadInput(f"task is {chosen}, but {name} is for {source.task}: leave it out")
    elif _is_path(name):
        if hub:
            raise BadInput(f"--hub fetches known data sets, not {quoted(name)}: leave it out")
        source = load_own(Path(name), named, image_size, chosen, columns)
    else:
        raise unknown("data set", one_line(name), (*KNOWN, "or a path to your own data"))
    return with_image_size(source, image_size)


def with_image_size(source: Source, image_size: int | None) -> Source:
    """The source with its images brought to that many pixels a side; None leaves them."""
    if image_size is None:
        return source
    if not isinstance(source.raw, np.ndarray):
        raise BadInput(
            f"--image-size {image_size} is for images but {quoted(source.name)} is {source.kind} "
            "data: leave it out"
        )
    return replace(source, raw=resized(source.raw, image_size))


def _is_path(name: str) -> bool:
    separators = [s for s in (os.sep, os.altsep) if s]
    return any(s in name for s in separators) or (bool(name) and Path(name).exists())


def data_folder(data_dir: Path | None) -> Path:
    """Where known data sets are looked for."""
    return data_dir or Path(os.environ.get(FOLDER_VARIABLE) or "data")


def _load_known(name: str, data_dir: Path | None, image_size: int | None, hub: bool) -> Source:
    root = data_folder(data_dir)
    if name in NATURAL:
        found = NATURAL[name].load(root, hub)
        if found is None:
            raise _no_files(name, root)
        return found
    known = SETS[name]
    source = find_on_disk(known, root, image_size)
    if source is not None:
        return source
    if hub:
        return hugging_face.fetch(known, root)
    raise _not_found(known, root)


def _no_files(name: str, root: Path) -> BadInput:
    wanted = NATURAL[name]
    return BadInput(
        f"data set '{name}' was not found in {quoted(root)} (looked for "
        f"{listed(f.name for f in wanted.files)} there and in {wanted.folder}/): set --data-dir or "
        f"${FOLDER_VARIABLE}, or fetch it from its owner with --hub"
    )


def _not_found(known: KnownDataset, root: Path) -> BadInput:
    endings = ", ".join(f"{known.name}{e}" for e in ENDINGS)
    return BadInput(
        f"data set '{known.name}' was not found in {quoted(root)} (looked for the folder "
        f"{known.name}/, the files {endings}, and its files in {quoted(root)} itself): set "
        f"--data-dir or ${FOLDER_VARIABLE}, or use --hub (pip install 'fedtailor[hub]')"
    )


def _digits() -> Source:
    """scikit-learn's 1,797 digits of 8x8 pixels, which come with the library."""
    images, labels = _digits_file()
    scaled = np.rint(images * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    return join_parts("digits", [SourcePart(scaled, labels.astype(np.int64), "digits")], DIGITS)


@functools.cache  # every run of a comparison asks for them; what is made of them is a copy
def _digits_file() -> tuple[np.ndarray, np.ndarray]:
    """Their file, if it is where it has always been: loading the library takes seconds."""
    library = importlib.util.find_spec("sklearn")
    for place in (library.submodule_search_locations or []) if library else []:
        path = Path(place) / "datasets" / "data" / "digits.csv.gz"
        if path.is_file():
            rows = np.loadtxt(path, delimiter=",")
            return rows[:, :-1], rows[:, -1]
    from sklearn.datasets import load_digits

    found: tuple[np.ndarray, np.ndarray] = load_digits(return_X_y=True)
    return found
