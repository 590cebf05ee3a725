"""The way of a client's model through rounds, on the plane that shows most of it.

A run with `--keep-path` keeps models of some clients before and after training in a round. Their
two principal components span a plane; the client's training loss is measured all over it. The
picture is that of FedALA (Zhang et al., AAAI 2023, Figure 4): with FedAvg every round begins at the
global model, with ALA where the client's own loss is low.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor.analysis.landscape import Tell, as_lists, counting
from fedtailor.analysis.pca import frame, model_plane
from fedtailor.analysis.surface import measure_points, plane
from fedtailor.core import __version__, tree
from fedtailor.core.errors import BadInput, unknown
from fedtailor.core.inputs.files import write_atomically
from fedtailor.core.losses import PLAIN_LOSSES
from fedtailor.core.tree import Tree
from fedtailor.results.folder import TRAJECTORY
from fedtailor.results.measurements import Json
from fedtailor.results.pack import evenly
from fedtailor.runs.finished import Reopened, finished_runs, reopen
from fedtailor.runs.saved_models import path_clients, path_rounds, read_points

log = logging.getLogger("fedtailor")

ROUNDS = 60  # of each run: more arrows cannot be told apart


class Waypoint(NamedTuple):
    """A model on the way: of which run, in which round, before or after training."""

    run: int
    round: int
    when: str
    model: Tree


def _followed(runs: Sequence[Reopened], client: str | None) -> str:
    """The client whose way is shown: all runs must have kept it."""
    kept: list[list[str]] = []
    for run in runs:
        rounds = path_rounds(run.folder)
        if not rounds:
            raise BadInput(
                f"'{run.folder}' kept no path: run it again with --keep-path 1 (or more clients)"
            )
        kept.append(path_clients(run.folder, rounds[-1], run.clients))
    common = [name for name in kept[0] if all(name in names for names in kept)]
    if client is not None and client not in common:
        raise unknown("client whose path was kept:", client, common)
    if not common:
        raise BadInput(
            "the runs kept the paths of different clients: name runs of the same clients"
        )
    return client or common[0]


def _waypoints(runs: Sequence[Reopened], client: str, window: tuple[int, int]) -> list[Waypoint]:
    first, last = window
    waypoints = []
    for number, run in enumerate(runs):
        rounds = [r for r in path_rounds(run.folder) if first <= r <= last]
        for r in (rounds[i] for i in evenly(len(rounds), ROUNDS)):
            for when, model in read_points(run.folder, r, client).items():
                waypoints.append(Waypoint(number, r, when, model))
    if len(waypoints) < 3:
        raise BadInput(
            f"only {len(waypoints)} models of {client} in rounds {first} to {last}: "
            "a plane needs three"
        )
    if any(tree.shapes(point.model) != tree.shapes(waypoints[0].model) for point in waypoints):
        raise BadInput(f"the runs have different networks for {client}: a plane needs the same")
    return waypoints


def _labels(runs: Sequence[Reopened]) -> list[str]:
    methods = [str(run.result["method"]) for run in runs]
    return [
        m if methods.count(m) == 1 else f"{m} ({run.folder.resolve().name})"
        for m, run in zip(methods, runs, strict=True)
    ]


def _trajectory(
    runs: Sequence[Reopened], client: str | None, points: int, window: tuple[int, int], tell: Tell
) -> Json:
    """The ways of one client's model in some runs on one plane, as `trajectory.json` has them."""
    if points < 3 or points > 201:
        raise BadInput(f"points is {points}: give a number from 3 to 201")
    name = _followed(runs, client)
    waypoints = _waypoints(runs, name, window)
    method, task = runs[0].player(name)
    x, y = runs[0].rows("train", name)
    to = runs[0].here
    seen = model_plane([point.model for point in waypoints], task.buffers)
    at = plane(to(seen.origin), to(seen.first), to(seen.second))
    found = seen.plane
    across, up = frame(found.places, points)
    add = counting(tell, name, points**2 + len(waypoints))
    where = torch.cartesian_prod(torch.from_numpy(up), torch.from_numpy(across)).flip(1)
    measure = partial(measure_points, loss=PLAIN_LOSSES[task.kind], tell=add)
    losses = measure(method.predict, at, where, x, y).loss.reshape(points, points)
    # what the models themselves have: beside the plane lies more than on it
    stacked = to(tree.stack([point.model for point in waypoints]))

    def pick(k: Tensor) -> Tree:
        return tree.map(lambda leaf: leaf.index_select(0, k)[0], stacked)

    own = measure(method.predict, pick, torch.arange(len(waypoints))[:, None], x, y)
    return {
        "version": __version__,
        "client": name,
        "x": as_lists(torch.from_numpy(across)),
        "y": as_lists(torch.from_numpy(up)),
        "shares": as_lists(torch.from_numpy(found.shares)),
        "loss": as_lists(losses),
        "runs": [
            {
                "label": label,
                "folder": run.folder.resolve().name,
                "stops": [
                    {
                        "round": point.round,
                        "when": point.when,
                        "x": as_lists(torch.tensor(place[0])),
                        "y": as_lists(torch.tensor(place[1])),
                        "loss": as_lists(loss),
                    }
                    for point, place, loss in zip(waypoints, found.places, own.loss, strict=True)
                    if point.run == number
                ],
            }
            for number, (label, run) in enumerate(zip(_labels(runs), runs, strict=True))
        ],
    }


def write_trajectory(
    folders: Sequence[str | Path],
    client: str | None = None,
    *,
    points: int = 31,
    window: tuple[int, int] = (1, 10**9),
    device: str = "auto",
    tell: Tell = lambda what, done, all: None,
) -> Json:
    """Measures the plane of some runs together and writes it into the folder of each.

    Args:
      folders: of runs or comparisons; runs that kept no path are an error.
      client: whose way; the first one that all runs kept, if None.
      points: of the plane, along each axis.
      window: first and last round that count.
      device: where to compute.
      tell: called with (client, points done, points in all).
    """
    if not folders:
        raise BadInput("no folders: name at least one run that was made with --keep-path")
    places = finished_runs([Path(f) for f in folders])
    runs = _on_one_plane([reopen(place, device) for place in places])
    first = runs[0].data.digest()
    for run in runs[1:]:
        if run.data.digest() != first:
            raise BadInput(f"'{run.folder}' has other data or clients than '{runs[0].folder}'")
    found = _trajectory(runs, client, points, window, tell)
    for run in runs:
        write_atomically(run.folder / TRAJECTORY, json.dumps(found) + "\n")
    return found


def _on_one_plane(runs: list[Reopened]) -> list[Reopened]:
    """The runs without yardsticks that have another network, or rows encoded as if alone."""
    methods = [run for run in runs if not run.yardstick]
    if not methods:
        return runs
    like, rows = methods[0], methods[0].data.digest()
    kept = []
    for run in runs:
        same = run.result["model"] == like.result["model"]
        if run.yardstick and not (same and run.data.digest() == rows):
            why = "its rows are encoded as if there were no others" if same else "another network"
            log.info("%s is left out: %s", run.yardstick, why)
        else:
            kept.append(run)
    return kept
