"""What personal models take each client's test rows for: counted at the end of a run.

Kept sparse, since a client with a few rows of a few classes has a few kinds of mistakes, however
many classes there are.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.tree import Tree
from fedtailor.engine import ClientData
from fedtailor.engine.group import ClientGroup
from fedtailor.results.folder import CONFUSION
from fedtailor.results.storage import load_tensors, save_tensors

BATCH = 1024  # rows at a time: activations of a large test set need not fit into memory


def _counted(rows: Tensor) -> Tensor:
    """Distinct rows with, in a last column, how often each occurs."""
    found, count = torch.unique(rows, dim=0, return_counts=True)
    return torch.cat([found, count[:, None]], dim=1).to(torch.int32)


class TestOutputs:
    """What clients' models make of their test rows.

    Args:
      client_data: everybody's data.
      groups: who has which network.
    """

    __test__ = False  # no test, whatever its name begins with

    def __init__(self, client_data: ClientData, groups: list[ClientGroup]) -> None:
        self._client_data = client_data
        self._predict = {
            cid: group.method.predict for group in groups for cid in group.members.tolist()
        }

    @torch.no_grad()
    def of(self, client: int, model: Tree) -> tuple[Tensor, Tensor]:
        """(outputs, labels) of a client's test rows."""
        test, x, y = self._client_data.test, self._client_data.x, self._client_data.y
        start, count = int(test.offset[client]), int(test.n[client])
        rows = test.flat[start : start + count]
        model = tree.map(lambda leaf: leaf.to(x.device), model)
        said = [self._predict[client](model, x[part]) for part in torch.split(rows, BATCH)]
        return torch.cat(said), y[rows]


class Confusion:
    """Counts of (client, true class, predicted class), and of (client, class) over all its rows.

    Args:
      client_data: everybody's data.
      groups: who has which network.
    """

    def __init__(self, client_data: ClientData, groups: list[ClientGroup]) -> None:
        self._client_data = client_data
        self._outputs = TestOutputs(client_data, groups)
        self._found: list[Tensor] = []

    def add(self, client: int, model: Tree) -> None:
        """Lets a client's model classify its test rows."""
        if not int(self._client_data.test.n[client]):
            return
        said, labels = self._outputs.of(client, model)
        pairs = torch.stack([labels, said.argmax(-1)], dim=1).cpu().long()
        found = _counted(pairs)
        self._found.append(torch.cat([torch.full_like(found[:, :1], client), found], dim=1))

    def class_counts(self) -> Tensor:
        """Rows (client, class, count) over training, validation and test rows."""
        fed, out = self._client_data, []
        labels = fed.y.cpu().long()
        for part in (fed.train, fed.val, fed.test):
            owner = torch.repeat_interleave(torch.arange(fed.clients), part.n)
            out.append(torch.stack([owner, labels[part.flat.cpu()]], dim=1))
        return _counted(torch.cat(out))

    def save(self, folder: Path) -> None:
        """Writes the counts into a run's folder."""
        empty = torch.zeros(0, 4, dtype=torch.int32)
        save_tensors(
            folder / CONFUSION,
            {
                "confusion": torch.cat([empty, *self._found]),
                "class_counts": self.class_counts(),
            },
        )


def read_confusion(folder: Path) -> dict[str, Tensor]:
    """The counts that a run kept; empty for a run that kept none."""
    return load_tensors(folder / CONFUSION) if (folder / CONFUSION).exists() else {}
