"""Several runs in one program: their clients share every call, and each run is as if it were alone.

Each run has its own server, client states, draws, history and files, and goes its own way in a
thread of its own. Only where it would map a function over some of its clients does it wait for the
others: those that ask for the same are mapped together and split again. One thread works at a time,
so nothing depends on which is quicker.

Runs may differ in seed, in their data's split, in the learning rate and in numbers among their
method's options, and in nothing else: what clients do is the same function for all of them. What a
server does (`init`, `send`, `start`, `receive`) is each run's own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.data import Counts, Data
from fedtailor.core.method import Method
from fedtailor.core.rng import Turn
from fedtailor.core.task import Task
from fedtailor.core.tree import Tree
from fedtailor.engine.client_data import ClientData
from fedtailor.engine.clients import ModelChoice, Outputs
from fedtailor.engine.group import ClientGroup
from fedtailor.engine.local_clients import LocalClients
from fedtailor.engine.mapper import ClientContext
from fedtailor.engine.memory import is_out_of_memory
from fedtailor.engine.simulation import Simulation
from fedtailor.engine.transfer import upload

# what comes first within a round: models are asked for before and after it, and then it is played
ORDER = ("outputs", "models", "play")


class Abandoned(BaseException):
    """A run ends here, since the whole program was asked to stop at once."""


class _Request(NamedTuple):
    """What a run waits for."""

    when: tuple[int, int]  # round, and place within it
    same: Hashable  # runs for which it is equal share a call
    fn: Callable[[ClientContext], Any]
    context: ClientContext  # of the run's clients, with their messages
    clients: LocalClients  # whose they are


class _Strand:
    """A run in a thread that goes on only while somebody waits for it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.result: Any = None
        self.ended = False
        self.error: BaseException | None = None
        self._work = work
        self._request: _Request | None = None
        self._answer: Any = None
        self._on, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name="fedtailor-run", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._on.acquire()
        try:
            self._answered()
            self.result = self._work()
        except BaseException as error:  # whoever began all runs decides what to do with it
            self.error = error
        self._request, self.ended = None, True
        self._paused.release()

    def _answered(self) -> Any:
        answer, self._answer = self._answer, None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def ask(self, request: _Request) -> Any:
        """Within the run: waits for an answer."""
        self._request = request
        self._paused.release()
        self._on.acquire()
        return self._answered()

    def go_on(self, answer: Any = None) -> _Request | None:
        """Outside of it: lets it go on until it asks for something; None if it has ended."""
        self._answer, self._request = answer, None
        self._on.release()
        self._paused.acquire()
        return self._request

    def abandon(self) -> None:
        """Outside of it: ends it where it is, or where it asks for something next."""
        while not self.ended:
            self.go_on(Abandoned())


class OptionValues(NamedTuple):
    """Options of a method that several runs have different values of.

    Attributes:
      of_runs: each run's values, by name.
      method: makes, for a network, the method with a `RunNumber` of that name in their place.
    """

    of_runs: Sequence[Mapping[str, float]]
    method: Callable[[Task], Method]


