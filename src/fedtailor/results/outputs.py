"""What models said of every test and validation row: kept, so that any metric can be had later."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.core.errors import BadInput
from fedtailor.results.folder import OUTPUTS
from fedtailor.results.storage import load_tensors, save_tensors

PARTS = ("test", "val")


class PartRows(NamedTuple):
    """The rows of a part, one client after the other."""

    labels: Tensor  # of each row: a class, a number, or time and event
    row: Tensor  # its number in the data
    n: Tensor  # how many each client has


class SaidInRound(NamedTuple):
    """What models said in one round, in the order of the rows."""

    round: int  # which; counted from 1
    test: Tensor  # rows x outputs: logits, or one number in the label's unit, or log risks
    val: Tensor  # the same for validation rows


class RunOutputs(NamedTuple):
    """What the models of a run said of all clients' rows."""

    test: PartRows  # the test rows
    val: PartRows  # the validation rows
    last: SaidInRound | None  # what the final models say of them
    # what those of the best round said; None if no round was judged on validation rows
    best: SaidInRound | None


def save_outputs(folder: Path, found: RunOutputs) -> None:
    """Writes them into a run's folder."""
    kept: dict[str, Tensor] = {}
    for part in PARTS:
        rows: PartRows = getattr(found, part)
        kept |= {f"{name}/{part}": getattr(rows, name) for name in PartRows._fields}
    for when in ("last", "best"):
        said: SaidInRound | None = getattr(found, when)
        if said is not None:
            kept |= {f"{when}/{part}": getattr(said, part) for part in PARTS}
            kept[f"{when}/round"] = torch.tensor(said.round)
    save_tensors(folder / OUTPUTS, kept)


def read_outputs(folder: Path) -> RunOutputs | None:
    """Those that a run kept; None for a run that kept none (before 0.3).

    Raises:
      BadInput: the file is broken.
    """
    path = folder / OUTPUTS
    if not path.exists():
        return None
    kept = load_tensors(path)
    try:
        rows = [PartRows(*(kept[f"{n}/{part}"] for n in PartRows._fields)) for part in PARTS]
        said = [_said(kept, when) for when in ("last", "best")]
    except KeyError as error:
        raise BadInput(f"'{path}' lacks {error}: it cannot be used") from None
    return RunOutputs(rows[0], rows[1], said[0], said[1])


def _said(kept: dict[str, Tensor], when: str) -> SaidInRound | None:
    if f"{when}/round" not in kept:
        return None
    each: list[Any] = [kept[f"{when}/{part}"] for part in PARTS]
    return SaidInRound(int(kept[f"{when}/round"]), *each)
