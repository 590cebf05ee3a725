"""Some clients with their data and states, played in chunks that fit on the device.

They know the server's state only as an argument and never change it. So they are the whole of a
simulation on one machine, and one worker's part of a larger one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.core import tree, wire
from fedtailor.core.errors import BadInput
from fedtailor.core.method import Upload
from fedtailor.core.rng import Turn
from fedtailor.core.scoring import SCORED
from fedtailor.core.tree import Tree
from fedtailor.core.turn import first_state
from fedtailor.core.uploads.watch import sums_for
from fedtailor.engine.chunk import clients_that_fit
from fedtailor.engine.client_data import ClientData, LaidRows
from fedtailor.engine.clients import (
    ClientSettings,
    ClientStates,
    CohortOutcome,
    Keep,
    ModelChoice,
    Outputs,
    TurnReport,
)
from fedtailor.engine.effects import without_effects
from fedtailor.engine.fold import Fold
from fedtailor.engine.group import ClientGroup
from fedtailor.engine.loops.runner import LoopRunner
from fedtailor.engine.mapper import ClientContext, EngineMapper, Found, concatenate
from fedtailor.engine.memory import is_out_of_memory, nbytes
from fedtailor.engine.outcome import ChunkResult, arriving, join_chunks
from fedtailor.engine.state_store import STATES, StatePlace, StateStore, choose_place
from fedtailor.engine.transfer import new_stream, upload

Asked = tuple[str, bool | ModelChoice]  # what is done for clients, and how
# (function of one client, contexts of these clients, their group, what else must be the same where
# clients of several runs share a call) -> what the function finds of these clients
Joint = Callable[[Callable[[ClientContext], Any], ClientContext, ClientGroup, Hashable], Any]
log = logging.getLogger("fedtailor")


class _Chunk(NamedTuple):
    """Clients that share a call, and those that come after them."""

    group: ClientGroup
    store: StateStore
    ids: Tensor
    following: Tensor


class _ClientResult(NamedTuple):
    state: Tree
    upload: Upload
    notes: Tree
    down: Tensor
    up: Tensor
    post: Outputs | tuple[()]
    noisy: Tensor
    watched: Tensor


class LocalClients:
    """Clients of one or several groups with their states, played by one engine on one device.

    Args:
      groups: the clients, by network; each has at least one.
      client_data: their data. Ids are those of the whole federation.
      server: the server's state, for the sizes of messages and states.
      turn: of the first round.
      settings: how they are played.
      engine: `sequential` or `vectorised`.
      folder: of the run, for states on disk; a temporary one if none is given.
    """

    def __init__(
        self,
        groups: list[ClientGroup],
        client_data: ClientData,
        server: Tree,
        turn: Turn,
        settings: ClientSettings,
        engine: str = "vectorised",
        folder: Path | None = None,
    ) -> None:
        recipe, loop_mode, place, chunk, limit, keep = settings
        self.groups, self.client_data, self.engine = groups, client_data, engine
        self.recipe, self.device = recipe, client_data.x.device
        self._rows = LaidRows()
        mode = loop_mode if engine == "vectorised" else "plain"
        self.runner = LoopRunner(mode, self.device, limit, keep_programs=keep)
        self._mapper = EngineMapper(engine)
        self.joint: Joint | None = None  # maps clients of several runs, with these among them
        self._copying = new_stream(self.device) if self.device.type == "cuda" else None
        self.stores: list[StateStore] = []
        training, scoring, joint = [], [], []
        for group in groups:
            group.task.try_out(group.initial, client_data.x, client_data.y)
            first, count = group.members[0].to(self.device), len(group.members)
            message = group.method.send(server, first, turn.of(first))
            like = first_state(group.method, message, group.initial, turn.of(first))
            where = place or choose_place(nbytes(like), count, self.device)
            self.stores.append(StateStore(count, like, self.device, where))
            if engine == "vectorised" and not chunk:
                fits = partial(
                    clients_that_fit,
                    group.task,
                    group.initial,
                    client_data,
                    message,
                    like,
                    mapped=self.runner.loop_mode == "plain",
                )
                training.append(fits(recipe, server=server))
                joint.append(fits(recipe))  # messages of several runs are stacked beforehand
                if self.device.type != "cpu":  # memory is not short there
                    scoring.append(fits(replace(recipe, batch=SCORED), server=server))
        self.keep_states_in(folder)
        self.chunk = self.room = 1  # one after another: a chunk is one client
        if engine == "vectorised":
            members = sum(len(group.members) for group in groups)
            self.room = chunk or min(joint)  # how many of several runs the device has room for
            self.chunk = min(chunk or min(training), members)
        self._scoring = min(scoring, default=0)  # so many at a time; 0: as many as train

    def keep_states_in(self, folder: Path | None) -> None:
        """Says where states on disk go; to be called before anybody has one."""
        for number, store in enumerate(self.stores):
            store.folder = folder / STATES / str(number) if folder else None

    def share_room(self, runs: int) -> None:
        """Leaves the room on the device to several runs, each with as many clients as this one."""
        self.chunk = max(1, min(self.chunk, self.room // runs))
        self._scoring = self._scoring and max(1, self._scoring // runs)

    @property
    def place(self) -> StatePlace:
        """Where the states are kept."""
        return self.stores[0].place

    @property
    def preparing_seconds(self) -> float:
        """What tracing and compiling steps took so far."""
        return self.runner.seconds

    # --- chunks ---

    def _chunks(
        self, ids: Tensor, work: Callable[[_Chunk], Found], scoring: bool = False
    ) -> Iterator[tuple[_Chunk, Found]]:
        """Works through clients in chunks of one group.

        Clients of a chunk have about equally many rows, so that little is padding. A chunk that
        does not fit is halved, for good; it has changed nothing.
        """
        scoring = scoring and self._scoring > 0
        for group, store in zip(self.groups, self.stores, strict=True):
            mine = ids if len(self.groups) == 1 else ids[torch.isin(ids, group.members)]
            mine = mine.sort().values
            left = mine[self.client_data.train.n[mine].argsort(stable=True, descending=True)]
            while len(left):
                size = self._scoring if scoring else self.chunk
                chunk = _Chunk(group, store, left[:size], left[size:][:size])
                found, problem = self._attempt(work, chunk)
                if found is None:
                    half = self._half(chunk, problem)
                    if scoring:
                        self._scoring = half
                    else:
                        self.chunk = half
                    continue
                left = left[len(chunk.ids) :]
                yield chunk, found

    def _attempt(self, work: Callable[[_Chunk], Found], chunk: _Chunk) -> tuple[Found | None, str]:
        """What the work found; None and the reason if there was not enough memory for it.

        The error ends here: as long as it lives, so does all that it was made of.
        """
        try:
            return work(chunk), ""
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return None, str(error).splitlines()[0] if str(error) else type(error).__name__

    def _half(self, chunk: _Chunk, problem: str) -> int:
        """Frees what can be freed; returns how many clients to go on with."""
        chunk.store.expect(chunk.ids[:0])
        self.runner.forget()
        size = len(chunk.ids)
        if size == 1:
            parameters = sum(p.numel() for p in chunk.group.initial.values())
            raise BadInput(
                f"a model of {parameters:,} parameters with batch {self.recipe.batch} does not fit "
                f"on {self.device}, not even for one client at a time ({problem}): lower --batch, "
                "choose a smaller --model, or another --device"
            )
        told = "out of memory on %s with %d clients at a time: going on with %d"
        log.warning(told, self.device, size, size // 2)
        return size // 2

    def _map(
        self,
        fn: Callable[[ClientContext], Found],
        server: Tree,
        chunk: _Chunk,
        turn: Turn,
        asked: Asked,
        part: str = "test",
    ) -> Found:
        """`fn` of every client of a chunk, with its state, data and turn."""
        group, store, ids, following = chunk
        rows = group.rows(ids)
        here, met = upload(self.device, ids, store.met[rows].long())
        stacked = ClientContext(
            server,
            here,
            store.get(rows),
            self._rows.of(self.client_data, ids),
            self._rows.of(self.client_data, ids, part),
            turn.of(here),
            met == 0,
        )
        what = asked, part, self.groups.index(group)
        found = self.joint(fn, stacked, group, what) if self.joint else self.mapped(fn, stacked)
        store.expect(group.rows(following))  # while the device is still at work
        return found

    def mapped(self, fn: Callable[[ClientContext], Found], stacked: ClientContext) -> Found:
        """`fn` of every client of a stack, which need not be these ones."""
        with without_effects(stacked.server, self.device), torch.no_grad(), self.runner.running():
            return self._mapper(fn, stacked)

    # --- what clients do ---

    def play(
        self, server: Tree, cohort: Tensor, turn: Turn, *, post: bool = False, skip: bool = True
    ) -> CohortOutcome:
        """The turns of the clients `cohort`, all of them here; see `SimulatedClients`."""
        if self.runner.foresees and self.joint is None:
            self._foresee(server, cohort, turn)
        turned: list[ChunkResult] = []
        staged: list[tuple[StateStore, Tensor, Callable[[], Tree]]] = []
        for chunk, one in self._chunks(cohort, lambda c: self._turn(server, c, turn, post, skip)):
            if staged:
                staged[-1][-1]()  # arrived by now: frees what it travelled in
            if len(one.taken):
                rows = chunk.group.rows(one.taken)
                staged.append((chunk.store, rows, chunk.store.stage(rows, one.state)))
            turned.append(one._replace(state={}))  # else all states of a round lie on the device

        def keep() -> None:
            for store, ids, state in staged:
                store.commit(ids, state())

        return join_chunks(turned, keep, self.device)

    def _foresee(self, server: Tree, cohort: Tensor, turn: Turn) -> None:
        """Prepares the steps of rounds and evaluations together; nothing changes.

        Those of an evaluation would else be prepared one after another. A first chunk shows most.
        """
        everyone = torch.cat([group.members for group in self.groups])
        with self.runner.foreseeing():
            next(self._chunks(cohort, lambda c: self._turn(server, c, turn, True, False)), None)
            for part in ("test", "train"):
                next(self._asked(server, everyone, turn, ModelChoice("pre"), part), None)

    def _turn(self, server: Tree, chunk: _Chunk, turn: Turn, post: bool, skip: bool) -> ChunkResult:
        def act(client: ClientContext) -> _ClientResult:
            own = chunk.group.turn(client)
            (state, up, model, notes), noisy = own.play()
            weight = up.weight + torch.zeros_like(client.cid)
            return _ClientResult(
                state,
                own.admitted(up._replace(weight=weight)),
                notes,
                torch.as_tensor(wire.size(own.message)),  # mostly a number that is known here
                torch.as_tensor(wire.size(up.mean) + wire.size(up.each)),
                chunk.group.said(model, client, "post") if post else (),
                noisy,
                chunk.group.watch.look(own.message, up, sums_for(self.client_data.clients)),
            )

        found = self._map(act, server, chunk, turn, ("play", post))
        state, up, notes = found[:3]
        fold = Fold()
        fold.add(up.mean, up.weight)  # before asking who diverged: the device is still at work
        good = tree.finite_rows({"state": state, "mean": up.mean, "each": up.each})
        ids, good = chunk.ids, good.expand(len(chunk.ids))
        fresh = ~chunk.store.met[chunk.group.rows(ids)]
        measured = TurnReport(
            found.down, found.up, good, found.post, found.noisy, fresh, found.watched,
            up.weight,
        )  # fmt: skip
        if skip and not bool(good.all()):
            keep, ids = good.nonzero()[:, 0].to(self.device), ids[good.cpu()]
            state, notes = tree.index(state, keep), tree.index(notes, keep)
            up = Upload(tree.index(up.mean, keep), up.weight[keep], tree.index(up.each, keep))
            fold = Fold()
            if len(ids):
                fold.add(up.mean, up.weight)
        told = arriving(measured, notes, self._copying)
        return ChunkResult(chunk.ids, ids, state, fold.folded(), up.each, told)

    def outputs(
        self,
        server: Tree,
        ids: Tensor,
        turn: Turn,
        choice: ModelChoice,
        part: str = "test",
        keep: Keep | None = None,
    ) -> Outputs:
        """What a model of each client says of its rows; see `SimulatedClients`. Nothing changes."""
        seen, found = [], []
        choice = choice._replace(kept=keep is not None)
        for chunk, (said, models) in self._asked(server, ids, turn, choice, part):
            if keep:
                keep(chunk.ids, models)
            seen.append(chunk.ids)
            found.append(said)
        ordered: Outputs = concatenate(found, torch.cat(seen).argsort(), self.device)
        return ordered

    def _asked(
        self, server: Tree, ids: Tensor, turn: Turn, choice: ModelChoice, part: str
    ) -> Iterator[tuple[_Chunk, tuple[Outputs, Tree]]]:
        """The same, chunk by chunk, with the models that are to be kept."""

        def ask(chunk: _Chunk) -> tuple[Outputs, Tree]:
            def one(client: ClientContext) -> tuple[Outputs, Tree]:
                model, noisy = chunk.group.model(client, choice)
                said = chunk.group.said(model, client, choice.point)
                return said._replace(noisy=noisy), model if choice.kept else {}

            return self._map(one, server, chunk, turn, ("outputs", choice), part)

        return self._chunks(ids, ask, scoring=True)

    def models(
        self, server: Tree, ids: Tensor, turn: Turn, choice: ModelChoice
    ) -> Iterator[tuple[Tensor, Tree]]:
        """(ids, models stacked), chunk by chunk; nothing changes."""

        def own(chunk: _Chunk) -> Tree:
            one = lambda client: chunk.group.model(client, choice)[0]
            return self._map(one, server, chunk, turn, ("models", choice))

        for chunk, models in self._chunks(ids, own):
            yield chunk.ids, models

    # --- states ---

    def client_states(self, ids: Tensor | None = None) -> list[ClientStates]:
        """For each group the states of those clients (of `ids`, if given) that were met."""
        found = []
        for group, store in zip(self.groups, self.stores, strict=True):
            met = store.met.nonzero()[:, 0]
            if ids is not None:
                met = met[torch.isin(group.members[met], ids)]
            rows = tree.map(lambda p, met=met: p[met.to(p.device)], store.rows)
            found.append(ClientStates(group.members[met], rows))
        return found

    def restore_states(self, states: list[ClientStates]) -> None:
        """Puts states where `client_states` found them; other clients stay as they are."""
        for group, store, (ids, rows) in zip(self.groups, self.stores, states, strict=True):
            store.put(group.rows(ids), rows)

    def like(self) -> list[Tree]:
        """For each group its states without any row: names, shapes and types."""
        return [store.like for store in self.stores]

    def close(self) -> None:
        """Removes the files of states that are kept on disk, and ends worker threads."""
        if self.joint is None:  # else other runs go on with what was prepared
            self.runner.close()
        for store in self.stores:
            store.close()
