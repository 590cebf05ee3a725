"""Which new rows are unlike those that a model has learnt from."""

from __future__ import annotations

import numpy as np

from fedtailor.datasets.encoding.columns import Column, Numeric
from fedtailor.datasets.encoding.encoder import Encoder
from fedtailor.datasets.source import Array, Raw, Table
from fedtailor.datasets.wording import one_line, quoted

FAR = 0.5  # of the range in training, beyond its ends


def unfamiliar(raw: Raw, encoder: Encoder) -> list[str]:
    """For each row what training never saw of its kind, in a few words; empty where nothing is.

    Named are categories that no training row had, and numbers beyond the training rows' least or
    largest by more than half their range; of texts, those without a known word. Whose training
    rows these are, the encoder says: a client's own where it scales by them.

    Example:
      >>> from fedtailor.core.form import Form
      >>> ages = Numeric("age", fill=50.0, shift=50.0, scale=10.0, low=30.0, high=70.0)
      >>> encoder = Encoder(Form("table", (1,), 2), ("ill", "well"), (ages,))
      >>> unfamiliar(Table({"age": np.array([64.0, 230.0])}), encoder)
      ['', 'age 230 is far from 30 to 70']
    """
    if isinstance(raw, Table):
        found = [_of_column(c, raw.columns[c.name]) for c in encoder.columns]
        return [", ".join(filter(None, notes)) for notes in zip(*found, strict=True)]
    if isinstance(raw, tuple):
        known = set(encoder.words if encoder.seen is None else encoder.seen)
        told = f"no {'character' if encoder.characters else 'word'} is known"
        return ["" if known & set(encoder.pieces(text)) else told for text in raw]
    return [""] * len(raw)


def _of_column(column: Column, cells: Array) -> list[str]:
    name = one_line(column.name, 40)
    if isinstance(column, Numeric):
        if column.low is None or column.high is None:
            return [""] * len(cells)
        margin = FAR * (column.high - column.low)
        with np.errstate(invalid="ignore"):  # a missing value is filled, not far
            far = (cells < column.low - margin) | (cells > column.high + margin)
        between = f"{column.low:g} to {column.high:g}"
        return [
            f"{name} {value:g} is far from {between}" if odd else ""
            for value, odd in zip(cells, far, strict=True)
        ]
    known = {"", *column.known}
    return ["" if str(c) in known else f"{name} {quoted(c, 30)} is new" for c in cells]
