"""New examples for a model that is already trained: what `fedtailor predict` reads."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedtailor.core.errors import BadInput
from fedtailor.datasets.encoding.columns import Categorical, Numeric
from fedtailor.datasets.encoding.encoder import Encoder
from fedtailor.datasets.encoding.unfamiliar import unfamiliar
from fedtailor.datasets.features.typed import read_numbers
from fedtailor.datasets.formats.arrays import raw_of, read_npz
from fedtailor.datasets.formats.cells import categories, is_missing, is_truth, plain
from fedtailor.datasets.formats.dicom import is_dicom
from fedtailor.datasets.formats.images import FULL, EncodedImage, is_image, stacked
from fedtailor.datasets.formats.tables import (
    TABLES,
    Cells,
    RawTable,
    is_table,
    read_raw_table,
    texts,
)
from fedtailor.datasets.source import Array, Raw, Table
from fedtailor.datasets.wording import listed, one_line, quoted, reason

log = logging.getLogger("fedtailor")


class Examples(NamedTuple):
    """New examples, ready for a network."""

    names: list[str]  # what each is called
    x: Array  # as the network takes them
    # what training never saw of the like, see `unfamiliar`; empty where all is known
    notes: list[str]


def read_examples(paths: list[Path], encoder: Encoder) -> Examples:
    """Every example in the files, named, encoded, and held against what training saw.

    Images are converted to the encoder's mode and size. An npz file has `x`; tables have the
    encoder's columns (a line names others), or for texts a column `text` or only one column; a txt
    file has one text per line. A row is called "table.csv:3", counted from 1 without the header; a
    text by its line; an image by its file. Files of one name in several folders go by their paths.
    """
    if not paths:
        raise BadInput("no files to predict: give at least one image, npz, csv, parquet or txt")
    names: list[str] = []
    notes: list[str] = []
    encoded = []
    files_of = Counter(path.name for path in paths)
    for path in paths:
        if not path.is_file():
            raise BadInput(f"{quoted(path)} is not a file: give files, not folders")
        rows, raw, words = _read(path, encoder)
        try:
            encoded.append(encoder.apply(raw))
        except BadInput as error:
            raise BadInput(f"{quoted(path)}: {error}") from error
        whole = str(path) if files_of[path.name] > 1 else path.name
        names += [whole + row.removeprefix(path.name) for row in rows]
        found = unfamiliar(raw, encoder)
        notes += [", ".join(filter(None, both)) for both in zip(found, words, strict=True)]
    return Examples(names, np.concatenate(encoded), notes)


def _read(path: Path, encoder: Encoder) -> tuple[list[str], Raw, list[str]]:
    """Of each example its name, itself, and which of its words were read as missing."""
    if encoder.form.kind == "table" and is_table(path):
        table = read_raw_table(path)  # has rows, though perhaps none of the encoder's columns
        return _rows(path, len(table)), *_table(table, encoder)
    rows, raw = _read_whole(path, encoder)
    return rows, raw, [""] * len(rows)


def _read_whole(path: Path, encoder: Encoder) -> tuple[list[str], Raw]:
    ending, kind = path.suffix.lower(), encoder.form.kind
    if kind == "image" and is_image(path):
        return [path.name], _image(path, encoder)
    if ending == ".npz":
        return _counted(path, _arrays(path, encoder))
    if kind == "text" and is_table(path):
        table = read_raw_table(path)
        return _counted(path, texts(table, _text_column(table)))
    if kind == "text" and ending == ".txt":
        return _lines(path)
    known = " ".join(TABLES)
    fitting = {
        "image": "image files or npz",
        "table": f"a table ({known}) or npz",
        "text": f"txt, a table ({known}) or npz",
    }
    raise BadInput(f"{quoted(path)} does not suit a model of {kind} data: give {fitting[kind]}")


def _counted(path: Path, raw: Raw) -> tuple[list[str], Raw]:
    if not len(raw):
        raise BadInput(f"{quoted(path)} holds no examples: fill it or leave it out")
    return _rows(path, len(raw)), raw


def _rows(path: Path, count: int) -> list[str]:
    return [f"{path.name}:{i + 1}" for i in range(count)]


def _image(path: Path, encoder: Encoder) -> Array:
    channels, height, width = encoder.form.shape
    if channels not in (1, 3):
        raise BadInput(
            f"{quoted(path)} cannot become an image of {channels} channels: give an npz file"
        )
    picture = EncodedImage(quoted(path), path)
    if encoder.levels is None and is_dicom(path) and stacked([picture]).levels is not None:
        raise BadInput(
            f"{quoted(path)} is DICOM of another depth than the 8 bits that the model learnt from: "
            "convert it as those were"
        )
    levels = encoder.levels or FULL
    return stacked([picture], channels=channels, size=(width, height), levels=levels).pixels


def _arrays(path: Path, encoder: Encoder) -> Raw:
    arrays = read_npz(path)
    if "x" not in arrays:
        raise BadInput(f"{quoted(path)} holds the arrays {listed(arrays)}: save the examples as x")
    raw = raw_of(arrays["x"], f"{quoted(path)} array 'x'")
    if isinstance(raw, Table) and encoder.columns:
        return _renamed(raw, encoder, path)
    return raw


def _renamed(table: Table, encoder: Encoder, path: Path) -> Table:
    """An npz table has no column names: its columns stand in the encoder's order."""
    names = [c.name for c in encoder.columns]
    if len(names) != len(table.names):
        raise BadInput(
            f"{quoted(path)} array 'x' has {len(table.names)} columns, not {len(names)}: "
            f"give {listed(names)}"
        )
    return Table(dict(zip(names, table.columns.values(), strict=True)))


