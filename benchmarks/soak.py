"""A federation of real processes under random kills: no round may be lost, memory must stay flat.

    python benchmarks/soak.py --sites 20 --minutes 30 --out benchmarks/results/soak.json

A coordinator behind nginx and sites on loopback, with TLS and node keys, play FedALA on digits
until the time is over. Meanwhile sites are killed (`kill -9` of the node with all it started), lose
their own process alone, or freeze for a while, at random; killed ones come back after 5 to 60 s.
At the end:

- `lost_rounds`: rounds that the coordinator had counted at some time and that are missing from, or
  twice in, the final history; rounds with fewer sites than agreed; rounds without a checkpoint.
- `distance_to_simulation`: the largest difference between the server's parameters and those of a
  simulation of the same cohorts. 0 kills or 100, it must be rounding.
- `memory`: resident memory of the SuperLink and of the coordinator's app over time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # sites share the cores; to be said before torch is loaded

import torch

import fedtailor
from fedtailor.core import tree
from fedtailor.engine import Simulation
from fedtailor.federation.coordinator.federation_file import read_federation
from fedtailor.federation.coordinator.progress import (
    ask_to_stop,
    round_now,
    rounds_of,
    wait_for_end,
)
from fedtailor.federation.coordinator.store import EVENTS, HISTORY, is_played, read_lines
from fedtailor.federation.deploy.processes import ProcessGroup, descendants, free_port
from fedtailor.federation.deploy.project import read_project
from fedtailor.federation.deploy.project_files import ProjectSpec, write_project
from fedtailor.federation.protocol.ipc import socket_of, worker_pid
from fedtailor.results.config import make_config
from fedtailor.results.storage import load_tensors
from fedtailor.runs.build import make_method, make_task
from fedtailor.runs.data import load_run_data

ROUNDS = 100_000  # never reached
KINDS = ("kill site", "kill worker", "freeze worker")
SAMPLE = 10.0  # seconds between two looks at memory


def resident(pid: int) -> int:
    """Resident bytes of a process; 0 if it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def memory_of(coordinator: int) -> dict[str, int]:
    """Resident bytes of what the coordinator consists of, by part."""
    found: Counter[str] = Counter()
    for pid in descendants(coordinator):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"flwr-serverapp" in words:
                found["app"] += resident(pid)
            elif b"flower-superlink" in words:
                found["superlink"] += resident(pid)
    return dict(found)


class Havoc:
    """Does things to sites, at random but the same for a seed."""

    def __init__(
        self, group: ProcessGroup, folders: dict[str, Path], env: dict[str, str], seed: int
    ):
        self.group, self.folders, self.env = group, folders, env
        self.draw = random.Random(seed)
        self.back: dict[str, float] = {}  # name -> when it comes back
        self.frozen: dict[str, tuple[int, float]] = {}
        self.done: Counter[str] = Counter()

    def _worker(self, name: str) -> int | None:
        return worker_pid(socket_of(self.folders[name] / "site.toml"))

    def strike(self, now: float) -> None:
        """One fault, at a site that has none."""
        free = [n for n in self.folders if n not in self.back and n not in self.frozen]
        if len(free) <= len(self.folders) // 2:  # enough of them are down
            return
        name, kind = self.draw.choice(free), self.draw.choice(KINDS)
        worker = self._worker(name)
        if kind == "kill site":
            self.group.end(name, kill=True)
            self.back[name] = now + self.draw.uniform(5, 60)
        if kind != "freeze worker" and worker:
            os.kill(worker, signal.SIGKILL)
        elif kind == "freeze worker" and worker:
            os.kill(worker, signal.SIGSTOP)
            self.frozen[name] = (worker, now + self.draw.uniform(5, 60))
        self.done[kind] += 1

    def mend(self, now: float) -> None:
        """Brings back who is due."""
        for name in [n for n, due in self.back.items() if now >= due]:
            del self.back[name]
            self.group.start_script(name, self.folders[name], self.env)
            self.done["came back"] += 1
        for name in [n for n, (_, due) in self.frozen.items() if now >= due]:
            with suppress(ProcessLookupError):
                os.kill(self.frozen.pop(name)[0], signal.SIGCONT)

    def mend_all(self) -> None:
        """Nobody stays frozen."""
        for pid, _ in self.frozen.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.frozen = {}


def kind_of(reason: str) -> str:
    """A failure in a few words, without names and numbers."""
    for words in ("not connected", "no answer", "Node Unavailable", "process ended", "late answer"):
        if words in reason:
            return words
    return reason.split(":")[0][:60]


def lost(folder: Path, seen: set[int], least: int) -> int:
    """Rounds that are missing, double, or too small."""
    rounds = [line["round"] for line in rounds_of(folder)]
    missing = (seen | set(range(1, round_now(folder) + 1))) - set(rounds)
    double = len(rounds) - len(set(rounds))
    small = sum(len(line["taken"]) < min(least, len(line["cohort"])) for line in rounds_of(folder))
    return len(missing) + double + small


