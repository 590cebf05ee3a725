"""A finished run, opened so that any client's turn can be played once more outside the engine."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.analysis.audit.exposure import Exposure, bases_of, played, scale_of, update_of
from fedtailor.core import rng, tree
from fedtailor.core.errors import BadInput, unknown
from fedtailor.core.method import Method, Upload
from fedtailor.core.rng import Turn
from fedtailor.core.steps.privacy import Spent, epsilon
from fedtailor.core.task import Task, to_input
from fedtailor.core.tree import Params, Tree
from fedtailor.results import folder as files
from fedtailor.results.collect import read_finished_run
from fedtailor.results.config import Config, config_of
from fedtailor.results.objects import Objects
from fedtailor.results.storage import load_tensors, restore_checkpoint
from fedtailor.runs.build import make_players
from fedtailor.runs.finished import load_same_data
from fedtailor.runs.prepared import PreparedRun
from fedtailor.runs.saved_models import read_general

ROUNDS = ("first", "last")


class Protection(NamedTuple):
    """DP-SGD as a run has it, or as it might have had it."""

    clip: float = 0.0
    noise: float = 0.0

    @property
    def words(self) -> str:
        """For tables."""
        if not self.clip:
            return "none"
        return f"DP-SGD, clip {self.clip:g}, noise {self.noise:g}"


class SeenUpload(NamedTuple):
    """What a client sent in an audited turn."""

    upload: Upload
    epsilon: float | None  # of this one upload; None: no guarantee
    exposure: Exposure


class AuditedRun:
    """A run as it was before its first round, or as it is after its last one.

    Args:
      folder: of the run.
      objects: those that the run was started with, if there were any.
      device: where to compute.
      at: `first` is the first round again; `last` one more round after the last.

    Raises:
      BadInput: it is not finished, or its data are not what they were.
    """

    def __init__(self, folder: Path, objects: Objects, device: str, at: str) -> None:
        if files.is_comparison(folder):
            raise BadInput(f"'{folder}' is a comparison: name one of the runs in its runs/")
        (place,) = files.run_folders(folder)
        if not files.is_finished(place):
            raise BadInput(f"'{folder}' is not finished: go on with {files.resume_command(folder)}")
        self.folder, self.at = folder, at
        self.result = read_finished_run(folder).result
        config = config_of(folder, objects, device=device)
        if config.models:
            raise BadInput(
                f"'{folder}' has clients with different networks (models is '{config.models}'): an "
                "audit takes a run with one network"
            )
        data = load_same_data(folder, config)
        # one client after another, on one machine, and nothing compiled
        alone = replace(config, engine="sequential", workers=0, address="", keep_path=0)
        self.prepared = PreparedRun(alone, data)
        self.simulation = self.prepared.simulation
        if at == "last":
            restore_checkpoint(folder / files.CHECKPOINT, self.simulation)
        self._players: dict[Protection, list[tuple[Method, Task, Tensor]]] = {}

    def close(self) -> None:
        """Gives back what the simulation took."""
        self.simulation.close()

    @property
    def config(self) -> Config:
        """The run's, on this device."""
        return self.prepared.config

    @property
    def method(self) -> Method:
        """The server's."""
        return self.prepared.method

    @property
    def own(self) -> Protection:
        """What protects the run."""
        return Protection(self.config.dp_clip, self.config.dp_noise)

    @cached_property
    def names(self) -> list[str]:
        """The clients that train."""
        return [self.simulation.client_data.names[i] for i in self.prepared.data.trained.tolist()]

    def number(self, client: str) -> int:
        """A client's id.

        Raises:
          BadInput: there is no such client, or it never trains.
        """
        known = self.simulation.client_data.names
        if client in known and client not in self.names:
            raise BadInput(f"client '{client}' was held out: it uploaded nothing; choose another")
        if client not in known:
            raise unknown(f"client of '{self.folder}':", client, self.names)
        return known.index(client)

    def rows(self, part: str, client: str) -> Tensor:
        """The numbers of a client's rows (`train`, `val`, `test`)."""
        held = getattr(self.simulation.client_data, part)
        cid = self.simulation.client_data.names.index(client)
        start = int(held.offset[cid])
        found: Tensor = held.flat[start : start + int(held.n[cid])]
        return found

    def player(self, client: str, protection: Protection) -> tuple[Method, Task]:
        """The method and network that a client would have with a protection.

        Raises:
          BadInput: the method cannot be protected so.
        """
        if protection not in self._players:
            if protection != self.own and isinstance(self.config.objects.method, Method):
                raise BadInput(
                    "the method was given as a Method, so its noise cannot be changed: give its "
                    "factory, or leave --dp-noise out"
                )
            config = replace(self.config, dp_clip=protection.clip, dp_noise=protection.noise)
            data = self.prepared.data
            made = make_players(config, data.encoder.form, data.client_data.clients)
            self._players[protection] = made
        cid = self.number(client)
        return next((m, t) for m, t, ids in self._players[protection] if cid in ids.tolist())

    def initial(self, client: str) -> Params:
        """The parameters that a client's network began with."""
        cid = self.simulation.client_data.names.index(client)
        groups = self.simulation.groups
        return next(group.initial for group in groups if cid in group.members.tolist())

    def turn(self, client: str) -> Turn:
        """A client's turn in the audited round."""
        device, number = self.simulation.device, self.simulation.round
        now = min(number, self.config.rounds - 1)  # schedules end with the last round
        key = rng.key(self.config.seed, rng.TURN, number, device=device)
        round, rounds = torch.tensor([now, self.config.rounds], device=device)
        return Turn(key, round, rounds).of(torch.tensor(self.number(client), device=device))

    def received(self, client: str) -> tuple[Tree, Tree | None, Turn]:
        """(message, what the client kept, turn) in the audited round."""
        cid, turn = self.number(client), self.turn(client)
        here = torch.tensor(cid, device=self.simulation.device)
        with torch.no_grad():
            message = self.method.send(self.simulation.server, here, turn)
        kept = tree.map(lambda leaf: leaf.to(here.device), self.simulation.state(cid))
        return message, kept or None, turn

    def seen(self, client: str, protection: Protection, rows: Tensor) -> SeenUpload:
        """What a client sends of some of its rows, and what the server knows then."""
        fed, config = self.simulation.client_data, self.config
        (method, task), initial = self.player(client, protection), self.initial(client)
        message, kept, turn = self.received(client)
        held = None
        if method.validates:
            val = self.rows("val", client)
            held = fed.x[val], fed.y[val]
        with torch.no_grad():
            upload, noisy = played(
                method, initial, message, turn, kept, fed.x[rows], fed.y[rows], held
            )
        cost = epsilon(Spent.of(noisy.tolist()), protection.noise, config.dp_delta)
        # noise is what the server does not know
        recipe = replace(config.recipe(), dp_clip=protection.clip, dp_noise=0.0)
        attackers, _ = self.player(client, Protection(protection.clip, 0.0))
        scale = scale_of(recipe, turn, len(rows))
        bases = bases_of(message, initial, upload)
        seen = update_of(upload, bases, scale)
        state = kept
        if kept is None:  # the common beginning, which the server knows
            state = method.start(message, initial, turn.at_start())
        if held is not None:
            held = to_input(held[0], torch.float32), held[1]
        exposure = Exposure(
            attackers, task, initial, message, turn, state, seen, bases, recipe, len(rows), held
        )
        return SeenUpload(upload, cost if protection.noise else None, exposure)

    def personal(self, client: str) -> Any:
        """A client's personal model as the run ended with it."""
        return self._here(tree.unflatten(load_tensors(files.model_file(self.folder, client))))

    def general(self, client: str) -> Any:
        """The global model as a client has it; None where there is none beside personal ones."""
        found = read_general(self.folder, client)
        return None if found is None else self._here(found)

    def _here(self, model: Tree) -> Tree:
        return tree.map(lambda leaf: leaf.to(self.simulation.device), model)
