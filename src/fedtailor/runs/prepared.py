"""One configuration made ready to be played: data, method, network, simulation."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from fedtailor.core import rng
from fedtailor.core.errors import BadInput
from fedtailor.core.steps.privacy import Spent, epsilon
from fedtailor.core.steps.schedules import check_factors
from fedtailor.core.tree import Tree
from fedtailor.datasets.wording import listed
from fedtailor.engine import Cluster, Outputs, RoundReport, Simulation
from fedtailor.engine.culprit import naming_their_code
from fedtailor.engine.loops.runner import LoopMode, Workload, choose_loop_mode
from fedtailor.results.config import Config
from fedtailor.results.folder import Line
from fedtailor.results.outputs import SaidInRound
from fedtailor.runs.build import (
    make_players,
    players_on,
    prove_private,
    server_model,
    without_validation,
)
from fedtailor.runs.data import RunData, load_run_data
from fedtailor.runs.evaluation import evaluation_of
from fedtailor.runs.saved_models import PathModels
from fedtailor.runs.schedule import arrivals, networks, times_of_clients
from fedtailor.runs.stopwatch import Stopwatch

Found = TypeVar("Found")
log = logging.getLogger("fedtailor")

LAID = (
    "data", "data_dir", "partition_file", "clients", "partition", "device",
    "task", "normalise", "metric", "loss", "class_weights",
)  # fmt: skip


def as_laid_out(config: Config, laid: Config) -> Config:
    """A configuration with what its data decided; runs on the same data may differ in the model."""
    model = laid.model if config.model == "auto" else config.model
    return replace(config, model=model, **{k: getattr(laid, k) for k in LAID})


def meanwhile(work: Callable[[], Found]) -> Future[Found]:
    """Begins something in a thread of its own; a process does not end before it has."""
    thread = ThreadPoolExecutor(1, "fedtailor-meanwhile")
    begun = thread.submit(work)
    thread.shutdown(wait=False)
    return begun


@dataclass
class Progress:
    """What a run has added up so far; saved with every checkpoint."""

    history: list[Line] = field(default_factory=list)
    seconds: float = 0.0
    up: int = 0
    down: int = 0
    noisy: list[Spent] = field(default_factory=list)  # noisy gradients taken, per client
    best: SaidInRound | None = None  # what models said in the best round so far


class Asked(NamedTuple):
    """What is asked after a round that is evaluated; a GPU may still be at work on it."""

    pre: Outputs  # of the models that clients would use now
    general: Outputs | None  # of the global one, where there is one beside them
    records: Tree  # of the server
    looking: Callable[[], AbstractContextManager[Any]]  # within, all this is looked at


class BegunRound(NamedTuple):
    """A round that clients are playing."""

    number: int  # from 1
    here: Tensor  # the clients that have arrived
    absent: Line  # who does not answer, and what time it takes
    points: PathModels | None  # models that are kept
    took: float  # seconds so far
    report: Callable[[], RoundReport]  # waits for it
    asked: Asked | None  # if it is evaluated


class PreparedRun:
    """One configuration on its data, ready to be played, and how far it is.

    Args:
      config: what to run; `auto` values are replaced.
      data: its data, if they are there already.
      folder: where to keep everything; None keeps nothing.
      kept: whether it will get a folder, by `Runner.keep_in`: checkpoints know the data by a
        digest, which is best begun early.
      stopwatch: counts its seconds by phase; a new one by default.
    """

    def __init__(
        self,
        config: Config,
        data: RunData | None = None,
        folder: Path | None = None,
        stopwatch: Stopwatch | None = None,
        *,
        kept: bool = False,
    ) -> None:
        self.stopwatch = stopwatch or Stopwatch()
        with self.stopwatch.phase("data"):
            self.data = data or load_run_data(config)
        with self.stopwatch.phase("preparing"):
            self._prepare(config, folder, kept or folder is not None)

    @naming_their_code()
    def _prepare(self, config: Config, folder: Path | None, kept: bool) -> None:
        asked, config = config.model, as_laid_out(config, self.data.config)
        form = self.data.encoder.form
        fed = self.data.client_data
        having = networks(config.models, config.model, fed.clients)
        self.networks = {fed.names[int(i)]: model for model, ids in having for i in ids}
        engine = "vectorised" if config.engine == "auto" else config.engine
        config = replace(config, engine=engine)
        (self.method, self.task, _), *others = players = make_players(config, form, fed.clients)
        self.tasks = [task for _, task, _ in players]  # everybody's, the server's first
        self.frozen = {  # by network
            name: task.constants
            for _, task, mine in players
            for name, ids in having
            if task.constants and torch.equal(ids, mine)
        }
        if self.method.alone:
            self.data = self.data.alone()
            fed = self.data.client_data
        self._digest = self._begin_digest() if kept else self.data.digest
        if lacking := without_validation(config, self.method, fed):
            log.warning(
                "no validation rows at %s: %s looks at them, and goes without there: give a "
                "partition that has some",
                listed(lacking, 5),
                config.method,
            )
        if self.method.leaks:  # for literal replication only: methods look at test rows
            fed = fed._replace(val=fed.test)
        for method, task in ((self.method, self.task), *(other[:2] for other in others)):
            prove_private(config, method, task, fed)
        model = server_model(config, players)
        if config.models and asked not in ("auto", model):
            log.warning(
                "model is '%s', but %s does not use it: its server has the deepest of --models, %s",
                *(asked, config.method, model),
            )
        self.config = config = replace(config, model=model)
        if config.objects.schedule is not None:
            check_factors(config.objects.schedule, config.rounds)
        self.fingerprint = config.fingerprint()  # of a resumed run: as its file has it
        self.folder = folder
        self.late = arrivals(config.join, self.data.trained, config.partition_seed, config.rounds)
        self.simulation = Simulation(
            self.method,
            fed,
            self.task,
            seed=config.seed,
            rounds=config.rounds,
            engine=engine,
            chunk=config.chunk,
            place=None if config.states == "auto" else config.states,
            folder=folder,
            recipe=config.recipe(),
            others=others,
            held_out=self.data.held_out,
            loop_mode=self._loop_mode(),
            compile_limit=config.compile_limit,
            keep_programs=True,
            cluster=self._cluster() if engine == "ray" else None,
        )
        if config.keep_path > len(self.data.trained):
            raise BadInput(
                f"keep-path is {config.keep_path}, but only {len(self.data.trained)} clients "
                "train: lower it"
            )
        self.progress = Progress()
        self.together = 1  # runs that are played side by side, with this one among them
        self.latest: Outputs | None = None  # of the last evaluated round
        self.final: Outputs | None = None  # of the final models
        self.evaluation = evaluation_of(self.data, config.metric, self.simulation.client_data)

    def _loop_mode(self) -> LoopMode:
        """How loops over batches are run: by the work of the whole run, also when it is resumed."""
        config, train = self.config, self.data.client_data.train
        each = [config.recipe().count(n) for n in train.n[self.data.trained].tolist()]
        work = Workload(
            int(config.rounds * config.participation * sum(each)),
            config.rounds * max(each, default=0),
            any(p.ndim > 2 for task in self.tasks for p in task.init(rng.key(0)).values()),
        )
        device = torch.device(config.device)
        return (
            choose_loop_mode(work, device, config.compile)
            if config.engine != "sequential"
            else "plain"
        )

    def _cluster(self) -> Cluster:
        """Where the workers are, and what they build."""
        config, form = self.config, self.data.encoder.form
        build = partial(players_on, config, form, self.data.client_data.clients)
        return Cluster(build, config.workers, config.address, config.device, config.worker_gpus)

    def _begin_digest(self) -> Callable[[], str]:
        """Begins to compute the digest in a thread; returns what waits for it."""
        # copied now: nothing may come from a GPU while a step is captured there
        here = self.data.client_data._replace(x=self.data.client_data.x.cpu())
        return meanwhile(self.data._replace(client_data=here).digest).result

    @cached_property
    def digest(self) -> str:
        """Of the data: they do not change while a run lasts, and hashing them takes a while."""
        return self._digest()

    @cached_property
    def times(self) -> Tensor:
        """How long each client takes for a round."""
        rows = self.simulation.client_data.train.n
        return times_of_clients(self.config, self.method, rows, self.data.trained)

    def ask(self, report: Callable[[], RoundReport]) -> Asked:
        """Asks everybody's models after a round, before the next one changes them.

        Args:
          report: waits for the round. Models of clients that diverged may refuse to answer.
        """
        sim = self.simulation
        with self.stopwatch.phase("evaluating"):
            try:
                general = sim.outputs(general=True) if self.method.general is not None else None
                return Asked(sim.outputs(), general, sim.records(), sim.looking_at_now())
            except Exception:
                report()
                raise

    def spend(self, ids: Sequence[int], noisy: Tensor) -> dict[str, Any]:
        """Charges clients for noisy gradients; returns everyone's ε over all rounds so far."""
        if not self.progress.noisy:
            self.progress.noisy = [Spent()] * self.data.client_data.clients
        for i, more in zip(ids, noisy.tolist(), strict=True):
            self.progress.noisy[i] = self.progress.noisy[i].and_then(Spent.of(more))
        return self.epsilon(self.progress.noisy)

    def epsilon(self, spent: Sequence[Spent]) -> dict[str, Any]:
        """Everyone's ε, for files."""
        config = self.config
        found = [epsilon(one, config.dp_noise, config.dp_delta) for one in spent]
        # without noise there is no guarantee: JSON has no word for infinity
        shown = [None if math.isinf(e) else round(e, 6) for e in found]
        most = None if config.dp_noise == 0 else max(found)
        noise = "keyed by the seed, as in every simulation"
        return {"delta": config.dp_delta, "max": most, "each": shown, "noise": noise}
