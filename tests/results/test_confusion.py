"""What is counted of clients, classes and what models say, and what is kept of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedtailor.core.form import Form
from fedtailor.engine import ClientData
from fedtailor.results.confusion import _counted, read_confusion, save_confusion
from fedtailor.results.outputs import PartRows, RunOutputs, SaidInRound

OWNER = torch.tensor([1, 0, 1, 1, 0, 2])
LABEL = torch.tensor([4, 0, 4, 2, 0, 3])


def test_each_kind_of_row_is_counted_once() -> None:
    said = torch.tensor([4, 0, 1, 2, 0, 3])
    assert _counted(OWNER, LABEL).tolist() == [[0, 0, 2], [1, 2, 1], [1, 4, 2], [2, 3, 1]]
    assert _counted(OWNER, LABEL, said).tolist() == [
        [0, 0, 0, 2], [1, 2, 2, 1], [1, 4, 1, 1], [1, 4, 4, 1], [2, 3, 3, 1],
    ]  # fmt: skip


def test_kinds_are_those_of_whole_rows_and_in_their_order() -> None:
    columns = [torch.randint(0, most, (500,)) for most in (7, 1, 300)]
    found, count = torch.unique(torch.stack(columns, dim=1), dim=0, return_counts=True)
    assert torch.equal(_counted(*columns), torch.cat([found, count[:, None]], dim=1).int())


def test_of_no_rows_there_are_no_kinds() -> None:
    none = OWNER[:0]
    assert _counted(none, none).shape == (0, 3) and _counted(none, none, none).shape == (0, 4)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_only_classes_are_kept(tmp_path: Path, task: str) -> None:
    y, parts = torch.tensor([2, 0, 2, 1]), ([[0, 2], []], [[1], []], [[], [3]])
    data = ClientData.of(torch.zeros(4, 1), y, *parts)
    save_confusion(tmp_path, data, Form("table", (1,), 3, task=task))
    kept = {name: rows.tolist() for name, rows in read_confusion(tmp_path).items()}
    counts = {"confusion": [], "class_counts": [[0, 0, 1], [0, 2, 2], [1, 1, 1]]}
    assert kept == (counts if task == "classification" else {})


def test_what_is_no_number_is_no_answer(tmp_path: Path) -> None:
    """Of three rows the second has none: it is taken for no class."""
    y = torch.tensor([0, 1, 1])
    data = ClientData.of(torch.zeros(3, 1), y, [[]], [[]], [[0, 1, 2]])
    said = torch.tensor([[1.0, 0], [torch.nan, 0], [0, 1]])
    rows = PartRows(y, torch.arange(3), torch.tensor([3]))
    found = RunOutputs(rows, rows, SaidInRound(1, said, said), None)
    save_confusion(tmp_path, data, Form("table", (1,), 2), found)
    assert read_confusion(tmp_path)["confusion"].tolist() == [[0, 0, 0, 1], [0, 1, 1, 1]]
