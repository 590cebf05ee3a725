"""Clients sharded over Ray actors: each plays its own, and only what is needed travels.

The server's state goes out once per version, by reference. Means are folded by the workers before
they travel; what the server needs one by one stays with the workers until it is asked for. After
every round each worker leaves a copy of the states that changed, by reference: with them a worker
that was lost is started again, and plays the round again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.errors import BadInput
from fedtailor.core.rng import Turn
from fedtailor.core.tree import Tree
from fedtailor.engine.client_data import ClientData
from fedtailor.engine.clients import (
    ClientSettings,
    ClientStates,
    CohortOutcome,
    Keep,
    ModelChoice,
    Outputs,
)
from fedtailor.engine.fold import Fold
from fedtailor.engine.loops.runner import LoopRunner
from fedtailor.engine.mapper import common_notes, concatenate
from fedtailor.engine.ray.arrays import Arrays, as_arrays, as_tensors, from_arrays, to_arrays
from fedtailor.engine.ray.cluster import Cluster
from fedtailor.engine.ray.session import Session
from fedtailor.engine.ray.shard import assign_clients, shard
from fedtailor.engine.ray.slot import Pending, Slot
from fedtailor.engine.ray.worker import LoadReport, States, WorkerSpec, fold_from_arrays

Found = TypeVar("Found")
ATTEMPTS = 3  # times that a worker is started again for one call
PATIENCE = 30.0  # seconds before somebody is told what is waited for
log = logging.getLogger("fedtailor")


class RayClients:
    """All clients of a federation, on the workers of a Ray cluster; see `SimulatedClients`.

    `groups` has the ids of the clients by network, as `cluster.build` has them; what `settings`
    leave open, each worker chooses.
    """

    def __init__(
        self,
        cluster: Cluster,
        groups: list[Tensor],
        client_data: ClientData,
        server: Tree,
        turn: Turn,
        settings: ClientSettings,
        seed: int,
    ) -> None:
        # of the server: workers have their own
        limit, keep = settings.compile_limit, settings.keep_programs
        device = client_data.x.device
        self.runner = LoopRunner(settings.loop_mode, device, limit, keep_programs=keep)
        self._session = Session(cluster, client_data.clients)
        self._ray, self._turn = self._session.ray, turn
        self._server: Tree | None = None
        self._sent: Any = None
        self._unsettled: Callable[[], None] | None = None
        self._broadcast(server)
        self._slots = []
        assigned = assign_clients(groups, client_data.train.n, self._session.workers)
        for number, ids in enumerate(assigned):
            spec = WorkerSpec(
                build=cluster.build,
                members=[some[torch.isin(some, ids)] for some in groups],
                seed=seed,
                settings=settings,
                device=cluster.device,
                dtype=torch.get_default_dtype(),
                threads=self._session.threads,
            )
            data = self._ray.put(shard(client_data, ids))
            self._slots.append(Slot(number, ids, self._ray.put(spec), data))
        for slot in self._slots:
            self._load(slot)
        self._await_workers()
        try:
            ready: dict[Slot, LoadReport] = self._gather(
                self._slots, lambda slot: slot.loaded, self._ray.get
            )
        except BadInput:
            self.close()  # the workers are well: the next run may have them
            raise
        self._place = next(iter(ready.values())).place
        likes: dict[int, Arrays] = {}
        for slot, one in ready.items():
            slot.chunk = one.chunk
            likes |= one.like
        self._like = {i: from_arrays(likes[i], own=True) for i in sorted(likes)}

    # --- workers ---

    def _load(self, slot: Slot) -> None:
        slot.actor = self._session.acquire()
        slot.loaded = slot.actor.load.remote(slot.spec, slot.data, self._sent, self._turn)

    def _await_workers(self) -> None:
        waiting = [slot.loaded for slot in self._slots]
        _, late = self._ray.wait(waiting, num_returns=len(waiting), timeout=PATIENCE)
        if late:
            log.warning(
                "%d of %d workers are not ready yet: the Ray cluster may be busy",
                len(late),
                len(waiting),
            )

    def _restart(self, slot: Slot) -> None:
        """Puts another worker in a lost one's place, with the states of the last round."""
        log.warning("worker %d was lost: it is started again", slot.number)
        self._session.dismiss(slot.actor)
        self._load(slot)
        self._ray.get(slot.loaded)
        try:
            for reference in slot.replicas.references():
                self._ray.get(slot.actor.restore_states.remote(reference))
        except self._session.gone:
            raise BadInput(
                f"worker {slot.number} was lost together with the machine that had its clients' "
                "states: go on from the last checkpoint with fedtailor resume"
            ) from None
        if slot.chunk:
            self._ray.get(slot.actor.set_chunk.remote(slot.chunk))

    def _resolve(
        self,
        asked: dict[Slot, Pending],
        again: Callable[[Slot], Any],
        fetch: Callable[[Any], Found],
    ) -> dict[Slot, Found]:
        """Answers of several workers, `fetch`ed from their references.

        A worker that was lost is replaced by one that has the states of the last round, and asked
        `again`; `asked` gets its new answer.
        """
        self._settle()
        found = {}
        for slot in asked:
            for attempt in range(ATTEMPTS + 1):
                try:
                    if attempt:
                        if asked[slot].actor is slot.actor:  # else it was replaced since
                            self._restart(slot)
                        asked[slot] = Pending(again(slot), slot.actor)
                    found[slot] = fetch(asked[slot].references)
                    break
                except self._session.lost as error:
                    if attempt == ATTEMPTS:
                        raise BadInput(
                            f"worker {slot.number} was lost {attempt + 1} times in a row "
                            f"({type(error).__name__}; most often for want of memory): lower "
                            "--chunk or --workers"
                        ) from None
                except self._session.failed as error:
                    _raise_cause(error)
        return found

    def _gather(
        self, slots: Iterable[Slot], ask: Callable[[Slot], Any], fetch: Callable[[Any], Found]
    ) -> dict[Slot, Found]:
        """Asks several workers at once, and waits for their answers."""
        return self._resolve(_ask_all(slots, ask), ask, fetch)

    def _settle(self) -> None:
        """Waits until all workers have kept the last round's states, and left copies of them.

        Not sooner than with the next answer that is waited for: meanwhile the next round begins.
        """
        settle, self._unsettled = self._unsettled, None
        if settle:
            settle()

    def _broadcast(self, server: Tree) -> Any:
        """A reference of the server's state, which is sent once however often it is used."""
        if self._server is not server:
            self._server, self._sent = server, self._ray.put(to_arrays(server))
        return self._sent

    def _having(self, ids: Tensor) -> dict[Slot, Tensor]:
        """Who has which of some clients."""
        shares = {slot: ids[torch.isin(ids, slot.ids)].sort().values for slot in self._slots}
        return {slot: some for slot, some in shares.items() if len(some)}

    # --- rounds ---

    def play(
        self, server: Tree, cohort: Tensor, turn: Turn, *, post: bool = False, skip: bool = True
    ) -> CohortOutcome:
        """The turns of the clients `cohort`; who diverged is known here, and never counts."""
        sent, shares, now = self._broadcast(server), self._having(cohort), as_arrays(turn)

        def ask(slot: Slot) -> Any:
            play = slot.actor.play.options(num_returns=3)
            return play.remote(sent, as_arrays(shares[slot]), now, post)

        pending = _ask_all(shares, ask)
        found = self._resolve(pending, ask, lambda refs: self._ray.get(refs[:2]))
        answered = {slot: as_tensors(answer) for slot, (answer, _) in found.items()}
        fold = Fold()
        for slot, answer in answered.items():
            fold.merge(fold_from_arrays(found[slot][1]))
            slot.chunk = answer.chunk
            for warning in answer.warnings:
                log.warning("worker %d: %s", slot.number, warning)
        answers = list(answered.values())
        drawn, order = torch.cat([answer.drawn for answer in answers]).sort()
        taken, rows = torch.cat([answer.taken for answer in answers]).sort()

        def each() -> Tree:
            senders = {slot: pending[slot] for slot in answered if answered[slot].has_each}
            parcels = self._resolve(senders, ask, lambda refs: self._ray.get(refs[2]))
            if not parcels:
                return {}
            return tree.index(tree.cat([from_arrays(arrays) for arrays in parcels.values()]), rows)

        def ask_to_keep(slot: Slot) -> Any:
            return slot.actor.keep.options(num_returns=2).remote()

        def ask_for_both(slot: Slot) -> Any:
            ask(slot)
            return ask_to_keep(slot)

        def keep() -> None:
            kept = _ask_all(answered, ask_to_keep)

            def settle() -> None:
                self._resolve(kept, ask_for_both, lambda refs: self._ray.get(refs[0]))
                for slot, answer in answered.items():
                    slot.replicas.add(answer.taken.tolist(), kept[slot].references[1])
                    if slot.replicas.overgrown:
                        self._tidy(slot)

            self._unsettled = settle

        measured = concatenate([answer.measured for answer in answers], order)
        notes = common_notes([answer.notes for answer in answers if len(answer.taken)], rows)
        return CohortOutcome(drawn, taken, fold, each, keep, lambda: measured, lambda: notes)

    def _tidy(self, slot: Slot) -> None:
        """One copy of all states of a worker, instead of many of some."""
        pending = _ask_all([slot], _ask_for_states)
        self._resolve(pending, _ask_for_states, lambda refs: self._ray.get(refs[0]))
        clients = slot.replicas.clients()
        slot.replicas.clear()
        slot.replicas.add(clients, pending[slot].references[1])

    def outputs(
        self,
        server: Tree,
        ids: Tensor,
        turn: Turn,
        choice: ModelChoice,
        part: str = "test",
        keep: Keep | None = None,
    ) -> Outputs:
        """What a model of each client says, by ascending id; models to keep are made once more."""
        sent, shares, now = self._broadcast(server), self._having(ids), as_arrays(turn)

        def ask(slot: Slot) -> Any:
            return slot.actor.outputs.remote(sent, as_arrays(shares[slot]), now, choice, part)

        found = self._gather(shares, ask, lambda reference: as_tensors(self._ray.get(reference)))
        outputs: Outputs = concatenate(
            list(found.values()), torch.cat(list(shares.values())).argsort()
        )
        if keep:
            for some, models in self.models(server, ids, turn, choice):
                keep(some, models)
        return outputs

    def models(
        self, server: Tree, ids: Tensor, turn: Turn, choice: ModelChoice
    ) -> Iterator[tuple[Tensor, Tree]]:
        """(ids, models stacked), some clients of each worker at a time; the next are on the way."""
        sent = self._broadcast(server)
        shares = {s: torch.split(some, max(s.chunk, 1)) for s, some in self._having(ids).items()}

        def ask(slot: Slot, lap: int) -> Any:
            return slot.actor.models.remote(sent, shares[slot][lap], turn, choice)

        def ask_for(lap: int) -> dict[Slot, Pending]:
            slots = [slot for slot, some in shares.items() if lap < len(some)]
            return _ask_all(slots, partial(ask, lap=lap))

        ahead, lap = ask_for(0), 0
        while ahead:
            pending, ahead = ahead, ask_for(lap + 1)
            for parts in self._resolve(pending, partial(ask, lap=lap), self._ray.get).values():
                for some, arrays in parts:
                    yield some, from_arrays(arrays)
            lap += 1

    # --- states ---

    @property
    def chunk(self) -> int:
        """How many clients share a worker's device at a time, where they are fewest."""
        return min(slot.chunk for slot in self._slots)

    @chunk.setter
    def chunk(self, size: int) -> None:
        for slot in self._slots:
            slot.chunk = size
        ask: Callable[[Slot], Any] = lambda slot: slot.actor.set_chunk.remote(size)
        self._gather(self._slots, ask, self._ray.get)

    @property
    def preparing_seconds(self) -> float:
        """What the server's steps took; workers prepare for themselves, and do not say."""
        return self.runner.seconds

    @property
    def place(self) -> str:
        """Where workers keep states."""
        return self._place

    def client_states(self) -> list[ClientStates]:
        """For each group the states of those clients that were met."""
        fetch: Callable[[Any], States] = lambda refs: self._ray.get(refs[1])
        states = self._gather(self._slots, _ask_for_states, fetch).values()
        found = []
        for number in self._like:
            parts = [one[number] for one in states if number in one]
            ids, order = torch.cat([ids for ids, _ in parts]).sort()
            rows = tree.cat([from_arrays(arrays) for _, arrays in parts])
            found.append(ClientStates(ids, tree.index(rows, order)))
        return found

    def restore_states(self, states: list[ClientStates]) -> None:
        """Puts states where `client_states` found them; other clients stay as they are."""
        self._settle()  # copies that are older than these
        for slot in self._slots:
            part: States = {}
            for number, (ids, rows) in zip(self._like, states, strict=True):
                mine = torch.isin(ids, slot.ids).nonzero()[:, 0]
                if len(mine):
                    part[number] = ids[mine], to_arrays(tree.index(rows, mine))
            reference = self._ray.put(part)
            # a worker that is lost meanwhile gets them with its copies
            slot.replicas.add((i for ids, _ in part.values() for i in ids.tolist()), reference)
            done = Pending(slot.actor.restore_states.remote(reference), slot.actor)
            self._resolve({slot: done}, lambda slot: slot.loaded, self._ray.get)

    def like(self) -> list[Tree]:
        """For each group its states without any row: names, shapes and types."""
        return list(self._like.values())

    def keep_states_in(self, folder: Path | None) -> None:
        """Nothing to do: workers keep states on disk in temporary folders of their machines."""

    def close(self) -> None:
        """Gives the workers back."""
        self.runner.close()
        for slot in self._slots:
            self._session.release(slot.actor)
            slot.replicas.clear()
        self._slots, self._server, self._sent, self._unsettled = [], None, None, None


def _ask_all(slots: Iterable[Slot], ask: Callable[[Slot], Any]) -> dict[Slot, Pending]:
    return {slot: Pending(ask(slot), slot.actor) for slot in slots}


def _ask_for_states(slot: Slot) -> Any:
    return slot.actor.client_states.options(num_returns=2).remote()


def _raise_cause(error: Any) -> NoReturn:
    """What went wrong in a worker; bad input keeps its one line."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, BadInput):
        raise BadInput(str(cause)) from None
    raise error
