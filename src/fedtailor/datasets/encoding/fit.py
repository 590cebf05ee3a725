"""Fitting an encoder on training rows, for all clients alike or for each by its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, get_args

import numpy as np

from fedtailor.core.errors import BadInput, unknown
from fedtailor.core.form import Form
from fedtailor.datasets.encoding.columns import (
    Categorical,
    Column,
    ColumnSums,
    Numeric,
    Target,
    fit_categorical,
    fit_numeric,
    fit_target,
    numeric_of_sums,
    pooled_numbers,
)
from fedtailor.datasets.encoding.encoder import (
    FIRST_WORD,
    Encoder,
    Normalisation,
    OwnFit,
    pieces_of,
)
from fedtailor.datasets.source import Array, Raw, Source, Table, take
from fedtailor.datasets.wording import one_line, quoted

NORMALISATIONS = ("auto", *get_args(Normalisation))

TEXT_LENGTH = 200  # words of a text that are taken


class EncodedClients(NamedTuple):
    """All clients' rows as networks take them."""

    encoder: Encoder  # how; with what is each client's own
    x: Array  # of all rows of the source; zeros where no client has the row
    y: Array  # their labels, likewise


def encode(
    source: Source,
    train_rows: Array,
    *,
    normalise: str = "auto",
    length: int = TEXT_LENGTH,
    vocabulary: int = 0,
) -> tuple[Encoder, Array]:
    """Fit an encoder on the training rows of one site and encode all rows with it.

    Args:
      source: the data.
      train_rows: row numbers (or a mask); nothing else influences the encoder.
      normalise: whose training rows scale the numbers of tables, and the label of a regression, to
        mean 0 and deviation 1. Here there is one site, so `own`, `pooled` and `federated` give the
        same numbers, but what is made of the encoder elsewhere differs; `none` leaves numbers as
        they are, `auto` is `own`. Images stay uint8: the network scales them.
      length: words per text; of texts that are read by character the source says how many.
      vocabulary: how many of the most frequent words to know; 0 for all.

    Example:
      >>> from fedtailor.datasets import source_of
      >>> source = source_of({"north": ([[1.0], [3.0]], ["well", "ill"])})
      >>> encoder, x = encode(source, np.array([0, 1]))
      >>> encoder.classes, x.tolist()
      (('ill', 'well'), [[-1.0], [1.0]])
    """
    rows = _row_numbers(train_rows, len(source))
    encoder = fit_encoder(source, [rows], normalise=normalise, length=length, vocabulary=vocabulary)
    return encoder, encoder.apply(source.raw)


def fit_encoder(
    source: Source,
    train: Sequence[Array],
    *,
    normalise: str = "auto",
    length: int = TEXT_LENGTH,
    vocabulary: int = 0,
) -> Encoder:
    """What all clients share: features, categories, words, and numbers to scale by.

    Args:
      source: the data.
      train: each client's training rows.
      normalise: as for `encode`. With `own`, clients scale by their own numbers. The common ones
        stand in for columns in which a client has no value at all, and the common deviation where
        all its values are the same.
      length: words per text.
      vocabulary: how many of the most frequent words to know; 0 for all.
    """
    if normalise not in NORMALISATIONS:
        raise unknown("normalisation", one_line(normalise), NORMALISATIONS)
    if length < 1 or vocabulary < 0:
        raise BadInput(
            f"text length {length} and vocabulary {vocabulary}: use at least 1 and 0 (all words)"
        )
    chosen: Normalisation = "own" if normalise == "auto" else normalise  # type: ignore[assignment]
    classes, task = source.classes, source.task
    target = _common_target(source, train, chosen) if task == "regression" else None
    raw = take(source.raw, np.concatenate(train))
    columns: tuple[Column, ...] = ()
    words: tuple[str, ...] = ()
    if isinstance(raw, Table):
        parts = [take(source.raw, rows) for rows in train] if chosen == "federated" else []
        columns = tuple(
            _common_column(n, c, parts, chosen, raw.reads.get(n, ""), raw.gaps.get(n, ""))
            for n, c in raw.columns.items()
        )
        width = sum(c.width for c in columns)
        if not width:
            raise BadInput(f"data {quoted(source.name)} has no feature with a value in training")
        form = Form("table", (width,), len(classes), task=task)
    elif isinstance(raw, tuple):
        words = _frequent_words(raw, vocabulary, source.window > 0)
        size = (source.window or length,)
        form = Form("text", size, len(classes), FIRST_WORD + len(words), task)
    else:
        form = Form("image", raw.shape[1:], len(classes), task=task)
    return Encoder(
        form, classes, columns, words, chosen, target, levels=source.levels,
        characters=source.window > 0,
    )  # fmt: skip


def _common_column(
    name: str, column: Array, parts: Sequence[Raw], normalise: Normalisation, reads: str, gap: str
) -> Column:
    if column.dtype.kind == "U":
        return fit_categorical(name, column)
    if normalise == "federated":
        sums = [ColumnSums.of(p.columns[name]) for p in parts if isinstance(p, Table)]
        return numeric_of_sums(name, sums, reads, gap)
    return fit_numeric(name, column, normalise != "none", reads, gap)


