"""Runs side by side: what others play, what finds no memory, what is known to fail."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from fedtailor.reproduce import reproduce
from fedtailor.reproduce.playing import jobs, queue
from fedtailor.reproduce.playing.cells import Scale
from fedtailor.reproduce.playing.plan import plan_runs
from fedtailor.reproduce.playing.play import DataCache, PlannedRun
from fedtailor.reproduce.playing.queue import RunEvent, RunQueue
from fedtailor.results.lock import FolderLocked
from tests.runs.runlab import held

PAPERS = Path(__file__).parents[1] / "papers"


@pytest.fixture
def tasks(experiments: Any, tmp_path: Path) -> list[PlannedRun]:
    return plan_runs([experiments["table1"]], Scale(), tmp_path).tasks


def test_a_run_that_another_process_plays_is_waited_for(
    tmp_path: Path, experiments: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are played meanwhile; then it is looked whether it is finished."""
    monkeypatch.setattr(queue, "LATER", 0.2)
    only = ["iid", "FedAvg"]
    first, second = plan_runs([experiments["table1"]], Scale(), tmp_path, only=only).tasks
    seen: list[tuple[str, str]] = []
    with held(first.folder) as other:
        assert other.stdin is not None
        hold = other.stdin

        def tell(news: RunEvent) -> None:
            seen.append((news.kind, news.task.key))
            if news.kind == "elsewhere":
                assert f"process {other.pid}" in news.reason
            if seen.count(("elsewhere", first.key)) == 2 and not hold.closed:
                hold.close()  # the other process ends

        found = reproduce(
            "tiny/table1", only=only, papers=PAPERS, out=tmp_path, device="cpu", tell=tell
        )
    assert found["tiny/table1"]["complete"]
    done = [key for kind, key in seen if kind == "done"]
    assert done == [second.key, first.key]
    rows = (first.folder / "history.jsonl").read_text().splitlines()
    assert len(rows) == first.config.rounds


