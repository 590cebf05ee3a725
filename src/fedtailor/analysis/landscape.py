"""The loss around the models that a run ended with: global against personal.

For each of some clients two surfaces are measured on the same two random directions: around its
personal model and, where the method has one beside it, around the global model; each on the
client's own test rows and on those of all clients. A line from the global to the personal model
tells whether there is a barrier between them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedtailor.analysis.surface import (
    SurfaceValues,
    direction,
    grid,
    measure_points,
    plane,
    segment,
    sharpness,
)
from fedtailor.core import __version__, rng, tree
from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.files import write_atomically
from fedtailor.core.losses import PLAIN_LOSSES
from fedtailor.core.tree import Tree
from fedtailor.core.turn import predict_general
from fedtailor.results.folder import GENERAL, LANDSCAPE, TENSORS
from fedtailor.results.measurements import ALL, GLOBAL, OWN, PERSONAL, Json
from fedtailor.runs.finished import Reopened, finished_runs, reopen

LINE = tuple(k / 20 for k in range(-10, 31))  # 0: the global model, 1: the personal one
Tell = Callable[[str, int, int], None]  # (what, points done, points in all)


def counting(tell: Tell, what: str, every: int) -> Callable[[int], None]:
    """Adds up points as they are done, and tells of them."""
    done = 0

    def add(count: int) -> None:
        nonlocal done
        done += count
        tell(what, done, every)

    return add


def default_clients(result: Json) -> list[str]:
    """The worst-off client, the one in the middle and the best-off one."""
    scored = {name: value for name, value in result["per_client"].items() if value is not None}
    ranked = sorted(scored, key=lambda name: scored[name])
    if not ranked:
        raise BadInput("no client has test rows: there is no loss to look at")
    return list(dict.fromkeys([ranked[0], ranked[len(ranked) // 2], ranked[-1]]))


def as_lists(values: Tensor) -> Any:
    """Nested lists for JSON, which has no word for nan and infinity."""
    if values.ndim:
        return [as_lists(row) for row in values]
    value = float(values)
    return float(f"{value:.7g}") if torch.isfinite(values) else None


def _told(found: SurfaceValues, shape: tuple[int, ...]) -> Json:
    return {
        "loss": as_lists(found.loss.reshape(shape)),
        "accuracy": as_lists(found.accuracy.reshape(shape)),
    }


class _Surfaces:
    """Measures the surfaces of one run; what several clients share is measured once."""

    def __init__(
        self, run: Reopened, points: int, reach: float, seed: int, tell: Callable[[int], None]
    ) -> None:
        self.run, self.tell, self.radius = run, tell, reach / 2
        self.axis = torch.linspace(-reach, reach, points, dtype=torch.float64)
        self.axis[points // 2] = 0.0
        self.keys = [rng.key(seed, rng.LANDSCAPE, i) for i in range(2)]
        self._known: dict[tuple[str, str], Json] = {}
        # one file: the same global model for all, and so the same surface over all rows
        self._same_global = (run.folder / f"{GENERAL}{TENSORS}").exists()

    def surface(self, client: str, which: str, model: Tree, rows: str) -> Json:
        """One surface with its sharpness."""
        shared = self._same_global and which == GLOBAL and rows == ALL
        name = ("" if shared else client, f"{which}/{rows}")
        if name not in self._known:
            ways = [direction(model, key) for key in self.keys]
            size = len(self.axis)
            at = plane(model, *ways)
            found = self._measure(client, at, grid(self.axis), rows, which == GLOBAL)
            sharp = sharpness(self.axis, found.loss.reshape(size, size), self.radius)._asdict()
            told = {k: as_lists(torch.tensor(v, dtype=torch.float64)) for k, v in sharp.items()}
            self._known[name] = _told(found, (size, size)) | {"sharpness": told}
        else:
            self.tell(len(self.axis) ** 2)
        return self._known[name]

    def line(self, client: str, general: Tree, personal: Tree) -> Json:
        """Loss and accuracy from the global (0) to the personal model (1) and beyond."""
        t = torch.tensor(LINE, dtype=torch.float64)
        at = segment(general, personal, self.run.player(client)[1].buffers)
        found = {rows: self._measure(client, at, t[:, None], rows) for rows in (OWN, ALL)}
        return {"t": as_lists(t), **{rows: _told(f, (len(t),)) for rows, f in found.items()}}

    def _measure(
        self,
        client: str,
        at: Callable[[Tensor], Tree],
        where: Tensor,
        rows: str,
        general: bool = False,
    ) -> Any:
        x, y = self.run.rows("test", client if rows == OWN else None)
        method, task = self.run.player(client)
        predict = predict_general(method, task) if general else method.predict
        loss = PLAIN_LOSSES[task.kind]
        return measure_points(predict, at, where, x, y, loss=loss, tell=self.tell)

    def client(self, name: str) -> Json:
        """All that is measured of a client."""
        personal, general = self.run.personal(name), self.run.general(name)
        models = {PERSONAL: personal} | ({} if general is None else {GLOBAL: general})
        told: Json = {
            which: {rows: self.surface(name, which, model, rows) for rows in (OWN, ALL)}
            for which, model in models.items()
        }
        # else there is no straight way from one to the other
        if general is not None and tree.shapes(personal) == tree.shapes(general):
            told["line"] = self.line(name, general, personal)
        return told


def _landscape(
    run: Reopened, clients: Sequence[str], points: int, reach: float, seed: int, tell: Tell
) -> Json:
    """The loss surfaces of a finished run, as `landscape.json` has them."""
    for name in clients:
        if not int(run.data.client_data.test.n[run.number(name)]):
            raise BadInput(f"client '{name}' has no test rows: choose another with --clients")
    has_global = [run.general(name) is not None for name in clients]
    every = sum(
        (4 if both else 2) * points**2 + (2 * len(LINE) if both else 0) for both in has_global
    )
    surfaces = _Surfaces(run, points, reach, seed, counting(tell, str(run.result["method"]), every))
    return {
        "version": __version__,
        "method": run.result["method"],
        "seed": seed,
        "radius": surfaces.radius,
        "axis": as_lists(surfaces.axis),
        "clients": {name: surfaces.client(name) for name in clients},
    }


def write_landscapes(
    folders: Sequence[str | Path],
    *,
    clients: Sequence[str] = (),
    points: int = 21,
    reach: float = 1.0,
    seed: int = 0,
    device: str = "auto",
    tell: Tell = lambda what, done, all: None,
) -> dict[Path, Json]:
    """Measures finished runs and writes `landscape.json` into the folder of each.

    Args:
      folders: of runs or comparisons.
      clients: whose models; else the worst-off, the middle and the best-off one of the first run.
      points: along each direction; odd, so that the model itself is one.
      reach: how far, in lengths of the filters.
      seed: of the directions; the same for all runs.
      device: where to compute.
      tell: called with (method, points done, points in all).
    """
    if points < 3 or points % 2 == 0 or points > 201:
        raise BadInput(f"points is {points}: give an odd number from 3 to 201")
    if not 0 < reach <= 100:
        raise BadInput(f"range is {reach:g}: give a number above 0, up to 100")
    if not folders:
        raise BadInput("no folders: name at least one finished run or comparison")
    places = finished_runs([Path(f) for f in folders])
    runs = (reopen(place, device) for place in places)
    chosen, found = list(dict.fromkeys(clients)), {}
    for place, run in zip(places, runs, strict=True):
        chosen = chosen or default_clients(run.result)
        found[place] = _landscape(run, chosen, points, reach, seed, tell)
        write_atomically(place / LANDSCAPE, json.dumps(found[place]) + "\n")
    return found