def _common_target(source: Source, train: Sequence[Array], normalise: Normalisation) -> Target:
    name = source.label or "label"
    if normalise == "federated":
        sums = [ColumnSums.of(source.labels[rows]) for rows in train]
        return Target(name, *pooled_numbers(sums, f"label {quoted(name)}"))
    return fit_target(name, source.labels[np.concatenate(train)], normalise != "none")


def fit_own(encoder: Encoder, raw: Raw, labels: Array, *, alone: bool = False) -> OwnFit:
    """What a client's own training rows say, in place of the common numbers.

    Args:
      encoder: what all clients share.
      raw: the client's training rows.
      labels: their labels.
      alone: nothing of the other clients is used: a column in which the client has no value is
        filled with 0, and categories and words that only others have are unknown.
    """
    scaled = encoder.normalise != "none"
    target = encoder.target and fit_target(encoder.target.name, labels, scaled)
    if target and encoder.target and not alone and labels.min() == labels.max():
        target = replace(target, scale=encoder.target.scale)
    if isinstance(raw, Table):
        own = tuple(_own_column(c, raw.columns[c.name], scaled, alone) for c in encoder.columns)
        return OwnFit(own, target)
    seen = None
    if isinstance(raw, tuple) and alone:
        found = {word for text in raw for word in encoder.pieces(text)}
        seen = tuple(word for word in encoder.words if word in found)
    return OwnFit(encoder.columns, target, seen)


def _own_column(common: Column, column: Array, scaled: bool, alone: bool) -> Column:
    if isinstance(common, Categorical):
        if not alone:
            return common
        found = set(fit_categorical(common.name, column).values)
        return replace(common, seen=tuple(v for v in common.values if v in found))
    if column.dtype.kind == "U":
        raise BadInput(f"column {quoted(common.name)} holds text: numbers are expected")
    own: Numeric = fit_numeric(common.name, column, scaled, common.reads, common.gap)
    if alone:
        return own
    if np.isnan(column).all():
        return common
    # of a single value nobody can say what is far from it
    return own if own.low != own.high else replace(own, scale=common.scale)


def encode_clients(
    source: Source,
    encoder: Encoder,
    names: Sequence[str],
    train: Sequence[Array],
    held: Sequence[Array],
    *,
    alone: bool = False,
) -> EncodedClients:
    """Every client's rows, scaled as the encoder's `normalise` says.

    Args:
      source: the data.
      encoder: what all clients share, from `fit_encoder`.
      names: of the clients.
      train: each client's training rows.
      held: all rows of each client, for training or not.
      alone: each client is encoded as if there were no others, see `fit_own`; the features keep
        their places.

    Raises:
      BadInput: a row has two clients, and each would scale it in its own way.
    """
    encoder = encoder.without_clients()
    own = alone or encoder.normalise == "own"
    if not own or (encoder.form.kind == "image" and encoder.target is None):
        return EncodedClients(encoder, encoder.apply(source.raw), encoder.labels(source.labels))
    twice = np.flatnonzero(np.bincount(np.concatenate(held), minlength=1) > 1)
    if len(twice):
        raise BadInput(
            f"row {twice[0]} is held by two clients, and each would scale it in its own way: use "
            "--normalise pooled, or give every row to one client"
        )
    fits = {
        name: fit_own(encoder, take(source.raw, rows), source.labels[rows], alone=alone)
        for name, rows in zip(names, train, strict=True)
    }
    if alone and encoder.normalise != "none":
        encoder = replace(encoder, normalise="own")
    encoder = replace(encoder, clients=fits)
    y = np.zeros_like(encoder.labels(source.labels))
    images = isinstance(source.raw, np.ndarray)
    dtype = np.float32 if encoder.form.kind == "table" else np.int64
    x = np.asarray(source.raw) if images else np.zeros((len(source), *encoder.form.shape), dtype)
    for name, rows in zip(names, held, strict=True):
        mine = encoder.of_client(name)
        y[rows] = mine.labels(source.labels[rows])
        if not images:
            x[rows] = mine.apply(take(source.raw, rows))
    return EncodedClients(encoder, x, y)


def _row_numbers(rows: Array, count: int) -> Array:
    rows = np.asarray(rows)
    if rows.dtype == np.bool_:
        if rows.shape != (count,):
            raise BadInput(f"training mask of shape {rows.shape}: give one entry per row ({count})")
        rows = np.flatnonzero(rows)
    if rows.ndim != 1 or not len(rows) or rows.dtype.kind not in "iu":
        raise BadInput(f"training rows of shape {rows.shape}: give at least one row number")
    if rows.min() < 0 or rows.max() >= count:
        raise BadInput(f"training rows reach from {rows.min()} to {rows.max()}: use 0..{count - 1}")
    return rows


def _frequent_words(texts: Iterable[str], most: int, characters: bool) -> tuple[str, ...]:
    counts = Counter(word for text in texts for word in pieces_of(text, characters))
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    return tuple(ordered[:most] if most else ordered)
