"""New examples for a model that is already trained: what `fedtailor predict` reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedtailor.core.errors import BadInput
from fedtailor.datasets.encoding.columns import Numeric
from fedtailor.datasets.encoding.encoder import Encoder
from fedtailor.datasets.encoding.unfamiliar import unfamiliar
from fedtailor.datasets.formats.arrays import raw_of, read_npz
from fedtailor.datasets.formats.images import EncodedImage, is_image, stacked
from fedtailor.datasets.formats.tables import RawTable, categories, numbers, read_raw_table, texts
from fedtailor.datasets.source import Array, Raw, Table
from fedtailor.datasets.wording import listed, quoted, reason


class Examples(NamedTuple):
    """New examples, ready for a network."""

    names: list[str]  # what each is called
    x: Array  # as the network takes them
    # what training never saw of the like, see `unfamiliar`; empty where all is known
    notes: list[str]


def read_examples(paths: list[Path], encoder: Encoder) -> Examples:
    """Every example in the files, named, encoded, and held against what training saw.

    Images are converted to the encoder's mode and size. An npz file has `x`; csv and parquet have
    the encoder's columns (others are ignored), or for texts a column `text` or only one column; a
    txt file has one text per line. A row is called "table.csv:3", counted from 1 without the
    header; a text by its line; an image by its file.
    """
    if not paths:
        raise BadInput("no files to predict: give at least one image, npz, csv, parquet or txt")
    names: list[str] = []
    notes: list[str] = []
    encoded = []
    for path in paths:
        if not path.is_file():
            raise BadInput(f"{quoted(path)} is not a file: give files, not folders")
        rows, raw = _read(path, encoder)
        try:
            encoded.append(encoder.apply(raw))
        except BadInput as error:
            raise BadInput(f"{quoted(path)}: {error}") from error
        names += rows
        notes += unfamiliar(raw, encoder)
    return Examples(names, np.concatenate(encoded), notes)


def _read(path: Path, encoder: Encoder) -> tuple[list[str], Raw]:
    ending, kind = path.suffix.lower(), encoder.form.kind
    if kind == "image" and is_image(path):
        return [path.name], _image(path, encoder)
    if ending == ".npz":
        return _counted(path, _arrays(path, encoder))
    if kind == "table" and ending in (".csv", ".parquet"):
        table = read_raw_table(path)  # has rows, though perhaps none of the encoder's columns
        return _rows(path, len(table)), _table(table, encoder)
    if kind == "text" and ending in (".csv", ".parquet"):
        table = read_raw_table(path)
        return _counted(path, texts(table, _text_column(table)))
    if kind == "text" and ending == ".txt":
        return _lines(path)
    fitting = {
        "image": "image files or npz",
        "table": "csv, parquet or npz",
        "text": "txt, csv, parquet or npz",
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
    return stacked([picture], channels=channels, size=(width, height))


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


def _table(table: RawTable, encoder: Encoder) -> Table:
    """The encoder says what is a number: a few new rows are too little to tell."""
    columns: dict[str, Array] = {}
    for column in encoder.columns:
        cells = table.columns.get(column.name)
        if cells is None:
            continue  # the encoder names all missing columns at once
        if isinstance(cells, np.ndarray):
            columns[column.name] = cells.astype(np.float64, copy=False)
        elif isinstance(column, Numeric):
            columns[column.name] = _numbers(table, column.name, [str(c) for c in cells])
        else:
            columns[column.name] = categories([str(c) for c in cells])
    return Table(columns)


def _numbers(table: RawTable, name: str, cells: Sequence[str]) -> Array:
    found = numbers(cells)
    if isinstance(found, int):
        raise BadInput(
            f"{table.at(found)} column {quoted(name)} is {quoted(cells[found])}: "
            "a number is expected"
        )
    return found


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
