"""Data as objects: a DataFrame, or what each client has in arrays or in a torch Dataset."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

import numpy as np

from fedtailor.core.errors import BadInput
from fedtailor.datasets.features.choices import ColumnChoices
from fedtailor.datasets.formats.arrays import label_array, raw_of
from fedtailor.datasets.formats.cells import plain
from fedtailor.datasets.formats.roles import NamedColumns
from fedtailor.datasets.formats.tables import Cells, RawTable, check_header, numbered_rows
from fedtailor.datasets.join import join_parts
from fedtailor.datasets.labels import checked_task
from fedtailor.datasets.load import with_image_size
from fedtailor.datasets.own_files import table_parts, task_of_columns
from fedtailor.datasets.parts import SourcePart
from fedtailor.datasets.source import Array, Source
from fedtailor.datasets.wording import listed, quoted, reason

FORMS = "a DataFrame, or a mapping from clients to (x, y), a torch Dataset or a DataFrame"


def source_of(
    data: Any,
    *,
    name: str = "objects",
    label: str | None = None,
    client_column: str | None = None,
    text_column: str | None = None,
    image_size: int | None = None,
    task: str = "auto",
    time_column: str | None = None,
    event_column: str | None = None,
    group_column: str | None = None,
    time_column_split: str | None = None,
    choices: ColumnChoices = ColumnChoices(),
) -> Source:
    """The same `Source` that files become, from objects in memory.

    A mapping's keys are the names of the natural clients. Its values are

    - pairs (x, y) of numpy arrays, torch tensors or lists: a table [n, features], images
      [n, h, w], [n, h, w, c] or [n, c, h, w], or n texts; with n class numbers, class names or
      numbers to learn, or with n pairs of time and event (0 or 1);
    - map-style torch Datasets of (x, y), which are read once, so that random transforms are drawn
      once and for all;
    - or DataFrames with the same columns.

    Images are kept in 8 bits: whole numbers 0..255 as they are, floats 0..1 and -1..1 scaled, with
    a note where that rounds them.

    Args:
      data: a pandas DataFrame, or a mapping from clients to one of the above.
      name: what messages and reports call the data.
      label: the label column of DataFrames; else the usual names are looked for.
      client_column: the column of a DataFrame that names the client of each row.
      text_column: the column whose text is to be classified.
      image_size: side in pixels that images are resized to.
      task: `classification`, `regression` or `survival`; `auto` tells it from the labels.
      time_column: for survival, the column of DataFrames with the time until the event, or until
        the row was seen last.
      event_column: the column that has 1 where the event came, and 0 where it was not seen.
      group_column: the column that says whose rows stay on one side of a split.
      time_column_split: the column that says when a row was, to train on the past.
      choices: which columns of DataFrames are features, and what they are.

    Raises:
      BadInput: the objects are of no such kind, or do not fit together.

    Example:
      >>> ages = {"north": ([[31.0], [64.0]], ["well", "ill"]), "south": ([[58.0]], ["ill"])}
      >>> source = source_of(ages)
      >>> source.owners, source.classes, source.labels.tolist()
      (('north', 'south'), ('ill', 'well'), [1, 0, 0])
    """
    given = (label, client_column, text_column, time_column, event_column)
    columns = NamedColumns(*given, group_column, time_column_split)
    chosen = task_of_columns(columns, checked_task(task))
    if _is_frame(data):
        frame = _raw_table(data, "the DataFrame")
        parts = table_parts([frame], columns, [None], image_size, chosen, choices)
        return with_image_size(join_parts(name, parts, task=chosen), image_size)
    if not isinstance(data, Mapping):
        raise BadInput(f"data is {_a(data)}: give {FORMS}")
    clients = _named(data)
    if all(_is_frame(value) for value in clients.values()):
        if client_column is not None:
            raise BadInput(
                f"--client-column {quoted(client_column)} is not used with a mapping, whose keys "
                "are the clients: leave it out"
            )
        tables = [_raw_table(frame, _at(client)) for client, frame in clients.items()]
        parts = table_parts(tables, columns, list(clients), image_size, chosen, choices)
    else:
        columns.refuse("names a column but a mapping to (x, y) has none")
        choices.refuse("names a column but a mapping to (x, y) has none")
        parts = _array_parts({c: _pair(value, _at(c)) for c, value in clients.items()})
    return with_image_size(join_parts(name, parts, task=chosen), image_size)


def _a(value: object) -> str:
    return f"of type {type(value).__name__}"


def _at(client: str) -> str:
    return f"client {quoted(client)}"


def _named(data: Mapping[Any, Any]) -> dict[str, Any]:
    """The mapping with clients' names as texts."""
    clients = {str(key): value for key, value in data.items()}
    if not clients:
        raise BadInput(f"data is an empty mapping: give {FORMS}")
    if len(clients) < len(data) or "" in clients:
        raise BadInput(
            f"the clients {listed(data)} do not have one name each: use keys that differ as text "
            "and are not empty"
        )
    return clients