def distance_to_simulation(folder: Path, settings: dict[str, Any], sites: int) -> float:
    """The server's state against a simulation of the same cohorts."""
    world = load_run_data(make_config("fedala", settings | {"clients": sites, "device": "cpu"}, {}))
    task = make_task(world.config, world.encoder.form)
    sim = Simulation(
        make_method(world.config, task), world.client_data, task, seed=world.config.seed,
        rounds=ROUNDS, recipe=world.config.recipe(),
    )  # fmt: skip
    for line in rounds_of(folder):
        sim.step(torch.tensor(line["taken"]))
    latest = json.loads((folder / "latest.json").read_text())
    here, there = load_tensors(folder / latest["file"]), tree.flatten(sim.server)
    return max(float((here[k].double() - there[k].double()).abs().max()) for k in there)


def soak(arguments: argparse.Namespace, root: Path) -> dict[str, Any]:
    """Plays, strikes and measures."""
    names = [f"site-{i:02d}" for i in range(arguments.sites)]
    least = max(2, arguments.sites // 4)
    settings = {
        "data": "digits", "partition": "dirichlet:0.5", "model": "mlp", "rounds": ROUNDS,
        "lr": 0.02,
    }  # fmt: skip
    spec = ProjectSpec(
        "soak", "fedala", names, settings,
        rules={"min_sites": least, "deadline": arguments.deadline, "join": 60, "wait": 600,
               "pause": 2, "again": 10},
        port=free_port(), control=free_port(), node_ports=[free_port() for _ in names],
    )  # fmt: skip
    project = read_project(write_project(root / "soak", spec), insecure=False)
    found, link = read_federation(project.file), project.link()
    folder, env = found.state_folder, os.environ | {"PYTHON": sys.executable}
    folders = {name: project.folder / "sites" / name for name in names}
    memory: list[dict[str, float]] = []
    seen: set[int] = set()
    with ProcessGroup(project.folder / "logs") as group:
        group.start_script("coordinator", project.folder / "coordinator", env)
        group.wait_until(project.reachable, "coordinator", "listen")
        marks = link.home / "registered"
        group.wait_until(
            lambda: marks.is_dir() and len(list(marks.iterdir())) == len(names),
            "coordinator", "take all keys in", seconds=30.0 * len(names),
        )  # fmt: skip
        for name in names:
            group.site_files.add(folders[name] / "site.toml")
            group.start_script(name, folders[name], env)
        link.submit(project.file)
        group.wait_until(lambda: bool(rounds_of(folder)), "coordinator", "play", seconds=900.0)
        havoc = Havoc(group, folders, env, arguments.seed)
        begun = time.monotonic()
        next_strike, next_sample = begun, begun
        while (now := time.monotonic()) - begun < 60 * arguments.minutes:
            havoc.mend(now)
            if now >= next_strike:
                havoc.strike(now)
                next_strike = now + havoc.draw.expovariate(1 / arguments.every)
            if now >= next_sample:
                next_sample = now + SAMPLE
                memory.append(
                    {"second": round(now - begun)} | memory_of(group.started["coordinator"].pid)
                )
                seen.add(round_now(folder))
            if not is_played(folder):
                break  # it must not end by itself: the report shows it
            time.sleep(0.2)
        played_on = is_played(folder)
        havoc.mend_all()
        seconds = time.monotonic() - begun
        ask_to_stop(folder)
        stopped = wait_for_end(folder, 3 * arguments.deadline + 60)
    lines = rounds_of(folder)
    failures = Counter(kind_of(why) for line in lines for why in line["failed"].values())
    events = Counter(e["event"] for e in read_lines(folder / EVENTS))
    assert len(read_lines(folder / HISTORY)) >= len(lines)
    return {
        "seconds": round(seconds, 1),
        "rounds_played": len(lines),
        "lost_rounds": lost(folder, seen - {0}, least),
        "played_to_the_end": played_on and stopped,
        "distance_to_simulation": distance_to_simulation(folder, settings, arguments.sites),
        "done_to_sites": dict(havoc.done),
        "failures_by_kind": dict(failures),
        "attempts_with_too_few_sites": events["round not counted"],
        "answers_taken": sum(len(line["taken"]) for line in lines),
        "round_seconds": {
            "median": sorted(line["seconds"] for line in lines)[len(lines) // 2],
            "largest": max(line["seconds"] for line in lines),
        },
        "memory_bytes": memory,
    }


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    from speed import commit

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sites", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=20.0, help="seconds between faults, mean")
    parser.add_argument("--deadline", type=float, default=60.0, help="seconds for a round")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commit", help="where there is no git to ask")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedtailor-soak-") as root:
        found = soak(arguments, Path(root))
    name = platform.processor() or platform.machine()
    report = {
        "command": f"python {' '.join(sys.argv)}",
        "commit": arguments.commit or commit(),
        "version": fedtailor.__version__,
        "device": f"cpu ({name}, {os.cpu_count()} cores for coordinator and all sites)",
        "torch": torch.__version__,
        "task": f"fedala, mlp on digits, {arguments.sites} sites behind nginx on loopback with TLS "
        f"and node keys, a fault every {arguments.every:g} s on average, deadline "
        f"{arguments.deadline:g} s",
        **found,
    }
    print(json.dumps({k: v for k, v in report.items() if k != "memory_bytes"}, indent=1))
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    sys.exit(0 if not found["lost_rounds"] and found["played_to_the_end"] else 1)


if __name__ == "__main__":
    main()
