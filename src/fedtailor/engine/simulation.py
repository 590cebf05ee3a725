"""Plays rounds on one machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import rng, train, tree, wire
from ..data import Data
from ..method import Method, Model, Upload
from ..rng import Turn
from ..task import Task
from ..train import Recipe, Score
from ..tree import Params, Tree
from .bank import Bank, Place, choose_place, nbytes
from .chunk import choose_chunk
from .federation import Federation
from .fold import Fold
from .mapper import MAPPERS, join


class Diverged(RuntimeError):
    """Clients whose training ended in numbers that are not finite."""

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
    """

    ids: Tensor
    skipped: Tensor
    down: Tensor
    up: Tensor
    post: Scores | None


class _Measured(NamedTuple):
    down: Tensor
    up: Tensor
    finite: Tensor
    post: Scores


class _Acted(NamedTuple):
    state: Tree
    upload: Upload
    measured: _Measured


class Simulation:
    """A federation on one machine: server state, client states, and rounds that change them.

    Args:
      method: what is played.
      federation: everybody's data.
      task: for the common initial parameters, and for fine-tuning.
      seed: of the run.
      rounds: how many rounds the run will have (schedules may depend on it).
      engine: `sequential` or `vectorised`.
      chunk: how many clients share the device at a time; 0 chooses what fits.
      place: where client states are kept; None chooses.
      folder: for states on disk.
      recipe: how clients train, to estimate memory by.
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
    ) -> None:
        self.method, self.federation, self.task = method, federation, task
        self.seed, self.rounds, self.engine = seed, rounds, engine
        self.device = federation.x.device
        self.round = 0
        clients = federation.clients
        self.initial: Params = task.init(rng.key(seed, rng.INITIAL))
        server_key = rng.key(seed, rng.SERVER, device=self.device)
        self.server: Tree = method.init(clients, self.initial, server_key)
        first = torch.zeros((), dtype=torch.int64, device=self.device)
        turn = self._turn(rng.TURN).of(first)
        message = method.send(self.server, first, turn)
        like = method.start(message, self.initial, turn.at_start())
        place = place or choose_place(nbytes(like), clients, self.device)
        self.bank = Bank(clients, like, self.device, place, folder)
        if not chunk and engine == "vectorised":
            chunk = choose_chunk(task, self.initial, federation, message, like, recipe or Recipe())
        self.chunk = min(max(chunk, 1), clients)

    def _turn(self, purpose: int) -> Turn:
        """The round's turn; a client's own is `.of(id)`."""
        key = rng.key(self.seed, purpose, self.round, device=self.device)
        now, end = torch.tensor([self.round, self.rounds], device=self.device)
        return Turn(key, now, end)

    def _chunks(self, ids: Tensor) -> Iterator[Tensor]:
        """Ids in chunks of clients with about equally many rows, so that little is padding."""
        order = ids[self.federation.train.n[ids].argsort(stable=True, descending=True)]
        yield from order.split(self.chunk)  # type: ignore[no-untyped-call]

    def _mapped(self, fn: Any, ids: Tensor, turn: Turn, part: str = "test") -> Any:
        """`fn` of every client in `ids`, with its state, data and turn."""
        here = ids.to(self.device)
        with torch.no_grad():
            return MAPPERS[self.engine](fn)(
                self.server,
                here,
                self.bank.get(ids),
                self.federation.data(ids),
                self.federation.part(ids, part),
                turn.of(here),
                ~self.bank.met[ids].to(self.device),
            )

    def _begin(
        self, server: Tree, cid: Tensor, state: Tree, turn: Turn, fresh: Tensor
    ) -> tuple[Tree, Tree]:
        """A client's message, and its state at the start of its turn."""
        message = self.method.send(server, cid, turn)
        made = self.method.start(message, self.initial, turn.at_start())
        return message, tree.where(fresh, made, state)

    def step(self, cohort: Tensor, *, post: bool = False, on_nan: str = "stop") -> RoundReport:
        """Plays one round with the clients `cohort`.

        Args:
          cohort: ids of those who take part.
          post: also score the models right after local training.
          on_nan: `stop` raises `Diverged`; `skip` leaves diverged clients out of the round: their
            states and the server are as if they had not been drawn.
        """
        method, turn = self.method, self._turn(rng.TURN)

        def act(
            server: Tree,
            cid: Tensor,
            state: Tree,
            data: Data,
            test: Data,
            turn: Turn,
            fresh: Tensor,
        ) -> _Acted:
            message, state = self._begin(server, cid, state, turn, fresh)
            state, up, model = method.client(message, state, data, turn.at_client())
            zero = torch.zeros_like(cid)
            blank = Score(zero, zero)
            measured = _Measured(
                zero + wire.size(message),
                zero + wire.size(up.mean) + wire.size(up.each),
                _finite(state) & _finite(up.mean) & _finite(up.each) & (zero == 0),
                _scores(method, model, data, test) if post else Scores(blank, blank),
            )
            return _Acted(state, up._replace(weight=up.weight + zero), measured)

        fold = Fold()
        seen: list[Tensor] = []
        taken: list[Tensor] = []
        states: list[Tree] = []
        each: list[Tree] = []
        measures: list[_Measured] = []
        for ids in self._chunks(cohort):
            state, up, measured = self._mapped(act, ids, turn)
            seen.append(ids)
            measures.append(measured)
            good = measured.finite.cpu()
            if not bool(good.all()):
                if on_nan != "skip":
                    raise Diverged([self.federation.names[int(i)] for i in ids[~good]], self.round)
                keep, ids = good.nonzero()[:, 0].to(self.device), ids[good]
                if not len(keep):
                    continue
                state = tree.index(state, keep)
                up = Upload(tree.index(up.mean, keep), up.weight[keep], tree.index(up.each, keep))
            fold.add(up.mean, up.weight)
            taken.append(ids)
            states.append(state)
            each.append(up.each)
        drawn, order = torch.cat(seen).sort()
        if not taken:
            raise Diverged([self.federation.names[int(i)] for i in drawn], self.round)
        for ids, state in zip(taken, states, strict=True):
            self.bank.put(ids, state)
        ids, rows = torch.cat(taken).sort()
        upload = Upload(fold.value(), 1.0, tree.index(tree.cat(each), rows.to(self.device)))
        with torch.no_grad():
            self.server = method.receive(self.server, ids.to(self.device), upload, turn)
        self.round += 1
        measured = join(measures, order)
        skipped = drawn[~torch.isin(drawn, ids)]
        return RoundReport(
            drawn, skipped, measured.down, measured.up, measured.post if post else None
        )

    def score(
        self, ids: Tensor | None = None, *, part: str = "test", finetune: Recipe | None = None
    ) -> Scores:
        """Scores of each client's model as it would use it now (`pre` of the coming round).

        Nothing changes: no state, no random stream.

        Args:
          ids: which clients; all if None.
          part: the rows that count as test rows: `test`, or `train` for the out-of-sample gap.
          finetune: train each model so on the client's training rows first.
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
            model = self._model(server, cid, state, data, turn, fresh, finetune)
            return _scores(self.method, model, data, test)

        chunks = list(self._chunks(self._everyone() if ids is None else ids))
        turn = self._turn(rng.SCORE)
        found: Scores = join(
            [self._mapped(assess, chunk, turn, part) for chunk in chunks],
            torch.cat(chunks).argsort(),
        )
        return found

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
            model: Tree = self._model(server, cid, state, data, turn, fresh, finetune)
            return model

        for ids in self._chunks(self._everyone()):
            stacked = self._mapped(own, ids, self._turn(rng.SCORE))
            for i, cid in enumerate(ids.tolist()):
                yield cid, tree.index(stacked, i)

    def _everyone(self) -> Tensor:
        return torch.arange(self.federation.clients)

    def _model(
        self,
        server: Tree,
        cid: Tensor,
        state: Tree,
        data: Data,
        turn: Turn,
        fresh: Tensor,
        finetune: Recipe | None,
    ) -> Model:
        message, state = self._begin(server, cid, state, turn, fresh)
        before, after = turn.at_client().split()
        model = self.method.personal(message, state, data, before)
        return train.fit(self.task, model, data, after, finetune) if finetune else model


def _finite(values: Tree) -> Tensor | bool:
    """Whether all numbers of a tree are finite."""
    flags = [leaf.isfinite().all() for leaf in tree.leaves(values) if leaf.is_floating_point()]
    return torch.stack(flags).all() if flags else True


def _scores(method: Method, model: Model, data: Data, test: Data) -> Scores:
    return Scores(
        train.score(method.predict, model, test), train.score(method.predict, model, data.val)
    )