def test_workers_say_what_became_of_a_run(
    tasks: list[PlannedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, word, ends in (
        (FolderLocked(Path("a"), "process 7 on b"), "elsewhere", False),
        (torch.OutOfMemoryError("40 GiB"), "memory", True),
        (ZeroDivisionError("x"), "failed", True),
    ):

        def fail(*args: Any, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(jobs, "play", fail)
        said, reason, over = jobs._try(tasks[0], DataCache(), lambda line, rounds: None)
        assert (said, over) == (word, ends)
        assert reason


def test_a_worker_says_that_it_ends(
    tasks: list[PlannedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError("the device is broken")

    monkeypatch.setattr(jobs, "play", fail)
    monkeypatch.setattr(jobs.os, "setpgid", lambda *numbers: None)  # this process is no worker
    here, there = multiprocessing.Pipe()
    worker = threading.Thread(
        target=jobs.run_job_worker, args=(there, torch.get_num_threads(), 1.0)
    )
    worker.start()
    assert here.recv() == ("ready", None, False)
    here.send(tasks[0])
    assert here.recv() == ("failed", "RuntimeError: the device is broken", True)
    worker.join(60)
    assert not worker.is_alive()


class _Thread:
    """Stands for a worker's process: its runs find memory only where they are alone."""

    exitcode, pid = 0, None

    def __init__(self, target: Any, args: tuple[Connection, int, float], name: str) -> None:
        self._line = Connection(os.dup(args[0].fileno()))
        self._share = args[2]
        self._thread = threading.Thread(target=self._serve)
        self.start, self.join, self.is_alive = (
            self._thread.start,
            self._thread.join,
            self._thread.is_alive,
        )

    def _serve(self) -> None:
        self._line.send(("ready", None, False))
        while (task := self._line.recv()) is not None:
            word, what, ends = self._answer(task)
            self._line.send((word, what, ends))
            if ends:
                time.sleep(0.2)  # a process takes a while to end
                break
        self._line.close()

    def _answer(self, task: PlannedRun) -> tuple[str, str, bool]:
        if self._share == jobs.FOR_JOBS:
            return "done", "", False
        return "memory", "out of memory: 40 GiB", True


class _Threads:
    Pipe = staticmethod(multiprocessing.Pipe)
    Process = _Thread


def test_a_run_without_memory_is_tried_again_alone(
    tasks: list[PlannedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs.multiprocessing, "get_context", lambda kind: _Threads)
    seen: list[tuple[str, str]] = []
    played = jobs.WorkerPool(tasks[:3], 2, lambda n: seen.append((n.kind, n.task.key))).run()
    assert not played.failed
    again = [key for kind, key in seen if kind == "again"]
    assert set(again) == {t.key for t in tasks[:3]}
    assert [key for kind, key in seen if kind == "done"] == again
    last = max(i for i, (kind, _) in enumerate(seen) if kind == "again")
    assert last < min(i for i, (kind, _) in enumerate(seen) if kind == "done")


def test_alone_it_fails(tasks: list[PlannedRun], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs.multiprocessing, "get_context", lambda kind: _Threads)
    no_memory = ("memory", "out of memory: 40 GiB", True)
    monkeypatch.setattr(_Thread, "_answer", lambda self, task: no_memory)
    played = jobs.WorkerPool(tasks[:1], 1, lambda news: None).run()
    assert played.failed == {tasks[0].key: "out of memory: 40 GiB"}


def test_a_worker_that_ends_gets_no_other_run(
    tasks: list[PlannedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would die with it, and a run whose process dies twice has failed."""
    *bad, good = tasks[:3]

    def answer(self: _Thread, task: PlannedRun) -> tuple[str, str, bool]:
        if task.key == good.key:
            return "done", "", False
        return "failed", "the device is broken", True

    monkeypatch.setattr(_Thread, "_answer", answer)
    monkeypatch.setattr(jobs.multiprocessing, "get_context", lambda kind: _Threads)
    seen: list[tuple[str, str]] = []
    played = jobs.WorkerPool([*bad, good], 2, lambda n: seen.append((n.kind, n.task.key))).run()
    assert played.failed == {task.key: "the device is broken" for task in bad}
    assert [key for kind, key in seen if kind == "done"] == [good.key]
    assert [kind for kind, _ in seen].count("begins") == 3


def test_ctrl_c_in_the_last_round_of_a_run_stops_the_others(tasks: list[PlannedRun]) -> None:
    seen: list[tuple[str, str]] = []

    def press(news: RunEvent) -> None:
        seen.append((news.kind, news.task.key))
        if news.line and news.line["round"] == news.task.config.rounds:
            signal.raise_signal(signal.SIGINT)

    played = jobs.play_all(tasks[:2], 1, press)
    assert played.stopped
    assert not played.failed
    first = seen[0][1]
    assert {key for _, key in seen} == {first}
    assert seen[-1] == ("done", first)


def test_what_diverged_is_not_played_again(tmp_path: Path) -> None:
    def go(**more: Any) -> tuple[list[str], dict[str, Any]]:
        seen: list[str] = []
        found = reproduce(
            "tiny/fails",
            papers=PAPERS,
            out=tmp_path,
            device="cpu",
            tell=lambda n: seen.append(n.kind),
            **more,
        )
        return seen, found["tiny/fails"]

    first, found = go()
    assert "begins" in first
    again, same = go()
    assert again == ["failed"]
    assert same["cells"] == found["cells"]
    # also whoever only looks is told
    assert go(run=False) == ([], found | {"command": same["command"]})
    (bad,) = (p for p in tmp_path.glob("runs/*") if not (p / "result.json").exists())
    assert not (bad / "checkpoint").exists()
    for file in bad.iterdir():
        file.unlink()
    assert go()[0] == first[:2]  # tried again: begins, failed


def test_runs_put_off_come_back(tasks: list[PlannedRun]) -> None:
    now = 0.0
    waiting = RunQueue(tasks[:2], lambda: now)
    _, first = waiting.take()
    waiting.put_off(first)
    _, second = waiting.take()
    assert second is not first
    assert waiting and not waiting.ready
    now = queue.LATER
    assert waiting.ready
    assert waiting.take()[1] is first
    assert not waiting
