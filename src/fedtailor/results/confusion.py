"""What personal models take each client's test rows for: counted at the end of a run.

Kept sparse, since a client with a few rows of a few classes has a few kinds of mistakes, however
many classes there are.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from fedtailor.core.form import Form
from fedtailor.engine import ClientData
from fedtailor.results.folder import CONFUSION
from fedtailor.results.outputs import RunOutputs
from fedtailor.results.storage import load_tensors, save_tensors


def _counted(*columns: Tensor) -> Tensor:
    """Distinct rows of columns of counting numbers; in a last column, how often each occurs."""
    # as one number each: sorting rows as such takes thirty times as long
    sizes = [int(column.max()) + 1 if len(column) else 1 for column in columns]
    number = torch.zeros_like(columns[0])
    for column, size in zip(columns, sizes, strict=True):
        number = number * size + column
    number, count = torch.unique(number, return_counts=True)
    found = [count]
    for size in reversed(sizes):
        found.insert(0, number % size)
        number = number // size
    return torch.stack(found, dim=1).to(torch.int32)


def _class_counts(client_data: ClientData) -> Tensor:
    """Rows (client, class, count) over training, validation and test rows."""
    labels, clients = client_data.y.cpu().long(), torch.arange(client_data.clients)
    parts = (client_data.train, client_data.val, client_data.test)
    owners = [torch.repeat_interleave(clients, part.n) for part in parts]
    return _counted(torch.cat(owners), torch.cat([labels[part.flat.cpu()] for part in parts]))


def save_confusion(
    folder: Path, client_data: ClientData, form: Form, found: RunOutputs | None = None
) -> None:
    """Writes counts of (client, true class, predicted class), and of (client, class).

    Args:
      folder: of the run.
      client_data: everybody's data.
      form: what is learnt: without classes there is nothing to count.
      found: what the final models said, if the run has come so far.
    """
    if form.task != "classification":
        return
    confusion = torch.zeros(0, 4, dtype=torch.int32)
    if found is not None and found.last is not None:
        owner = torch.repeat_interleave(torch.arange(client_data.clients), found.test.n)
        said, answered = found.last.test, found.last.test.isfinite().all(-1)
        columns = (owner, found.test.labels.long(), said.argmax(-1))
        confusion = _counted(*(column[answered] for column in columns))
    counts = {"confusion": confusion, "class_counts": _class_counts(client_data)}
    save_tensors(folder / CONFUSION, counts)


def read_confusion(folder: Path) -> dict[str, Tensor]:
    """The counts that a run kept; empty for a run that kept none."""
    return load_tensors(folder / CONFUSION) if (folder / CONFUSION).exists() else {}
