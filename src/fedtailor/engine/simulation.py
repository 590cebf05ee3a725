"""Plays rounds on one machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import rng, train, tree, wire
from ..data import Data
from ..method import Clients, Method, Model, Upload
from ..privacy import charged, keep_account
from ..rng import Turn
from ..task import Task
from ..train import Recipe, Score
from ..tree import Params, Tree
from .bank import Bank, Place
from .federation import Federation
from .fold import Fold
from .group import Group
from .mapper import MAPPERS, join


class Diverged(RuntimeError):
    """Clients whose training ended in numbers that are not finite; rounds count from 1."""

    def __init__(self, clients: list[str], round: int) -> None:
        self.clients, self.round = clients, round
        super().__init__(
            f"{', '.join(clients)} diverged (NaN or infinity) in round {round}: "
            "lower --lr, set --clip, or leave such clients out of the round with --on-nan skip"
        )


class Scores(NamedTuple):
    """One row per client: right answers and summed losses on its test and validation rows."""

    test: Score
    val: Score


class RoundReport(NamedTuple):
    """What happened in a round.

    Attributes:
      ids: the cohort, in ascending order.
      skipped: those of it that diverged and were left out.
      down: bytes sent to each client of the cohort.
      up: bytes received from each.
      post: scores after local training, one row per client of the cohort; None if not asked for.
      noisy: how many noisy gradients (DP-SGD) each took.
      taken: those of the cohort that count.
      notes: what methods noted of them, one row per client that counts.
    """

    ids: Tensor
    skipped: Tensor
    down: Tensor
    up: Tensor
    post: Scores | None
    noisy: Tensor
    taken: Tensor
    notes: Tree


class _Measured(NamedTuple):
    down: Tensor
    up: Tensor
    finite: Tensor
    post: Scores


class _Acted(NamedTuple):
    state: Tree
    upload: Upload
    notes: Tree
    measured: _Measured


class _Taken(NamedTuple):
    """A chunk's clients and what they left, until the round is whole."""

    group: Group
    ids: Tensor
    state: Tree
    each: Tree
    notes: Tree


