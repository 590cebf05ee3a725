"""Clients sharded over Ray actors: each plays its block, and only what is needed travels.

The server's state goes out once per version, by reference. Means are folded by the workers before
they travel; what the server needs one by one stays with the workers until it is asked for. After
every round each worker leaves a copy of the states that changed, by reference: with them a worker
that was lost is started again, and plays the round again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple, NoReturn, TypeVar

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.errors import BadInput
from fedtailor.core.rng import Turn
from fedtailor.core.training import Recipe
from fedtailor.core.tree import Tree
from fedtailor.engine.bank import Place
from fedtailor.engine.client_data import Federation
from fedtailor.engine.clients import Kept, Played, Point, Scores
from fedtailor.engine.fold import Fold
from fedtailor.engine.local_clients import common_notes
from fedtailor.engine.loops.runner import Way
from fedtailor.engine.mapper import join
from fedtailor.engine.ray.cluster import Cluster
from fedtailor.engine.ray.parcel import Parcel, pack, unpack
from fedtailor.engine.ray.session import Session
from fedtailor.engine.ray.shard import deal, shard
from fedtailor.engine.ray.snapshots import Snapshots
from fedtailor.engine.ray.worker import Ready, Spec, States

Found = TypeVar("Found")
ATTEMPTS = 3  # times that a worker is started again for one call
PATIENCE = 30.0  # seconds before somebody is told what is waited for
log = logging.getLogger("fedtailor")


class _Seat:
    """A block of clients and the worker that has it now.

    Attributes:
      number: from 0.
      ids: the clients, ascending.
      spec: reference of what is played.
      data: reference of their rows.
      actor: the worker.
      loaded: reference of what the worker said when it had its clients.
      chunk: how many of them share its device at a time.
      snapshots: where copies of their states lie.
    """

    def __init__(self, number: int, ids: Tensor, spec: Any, data: Any) -> None:
        self.number, self.ids, self.spec, self.data = number, ids, spec, data
        self.actor: Any = None
        self.loaded: Any = None
        self.chunk = 0
        self.snapshots = Snapshots()


class _Asked(NamedTuple):
    """References of a worker's answer, and which worker was asked."""

    references: Any
    actor: Any


