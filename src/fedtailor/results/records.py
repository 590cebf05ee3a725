"""What methods noted during a run, and what they learnt: who learns from whom, how much of what.

A record is known by its shape, not by its name, so that those of a stranger's method are shown as
well: client × client (with or without blocks), one number per client, one per client and block.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedtailor.core.errors import BadInput
from fedtailor.results.collect import Contender
from fedtailor.results.folder import RECORDS, round_files
from fedtailor.results.pack import Array, evenly, pack_scaled, rounded
from fedtailor.results.storage import load_tensors

CELLS = 1_200_000  # of one method's heat maps: 1.6 MB of page
MAP_ROUNDS, MAP_WIDTH, LEAST_WIDTH = 12, 250, 50
SERIES_ROUNDS = 120
DONORS = 8  # how many others a client is said to have learnt from
UNTOLD = frozenset({"client/candidate_weight"})  # rows of it are those of the affinity matrix


def read_records(folder: str | Path) -> dict[str, dict[int, Tensor]]:
    """Arrays by name and round. `client/...` have one row per client in `ids`.

    Args:
      folder: of a run.

    Raises:
      BadInput: there are none, or one is broken.

    Example:
      >>> import fedtailor
      >>> from tempfile import TemporaryDirectory
      >>> with TemporaryDirectory() as place:
      ...     small = {"model": "mlp", "clients": 2, "rounds": 1, "batch": 200}
      ...     done = fedtailor.run("fedala", out=f"{place}/run", **small)
      ...     found = read_records(f"{place}/run")
      >>> sorted(found)
      ['client/ala_epochs', 'client/ala_loss', 'client/ala_weight', 'ids']
    """
    found: dict[str, dict[int, Tensor]] = {}
    files = round_files(Path(folder), RECORDS)
    if not files:
        raise BadInput(f"'{folder}' has no records: not every method notes something")
    for number, file in files.items():
        for name, value in load_tensors(file).items():
            found.setdefault(name, {})[number] = value
    return found


class Records:
    """The records of one run, read as far as they are needed."""

    def __init__(self, folder: Path) -> None:
        self._files = round_files(folder, RECORDS)
        self.rounds = list(self._files)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes by name, in the last round."""
        if not self._files:
            return {}
        path = self._files[self.rounds[-1]]
        with self._open(path) as file:
            return {k: tuple(file.get_slice(k).get_shape()) for k in file.keys()}  # noqa: SIM118

    def read(self, name: str, number: int) -> Array | None:
        """One array of one round; None if that round has none."""
        with self._open(self._files[number]) as file:
            if name not in file.keys():  # noqa: SIM118
                return None
            return np.asarray(file.get_tensor(name), dtype=np.float64)

    def _open(self, path: Path) -> Any:
        try:
            return safe_open(path, framework="np")
        except (OSError, SafetensorError) as error:
            raise BadInput(f"'{path}' is broken ({error}): remove it or run again") from None


def map_size(clients: int, blocks: int, rounds: int) -> tuple[int, int]:
    """How many rounds and how many rows heat maps may have, so that the page stays small."""
    kept, width = min(rounds, MAP_ROUNDS), min(clients, MAP_WIDTH)
    while kept * blocks * width**2 > CELLS and (kept > 4 or width > LEAST_WIDTH):
        if kept > 4:
            kept -= 1
        else:
            width = max(LEAST_WIDTH, int(width * 0.8))
    while kept * blocks * width**2 > CELLS and kept > 1:
        kept -= 1
    return kept, width


def binned(matrix: Array, order: Array, width: int) -> Array:
    """The matrices with clients in order, neighbours averaged until there are `width` rows."""
    sorted_ = matrix[..., order, :][..., :, order]
    edges = np.linspace(0, len(order), width + 1).round().astype(int)
    if width == len(order):
        return sorted_
    sizes = np.diff(edges)
    summed = np.add.reduceat(np.add.reduceat(sorted_, edges[:-1], axis=-2), edges[:-1], axis=-1)
    return np.asarray(summed / (sizes[:, None] * sizes[None, :]))


def scale_bounds(apart: Array, equal: float | None) -> tuple[float, float, float | None]:
    """Least, largest and colourless value of a scale, without outliers.

    Args:
      apart: weights of others; a client's weight for itself would drown what is to be seen.
      equal: an equal share, where the weights of a client sum to 1: the middle of the scale.
    """
    if not apart.size:
        return 0.0, 1.0, None
    least, largest = (float(v) for v in np.quantile(apart, [0.005, 0.995]))
    if equal is not None and largest <= 3 * equal:  # above, most are next to nothing
        return min(least, 0.99 * equal), max(largest, 1.01 * equal), equal
    if least < 0:
        most = max(-least, largest)
        return -most, most, 0.0
    return 0.0, largest or 1.0, None


