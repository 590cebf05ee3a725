"""`describe`: what data hold, how they will be encoded, and what looks wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.core.inputs.files import write_atomically
from fedtailor.core.inputs.plain_text import counted
from fedtailor.datasets import Source
from fedtailor.datasets.features.summary import DescribedColumn, described_columns
from fedtailor.datasets.features.suspicions import suspicions
from fedtailor.results.config import make_config
from fedtailor.results.objects import separate
from fedtailor.runs.data import find_source
from fedtailor.runs.returned import as_frame

MOST_CLIENTS = 12  # that a cell of a table names


@dataclass(frozen=True)
class DataDescription:
    """What data hold; print it, or take its `table()`, `to_json()` or `write_page(path)`."""

    name: str  # of the data
    kind: str  # image, table or text
    task: str  # what is learnt
    label: str  # what the label is called
    rows: int
    shape: tuple[int, ...]  # of an example as networks take it; empty where only training tells
    labels: dict[str, int]  # rows of each class, event or range of the label
    clients: dict[str, int]  # rows of each client
    columns: tuple[DescribedColumn, ...]  # of a table
    notes: tuple[str, ...]  # what was guessed or left out
    warnings: tuple[str, ...]  # what looks wrong

    @property
    def inputs(self) -> int:
        """How many numbers of a row a network takes."""
        return sum(c.inputs for c in self.columns) or int(np.prod(self.shape or (0,)))

    def rows_of_table(self) -> list[dict[str, Any]]:
        """A row for each column, in words."""
        out = []
        for column in self.columns:
            share = column.overall.missing / max(1, column.overall.rows)
            unlike = [
                f"{client}: {mine.words(column.dates)}, {mine.missing} missing"
                for client, mine in column.clients.items()
                if client in column.differs
            ]
            more = f"; and {len(unlike) - MOST_CLIENTS} more" if len(unlike) > MOST_CLIENTS else ""
            out.append(
                {
                    "column": column.name,
                    "type": column.kind,
                    "missing": f"{column.overall.missing} ({100 * share:.0f} %)",
                    "values": column.overall.words(column.dates) if column.inputs else "",
                    "inputs": column.inputs,
                    "encoding": column.encoding,
                    "clients that differ": "; ".join(unlike[:MOST_CLIENTS]) + more,
                }
            )
        return out

    def table(self) -> Any:
        """A pandas DataFrame with a row for each column."""
        return as_frame(self.rows_of_table())

    def to_json(self) -> dict[str, Any]:
        """For the json module."""
        told = {k: v for k, v in vars(self).items() if k != "columns"}
        columns = [c.to_json() for c in self.columns]
        return told | {"inputs": self.inputs, "columns": columns}

    def write_page(self, path: str | Path) -> Path:
        """Puts the page at a path: one file that needs nothing else."""
        from fedtailor.report.page import filled  # late: with all that a run's page needs

        page = filled(__package__, "inspect.html.j2", d=self, rows=self.rows_of_table())
        write_atomically(Path(path), page)
        return Path(path)

    def __str__(self) -> str:
        rows, inputs = counted(self.rows, "row"), counted(self.inputs, "input")
        head = f"{self.name}: {rows}, {self.task}, {inputs}"
        columns = [f"{r['column']}: {r['type']}, {r['encoding']}" for r in self.rows_of_table()]
        return "\n".join([head, *columns, *self.notes, *self.warnings])


def describe(data: Any, **settings: Any) -> DataDescription:
    """What data hold, how they will be encoded, and what looks wrong, as `fedtailor inspect` says.

    Args:
      data: a known data set, a path, a DataFrame, or a mapping from clients to their rows.
      settings: those of a run that concern data, such as `label`, `client_column` or `drop`.

    Raises:
      BadInput: the data cannot be read.

    Example:
      >>> import numpy as np
      >>> found = describe({"north": (np.eye(3), [0, 1, 0]), "south": (np.eye(3), [1, 1, 0])})
      >>> found.kind, found.rows, found.inputs, found.clients
      ('table', 6, 3, {'north': 3, 'south': 3})
    """
    named = str(data) if isinstance(data, Path) else data
    method, given, objects = separate("local", {"data": named, **settings})
    config = make_config(method, given, {}, objects)
    choices = config.column_choices()
    # here a column that a client lacks is something to tell of, not to refuse
    source = find_source(config, replace(choices, lacking=True))
    return description_of(source)


def description_of(source: Source) -> DataDescription:
    """The description of data that were read."""
    counts = np.bincount(source.strata, minlength=len(source.strata_names)).tolist()
    owned = [int((source.owner == i).sum()) for i in range(len(source.owners))]
    notes = (source.decided, *source.notes)
    return DataDescription(
        source.name,
        source.kind,
        source.task,
        source.label,
        len(source),
        source.raw.shape[1:] if isinstance(source.raw, np.ndarray) else (),
        dict(zip(source.strata_names, counts, strict=True)),
        dict(zip(source.owners, owned, strict=True)),
        tuple(described_columns(source)),
        tuple(n for n in notes if n),
        tuple(suspicions(source)),
    )
