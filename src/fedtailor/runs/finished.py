"""A finished run, opened again with its data, networks and models."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.errors import BadInput, unknown
from fedtailor.core.method import Method
from fedtailor.core.task import Task
from fedtailor.core.tree import Tree
from fedtailor.results import folder as files
from fedtailor.results.collect import read_finished_run, yardstick_of
from fedtailor.results.config import Config, config_of
from fedtailor.results.storage import load_tensors, read_checkpoint
from fedtailor.runs.build import make_players
from fedtailor.runs.data import RunData, load_run_data
from fedtailor.runs.saved_models import read_general


class Reopened(NamedTuple):
    """A finished run with all that is needed to use its models."""

    folder: Path  # of the run
    result: dict[str, Any]  # what it came to
    data: RunData  # its data
    players: list[tuple[Method, Task, Tensor]]  # (method, network, ids of the clients that have it)

    @property
    def yardstick(self) -> str:
        """Which of a comparison's yardsticks it is; empty if it is none."""
        return yardstick_of(self.folder, self.result["seed"])

    @property
    def clients(self) -> tuple[str, ...]:
        """Everybody's name."""
        return self.data.client_data.names

    def number(self, client: str) -> int:
        """A client's id.

        Raises:
          BadInput: there is no such client.
        """
        if client not in self.clients:
            raise unknown(f"client of '{self.folder}':", client, self.clients)
        return self.clients.index(client)

    def player(self, client: str) -> tuple[Method, Task]:
        """The method and network that a client has."""
        cid = self.number(client)
        return next((m, t) for m, t, ids in self.players if cid in ids.tolist())

    def rows(self, part: str, client: str | None = None) -> tuple[Tensor, Tensor]:
        """Examples and labels of a part (`train`, `val`, `test`) of one client, or of all."""
        fed = self.data.client_data
        held = getattr(fed, part)
        flat = held.flat
        if client is not None:
            start = int(held.offset[self.number(client)])
            flat = flat[start : start + int(held.n[self.number(client)])]
        return fed.x[flat], fed.y[flat]

    def here(self, model: Tree) -> Tree:
        """A model where the data are."""
        device = self.data.client_data.x.device
        return tree.map(lambda leaf: leaf.to(device), model)

    def personal(self, client: str) -> Tree:
        """A client's personal model."""
        return self.here(tree.unflatten(load_tensors(files.model_file(self.folder, client))))

    def general(self, client: str) -> Tree | None:
        """The global model as a client has it; None where there is none beside personal ones."""
        found = read_general(self.folder, client)
        return None if found is None else self.here(found)


def finished_runs(folders: list[Path]) -> list[Path]:
    """The finished runs that folders of runs and comparisons stand for.

    Raises:
      BadInput: a folder holds none.
    """
    found = []
    for folder in folders:
        there = [place for place in files.run_folders(folder) if files.is_finished(place)]
        if not there:
            raise BadInput(f"'{folder}' is not finished: go on with {files.resume_command(folder)}")
        found += there
    return list({place.resolve(): place for place in found}.values())


def load_same_data(folder: Path, config: Config) -> RunData:
    """The data of a finished run.

    Raises:
      BadInput: they are not what they were.
    """
    data = load_run_data(config)
    if files.has_checkpoint(folder):
        kept = read_checkpoint(folder / files.CHECKPOINT).get("data")
        if kept not in (None, data.digest()):
            raise BadInput(f"the data of '{folder}' have changed since the run: run it again")
    return data


def reopen(folder: Path, device: str = "auto") -> Reopened:
    """Opens a finished run.

    Args:
      folder: of the run.
      device: where to compute.

    Raises:
      BadInput: it is not finished, or its data are not what they were.
    """
    result = read_finished_run(folder).result
    data = load_same_data(folder, config_of(folder, device=device))
    players = make_players(data.config, data.encoder.form, data.client_data.clients)
    return Reopened(folder, result, data, players)