# --- DataFrames ---


def _is_frame(value: object) -> bool:
    """Nobody can have made a DataFrame without pandas, so it is never imported here."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.DataFrame)


def _raw_table(frame: Any, where: str) -> RawTable:
    """A DataFrame as a table that was read from a typed file."""
    names = [str(column) for column in frame.columns]
    check_header(names, where)
    if not len(frame):
        raise BadInput(f"{where} has no rows: fill or remove it")
    columns = {n: _cells(frame.iloc[:, i], n, where) for i, n in enumerate(names)}
    return RawTable(where, columns, numbered_rows(len(frame)), typed=True)


def _cells(column: Any, name: str, where: str) -> Cells:
    missing = column.isna().to_numpy()
    if column.dtype.name == "category" and column.cat.categories.dtype.kind in "iuf":
        return ["" if gone else plain(c) for c, gone in zip(column, missing, strict=True)]
    if column.dtype.kind == "b":
        return ["" if gone else str(bool(c)) for c, gone in zip(column, missing, strict=True)]
    if column.dtype.kind == "M":
        return ["" if gone else str(c) for c, gone in zip(column, missing, strict=True)]
    if column.dtype.kind in "iuf":
        # whole numbers stay so: an identity of 18 digits must not be rounded
        exact = "f" if missing.any() else column.dtype.kind
        return column.to_numpy(dtype=f"{exact}8", na_value=np.nan)  # type: ignore[no-any-return]
    cells = [None if gone else cell for cell, gone in zip(column, missing, strict=True)]
    kinds = {_kind(cell) for cell in cells if cell is not None}
    if kinds <= {str} or kinds == {bool} or kinds == {date}:
        return ["" if cell is None else str(cell) for cell in cells]
    if kinds == {float}:
        numbers = np.array([np.nan if cell is None else cell for cell in cells])
        return numbers if numbers.dtype.kind in "iu" else numbers.astype(np.float64)
    if kinds == {bytes} and not missing.any():
        return [bytes(cell) for cell in cells if cell is not None]
    raise BadInput(
        f"{where} column {quoted(name)} holds {listed(sorted(k.__name__ for k in kinds))}"
        f"{' and empty cells' * bool(missing.any())}: make it all numbers, all text or all image "
        "bytes, or leave it out"
    )


def _kind(cell: object) -> type:
    if isinstance(cell, bool | np.bool_):
        return bool
    if isinstance(cell, date):  # a pandas Timestamp is one, too
        return date
    return float if isinstance(cell, int | float | np.number) else type(cell)


# --- arrays and Datasets ---


def _pair(value: Any, where: str) -> tuple[Array, Array]:
    """A client's examples and labels as arrays."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        if not _is_dataset(value):
            raise BadInput(f"{where} has data {_a(value)}: give (x, y) or a map-style Dataset")
        value = _read_dataset(value, where)
    x, y = (_checked(v, f"{where}: {what}") for v, what in zip(value, "xy", strict=True))
    if not x.size and not y.size:
        raise BadInput(f"{where} has no examples: fill it or leave it out")
    if len(x) != len(y):
        raise BadInput(f"{where} has {len(x)} examples but {len(y)} labels: give one label each")
    return x, label_array(y, f"{where}: y")


def _is_dataset(value: Any) -> bool:
    """Whether it has numbered items and is nothing else that has them."""
    items = hasattr(value, "__getitem__") and hasattr(value, "__len__")
    other = isinstance(value, Mapping | Sequence) or hasattr(value, "dtype") or _is_frame(value)
    return items and not other


def _read_dataset(dataset: Any, where: str) -> tuple[list[Any], list[Any]]:
    pairs = []
    for row in range(len(dataset)):
        try:
            pair = dataset[row]
        except Exception as error:  # whatever a stranger's Dataset raises
            raise BadInput(
                f"{where}: row {row + 1} of its Dataset cannot be read "
                f"({type(error).__name__}: {reason(error)}): mend the Dataset"
            ) from error
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise BadInput(f"{where}: row {row + 1} of its Dataset is {_a(pair)}: return (x, y)")
        pairs.append(pair)
    return [x for x, _ in pairs], [y for _, y in pairs]