def _between_clients(
    records: Records, name: str, shape: tuple[int, ...], order: Array, blocks: list[str]
) -> dict[str, Any]:
    """A client × client record as heat maps by round and block, and everybody's main donors."""
    clients = shape[-1]
    count = int(np.prod(shape[:-2]))
    kept, width = map_size(clients, count, len(records.rounds))
    rounds = [records.rounds[i] for i in evenly(len(records.rounds), kept)]
    maps = []
    last = np.zeros((count, clients, clients))
    for number in rounds:
        found = records.read(name, number)
        if found is None:
            found = np.full(shape, np.nan)
        last = found.reshape(count, clients, clients)
        maps.append(binned(last, order, width))
    stack = np.stack(maps)  # round, block, row, column
    apart = stack[..., ~np.eye(width, dtype=bool)]
    apart = apart[np.isfinite(apart)]
    shares = bool(np.allclose(last.sum(axis=-1), 1, atol=1e-3)) and not (apart < 0).any()
    low, high, centre = scale_bounds(apart, 1 / clients if shares else None)
    weight = last.mean(axis=0)
    own = rounded(np.diagonal(weight))
    others = np.where(np.eye(clients, dtype=bool), -np.inf, np.nan_to_num(weight))
    most = min(DONORS, clients - 1)
    donors = np.argsort(-others, axis=1, kind="stable")[:, :most]
    return {
        "kind": "between",
        "rounds": rounds,
        "blocks": blocks if len(blocks) == count else [f"block {i}" for i in range(count)],
        "width": width,
        "centre": centre,
        "maps": pack_scaled(stack, low, high),
        "donors": donors.tolist(),
        "donor_weight": [rounded(others[i][row]) for i, row in enumerate(donors)],
        "own_weight": own,
    }


def _over_clients(records: Records, name: str, blocks: list[str]) -> dict[str, Any] | None:
    """A record with one row per client: mean and middle 80 % by round (and block)."""
    rounds, middles, lows, highs = [], [], [], []
    for i in evenly(len(records.rounds), SERIES_ROUNDS):
        found = records.read(name, records.rounds[i])
        if found is None or not found.size:
            continue
        each = found.reshape(len(found), -1)
        rounds.append(records.rounds[i])
        middles.append(each.mean(axis=0))
        low, high = np.quantile(each, [0.1, 0.9], axis=0)
        lows.append(low)
        highs.append(high)
    if not rounds or len({len(m) for m in middles}) > 1:
        return None
    count = len(middles[0])
    named = blocks if len(blocks) == count else [f"block {i}" for i in range(count)]
    return {
        "kind": "blocks" if count > 1 else "series",
        "rounds": rounds,
        "blocks": named,
        "mid": [rounded(m) for m in np.array(middles).T],
        "low": [rounded(m) for m in np.array(lows).T],
        "high": [rounded(m) for m in np.array(highs).T],
    }


def learnt(contender: Contender, clients: int, order: Array) -> list[dict[str, Any]]:
    """All that a method noted, of the run with the first seed.

    Args:
      contender: the method.
      clients: how many there are.
      order: clients, like beside like.
    """
    records = Records(contender.first.folder)
    blocks = [str(b) for b in contender.first.result.get("blocks", [])]
    out = []
    for name, shape in sorted(records.shapes().items()):
        where, _, short = name.partition("/")
        shown: dict[str, Any] | None = None
        square = len(shape) in (2, 3) and shape[-2:] == (clients, clients)
        if where == "server" and square and clients > 1:
            shown = _between_clients(records, name, shape, order, blocks)
        elif where == "client" and len(shape) in (1, 2) and name not in UNTOLD:
            shown = _over_clients(records, name, blocks)
        elif where == "server" and shape in ((), (1,)):
            shown = _over_server(records, name)
        if shown:
            out.append({"name": short, **shown})
    return out


def _over_server(records: Records, name: str) -> dict[str, Any]:
    """One number of the server by round."""
    rounds = [records.rounds[i] for i in evenly(len(records.rounds), SERIES_ROUNDS)]
    each = [records.read(name, r) for r in rounds]
    mid = [rounded([np.nan if v is None else float(v.reshape(())) for v in each])]
    return {"kind": "series", "rounds": rounds, "blocks": ["server"], "mid": mid}