class SideBySide:
    """Simulations whose clients share calls while their runs are played by `play`.

    Args:
      simulations: of the runs, on one device; equal but for seed, split, learning rate, options.
      rates: the runs' learning rates; None where all have the same.
      options: what differs among the options of their method; None where nothing does.
    """

    def __init__(
        self,
        simulations: Sequence[Simulation],
        rates: Sequence[float] | None = None,
        options: OptionValues | None = None,
    ) -> None:
        same = rates is None or len(set(rates)) == 1
        self._rates = None if same or rates is None else list(rates)
        self._store = _JoinedStore([sim.client_data for sim in simulations])
        self._strands: list[_Strand] = []
        self._simulations = simulations
        self._players = [_players(sim) for sim in simulations]
        self._options = options
        # each run's groups, with its own method
        self._groups = [[clients.groups for clients in players] for players in self._players]
        shared = [[self._shared(group) for group in groups] for groups in self._groups[0]]
        runner = self._players[0][0].runner
        for run, players in enumerate(self._players):
            for which, clients in enumerate(players):
                clients.groups = [
                    replace(own, method=all_runs.method, task=all_runs.task)
                    for own, all_runs in zip(clients.groups, shared[which], strict=True)
                ]
                clients.share_room(len(simulations))
                clients.runner = runner  # programs are made once, and threads are few
                clients.joint = partial(self._ask, run, which)

    def _shared(self, group: ClientGroup) -> ClientGroup:
        return replace(group, method=self._options.method(group.task)) if self._options else group

    def play(self, works: Sequence[Callable[[], Any]]) -> list[Any]:
        """What each run's work returns, or the error that ended it.

        Args:
          works: for each simulation, the function that plays it.
        """
        self._strands = [_Strand(work) for work in works]
        waiting: dict[int, _Request] = {}
        try:
            for run, strand in enumerate(self._strands):
                if (request := strand.go_on()) is not None:
                    waiting[run] = request
            while waiting:
                first = min(waiting.values(), key=lambda request: request.when)
                some = [run for run, request in waiting.items() if _alike(request, first)]
                requests = [waiting.pop(run) for run in some]
                answers = self._answers(some, requests)
                del requests, first
                for run in some:
                    request = self._strands[run].go_on(answers.pop(0))
                    if request is not None:
                        waiting[run] = request
        except BaseException:  # a second Ctrl-C, say
            for strand in self._strands:
                strand.abandon()
            raise
        finally:
            for players, own in zip(self._players, self._groups, strict=True):
                for clients, groups in zip(players, own, strict=True):
                    clients.joint, clients.groups = None, groups
            self._players[0][0].runner.close()
        return [strand.result if strand.error is None else strand.error for strand in self._strands]

    # --- within a run's thread ---

    def _ask(
        self,
        run: int,
        which: int,
        fn: Callable[[ClientContext], Any],
        context: ClientContext,
        group: ClientGroup,
        asked: tuple[tuple[str, bool | ModelChoice], str, int],
    ) -> Any:
        """What `fn` finds of a run's clients, once the other runs ask for the same."""
        clients = self._players[run][which]
        (what, how), *rest = asked
        mine = self._groups[run][which][clients.groups.index(group)]
        if isinstance(how, ModelChoice):  # a recipe's own learning rate is in the turn
            recipe = how.finetune and replace(how.finetune, lr=0.0)
            how = how._replace(finetune=recipe)

        def begin(client: ClientContext) -> tuple[Tree, Tree]:
            own = mine.turn(client)
            return own.message, own.state()

        message, state = clients.mapped(begin, context)
        prepared = context._replace(server={}, message=message, state=state)
        number = self._simulations[run].round  # a GPU would have to be asked for the turn's
        request = _Request(
            (number, ORDER.index(what)), (number, what, how, which, *rest), fn, prepared, clients
        )
        return self._strands[run].ask(request)

    # --- between them ---

    def _answers(self, runs: list[int], requests: list[_Request]) -> list[Any]:
        """What each of the runs finds; an error is everybody's."""
        try:
            contexts = [
                self._store.laid(run, request.context)
                for run, request in zip(runs, requests, strict=True)
            ]
            joined, places = _join(
                contexts, self._turn(runs, contexts), self._numbers(runs, contexts)
            )
            found = requests[0].clients.mapped(requests[0].fn, joined)
            return [
                _part(found, place, request.context)
                for place, request in zip(places, requests, strict=True)
            ]
        except Exception as error:
            if is_out_of_memory(error):  # what the error was made of is let go
                return [MemoryError(str(error).splitlines()[0] if str(error) else "") for _ in runs]
            return [error] * len(runs)

    def _turn(self, runs: list[int], contexts: list[ClientContext]) -> Turn:
        first = contexts[0].turn
        key = torch.cat([context.turn.key for context in contexts])
        lr = None
        if self._rates is not None:
            lr = _of_clients([self._rates[run] for run in runs], contexts)
            lr = lr.to(torch.get_default_dtype())
        return first._replace(key=key, lr=lr)

    def _numbers(self, runs: list[int], contexts: list[ClientContext]) -> Tree | None:
        if self._options is None:
            return None
        own = [self._options.of_runs[run] for run in runs]
        return {name: _of_clients([one[name] for one in own], contexts) for name in own[0]}


def _of_clients(values: list[float], contexts: list[ClientContext]) -> Tensor:
    """Each run's number, once for each of its clients."""
    given = [(len(c.cid), value) for c, value in zip(contexts, values, strict=True)]
    device = contexts[0].cid.device
    return torch.cat([torch.full((n,), v, dtype=torch.float64, device=device) for n, v in given])


def _players(sim: Simulation) -> list[LocalClients]:
    """All that map functions over clients for a simulation."""
    assert isinstance(sim.clients, LocalClients), "workers have the clients"
    return [sim.clients, *([sim.centre] if sim.centre else [])]


def _alike(one: _Request, other: _Request) -> bool:
    return one.when == other.when and one.same == other.same