def _checked(values: Any, where: str) -> Array:
    """An array of numbers or of texts, with a first axis for examples and without nan."""
    if np.ma.is_masked(values):  # as an array it would lose its mask
        raise BadInput(f"{where} has masked values: fill them (.filled) or leave their rows out")
    array = _array(values, where)
    if not array.ndim:
        raise BadInput(f"{where} is {_a(values)}: give an array, a tensor or a list")
    if array.dtype.kind == "O" and all(isinstance(v, str) for v in array.flat):
        array = array.astype(np.str_)
    if array.dtype.kind not in "biufU":
        raise BadInput(
            f"{where} holds {array.dtype}: give numbers or text, or a DataFrame where columns are "
            "of several kinds"
        )
    if array.dtype.kind == "f" and np.isnan(array).any():
        row = int(np.argwhere(np.isnan(array))[0][0])
        raise BadInput(f"{where} row {row + 1} holds nan: fill it or leave the row out")
    return array


def _array(values: Any, where: str) -> Array:
    if hasattr(values, "detach"):  # a tensor, perhaps on another device
        import torch

        values = values.detach().cpu()
        if values.layout is not torch.strided or values.is_quantized:
            raise BadInput(
                f"{where} is a tensor of {values.dtype} in layout {values.layout}: make it a plain "
                "one (.to_dense(), .dequantize())"
            )
        if values.dtype is torch.bfloat16:  # numpy has no such numbers
            values = values.float()
    if not isinstance(values, Sequence) or isinstance(values, str):
        return np.asarray(values)
    if len({isinstance(value, str) for value in values}) > 1:
        raise BadInput(f"{where} mixes text and numbers: make it one or the other")
    if not values or isinstance(values[0], str | int | float):
        return np.asarray(values)
    rows = [_array(value, where) for value in values]
    _same_shapes({f"{where} row {i + 1}": row.shape for i, row in enumerate(rows)})
    return np.stack(rows)


def _same_shapes(shapes: Mapping[str, tuple[int, ...]]) -> None:
    first = next(iter(shapes))
    for other, shape in shapes.items():
        if shape != shapes[first]:
            raise BadInput(
                f"{other} has shape {shape} but {first} has {shapes[first]}: bring all to one shape"
            )


def _array_parts(pairs: Mapping[str, tuple[Array, Array]]) -> list[SourcePart]:
    _same_shapes({f"an example of {_at(c)}": x.shape[1:] for c, (x, _) in pairs.items()})
    examples = {client: x for client, (x, _) in pairs.items()}
    labels = {client: y for client, (_, y) in pairs.items()}
    _same_kinds(examples, "examples")
    _same_kinds(labels, "labels")
    x, notes = next(iter(examples.values())), tuple[str, ...]()
    if x.ndim in (3, 4) and x.dtype.kind != "U":
        examples, notes = _as_bytes(examples)
    return [
        SourcePart(raw_of(x, f"{_at(c)}: x"), labels[c], _at(c), owners=[c] * len(x), notes=notes)
        for c, x in examples.items()
    ]


def _same_kinds(arrays: Mapping[str, Array], what: str) -> None:
    kinds = {c: _KINDS.get(array.dtype.kind, "whole numbers") for c, array in arrays.items()}
    first = next(iter(kinds))
    for client, kind in kinds.items():
        # 3.0 as a label or a feature is a whole number; as a pixel it may be one of 0..1
        same = {kind, kinds[first]}
        if len(same) > 1 and ("text" in same or arrays[client].ndim > 2):
            raise BadInput(
                f"{_at(client)} has {kind} as {what} but {_at(first)} {kinds[first]}: "
                "make them the same everywhere"
            )


_KINDS = {"U": "text", "f": "fractions"}
SIGNALS = "give as rows of numbers: x.reshape(len(x), -1)"
WHOLE = 0.2  # of a level: k / 255 in half precision is up to an eighth off


def _as_bytes(images: Mapping[str, Array]) -> tuple[dict[str, Array], tuple[str, ...]]:
    """Pixels as uint8, scaled for all clients alike: one of them may have only dark images.

    Returns:
      With a line where that changes them.
    """
    if all(x.dtype == np.uint8 for x in images.values()):
        return dict(images), ()
    low, high = min(x.min() for x in images.values()), max(x.max() for x in images.values())
    scale, shift = (255.0, 0.0) if low >= 0 else (127.5, 127.5)
    if high > 1:
        scale, shift = 1.0, 0.0
    found, rounded = {}, False
    for client, x in images.items():
        if low < -1 or high > 255 or (high > 1 and (low < 0 or (np.mod(x, 1) != 0).any())):
            raise BadInput(
                f"{_at(client)} has pixels from {x.min():.4g} to {x.max():.4g}: give whole numbers "
                "0..255, or 0..1 or -1..1 (leave out a Normalize by mean and deviation); what are "
                f"no images, {SIGNALS}"
            )
        exact = x * scale + shift
        found[client] = np.rint(exact).astype(np.uint8)
        rounded = rounded or bool((abs(exact - found[client]) > WHOLE).any())
    note = f"pixels are rounded to 256 levels; what are no images, {SIGNALS}"
    return found, (note,) * rounded