def _table(table: RawTable, encoder: Encoder) -> tuple[Table, list[str]]:
    """The encoder says what is a number: a few new rows are too little to tell.

    Also says of each row which words were read as missing.
    """
    columns: dict[str, Array] = {}
    notes: list[list[str]] = [[] for _ in range(len(table))]
    for column in encoder.columns:
        cells = table.columns.get(column.name)
        if cells is None:
            continue  # the encoder names all missing columns at once
        if isinstance(column, Numeric):
            columns[column.name], words = _numbers(table, column, cells)
            for row in words:
                what = f"{one_line(column.name, 40)} {quoted(cells[row], 30)}"
                notes[row].append(f"{what} is no number: taken as missing")
        else:
            columns[column.name] = _categories(column, cells)
    if others := [quoted(name, 40) for name in table.columns if name not in columns]:
        log.info("%s: the model does not use %s", table.where, listed(others))
    return Table(columns), [", ".join(row) for row in notes]


def _numbers(table: RawTable, column: Numeric, cells: Cells) -> tuple[Array, list[int]]:
    """The numbers, and the rows of words that are missing values, as they were in training."""
    dates = column.reads.startswith("date")
    if isinstance(cells, np.ndarray):
        if dates and not np.isnan(cells).all():
            raise BadInput(
                f"{table.where} column {quoted(column.name)} holds numbers: dates are expected"
            )
        return cells.astype(np.float64, copy=False), []
    texts_of = [str(c) for c in cells]
    found = read_numbers(texts_of, column.reads)
    # what was 0 and 1 in training may be True and False now
    truths = column.reads == "truth" or (column.low, column.high) == (0, 1)
    words = []
    for row, text in enumerate(texts_of):
        odd = np.isnan(found[row]) and not is_missing(text)
        if (odd and column.reads != "words") or (is_truth(text) and not truths):
            raise BadInput(
                f"{table.at(row)} column {quoted(column.name)} is {quoted(text)}: "
                f"a {'date' if dates else 'number'} is expected"
            )
        if odd:
            words.append(row)
    return found, words


def _categories(column: Categorical, cells: Cells) -> Array:
    """The categories as training wrote them: 3.0 may have been 3, and True true."""
    known = {*column.values}
    folded = {v.lower(): v for v in column.values if is_truth(v)}
    names = [c if isinstance(c, str) else plain(c) for c in cells]
    found = []
    for name in categories(names):
        others = (plain(name), folded.get(str(name).lower(), ""))
        found.append(next((n for n in others if n in known and name not in known), str(name)))
    return np.array(found, dtype=np.str_)


def _text_column(table: RawTable) -> str:
    names = list(table.columns)
    chosen = [n for n in names if n.lower() == "text"] or names
    if len(chosen) != 1:
        raise BadInput(
            f"{table.where} has the columns {listed(names)}: call the one to read 'text'"
        )
    return chosen[0]


def _lines(path: Path) -> tuple[list[str], Raw]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{quoted(path)} is not utf-8 text ({reason(error)})") from error
    full = [(i, line) for i, line in enumerate(lines, start=1) if line.strip()]
    if not full:
        raise BadInput(f"{quoted(path)} is empty: give one text per line")
    return [f"{path.name}:{i}" for i, _ in full], tuple(line for _, line in full)