class _JoinedStore:
    """The rows of all runs: one store if it is the same for all, else one after the other."""

    def __init__(self, data: Sequence[ClientData]) -> None:
        first = data[0]
        same = all(
            (one.x is first.x or torch.equal(one.x, first.x))
            and (one.y is first.y or torch.equal(one.y, first.y))
            for one in data[1:]
        )
        self.x, self.y = first.x, first.y
        self._before = [0] * len(data)  # rows of earlier runs
        if not same:
            self.x, self.y = torch.cat([one.x for one in data]), torch.cat([one.y for one in data])
            self._before = [sum(len(one.x) for one in data[:run]) for run in range(len(data))]

    def laid(self, run: int, context: ClientContext) -> ClientContext:
        """A run's contexts with the joined store."""
        data, test = self._rows(run, context.data), self._rows(run, context.test)
        return context._replace(data=data, test=test)

    def _rows(self, run: int, data: Data) -> Data:
        before = self._before[run]
        if not before:
            return data._replace(x=self.x, y=self.y)
        rows, val_rows = data.rows + before, data.val_rows + before
        return data._replace(x=self.x, y=self.y, rows=rows, val_rows=val_rows)


class _Places(NamedTuple):
    """Where a run's clients are among all; nobody waits for a GPU to look it up."""

    host: Tensor
    device: Tensor

    def of(self, found: Tensor) -> Tensor:
        """The run's rows of what was found of all."""
        return found[self.device if found.device == self.device.device else self.host]


def _join(
    contexts: list[ClientContext], turn: Turn, numbers: Tree | None
) -> tuple[ClientContext, list[_Places]]:
    """All runs' clients as one stack, those with most rows first; and where each run's are."""
    counts = torch.cat([_counts(context.data).n for context in contexts])
    order = counts.argsort(stable=True, descending=True)
    back = order.argsort()
    here, back_here = upload(contexts[0].cid.device, order, back)
    sizes = [len(context.cid) for context in contexts]
    places = map(_Places, torch.split(back, sizes), torch.split(back_here, sizes))

    def rows(values: list[Tensor]) -> Tensor:
        return torch.cat(values)[here]

    def trees(values: list[Tree]) -> Tree:
        return tree.index(tree.cat(values), here)

    joined = ClientContext(
        {},
        rows([c.cid for c in contexts]),
        trees([c.state for c in contexts]),
        _join_data([c.data for c in contexts], order, here),
        _join_data([c.test for c in contexts], order, here),
        turn._replace(key=turn.key[here], lr=None if turn.lr is None else turn.lr[here]),
        rows([c.fresh for c in contexts]),
        trees([c.message or {} for c in contexts]),
        None if numbers is None else tree.index(numbers, here),
    )
    return joined, list(places)


def _counts(data: Data) -> Counts:
    assert data.counts is not None, "clients' data know their counts"
    return data.counts


def _join_data(parts: list[Data], order: Tensor, here: Tensor) -> Data:
    n, val_n = (torch.cat([getattr(p, name) for p in parts])[here] for name in ("n", "val_n"))
    counts = [_counts(part) for part in parts]
    return Data(
        parts[0].x,
        parts[0].y,
        torch.cat(_widened([(p.rows, p.n) for p in parts]))[here],
        n,
        torch.cat(_widened([(p.val_rows, p.val_n) for p in parts]))[here],
        val_n,
        Counts(
            torch.cat([c.n for c in counts])[order], torch.cat([c.val_n for c in counts])[order]
        ),
    )


def _widened(parts: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """Rows as wide as the widest; padding repeats a client's own rows."""
    width = max(rows.shape[1] for rows, _ in parts)
    found = []
    for rows, n in parts:
        if rows.shape[1] < width:
            place = torch.arange(width, device=rows.device) % n.clamp(min=1)[:, None]
            rows = rows.gather(1, place)
        found.append(rows)
    return found


def _part(found: Any, places: _Places, asked: ClientContext) -> Any:
    """What was found of some clients; their outputs are as wide as their own rows."""
    if isinstance(found, Tensor):
        return places.of(found)  # what is the same for all may be made on the host
    if isinstance(found, dict):
        return {name: _part(value, places, asked) for name, value in found.items()}
    parts = [_part(value, places, asked) for value in found]
    if isinstance(found, Outputs) and parts[0].ndim == 3:
        widths = asked.test.rows.shape[1], asked.data.val_rows.shape[1]
        parts[:2] = [said[:, :width] for said, width in zip(parts[:2], widths, strict=True)]
    return type(found)(*parts) if hasattr(found, "_fields") else tuple(parts)
