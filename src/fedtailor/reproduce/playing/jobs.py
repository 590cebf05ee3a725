"""Plays runs: here, one after another, or in several processes that share the device."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from fedtailor.core.errors import BadInput, Interrupted
from fedtailor.engine import Diverged
from fedtailor.engine.memory import is_out_of_memory
from fedtailor.reproduce.playing.play import DataCache, PlannedRun, play
from fedtailor.reproduce.playing.queue import OnEvent, PlayedRuns, RunEvent, RunQueue
from fedtailor.results.lock import FolderLocked
from fedtailor.results.status import reason_of
from fedtailor.runs.interruption import ctrl_c
from fedtailor.runs.run import Watcher

OFTEN = 0.1  # seconds between two words of a worker
TRIES = 2  # of a run whose process dies
FOR_JOBS = 0.95  # of a GPU's memory: what CUDA itself needs is not counted in a process's share


def play_all(tasks: Sequence[PlannedRun], jobs: int, tell: OnEvent) -> PlayedRuns:
    """Plays all runs that are left; one that fails is noted, and the others go on.

    One that diverged before would do so again, and is not played."""
    known = {t.key: why for t in tasks if not t.finished and (why := t.diverged)}
    for task in tasks:
        if task.key in known:
            hint = f"{known[task.key]} (found before; remove {task.folder} to try again)"
            tell(RunEvent("failed", 0, task, reason=hint))
    left = [task for task in tasks if not task.finished and task.key not in known]
    played = PlayedRuns()
    if left and jobs == 1:
        played = _play_here(left, tell)
    elif left:
        played = WorkerPool(left, min(jobs, len(left)), tell).run()
    played.failed |= known
    return played


def _teller(tell: OnEvent, task: PlannedRun) -> Watcher:
    return lambda line, _: tell(RunEvent("round", 0, task, line))


def _play_here(tasks: Sequence[PlannedRun], tell: OnEvent) -> PlayedRuns:
    played, worlds, waiting = PlayedRuns(), DataCache(), RunQueue(tasks)
    world = ""
    try:
        while waiting and not played.stopped:
            if not waiting.ready:
                time.sleep(0.2)
                continue
            world, task = waiting.take(world)
            tell(RunEvent("begins", 0, task))
            word, what, _ = _try(task, worlds, _teller(tell, task))
            _settle(RunEvent(word, 0, task, reason=what), waiting, played, tell)
    except (Interrupted, KeyboardInterrupt):
        played.stopped = True
    return played


def _try(task: PlannedRun, worlds: DataCache, watch: Watcher) -> tuple[str, str, bool]:
    """(done, failed, memory, elsewhere or stopped; the reason; whether its process ends)."""
    try:
        play(task, worlds, watch)
    except FolderLocked as error:
        return "elsewhere", error.who, False
    except (BadInput, Diverged) as error:
        return "failed", reason_of(error), False
    except (Interrupted, KeyboardInterrupt):
        return "stopped", "", True
    except Exception as error:  # after an error on the device nothing works there any more
        return "memory" if is_out_of_memory(error) else "failed", reason_of(error), True
    return "done", "", False


def _settle(news: RunEvent, waiting: RunQueue, played: PlayedRuns, tell: OnEvent) -> None:
    """Keeps and tells what `_try` says that a run came to."""
    if news.kind == "elsewhere":
        waiting.put_off(news.task)
    elif news.kind in ("failed", "memory"):
        played.failed[news.task.key] = news.reason
        news = news._replace(kind="failed")
    elif news.kind == "stopped":
        played.stopped = True
        if not news.task.finished:
            return
        news = news._replace(kind="done")  # Ctrl-C came in its last round
    tell(news)


# --- in the worker's process ---


def run_job_worker(line: Connection, threads: int, share: float) -> None:
    """A worker's life: takes runs from the line to the parent until there is none.

    It has a share of a GPU's memory, else the first would leave nothing for the others.
    """
    with suppress(OSError):
        os.setpgid(0, 0)  # Ctrl-C in the terminal is for the parent, which passes it on, once
    torch.set_num_threads(threads)
    for number in range(torch.cuda.device_count()):
        torch.cuda.set_per_process_memory_fraction(share, number)
    worlds = DataCache()
    line.send(("ready", None, False))
    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        while (task := line.recv()) is not None:
            word, what, ends = _try(task, worlds, _speaker(line))
            line.send((word, what, ends))  # the parent hands nothing to a process that ends
            if ends:
                return


def _speaker(line: Connection) -> Watcher:
    spoken = 0.0

    def speak(row: dict[str, Any], rounds: int) -> None:
        nonlocal spoken
        now = time.monotonic()
        if now - spoken < OFTEN and row["round"] < rounds:
            return
        spoken = now
        told: dict[str, Any] = {k: row[k] for k in ("round", "epsilon") if k in row}
        if row.get("pre"):
            told["pre"] = {"mean": row["pre"].get("mean")}
        try:
            line.send(("round", told, False))
        except OSError:  # nobody is there any more: keep what there is, and end
            os.kill(os.getpid(), signal.SIGINT)

    return speak


# --- in the parent's ---


@dataclass
class _Worker:
    number: int
    process: BaseProcess
    line: Connection
    task: PlannedRun | None = None
    world: str = ""
    ready: bool = False


def _await_end(process: BaseProcess) -> None:
    """Until a process that has nothing left to do is gone, and what it has on the device free."""
    process.join(timeout=10)
    if process.is_alive():
        process.kill()
        process.join()


class WorkerPool:
    """Worker processes (`jobs`); the parent hands out runs, listens and tells what happens."""

    def __init__(self, tasks: Sequence[PlannedRun], jobs: int, tell: OnEvent) -> None:
        self._waiting, self._jobs, self._tell = RunQueue(tasks), jobs, tell
        self._workers: dict[int, _Worker] = {}
        self._died: dict[str, int] = {}
        self._alone: list[PlannedRun] = []  # that found no memory beside the others
        self._played = PlayedRuns()

    def run(self) -> PlayedRuns:
        """Plays all of it; Ctrl-C lets every worker keep what it has."""
        try:
            with ctrl_c() as interrupted:
                self._hand_out()
                while self._waits or any(w.task for w in self._workers.values()):
                    if interrupted() and not self._played.stopped:
                        self._stop()
                    self._listen()
                    self._hand_out()
        finally:
            self._close()
        if self._alone and not self._played.stopped:
            last = WorkerPool(self._alone, 1, self._tell).run()
            self._played.failed |= last.failed
            self._played.stopped = last.stopped
        return self._played

    @property
    def _waits(self) -> bool:
        """Whether there are runs to hand out, now or later."""
        return bool(self._waiting) and not self._played.stopped

    def _start(self, number: int) -> _Worker:
        # a forked process could not use the GPU
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        threads = max(1, (os.cpu_count() or 1) // self._jobs)
        arguments = there, threads, FOR_JOBS / self._jobs
        process = context.Process(target=run_job_worker, args=arguments, name=f"job-{number}")
        process.start()
        there.close()  # so that the end of the worker is the end of the line
        return _Worker(number, process, here)

    def _hand_out(self) -> None:
        for number in range(self._jobs):
            if not (self._waits and self._waiting.ready):
                return
            if number not in self._workers:
                self._workers[number] = self._start(number)
            worker = self._workers[number]
            if worker.task is None:
                others = [w.task for w in self._workers.values() if w.task]
                worker.world, worker.task = self._waiting.take(worker.world, others)
                self._tell(RunEvent("begins", number, worker.task))
                with suppress(OSError):  # it died: that is heard on the line
                    worker.line.send(worker.task)

    def _listen(self) -> None:
        by_line = {w.line: w for w in self._workers.values()}
        for line in wait(list(by_line), timeout=0.2):
            worker = by_line[line]  # type: ignore[index]
            try:
                word, what, ends = worker.line.recv()
            except (EOFError, OSError):
                self._lost(worker)
                continue
            self._heard(worker, word, what)
            if ends:  # before anything is handed out: a new process takes its place
                del self._workers[worker.number]
                worker.line.close()
                _await_end(worker.process)

    def _heard(self, worker: _Worker, word: str, what: Any) -> None:
        task = worker.task
        if word == "ready":
            worker.ready = True
        if task is None or word == "ready":
            return
        if word == "round":
            self._tell(RunEvent("round", worker.number, task, what))
            return
        worker.task = None
        if word == "memory" and self._jobs > 1:
            reason = "no memory beside the other runs: tried again alone, at the end"
            self._tell(RunEvent("again", worker.number, task, reason=reason))
            self._alone.append(task)
            return
        news = RunEvent(word, worker.number, task, reason=what)
        _settle(news, self._waiting, self._played, self._tell)

    def _lost(self, worker: _Worker) -> None:
        """A worker's process has ended: its run, if it had one, is tried once more."""
        worker.process.join()
        del self._workers[worker.number]
        task, code = worker.task, worker.process.exitcode or 0
        if task is None or self._played.stopped:
            return
        if task.finished:
            self._tell(RunEvent("done", worker.number, task))
            return
        how = f"signal {-code}" if code < 0 else f"code {code}"
        self._died[task.key] = self._died.get(task.key, 0) + 1
        if self._died[task.key] < TRIES:
            reason = f"its process ended ({how}): tried again"
            self._tell(RunEvent("again", worker.number, task, reason=reason))
            self._waiting.put_back(task)
            return
        reason = f"its process ended ({how}) twice: out of memory? use fewer --jobs"
        self._played.failed[task.key] = reason
        self._tell(RunEvent("failed", worker.number, task, reason=reason))

    def _stop(self) -> None:
        self._played.stopped = True
        for worker in self._workers.values():
            if not worker.ready:  # it has not begun
                worker.process.terminate()
            elif worker.task is not None and worker.process.pid:
                with suppress(ProcessLookupError):
                    os.kill(worker.process.pid, signal.SIGINT)

    def _close(self) -> None:
        for worker in self._workers.values():
            with suppress(OSError):
                worker.line.send(None)
            worker.line.close()
        for worker in self._workers.values():
            _await_end(worker.process)