class Simulation:
    """A federation on one machine: server state, client states, and rounds that change them.

    Args:
      method: what is played; its `init` and `receive` are the server's.
      federation: everybody's data.
      task: the network, for the common initial parameters and for fine-tuning.
      seed: of the run.
      rounds: how many rounds the run will have (schedules may depend on it).
      engine: `sequential` or `vectorised`.
      chunk: how many clients share the device at a time; 0 chooses what fits.
      place: where client states are kept; None chooses.
      folder: for states on disk.
      recipe: how clients train, to estimate memory by.
      others: (method, task, ids) of clients with other networks.
    """

    def __init__(
        self,
        method: Method,
        federation: Federation,
        task: Task,
        *,
        seed: int = 0,
        rounds: int = 1,
        engine: str = "vectorised",
        chunk: int = 0,
        place: Place | None = None,
        folder: Path | None = None,
        recipe: Recipe | None = None,
        others: Sequence[tuple[Method, Task, Tensor]] = (),
    ) -> None:
        pool = federation.pooled(method.donate, seed) if method.donate else None
        if pool is not None:
            federation = pool.federation
        self.method, self.federation, self.task, self.pool = method, federation, task, pool
        self.seed, self.rounds, self.engine = seed, rounds, engine
        self.device = federation.x.device
        self.round = 0
        members = self._everyone()
        for _, _, ids in others:
            members = members[~torch.isin(members, ids)]
        self.groups = [
            Group(m, t, ids.sort().values, seed)
            for m, t, ids in [(method, task, members), *others]
            if len(ids) or m is method
        ]
        server_key = rng.key(seed, rng.SERVER, device=self.device)
        sizes = Clients.of(federation.train.n.to(self.device))
        self.server: Tree = method.init(sizes, self.initial, server_key)
        turn, how = self._turn(rng.TURN), recipe or Recipe()
        fits = [
            g.prepare(self.server, federation, turn, place, folder, how)
            for g in self.groups
            if len(g.members)
        ]
        # one after another: a chunk is one client
        self.chunk = min(chunk or min(fits), federation.clients) if engine == "vectorised" else 1

    @property
    def initial(self) -> Params:
        """The common initial parameters."""
        return self.groups[0].initial

    @property
    def bank(self) -> Bank:
        """The states of the clients that have the server's network."""
        return self.groups[0].bank

    def _everyone(self) -> Tensor:
        return torch.arange(self.federation.clients)

    def _turn(self, purpose: int) -> Turn:
        """The round's turn; a client's own is `.of(id)`."""
        key = rng.key(self.seed, purpose, self.round, device=self.device)
        now, end = torch.tensor([self.round, self.rounds], device=self.device)
        return Turn(key, now, end)

    def _chunks(self, ids: Tensor) -> Iterator[tuple[Group, Tensor]]:
        """Ids in chunks of one group with about equally many rows, so that little is padding."""
        for group in self.groups:
            mine = ids[torch.isin(ids, group.members)].sort().values
            order = mine[self.federation.train.n[mine].argsort(stable=True, descending=True)]
            for chunk in torch.split(order, self.chunk):
                if len(chunk):
                    yield group, chunk

    def _mapped(self, fn: Any, group: Group, ids: Tensor, turn: Turn, part: str = "test") -> Any:
        """`fn` of every client in `ids`, with its state, data and turn."""
        here, rows = ids.to(self.device), group.rows(ids)
        with torch.no_grad():
            return MAPPERS[self.engine](fn)(
                self.server,
                here,
                group.bank.get(rows),
                self.federation.data(ids),
                self.federation.part(ids, part),
                turn.of(here),
                ~group.bank.met[rows].to(self.device),
            )

    def step(self, cohort: Tensor, *, post: bool = False, on_nan: str = "stop") -> RoundReport:
        """Plays one round with the clients `cohort`.

        Args:
          cohort: ids of those who take part.
          post: also score the models right after local training.
          on_nan: `stop` raises `Diverged`; `skip` leaves diverged clients out of the round: their
            states and the server are as if they had not been drawn.
        """
        turn = self._turn(rng.TURN)

        def act(
            server: Tree,
            cid: Tensor,
            state: Tree,
            data: Data,
            test: Data,
            turn: Turn,
            fresh: Tensor,
        ) -> _Acted:
            message, state = group.begin(server, cid, state, turn, fresh)
            state, up, model, notes = group.method.client(message, state, data, turn.at_client())
            zero = torch.zeros_like(cid)
            blank = Score(zero, zero)
            measured = _Measured(
                zero + wire.size(message),
                zero + wire.size(up.mean) + wire.size(up.each),
                _finite(state) & _finite(up.mean) & _finite(up.each) & (zero == 0),
                _scores(group.method, model, data, test) if post else Scores(blank, blank),
            )
            return _Acted(state, up._replace(weight=up.weight + zero), notes, measured)

        fold = Fold()
        seen: list[Tensor] = []
        fresh: list[Tensor] = []
        spent: list[int] = []
        bad: list[int] = []
        measures: list[_Measured] = []
        taken: list[_Taken] = []
        for group, ids in self._chunks(cohort):
            with keep_account() as entries:
                state, up, notes, measured = self._mapped(act, group, ids, turn)
            spent += [charged(entries, n) for n in self.federation.train.n[ids].tolist()]
            seen.append(ids)
            fresh.append(~group.bank.met[group.rows(ids)])
            measures.append(measured)
            good = measured.finite.cpu()
            if not bool(good.all()):
                bad += ids[~good].tolist()
                keep, ids = good.nonzero()[:, 0].to(self.device), ids[good]
                if not len(keep):
                    continue
                state, notes = tree.index(state, keep), tree.index(notes, keep)
                up = Upload(tree.index(up.mean, keep), up.weight[keep], tree.index(up.each, keep))
            fold.add(up.mean, up.weight)
            taken.append(_Taken(group, ids, group.stage(ids, state), up.each, notes))
        drawn, order = torch.cat(seen).sort()
        new = torch.cat(fresh)
        if bad and (on_nan != "skip" or not taken):
            raise Diverged([self.federation.names[i] for i in sorted(bad)], self.round + 1)
        for one in taken:
            one.group.keep(one.ids, one.state)
        ids, rows = torch.cat([one.ids for one in taken]).sort()
        each = tree.index(tree.cat([one.each for one in taken]), rows.to(self.device))
        upload = Upload(fold.mean(), fold.share(), each)
        with torch.no_grad():
            self.server = self.method.receive(self.server, ids.to(self.device), upload, turn)
        self.round += 1
        measured = join(measures, order)
        once = torch.where(new, 1, 0)[order]
        down, up = (self.pool.down[drawn], self.pool.up[drawn]) if self.pool else (0, 0)
        return RoundReport(
            drawn,
            drawn[~torch.isin(drawn, ids)],
            measured.down + once * down,
            measured.up + once * up,
            measured.post if post else None,
            torch.tensor(spent)[order],
            ids,
            _in_order([one.notes for one in taken], rows),
        )

    def close(self) -> None:
        """Removes the files of states that are kept on disk."""
        for group in self.groups:
            group.bank.close()

    def records(self) -> Tree:
        """The server's small arrays for the run's records."""
        with torch.no_grad():
            return tree.map(lambda leaf: leaf.detach().cpu(), self.method.record(self.server))

    def score(
        self,
        ids: Tensor | None = None,
        *,
        part: str = "test",
        finetune: Recipe | None = None,
        general: bool = False,
    ) -> Scores:
        """Scores of each client's model as it would use it now (`pre` of the coming round).

        Nothing changes: no state, no random stream.

        Args:
          ids: which clients; all if None. Rows come back in ascending order of ids.
          part: the rows that count as test rows: `test`, or `train` for the out-of-sample gap.
          finetune: train each model so on the client's training rows first.
          general: score the global model instead; only where the method has one.
        """

        def assess(
            server: Tree,
            cid: Tensor,
            state: Tree,
            data: Data,
            test: Data,
            turn: Turn,
            fresh: Tensor,
        ) -> Scores:
            if general:
                assert group.method.general is not None
                model = group.method.general(*group.begin(server, cid, state, turn, fresh))
            else:
                model = group.model(server, cid, state, data, turn, fresh, finetune)
            return _scores(group.method, model, data, test)

        turn = self._turn(rng.SCORE)
        seen, found = [], []
        for group, chunk in self._chunks(self._everyone() if ids is None else ids):
            seen.append(chunk)
            found.append(self._mapped(assess, group, chunk, turn, part))
        scores: Scores = join(found, torch.cat(seen).argsort())
        return scores

    def models(self, finetune: Recipe | None = None) -> Iterator[tuple[int, Tree]]:
        """Each client's id and the model it would use now."""

        def own(
            server: Tree,
            cid: Tensor,
            state: Tree,
            data: Data,
            test: Data,
            turn: Turn,
            fresh: Tensor,
        ) -> Tree:
            model: Tree = group.model(server, cid, state, data, turn, fresh, finetune)
            return model

        for group, ids in self._chunks(self._everyone()):
            stacked = self._mapped(own, group, ids, self._turn(rng.SCORE))
            for i, cid in enumerate(ids.tolist()):
                yield cid, tree.index(stacked, i)


def _in_order(chunks: list[Tree], order: Tensor) -> Tree:
    """Notes of all chunks, joined; groups that note other things are left out of each other's."""
    common = set.intersection(*(set(tree.flatten(chunk)) for chunk in chunks))
    flat = [{k: v for k, v in tree.flatten(chunk).items() if k in common} for chunk in chunks]
    shaped = {k for k in common if len({chunk[k].shape[1:] for chunk in flat}) == 1}
    return {
        k: torch.cat([chunk[k].detach().cpu() for chunk in flat])[order] for k in sorted(shaped)
    }


def _finite(values: Tree) -> Tensor | bool:
    """Whether all numbers of a tree are finite."""
    flags = [leaf.isfinite().all() for leaf in tree.leaves(values) if leaf.is_floating_point()]
    return torch.stack(flags).all() if flags else True


def _scores(method: Method, model: Model, data: Data, test: Data) -> Scores:
    return Scores(
        train.score(method.predict, model, test), train.score(method.predict, model, data.val)
    )
