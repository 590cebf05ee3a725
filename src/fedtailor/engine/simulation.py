"""Plays rounds: the server's part of a federation, with its clients here or on other machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.core import rng, tree
from fedtailor.core.method import ClientCount, Method, Upload
from fedtailor.core.rng import Turn
from fedtailor.core.scoring import Score, score_of_outputs
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.core.tree import Params, Tree
from fedtailor.core.turn import demand_tensors, received
from fedtailor.core.uploads.watch import compare_uploads
from fedtailor.engine.client_data import ClientData
from fedtailor.engine.clients import (
    ClientSettings,
    ClientStates,
    CohortOutcome,
    Keep,
    ModelChoice,
    Outputs,
    Point,
    SimulatedClients,
)
from fedtailor.engine.fold import demand_weight
from fedtailor.engine.group import ClientGroup
from fedtailor.engine.local_clients import LocalClients
from fedtailor.engine.loops.runner import LoopMode
from fedtailor.engine.loops.torch_internals import one_client
from fedtailor.engine.loops.tracing import COMPILE_LIMIT
from fedtailor.engine.outcome import RoundReport
from fedtailor.engine.ray.cluster import Cluster
from fedtailor.engine.state_store import StatePlace, StateStore
from fedtailor.engine.transfer import new_stream, results_of_now, upload


class Diverged(RuntimeError):
    """Clients whose training, in `run` of several, ended in numbers that are not finite."""

    def __init__(self, clients: list[str], round: int, run: str = "") -> None:
        self.clients, self.round = clients, round
        whose = f"{run}: " * bool(run) + ", ".join(clients)
        super().__init__(
            f"{whose} diverged (NaN or infinity) in round {round}: "
            "lower --lr, set --clip, or leave such clients out of the round with --on-nan skip"
        )


class Scores(NamedTuple):
    """One row per client: right answers and summed losses on its test and validation rows.

    Attributes:
      test: on test rows.
      val: on validation rows.
    """

    test: Score
    val: Score


class Simulation:
    """A federation: server state, client states, and rounds that change them.

    Args:
      method: what is played; its `init` and `receive` are the server's.
      client_data: everybody's data.
      task: the network, for the common initial parameters and for fine-tuning.
      seed: of the run.
      rounds: how many rounds the run will have (schedules may depend on it).
      engine: `sequential` or `vectorised`.
      chunk: how many clients share the device at a time; 0 chooses what fits.
      place: where client states are kept; None chooses.
      folder: for states on disk.
      recipe: how clients train, to estimate memory by.
      others: (method, task, ids) of clients with other networks.
      held_out: ids of clients that never take part, and so give no rows to a pool.
      loop_mode: how loops over batches are run, see `LoopRunner`.
      compile_limit: seconds that compiling them may take in all.
      keep_programs: whether traced steps are kept on disk for the next process.
      cluster: workers that have the clients, each with the vectorised engine; None has them here.

    Example:
      >>> import fedtailor
      >>> rows = [[0, 1, 2, 3], [4, 5]]
      >>> data = ClientData.of(torch.eye(6), torch.tensor([0, 1, 0, 1, 0, 1]), rows, rows, rows)
      >>> task = fedtailor.classification(lambda: torch.nn.Linear(6, 2))
      >>> simulation = Simulation(fedtailor.METHODS["fedavg"](task), data, task)
      >>> simulation.step(torch.tensor([0, 1])).taken.tolist(), simulation.round
      ([0, 1], 1)
    """

    def __init__(
        self,
        method: Method,
        client_data: ClientData,
        task: Task,
        *,
        seed: int = 0,
        rounds: int = 1,
        engine: str = "vectorised",
        chunk: int = 0,
        place: StatePlace | None = None,
        folder: Path | None = None,
        recipe: Recipe | None = None,
        others: Sequence[tuple[Method, Task, Tensor]] = (),
        held_out: Tensor | None = None,
        loop_mode: LoopMode = "plain",
        compile_limit: float = COMPILE_LIMIT,
        keep_programs: bool = False,
        cluster: Cluster | None = None,
    ) -> None:
        outside = set() if held_out is None else set(held_out.tolist())
        pool = client_data.pooled(method.donate, seed, outside) if method.donate else None
        if pool is not None:
            client_data = pool.client_data
        self.method, self.client_data, self.task, self.pool = method, client_data, task, pool
        self.seed, self.rounds, self.engine, self.loop_mode = seed, rounds, engine, loop_mode
        self.device = client_data.x.device
        self._looking = new_stream(self.device) if self.device.type == "cuda" else None
        self.round = 0
        members = self._everyone()
        for _, _, ids in others:
            members = members[~torch.isin(members, ids)]
        groups = [
            ClientGroup.of(m, t, ids.sort().values, seed)
            for m, t, ids in [(method, task, members), *others]
        ]
        self.initial: Params = groups[0].initial
        self.groups = [group for group in groups if len(group.members)]
        server_key = rng.key(seed, rng.SERVER, device=self.device)
        sizes = ClientCount.of(client_data.train.n.to(self.device), held_out)
        self.server: Tree = method.init(sizes, self.initial, server_key)
        demand_tensors("init", "server state", self.server)
        turn = self._turn(rng.TURN)
        settings = ClientSettings(
            recipe or Recipe(), loop_mode, place, chunk, compile_limit, keep_programs
        )
        self.clients: SimulatedClients
        if cluster is None:
            self.clients = LocalClients(
                self.groups, client_data, self.server, turn, settings, engine, folder
            )
        else:
            from fedtailor.engine.ray.clients import RayClients  # late: most runs do without

            members_of = [group.members for group in groups]
            self.clients = RayClients(
                cluster, members_of, client_data, self.server, turn, settings, seed
            )
        self.givers = self._everyone()[~torch.isin(self._everyone(), torch.tensor([*outside]))]
        self.centre: LocalClients | None = None
        if method.gathered:  # one client, who trains for all; the others only use what it learns
            alone = ClientGroup.of(method, task, torch.tensor([0]), seed)
            rows = client_data.gathered(outside)
            here = "sequential" if engine == "sequential" else "vectorised"
            self.centre = LocalClients([alone], rows, self.server, turn, settings, here)

    @property
    def states(self) -> StateStore:
        """The states of the clients that have the server's network, if they are on this machine."""
        assert isinstance(self.clients, LocalClients), "workers have the states"
        return self.clients.stores[0]

    @property
    def works_meanwhile(self) -> bool:
        """Whether rounds are played while this thread goes on: by a GPU of this machine."""
        return isinstance(self.clients, LocalClients) and self.device.type == "cuda"

    @property
    def place(self) -> str:
        """Where client states are kept."""
        return self.clients.place

    @property
    def chunk(self) -> int:
        """How many clients share the device at a time; falls when memory runs out."""
        return self.clients.chunk

    @chunk.setter
    def chunk(self, size: int) -> None:
        self.clients.chunk = size

    @property
    def preparing_seconds(self) -> float:
        """What tracing and compiling steps took so far."""
        extra = self.centre.preparing_seconds if self.centre else 0.0
        return self.clients.preparing_seconds + extra

    def _everyone(self) -> Tensor:
        return torch.arange(self.client_data.clients)

    def _turn(self, purpose: int) -> Turn:
        """The round's turn; a client's own is `.of(id)`."""
        key = rng.key(self.seed, purpose, self.round, device=self.device)
        # filled in, not copied: a copy from the host would wait for all that a GPU still has to do
        now, end = (
            torch.full((), number, dtype=torch.int64, device=self.device)
            for number in (self.round, self.rounds)
        )
        return Turn(key, now, end)

    def step(self, cohort: Tensor, *, post: bool = False, on_nan: str = "stop") -> RoundReport:
        """Plays one round with the clients `cohort`.

        Args:
          cohort: ids of those who take part.
          post: also ask the models right after local training.
          on_nan: `stop` raises `Diverged`; `skip` leaves diverged clients out of the round: their
            states and the server are as if they had not been drawn.
        """
        return self._begin(cohort, post, on_nan == "skip", ahead=False)()

    def begin(self, cohort: Tensor, *, post: bool = False) -> Callable[[], RoundReport]:
        """Begins a round as `step` plays it, and does not wait for a GPU that is still at work.

        The next round may begin before anybody asks how this one went. If clients diverged, the
        server and their states have it in them by the time that this is known.

        Returns:
          What waits for the round, and reports on it or raises `Diverged`.
        """
        return self._begin(cohort, post, skip=False, ahead=True)

    def _begin(
        self, cohort: Tensor, post: bool, skip: bool, ahead: bool
    ) -> Callable[[], RoundReport]:
        turn, number = self._turn(rng.TURN), self.round
        if self.centre is not None:
            played = self.centre.play(self.server, torch.tensor([0]), turn, skip=skip)
        else:
            played = self.clients.play(self.server, cohort, turn, post=post, skip=skip)

        def stop_if_diverged() -> None:
            measured = played.measured()
            lost = played.drawn[~measured.finite]
            if len(lost) and not (skip and len(played.taken)):
                names = (self.centre or self).client_data.names
                raise Diverged([names[i] for i in lost.tolist()], number + 1)
            demand_weight(played.fold, measured.weight[measured.finite], number + 1)

        def report() -> RoundReport:
            stop_if_diverged()
            return self._report(played, number)

        if not ahead:
            stop_if_diverged()
        try:
            sent = Upload(played.fold.mean(), played.fold.share(), played.each())
            (taken,) = upload(self.device, played.taken)
            alone = one_client if self.engine == "sequential" else self.clients.runner.running_alone
            with torch.no_grad(), alone():
                server = received(self.method, self.server, taken, sent, turn)
        except Exception:  # a server may well stumble over numbers that are not finite
            stop_if_diverged()
            raise
        played.keep()
        self.server = server
        self.round += 1
        return report

    def _report(self, played: CohortOutcome, number: int) -> RoundReport:
        drawn, measured = played.drawn, played.measured()
        if self.centre is not None:
            return self._report_of_the_centre(measured.noisy, number)
        # what goes into a common pool is sent once, in a client's first round
        once = measured.fresh.long()
        down, up = (self.pool.down[drawn], self.pool.up[drawn]) if self.pool else (0, 0)
        return RoundReport(
            drawn,
            drawn[~measured.finite],
            measured.down + once * down,
            measured.up + once * up,
            measured.post or None,
            measured.noisy,
            played.taken,
            played.notes(),
            compare_uploads(measured.watched[measured.finite]),
        )

    def _report_of_the_centre(self, noisy: Tensor, number: int) -> RoundReport:
        """Everyone takes part by its rows, which are sent once; no model travels."""
        ids = self.givers
        sent = self.client_data.train.n[ids] * self.client_data.row_bytes
        none, up = torch.zeros_like(ids), torch.zeros_like(ids) if number else sent
        noisy = noisy.new_zeros(len(ids), *noisy.shape[1:])
        return RoundReport(ids, ids[:0], none, up, None, noisy, ids, {})

    def looking_at_now(self) -> Callable[[], AbstractContextManager[Any]]:
        """Makes contexts in which what was asked so far is looked at while rounds go on."""
        return results_of_now(self.device, self._looking)

    def records(self) -> Tree:
        """The server's small arrays for the run's records, which no later round changes."""
        with torch.no_grad():
            told = self.method.record(self.server)
            demand_tensors("record", "record", told)
            return tree.map(lambda leaf: leaf.detach().clone(), told)

    def outputs(
        self,
        ids: Tensor | None = None,
        *,
        part: str = "test",
        finetune: Recipe | None = None,
        general: bool = False,
        keep: Keep | None = None,
    ) -> Outputs:
        """What each client's model as it would use it now says (`pre` of the coming round).

        Nothing changes: no state, no random stream.

        Args:
          ids: which clients; all if None. Rows come back in ascending order of ids.
          part: the rows that count as test rows: `test`, or `train` for the out-of-sample gap.
          finetune: train each model so on the client's training rows first.
          general: ask the global model instead; only where the method has one.
          keep: is given the models that are asked, some clients at a time.
        """
        who = self._everyone() if ids is None else ids
        choice = ModelChoice("general" if general else "pre", finetune)
        return self.clients.outputs(self.server, who, self._turn(rng.SCORE), choice, part, keep)

    def score(
        self,
        ids: Tensor | None = None,
        *,
        part: str = "test",
        finetune: Recipe | None = None,
        general: bool = False,
    ) -> Scores:
        """Right answers and summed losses of what `outputs` gives, with the task's loss."""
        who = self._everyone() if ids is None else ids.sort().values
        said = self.outputs(who, part=part, finetune=finetune, general=general)
        return Scores(self._summed(said.test, who, part), self._summed(said.val, who, "val"))

    def _summed(self, outputs: Tensor, ids: Tensor, part: str) -> Score:
        labels, weight = (
            found[:, : outputs.shape[1]].to(outputs.device)
            for found in self.client_data.labels(ids, part)
        )
        return score_of_outputs(self.task, outputs, labels, weight.to(outputs))

    def models(
        self, finetune: Recipe | None = None, *, ids: Tensor | None = None, point: Point = "pre"
    ) -> Iterator[tuple[int, Tree]]:
        """Each client's id and a model of it; nothing changes.

        Args:
          finetune: train each `pre` model so on the client's training rows first.
          ids: which clients; all if None.
          point: the model it would use now (`pre`), that which it would have after training in the
            coming round (`post`), or the global one (`general`, only where the method has it).
        """
        turn = self._turn(rng.TURN if point == "post" else rng.SCORE)
        who = self._everyone() if ids is None else ids
        choice = ModelChoice(point, finetune)
        for some, models in self.clients.models(self.server, who, turn, choice):
            for i, cid in enumerate(some.tolist()):
                yield cid, tree.index(models, i)

    def client_states(self) -> list[ClientStates]:
        """For each group the states of those clients that were met."""
        return self.clients.client_states()

    def keep_states_in(self, folder: Path | None) -> None:
        """Says which run's folder gets states on disk, before the first round."""
        self.clients.keep_states_in(folder)

    def state(self, client: int) -> Tree:
        """What a client keeps between its turns; nothing before it was met."""
        clients = self.clients
        if isinstance(clients, LocalClients):
            found = clients.client_states(torch.tensor([client]))
        else:
            found = clients.client_states()
        for ids, rows in found:
            if client in ids.tolist():
                return tree.index(rows, ids.tolist().index(client))
        return {}

    def close(self) -> None:
        """Gives back what was taken for the run: workers, and files of states kept on disk."""
        self.clients.close()
        if self.centre is not None:
            self.centre.close()
