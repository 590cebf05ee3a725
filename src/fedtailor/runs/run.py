"""A run: rounds, evaluation, history, checkpoints, results, all in one folder."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from fedtailor.core import __version__, tree
from fedtailor.core.errors import Interrupted
from fedtailor.core.inputs.files import sync, write_atomically, write_json
from fedtailor.core.tree import Tree
from fedtailor.engine import Outputs, RoundReport
from fedtailor.engine.culprit import naming_their_code
from fedtailor.results import folder as files
from fedtailor.results.config import Config, write_config
from fedtailor.results.confusion import save_confusion
from fedtailor.results.lock import lock_folder
from fedtailor.results.outputs import RunOutputs, save_outputs
from fedtailor.results.pack import rounded
from fedtailor.results.status import noted
from fedtailor.results.storage import Snapshot, save_checkpoint, save_tensors
from fedtailor.runs.data import RunData
from fedtailor.runs.evaluation import is_better, is_stale
from fedtailor.runs.interruption import ctrl_c
from fedtailor.runs.prepared import Asked, BegunRound, PreparedRun, meanwhile
from fedtailor.runs.result import (
    client_table,
    facts_of,
    result_of,
    run_outputs,
    said_in_round,
)
from fedtailor.runs.saved_models import PathModels, keep_general, keeping_personal
from fedtailor.runs.schedule import attending, clients_present

Watcher = Callable[[files.Line, int], None]  # (line of the history, number of rounds)

CHECKPOINT_SECONDS = 5.0
CHECKPOINT_SHARE = 20  # a checkpoint may cost a twentieth of the time


class Runner(PreparedRun):
    """Plays one configuration, and keeps what comes of it in a folder if it has one."""

    said: RunOutputs | None = None  # what its models said, once all rounds are played
    _writing: Future[float] | None = None  # the last checkpoint, on its way to the disk
    _cost = 0.0  # seconds that the one before took

    # --- playing ---

    def play(self, watch: Watcher | None = None, until: int = 0) -> dict[str, Any]:
        """Plays the rounds that are left and returns the result.

        Args:
          watch: called with each line of the history.
          until: if not 0, it rests after this round, and what is returned is `so_far`; from its
            checkpoint it can go on.
        """
        try:
            if self.folder is None:
                return self._play(watch, until)
            with lock_folder(self.folder), noted(self.folder), self._written():
                return self._play(watch, until)
        finally:  # also after an error: the next run needs the memory
            self.simulation.close()

    @property
    def impatient(self) -> bool:
        """Whether validation rows have said for long enough that nothing gets better."""
        return self._stale(self.progress.history)

    def _stale(self, lines: Sequence[files.Line]) -> bool:
        if not self.config.patience:  # a long history is not walked through in every round
            return False
        values = [line["pre_val"].get("mean") for line in lines if "pre_val" in line]
        return is_stale(values, self.config.patience, self.evaluation.metric.name)

    @naming_their_code()
    def so_far(self) -> dict[str, Any]:
        """What the models of now say of validation rows, and whose say no number (`lost`)."""
        said = self.simulation.outputs(finetune=self.config.finetuning())
        judge = self.evaluation
        return {
            "round": self.simulation.round,
            "val": judge.summary(said.val, "val"),
            "lost": judge.lost(said.val, "val"),
        }

    def _play(self, watch: Watcher | None, until: int) -> dict[str, Any]:
        last = min(until or self.config.rounds, self.config.rounds)
        begun = time.monotonic() - self.progress.seconds
        saved_at = time.monotonic()
        if self.folder and not files.has_checkpoint(self.folder):
            self._checkpoint()
        with ctrl_c() as interrupted:
            ahead: BegunRound | None = None
            while ahead or (self.simulation.round < last and not self.impatient):
                now = ahead or self._begin_round()
                due = self._is_checkpoint_due(now.number, saved_at)
                # only what is known of all rounds so far can be saved
                ahead = None if due or interrupted() else self._begin_ahead(now, last)
                line = self._finish_round(now)
                self.progress.seconds = time.monotonic() - begun
                line["seconds"] = round(self.progress.seconds, 3)
                self.progress.history.append(line)
                self._append(line)
                if watch:
                    watch(line, self.config.rounds)
                if ahead:
                    continue
                stop = interrupted()
                if self.folder and (due or stop):
                    self._checkpoint()
                    saved_at = time.monotonic()
                if stop and now.number < last and not self.impatient:
                    self._settle()
                    raise Interrupted(self.folder, now.number)
            # a first Ctrl-C from here on waits: results are about to be written
            if self.folder:
                self._checkpoint()
            if until:
                found = self.so_far()
                if interrupted():
                    raise Interrupted(self.folder, self.simulation.round)
                return found
            names = self.data.client_data.names
            with self.stopwatch.phase("evaluating"), keeping_personal(names, self.folder) as keep:
                result = result_of(self, keep)
                result["seconds"] = round(time.monotonic() - begun, 3)
                self.said = run_outputs(self)
            if self.folder:
                with self.stopwatch.phase("saving"):
                    self._write(self.said)
                    write_atomically(self.folder / files.CLIENTS, client_table(self, result))
                    self._settle()
            self.finish(result)
            # the run is finished; whoever would go on with another hears of it
            if self.folder and interrupted():
                raise Interrupted(self.folder, self.simulation.round)
        return result

    def play_round(self) -> files.Line:
        """Plays and evaluates the next round; returns its line of the history."""
        return self._finish_round(self._begin_round())

    def _evaluates(self, number: int) -> bool:
        return number % self.config.eval_every == 0 or number == self.config.rounds

    def _can_wait(self, number: int) -> bool:
        """Whether the next round may begin before anybody looks at what came of this one."""
        config = self.config
        decides = bool(config.patience) and self._evaluates(number)
        return config.on_nan == "stop" and not decides and self.simulation.works_meanwhile

    def _begin_ahead(self, now: BegunRound, last: int) -> BegunRound | None:
        """The next round, for a GPU to go on with while this one is written down, if it may."""
        number = self.simulation.round + 1
        if number > last or not (self._can_wait(now.number) and self._can_wait(number)):
            return None
        try:
            return self._begin_round()
        except Exception:
            now.report()  # it may have gone wrong there already
            raise

    @naming_their_code()
    def _begin_round(self) -> BegunRound:
        sim = self.simulation
        number = sim.round + 1
        evaluate = self._evaluates(number)
        here = clients_present(self.data.trained, self.late, sim.round)
        cohort, absent = attending(self.config, self.method, here, self.times, sim.round)
        points = None
        if evaluate and self.folder and self.config.keep_path:
            points = PathModels(sim, self.data.trained[: self.config.keep_path], cohort)
        begun, prepared = time.monotonic(), sim.preparing_seconds
        with self.stopwatch.phase("training"):
            if self._can_wait(number):
                report = sim.begin(cohort, post=evaluate)
            else:
                done = sim.step(cohort, post=evaluate, on_nan=self.config.on_nan)
                report = lambda: done
        took, prepared = time.monotonic() - begun, sim.preparing_seconds - prepared
        self.stopwatch.count("training", -prepared)
        self.stopwatch.count("preparing", prepared)
        asked = self.ask(report) if evaluate else None
        return BegunRound(number, here, absent, points, took, report, asked)

    @naming_their_code()
    def _finish_round(self, begun: BegunRound) -> files.Line:
        """Waits for a round and evaluates it; returns its line of the history."""
        fed, waits = self.data.client_data, time.monotonic()
        number, here, absent, points, took, arrives, asked = begun
        with self.stopwatch.phase("training"):
            report = arrives()
        trained = took + time.monotonic() - waits
        up, down = int(report.up.sum()), int(report.down.sum())
        self.progress.up += up
        self.progress.down += down
        line: files.Line = {
            "round": number,
            "cohort": report.ids.tolist(),
            "bytes": {"up": up, "down": down},
            "train_seconds": round(trained, 4),
        } | absent
        if self.config.dp_clip:
            line["epsilon"] = self.spend(report.ids.tolist(), report.noisy)
        arrived = [i for at, ids in self.late if at == number - 1 for i in ids.tolist()]
        if arrived:
            line["joined"] = [fed.names[i] for i in arrived]
        if len(report.skipped):
            line["skipped"] = [fed.names[i] for i in report.skipped.tolist()]
        if (seen := report.uploads) is not None and bool(seen.norm.any()):
            if odd := report.taken[seen.odd].tolist():
                line["odd_uploads"] = [fed.names[i] for i in odd]
            if asked:
                line["uploads"] = {
                    "norm": rounded(seen.norm.tolist()),
                    "distance": rounded(seen.distance.tolist()),
                }
        if asked:
            with self.stopwatch.phase("evaluating"), asked.looking():
                self._evaluate(line, report, here, asked)
                records = tree.map(lambda leaf: leaf.cpu(), asked.records)
            with self.stopwatch.phase("saving"):
                self._record(number, report, records)
                if points and self.folder:
                    points.save(self.folder, number)
        return line

    def _evaluate(self, line: files.Line, report: RoundReport, here: Tensor, asked: Asked) -> None:
        """Adds what models say to a round's line; `here` are the clients that have arrived."""
        judge, number = self.evaluation, line["round"]
        pre = self.latest = asked.pre
        line["pre"], line["pre_per_client"] = judge.judged(pre.test)
        line["pre_val"] = judge.summary(pre.val, "val")
        last = number == self.config.rounds or self._stale([*self.progress.history, line])
        if self.config.dp_clip and not last:  # the result pays for the last
            line["epsilon"] = self.spend(range(self.data.client_data.clients), pre.noisy)
        self._keep_best(line, pre)
        if report.post is not None:
            after = judge.judged(report.post.test, ids=report.ids)
            line["post"], line["post_per_client"] = after
        if asked.general is not None:
            line["global"] = judge.summary(asked.general.test)
        if self.late:
            line["pre_present"] = judge.summary(pre.test[here.to(pre.test.device)], ids=here)

    def _keep_best(self, line: files.Line, said: Outputs) -> None:
        """Keeps what models said, if no evaluated round was better on validation rows."""
        now = line["pre_val"].get("mean")
        before = [old["pre_val"].get("mean") for old in self.progress.history if "pre_val" in old]
        known = [value for value in before if value is not None]
        metric = self.evaluation.metric.name
        if now is not None and all(is_better(metric, now, value) for value in known):
            self.progress.best = said_in_round(self, line["round"], said)

    def _record(self, number: int, report: RoundReport, records: Tree) -> None:
        """Keeps what the method noted: small arrays, for figures."""
        kept = {f"client/{k}": v for k, v in report.notes.items() if not k.endswith("/")}
        kept |= {f"server/{k}": v for k, v in tree.flatten(records).items()}
        if self.folder and kept:
            (self.folder / files.RECORDS).mkdir(exist_ok=True)
            path = files.round_file(self.folder, files.RECORDS, number)
            save_tensors(path, kept | {"ids": report.taken})

    # --- files ---

    def keep_in(self, folder: Path) -> None:
        """Gives the run its folder, with the configuration in it and who the clients are.

        It can be looked at while it goes on.
        """
        self.folder = folder
        self.simulation.keep_states_in(folder)
        with self.stopwatch.phase("saving"):
            self._write_beginning(folder)

    def _write_beginning(self, folder: Path) -> None:
        # first: it marks the folder as a run's
        write_atomically(folder / files.CONFIG, write_config(self.config, __version__))
        write_json(folder / files.PREPROCESSING, self.data.encoder.to_json())
        if frozen := tree.flatten(self.frozen):
            save_tensors(folder / files.FROZEN, frozen)
        write_atomically(folder / files.CLIENTS, client_table(self))
        save_confusion(folder, self.data.client_data, self.data.encoder.form)
        write_json(folder / files.BEGUN, facts_of(self))

    def _append(self, line: files.Line) -> None:
        if self.folder:
            # in every round: as bytes and without a buffer, it takes half the time
            with (self.folder / files.HISTORY).open("ab", buffering=0) as file:
                file.write(json.dumps(line).encode() + b"\n")

    def _is_checkpoint_due(self, done: int, saved_at: float) -> bool:
        if self.folder is None:
            return False
        if self._writing is not None and self._writing.done():
            self._settle()
        if self.config.checkpoint_every:
            return done % self.config.checkpoint_every == 0
        rare = max(CHECKPOINT_SECONDS, CHECKPOINT_SHARE * self._cost)
        return self._writing is None and time.monotonic() - saved_at > rare

    def _checkpoint(self) -> None:
        """Copies what a checkpoint needs; it is written while rounds go on."""
        if self.folder is None:
            return
        with self.stopwatch.phase("saving"):
            self._settle()
            began = time.monotonic()
            write = self._checkpoint_of_now(self.folder)
            copied = time.monotonic() - began

        def written() -> float:
            began = time.monotonic()
            write()
            return copied + time.monotonic() - began

        self._writing = meanwhile(written)

    def _settle(self) -> None:
        """Waits until the last checkpoint is on the disk; what went wrong there is raised here."""
        writing, self._writing = self._writing, None
        if writing is not None:
            self._cost = writing.result()

    @contextmanager
    def _written(self) -> Iterator[None]:
        """Whatever ends the rounds within, the last checkpoint is on the disk."""
        try:
            yield
        except BaseException:
            if self._writing is not None:
                wait([self._writing])  # the first error counts
            raise
        self._settle()

    def _checkpoint_of_now(self, folder: Path) -> Callable[[], None]:
        """What writes a checkpoint of the run as it is now."""
        meta = {
            "version": __version__,
            "config": self.fingerprint,
            "seconds": self.progress.seconds,
            "up": self.progress.up,
            "down": self.progress.down,
            "noisy": list(self.progress.noisy),
        }
        if self.progress.best is not None:  # to go on from
            save_outputs(folder, run_outputs(self))
        snapshot, history = Snapshot.of(self.simulation), folder / files.HISTORY
        begun = history.exists()

        def write() -> None:
            if begun:  # before the checkpoint, which relies on the lines up to its round
                sync(history)
            save_checkpoint(folder / files.CHECKPOINT, snapshot, meta | {"data": self.digest})

        return write

    def finish(self, result: dict[str, Any]) -> None:
        """Writes the result, with what each phase took so far: in a folder, the run is finished."""
        result["seconds_by_phase"] = self.stopwatch.seconds()
        if self.folder:
            write_json(self.folder / files.RESULT, result)

    def _write(self, said: RunOutputs) -> None:
        assert self.folder is not None
        folder = self.folder
        save_outputs(folder, said)
        save_confusion(folder, self.data.client_data, self.data.encoder.form, said)
        if self.method.general is not None:
            keep_general(self.simulation, folder)


def play_config(
    config: Config,
    folder: Path | None = None,
    *,
    data: RunData | None = None,
    watch: Watcher | None = None,
) -> tuple[dict[str, Any], RunOutputs]:
    """Runs a configuration; with a folder, everything is kept there.

    Returns:
      Its result, and what its models said.
    """
    runner = Runner(config, data, kept=folder is not None)
    if folder:
        runner.keep_in(folder)
    result = runner.play(watch)
    assert runner.said is not None  # it has been played
    return result, runner.said
