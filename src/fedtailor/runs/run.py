"""A run: rounds, evaluation, history, checkpoints, results, all in one folder."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from fedtailor.core import tree
from fedtailor.core.errors import BadInput
from fedtailor.core.privacy import Spent, epsilons
from fedtailor.core.training import Recipe, Score
from fedtailor.core.version import __version__
from fedtailor.engine import Cluster, RoundReport, Scores, Simulation, draw_cohort
from fedtailor.engine.loops.runner import Way, Work, choose_way
from fedtailor.report import write_report
from fedtailor.results import storage
from fedtailor.results.config import Config, make_config, write_config
from fedtailor.results.confusion import Confusion
from fedtailor.results.failures import noted
from fedtailor.results.folder import file_name, open_folder
from fedtailor.results.lock import occupy
from fedtailor.results.running import BEGUN
from fedtailor.results.storage import save_tensors, write_atomically
from fedtailor.runs.build import World, assemble, make_players, players_on
from fedtailor.runs.interruption import Interrupted, ctrl_c
from fedtailor.runs.result import client_table, facts_of, per_client, result_of, summary
from fedtailor.runs.saved_models import Points, keep_general
from fedtailor.runs.schedule import arrivals, networks, present

Line = dict[str, Any]
Watcher = Callable[[Line, int], None]  # (line of the history, number of rounds)

LAID = ("data", "data_dir", "partition_file", "clients", "partition", "model", "device")
CHECKPOINT_SECONDS = 5.0
CHECKPOINT_SHARE = 20  # a checkpoint may cost a twentieth of the time


@dataclass
class Progress:
    """What a run has added up so far; saved with every checkpoint."""

    history: list[Line] = field(default_factory=list)
    seconds: float = 0.0
    up: int = 0
    down: int = 0
    noisy: list[Spent] = field(default_factory=list)  # noisy gradients taken, per client


class Runner:
    """Plays one configuration on its world.

    Args:
      config: what to run; `auto` values are replaced.
      world: its data, if they are there already.
      folder: where to keep everything; None keeps nothing.
    """

    def __init__(
        self, config: Config, world: World | None = None, folder: Path | None = None
    ) -> None:
        self.world = world or assemble(config)
        laid = self.world.config
        config = replace(
            config,
            **{k: getattr(laid, k) for k in LAID},
        )
        form = self.world.encoder.form
        fed = self.world.federation
        self.leaks = config.options.get("acc_source") == "test"
        if self.leaks:  # for literal replication only: methods look at test rows
            fed = fed._replace(val=fed.test)
        having = networks(config.depths, config.model, fed.clients)
        self.networks = {fed.names[int(i)]: model for model, ids in having for i in ids}
        engine = "vectorised" if config.engine == "auto" else config.engine
        config = replace(config, engine=engine)
        (self.method, self.task, first), *others = make_players(config, form, fed.clients)
        model = next(name for name, ids in having if torch.equal(ids, first))
        self.config = config = replace(config, model=model)
        self.folder = folder
        self.late = arrivals(config.join, self.world.trained, config.partition_seed)
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
            held_out=self.world.held_out,
            way=self._way(),
            cluster=self._cluster() if engine == "ray" else None,
        )
        if config.keep_path > len(self.world.trained):
            raise BadInput(
                f"keep-path is {config.keep_path}, but only {len(self.world.trained)} clients "
                "train: lower it"
            )
        self.progress = Progress()
        self.latest: Scores | None = None  # of the last evaluated round

    def _way(self) -> Way:
        """How loops over batches are run: by the work of the whole run, also when it is resumed."""
        config, train = self.config, self.world.federation.train
        each = [config.recipe().count(n) for n in train.n[self.world.trained].tolist()]
        work = Work(
            int(config.rounds * config.participation * sum(each)),
            config.rounds * max(each, default=0),
        )
        device = torch.device(config.device)
        return (
            choose_way(work, device, config.compile) if config.engine != "sequential" else "plain"
        )

    def _cluster(self) -> Cluster:
        """Where the workers are, and what they build."""
        config, form = self.config, self.world.encoder.form
        build = partial(players_on, config, form, self.world.federation.clients)
        return Cluster(build, config.workers, config.address, config.device, config.worker_gpus)

    @cached_property
    def digest(self) -> str:
        """Of the data: they do not change while a run lasts, and hashing them takes a while."""
        return self.world.digest()

    @property
    def finetune(self) -> Recipe | None:
        """How models are trained before the final test, if they are."""
        epochs = self.config.finetune
        return replace(self.config.recipe(), epochs=epochs, steps=0) if epochs else None

    # --- playing ---

    def play(self, watch: Watcher | None = None) -> dict[str, Any]:
        """Plays the rounds that are left and returns the result."""
        try:
            if self.folder is None:
                return self._play(watch)
            with occupy(self.folder), noted(self.folder):
                return self._play(watch)
        finally:  # also after an error: the next run needs the memory
            self.simulation.close()

    def _play(self, watch: Watcher | None) -> dict[str, Any]:
        begun = time.monotonic() - self.progress.seconds
        saved_at, cost = time.monotonic(), 0.0
        if self.folder and not (self.folder / "checkpoint" / storage.LATEST).exists():
            self._checkpoint()
        with ctrl_c() as interrupted:
            while self.simulation.round < self.config.rounds:
                line = self._round()
                self.progress.seconds = time.monotonic() - begun
                line["seconds"] = round(self.progress.seconds, 3)
                self.progress.history.append(line)
                self._append(line)
                done = self.simulation.round
                if watch:
                    watch(line, self.config.rounds)
                stop = interrupted()
                since = time.monotonic() - saved_at
                due = since > max(CHECKPOINT_SECONDS, CHECKPOINT_SHARE * cost)
                if self.config.checkpoint_every:
                    due = done % self.config.checkpoint_every == 0
                if self.folder and (due or stop):
                    before = time.monotonic()
                    self._checkpoint()
                    saved_at = time.monotonic()
                    cost = saved_at - before
                if stop and done < self.config.rounds:
                    raise Interrupted(self.folder, done)
            # a first Ctrl-C from here on waits: results are about to be written
            if self.folder:
                self._checkpoint()
            result = result_of(self)
            result["seconds"] = round(time.monotonic() - begun, 3)
            if self.folder:
                self._write(result)
            # the run is finished; whoever would go on with another hears of it
            if self.folder and interrupted():
                raise Interrupted(self.folder, self.config.rounds)
        return result

    def _round(self) -> Line:
        sim, fed = self.simulation, self.world.federation
        number = sim.round + 1
        evaluate = number % self.config.eval_every == 0 or number == self.config.rounds
        here = present(self.world.trained, self.late, sim.round)
        cohort = draw_cohort(self.config.seed, sim.round, here, self.config.participation)
        points = None
        if evaluate and self.folder and self.config.keep_path:
            points = Points(sim, self.world.trained[: self.config.keep_path], cohort)
        begun = time.monotonic()
        report: RoundReport = sim.step(cohort, post=evaluate, on_nan=self.config.on_nan)
        trained = time.monotonic() - begun
        up, down = int(report.up.sum()), int(report.down.sum())
        self.progress.up += up
        self.progress.down += down
        line: Line = {
            "round": number,
            "cohort": report.ids.tolist(),
            "bytes": {"up": up, "down": down},
            "train_seconds": round(trained, 4),
        }
        if self.config.dp_clip:
            line["epsilon"] = self._spend(report)
        arrived = [i for at, ids in self.late if at == number - 1 for i in ids.tolist()]
        if arrived:
            line["joined"] = [fed.names[i] for i in arrived]
        if len(report.skipped):
            line["skipped"] = [fed.names[i] for i in report.skipped.tolist()]
        if evaluate:
            pre = self.latest = sim.score()
            line["pre"] = summary(pre.test, fed.test.n)
            line["pre_val"] = summary(pre.val, sim.federation.val.n)
            line["pre_per_client"] = per_client(pre.test, fed.test.n)
            if report.post is not None:
                line["post"] = summary(report.post.test, fed.test.n[report.ids])
                line["post_per_client"] = per_client(report.post.test, fed.test.n[report.ids])
            if self.method.general is not None:
                line["global"] = summary(sim.score(general=True).test, fed.test.n)
            if self.late:
                there = Score(*(part[here] for part in pre.test))
                line["pre_present"] = summary(there, fed.test.n[here])
            self._record(number, report)
            if points and self.folder:
                points.save(self.folder, number)
        return line

    # --- privacy ---

    def _spend(self, report: RoundReport) -> dict[str, Any]:
        """Charges clients for noisy gradients; returns everyone's ε over all rounds so far."""
        if not self.progress.noisy:
            self.progress.noisy = [Spent()] * self.world.federation.clients
        for i, more in zip(report.ids.tolist(), report.noisy.tolist(), strict=True):
            self.progress.noisy[i] = self.progress.noisy[i].and_then(Spent(*more))
        return self.epsilon(self.progress.noisy)

    def epsilon(self, spent: Sequence[Spent]) -> dict[str, Any]:
        """Everyone's ε, for files."""
        rows, config = self.world.federation.train.n.tolist(), self.config
        found = epsilons(spent, rows, config.batch, config.dp_noise, config.dp_delta)
        # without noise there is no guarantee: JSON has no word for infinity
        shown = [None if math.isinf(e) else round(e, 6) for e in found]
        most = None if config.dp_noise == 0 else max(found)
        return {"delta": config.dp_delta, "max": most, "each": shown}

    def _record(self, number: int, report: RoundReport) -> None:
        """Keeps what the method noted: small arrays, for figures."""
        kept = {f"client/{k}": v for k, v in report.notes.items() if not k.endswith("/")}
        kept |= {f"server/{k}": v for k, v in tree.flatten(self.simulation.records()).items()}
        if self.folder and kept:
            folder = self.folder / "records"
            folder.mkdir(exist_ok=True)
            save_tensors(folder / f"{number:06d}.safetensors", kept | {"ids": report.taken})

    # --- files ---

    def _append(self, line: Line) -> None:
        if self.folder:
            with (self.folder / "history.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def _checkpoint(self) -> None:
        if self.folder is None:
            return
        meta = {
            "version": __version__,
            "config": self.config.fingerprint(),
            "data": self.digest,
            "seconds": self.progress.seconds,
            "up": self.progress.up,
            "down": self.progress.down,
            "noisy": self.progress.noisy,
        }
        history = self.folder / "history.jsonl"
        if history.exists():  # before the checkpoint, which relies on the lines up to its round
            storage.sync(history)
        storage.save(self.folder / "checkpoint", self.simulation, meta)

    def _write(self, result: dict[str, Any]) -> None:
        assert self.folder is not None
        folder = self.folder
        models = folder / "models"
        models.mkdir(exist_ok=True)
        confusion = Confusion(self.world.federation, self.simulation.groups)
        for cid, model in self.simulation.models(self.finetune):
            path = models / f"{file_name(self.world.federation.names[cid])}.safetensors"
            save_tensors(path, tree.flatten(model))
            confusion.add(cid, model)
        confusion.save(folder)
        if self.method.general is not None:
            keep_general(self.simulation, folder)
        write_atomically(folder / "clients.csv", client_table(self, result))
        write_atomically(folder / "result.json", json.dumps(result, indent=1) + "\n")


def begin(runner: Runner, folder: Path) -> None:
    """Gives a runner its folder, with the configuration in it, and who the clients are: a run can
    be looked at while it goes on."""
    runner.folder = folder
    # first: it marks the folder as a run's
    write_atomically(folder / "config.toml", write_config(runner.config, __version__))
    _write_encoder(runner.world, folder)
    write_atomically(folder / "clients.csv", client_table(runner))
    Confusion(runner.world.federation, runner.simulation.groups).save(folder)
    write_atomically(folder / BEGUN, json.dumps(facts_of(runner), indent=1) + "\n")


def _write_encoder(world: World, folder: Path) -> None:
    encoder = json.dumps(world.encoder.to_json(), indent=1)
    write_atomically(folder / "preprocessing.json", encoder)


def start(
    config: Config,
    folder: Path | None = None,
    *,
    world: World | None = None,
    watch: Watcher | None = None,
) -> dict[str, Any]:
    """Runs a configuration; with a folder, everything is kept there."""
    runner = Runner(config, world)
    if folder:
        begin(runner, folder)
    return runner.play(watch)


def run(
    method: str,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    watch: Watcher | None = None,
    options: dict[str, Any] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Runs a method and returns its result, as `fedtailor run` does.

    Args:
      method: its name, or package.module:factory.
      out: folder to keep everything in; None keeps nothing.
      overwrite: replace an earlier run in that folder.
      watch: called with each line of the history.
      options: the method's hyper-parameters.
      settings: any setting of `fedtailor.Config` by name.

    Example:
      >>> result = run("fedavg", model="mlp", clients=5, rounds=1)
      >>> sorted(result["bytes"])
      ['down', 'up']
    """
    runner = Runner(make_config(method, settings, options or {}))
    if out is not None:  # after the data: bad input leaves no folder behind
        begin(runner, open_folder(Path(out), overwrite=overwrite))
    result = runner.play(watch)
    if runner.folder:
        write_report([runner.folder])
    return result