class RayPlayers:
    """All clients of a federation, on the workers of a Ray cluster; see `Players`.

    Args:
      cluster: where workers are found.
      groups: ids of the clients by network, as `cluster.build` has them.
      federation: everybody's data.
      server: the server's state.
      turn: of the first round.
      seed: of the run.
      place: where workers keep states; None lets each choose.
      recipe: how clients train, to estimate memory by.
      chunk: how many clients share a device at a time; 0 lets each worker choose.
      way: how loops over batches are run.
    """

    def __init__(
        self,
        cluster: Cluster,
        groups: list[Tensor],
        federation: Federation,
        server: Tree,
        turn: Turn,
        *,
        seed: int,
        place: Place | None,
        recipe: Recipe,
        chunk: int,
        way: Way,
    ) -> None:
        self._session = Session(cluster, federation.clients)
        self._ray, self._turn = self._session.ray, turn
        self._server: Tree | None = None
        self._sent: Any = None
        self._broadcast(server)
        self._seats = []
        for number, ids in enumerate(deal(groups, federation.train.n, self._session.workers)):
            spec = Spec(
                build=cluster.build,
                members=[some[torch.isin(some, ids)] for some in groups],
                seed=seed,
                recipe=recipe,
                place=place,
                chunk=chunk,
                device=cluster.device,
                dtype=torch.get_default_dtype(),
                threads=self._session.threads,
                way=way,
            )
            data = self._ray.put(shard(federation, ids))
            self._seats.append(_Seat(number, ids, self._ray.put(spec), data))
        for seat in self._seats:
            self._load(seat)
        self._await_workers()
        try:
            ready: dict[_Seat, Ready] = self._gather(
                self._seats, lambda seat: seat.loaded, self._ray.get
            )
        except BadInput:
            self.close()  # the workers are well: the next run may have them
            raise
        self._place = next(iter(ready.values())).place
        likes: dict[int, Parcel] = {}
        for seat, one in ready.items():
            seat.chunk = one.chunk
            likes |= one.like
        self._like = {i: unpack(likes[i], own=True) for i in sorted(likes)}

    # --- workers ---

    def _load(self, seat: _Seat) -> None:
        seat.actor = self._session.hire()
        seat.loaded = seat.actor.load.remote(seat.spec, seat.data, self._sent, self._turn)

    def _await_workers(self) -> None:
        waiting = [seat.loaded for seat in self._seats]
        _, late = self._ray.wait(waiting, num_returns=len(waiting), timeout=PATIENCE)
        if late:
            log.warning(
                "%d of %d workers are not ready yet: the Ray cluster may be busy",
                len(late),
                len(waiting),
            )

    def _revive(self, seat: _Seat) -> None:
        """Puts another worker in a lost one's place, with the states of the last round."""
        log.warning("worker %d was lost: it is started again", seat.number)
        self._session.dismiss(seat.actor)
        self._load(seat)
        self._ray.get(seat.loaded)
        try:
            for reference in seat.snapshots.references():
                self._ray.get(seat.actor.put_back.remote(reference))
        except self._session.gone:
            raise BadInput(
                f"worker {seat.number} was lost together with the machine that had its clients' "
                "states: go on from the last checkpoint with fedtailor resume"
            ) from None
        if seat.chunk:
            self._ray.get(seat.actor.set_chunk.remote(seat.chunk))

    def _settle(
        self,
        asked: dict[_Seat, _Asked],
        again: Callable[[_Seat], Any],
        fetch: Callable[[Any], Found],
    ) -> dict[_Seat, Found]:
        """Answers of several workers. One that was lost is replaced, and asked `again`.

        Args:
          asked: of whom answers are due; those of replaced workers are replaced too.
          again: asks a worker that has the states of the last round.
          fetch: gets from references what is needed here.
        """
        found = {}
        for seat in asked:
            for attempt in range(ATTEMPTS + 1):
                try:
                    if attempt:
                        if asked[seat].actor is seat.actor:  # else it was replaced since
                            self._revive(seat)
                        asked[seat] = _Asked(again(seat), seat.actor)
                    found[seat] = fetch(asked[seat].references)
                    break
                except self._session.lost as error:
                    if attempt == ATTEMPTS:
                        raise BadInput(
                            f"worker {seat.number} was lost {attempt + 1} times in a row "
                            f"({type(error).__name__}; most often for want of memory): lower "
                            "--chunk or --workers"
                        ) from None
                except self._session.failed as error:
                    _raise_cause(error)
        return found

    def _gather(
        self, seats: Iterable[_Seat], ask: Callable[[_Seat], Any], fetch: Callable[[Any], Found]
    ) -> dict[_Seat, Found]:
        """Asks several workers at once, and waits for their answers."""
        return self._settle(_ask_all(seats, ask), ask, fetch)

    def _broadcast(self, server: Tree) -> Any:
        """A reference of the server's state, which is sent once however often it is used."""
        if self._server is not server:
            self._server, self._sent = server, self._ray.put(pack(server))
        return self._sent

    def _having(self, ids: Tensor) -> dict[_Seat, Tensor]:
        """Who has which of some clients."""
        shares = {seat: ids[torch.isin(ids, seat.ids)].sort().values for seat in self._seats}
        return {seat: some for seat, some in shares.items() if len(some)}

    # --- rounds ---

    def play(self, server: Tree, cohort: Tensor, turn: Turn, *, post: bool = False) -> Played:
        """The turns of the clients `cohort`; see `Block.play`."""
        sent, shares = self._broadcast(server), self._having(cohort)

        def ask(seat: _Seat) -> Any:
            play = seat.actor.play.options(num_returns=3)
            return play.remote(sent, shares[seat], turn, post)

        answers = _ask_all(shares, ask)
        told = self._settle(answers, ask, lambda refs: self._ray.get(refs[:2]))
        fold = Fold()
        for seat, (word, folded) in told.items():
            fold.merge(folded.open())
            seat.chunk = word.chunk
            for remark in word.remarks:
                log.warning("worker %d: %s", seat.number, remark)
        words = [word for word, _ in told.values()]
        drawn, order = torch.cat([word.drawn for word in words]).sort()
        taken, rows = torch.cat([word.taken for word in words]).sort()

        def each() -> Tree:
            senders = {seat: answers[seat] for seat, (word, _) in told.items() if word.has_each}
            parcels = self._settle(senders, ask, lambda refs: self._ray.get(refs[2]))
            if not parcels:
                return {}
            return tree.index(tree.cat([unpack(parcel) for parcel in parcels.values()]), rows)

        def ask_to_keep(seat: _Seat) -> Any:
            return seat.actor.keep.options(num_returns=2).remote()

        def ask_for_both(seat: _Seat) -> Any:
            ask(seat)
            return ask_to_keep(seat)

        def keep() -> None:
            kept = _ask_all(told, ask_to_keep)
            self._settle(kept, ask_for_both, lambda refs: self._ray.get(refs[0]))
            for seat, (word, _) in told.items():
                seat.snapshots.add(word.taken.tolist(), kept[seat].references[1])
                if seat.snapshots.overgrown:
                    self._tidy(seat)

        return Played(
            drawn,
            join([word.measured for word in words], order),
            taken,
            common_notes([word.notes for word in words if len(word.taken)], rows),
            fold,
            each,
            keep,
        )

    def _tidy(self, seat: _Seat) -> None:
        """One copy of all states of a worker, instead of many of some."""
        answers = _ask_all([seat], _ask_for_states)
        self._settle(answers, _ask_for_states, lambda refs: self._ray.get(refs[0]))
        clients = seat.snapshots.clients()
        seat.snapshots.clear()
        seat.snapshots.add(clients, answers[seat].references[1])

    def score(
        self,
        server: Tree,
        ids: Tensor,
        turn: Turn,
        *,
        part: str = "test",
        finetune: Recipe | None = None,
        general: bool = False,
    ) -> Scores:
        """Scores of each client's model, by ascending id; see `Block.score`."""
        sent, shares = self._broadcast(server), self._having(ids)

        def ask(seat: _Seat) -> Any:
            return seat.actor.score.remote(sent, shares[seat], turn, part, finetune, general)

        found = self._gather(shares, ask, self._ray.get)
        scores: Scores = join(list(found.values()), torch.cat(list(shares.values())).argsort())
        return scores

    def models(
        self,
        server: Tree,
        ids: Tensor,
        turn: Turn,
        finetune: Recipe | None = None,
        point: Point = "pre",
    ) -> Iterator[tuple[Tensor, Tree]]:
        """(ids, models stacked), some clients of each worker at a time; the next are on the way."""
        sent = self._broadcast(server)
        shares = {s: torch.split(some, max(s.chunk, 1)) for s, some in self._having(ids).items()}

        def ask(seat: _Seat, lap: int) -> Any:
            return seat.actor.models.remote(sent, shares[seat][lap], turn, finetune, point)

        def ask_for(lap: int) -> dict[_Seat, _Asked]:
            seats = [seat for seat, some in shares.items() if lap < len(some)]
            return _ask_all(seats, partial(ask, lap=lap))

        ahead, lap = ask_for(0), 0
        while ahead:
            answers, ahead = ahead, ask_for(lap + 1)
            for parts in self._settle(answers, partial(ask, lap=lap), self._ray.get).values():
                for some, parcel in parts:
                    yield some, unpack(parcel)
            lap += 1

    # --- states ---

    @property
    def chunk(self) -> int:
        """How many clients share a worker's device at a time, where they are fewest."""
        return min(seat.chunk for seat in self._seats)

    @chunk.setter
    def chunk(self, size: int) -> None:
        for seat in self._seats:
            seat.chunk = size
        ask: Callable[[_Seat], Any] = lambda seat: seat.actor.set_chunk.remote(size)
        self._gather(self._seats, ask, self._ray.get)

    preparing_seconds = 0.0  # workers prepare for themselves, and do not say

    @property
    def place(self) -> str:
        """Where workers keep states."""
        return self._place

    def kept(self) -> list[Kept]:
        """For each group the states of those clients that were met."""
        fetch: Callable[[Any], States] = lambda refs: self._ray.get(refs[1])
        states = self._gather(self._seats, _ask_for_states, fetch).values()
        found = []
        for number in self._like:
            parts = [one[number] for one in states if number in one]
            ids, order = torch.cat([ids for ids, _ in parts]).sort()
            rows = tree.cat([unpack(parcel) for _, parcel in parts])
            found.append(Kept(ids, tree.index(rows, order)))
        return found

    def put_back(self, states: list[Kept]) -> None:
        """Puts states where `kept` found them; clients that are not named stay as they are."""
        for seat in self._seats:
            part: States = {}
            for number, (ids, rows) in zip(self._like, states, strict=True):
                mine = torch.isin(ids, seat.ids).nonzero()[:, 0]
                if len(mine):
                    part[number] = ids[mine], pack(tree.index(rows, mine))
            reference = self._ray.put(part)
            # a worker that is lost meanwhile gets them with its copies
            seat.snapshots.add((i for ids, _ in part.values() for i in ids.tolist()), reference)
            done = _Asked(seat.actor.put_back.remote(reference), seat.actor)
            self._settle({seat: done}, lambda seat: seat.loaded, self._ray.get)

    def like(self) -> list[Tree]:
        """For each group its states without any row: names, shapes and types."""
        return list(self._like.values())

    def close(self) -> None:
        """Gives the workers back."""
        for seat in self._seats:
            self._session.give_back(seat.actor)
            seat.snapshots.clear()
        self._seats, self._server, self._sent = [], None, None


def _ask_all(seats: Iterable[_Seat], ask: Callable[[_Seat], Any]) -> dict[_Seat, _Asked]:
    return {seat: _Asked(ask(seat), seat.actor) for seat in seats}


def _ask_for_states(seat: _Seat) -> Any:
    return seat.actor.kept.options(num_returns=2).remote()


def _raise_cause(error: Any) -> NoReturn:
    """What went wrong in a worker; bad input keeps its one line."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, BadInput):
        raise BadInput(str(cause)) from None
    raise error
