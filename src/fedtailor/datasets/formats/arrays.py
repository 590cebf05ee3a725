"""npz files: `x`, `y` (and `client`), or `x_train`, `y_train`, `x_test`, `y_test`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from zipfile import is_zipfile

import numpy as np

from fedtailor.core.errors import BadInput
from fedtailor.datasets.formats.images import channels_first
from fedtailor.datasets.parts import SourcePart
from fedtailor.datasets.source import Array, Raw, Table
from fedtailor.datasets.wording import listed, quoted, reason

# The names of one split's arrays: examples, labels, clients.
SPLITS = (
    (("x", "y", "client"), False),
    (("x_train", "y_train", "client_train"), False),
    (("x_test", "y_test", "client_test"), True),
    (("train_images", "train_labels", "train_clients"), False),
    (("test_images", "test_labels", "test_clients"), True),
)


def read_npz(path: Path) -> dict[str, Array]:
    """All arrays of the file, names in lower case; arrays of Python objects are refused."""
    zipped = False
    try:
        with path.open("rb") as opened:  # numpy would leave a broken one open
            zipped = is_zipfile(opened)
            opened.seek(0)
            loaded = np.load(opened, allow_pickle=False)
            if not isinstance(loaded, np.lib.npyio.NpzFile):
                raise BadInput(f"{quoted(path)} is a single array: save it with np.savez(x=, y=)")
            with loaded as file:
                arrays = {name.lower(): file[name] for name in file.files}
    except BadInput:
        raise
    except Exception as error:  # a broken file can fail anywhere in zip, zlib or numpy
        if zipped and ("allow_pickle" in str(error) or "pickled" in str(error)):
            raise BadInput(
                f"{quoted(path)} holds Python objects, which are not read for safety: "
                "save plain number or text arrays"
            ) from error
        why = reason(error) if zipped else "no zip file"  # numpy would take that for a pickle
        raise BadInput(
            f"{quoted(path)} is not a readable npz file ({why}): save it again"
        ) from error
    if not arrays:
        raise BadInput(f"{quoted(path)} holds no arrays: save x and y in it")
    return arrays


def npz_parts(path: Path) -> list[SourcePart]:
    """The labelled splits in the file."""
    return array_parts(read_npz(path), path)


def array_parts(arrays: Mapping[str, Array], path: Path) -> list[SourcePart]:
    """The labelled splits among the arrays of a file."""
    parts = [_part(arrays, names, test, path) for names, test in SPLITS if names[0] in arrays]
    if not any(not p.test for p in parts):
        raise BadInput(
            f"{quoted(path)} holds the arrays {listed(arrays)}: save x and y, or x_train, "
            "y_train, x_test and y_test"
        )
    if len({bool(p.owners) for p in parts}) > 1:
        raise BadInput(f"{quoted(path)} names clients for one split only: name them for all")
    return parts


def _part(
    arrays: Mapping[str, Array], names: tuple[str, str, str], test: bool, path: Path
) -> SourcePart:
    x, y, client = names
    if y not in arrays:
        raise BadInput(
            f"{quoted(path)} has '{x}' but no '{y}' (arrays: {listed(arrays)}): save the labels"
        )
    labels = label_array(arrays[y], f"{quoted(path)} array '{y}'")
    owners = _owner_names(arrays[client], path, client) if client in arrays else ()
    if owners and len(owners) != len(labels):
        raise BadInput(
            f"{quoted(path)} has {len(owners)} entries in '{client}' for {len(labels)} labels: "
            "give one per example"
        )
    raw = raw_of(arrays[x], f"{quoted(path)} array '{x}'")
    return SourcePart(raw, labels, quoted(path), test, owners, notes=_missing(raw, x))


def _missing(raw: Raw, name: str) -> tuple[str, ...]:
    """A line on the numbers that are missing in a table."""
    columns = raw.columns if isinstance(raw, Table) else {}
    gaps = {c: found for c, v in columns.items() if (found := int(np.isnan(v).sum()))}
    told = f"{sum(gaps.values()):,} missing numbers in '{name}' become means of training rows"
    return (f"{told}: columns {listed(gaps)}",) if gaps else ()


def label_array(y: Array, where: str) -> Array:
    """One label per example: a name (unicode) or a number; or a time and an event [n, 2]."""
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    pairs = y.ndim == 2 and y.shape[1] == 2 and y.dtype.kind != "U"
    if (y.ndim != 1 and not pairs) or y.dtype.kind not in "iufbU":
        raise BadInput(
            f"{where} has shape {y.shape} of {y.dtype}: give one class number, class name or "
            "number per example, or its time and event"
        )
    if y.dtype.kind == "U":
        unnamed = np.flatnonzero(np.char.strip(y) == "")
        if len(unnamed):
            raise BadInput(f"{where} row {unnamed[0] + 1} has no label: label or remove it")
        return np.char.strip(y)
    if y.dtype.kind == "f":
        wrong = np.argwhere(~np.isfinite(y))
        if len(wrong):
            raise BadInput(
                f"{where} row {wrong[0][0] + 1} is {y[tuple(wrong[0])]}: "
                "give a finite number for every row"
            )
    measured = pairs or (y.dtype.kind == "f" and (np.mod(y, 1) != 0).any())
    return y.astype(np.float64 if measured else np.int64)


def _owner_names(client: Array, path: Path, key: str) -> tuple[str, ...]:
    if client.ndim != 1 or client.dtype.kind not in "iuU":
        raise BadInput(
            f"{quoted(path)} array '{key}' has shape {client.shape} of {client.dtype}: "
            "give one client name or whole number per example"
        )
    names = tuple(str(c) for c in client)
    if "" in names:
        raise BadInput(
            f"{quoted(path)} array '{key}' row {names.index('') + 1} is empty: name the client"
        )
    return names


def raw_of(x: Array, where: str) -> Raw:
    """Texts from a 1-d text array, a table from 2-d numbers, images from 3 or 4 dimensions."""
    if x.ndim == 1 and x.dtype.kind == "U":
        return tuple(str(text) for text in x)
    if x.ndim == 2 and x.dtype.kind in "iufb":
        if not np.isfinite(x[~np.isnan(x)] if x.dtype.kind == "f" else x).all():
            row = int(np.flatnonzero(np.isinf(x).any(axis=1))[0])
            raise BadInput(
                f"{where} row {row + 1} holds an infinite value: use a finite number or nan"
            )
        return Table({f"x{i}": x[:, i].astype(np.float64) for i in range(x.shape[1])})
    if x.ndim in (3, 4):
        return channels_first(x, where)
    raise BadInput(
        f"{where} has shape {x.shape} of {x.dtype}: give [n, features] numbers, "
        "[n, h, w(, c)] images or [n] texts"
    )
