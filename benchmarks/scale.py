"""Many clients on one and on several workers: what a round costs, and how well it divides.

    python benchmarks/scale.py --out benchmarks/results/scale-cpu.json

Ditto, whose clients keep a model each, with a tenth of the clients in each round and all of them
evaluated once. Each worker has one thread, so that two workers have twice the machine that one has.
`efficiency` is the time of one worker over the number of workers times their time; no workers is
the same in this process, without Ray, also with one thread. `processor_efficiency` is the same of
the seconds that the driver and the busiest worker compute, one after the other: what others on the
machine take from a round does not change it, and neither does waiting for messages.

    python benchmarks/scale.py --method fedala --model cnn --clients 1000 100000 --cohort 100 \\
      --states disk --workers 0 --no-evaluation

asks whether a round of as many clients costs the same, however many there are: seconds by the
clock, and of the processor, which others on the machine do not change.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # for workers too; to be said before torch is loaded

import argparse
import json
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedtailor
from fedtailor.core.form import Form
from fedtailor.core.task import classification
from fedtailor.core.training import Recipe
from fedtailor.engine import ClientData, Cluster, Simulation, draw_cohort
from fedtailor.engine.local_clients import LocalClients
from fedtailor.engine.memory import peak_memory
from fedtailor.methods import METHODS
from fedtailor.models import build
from fedtailor.runs.device import hardware

ROWS, TEST, BATCH = 100, 20, 10
WARM = 1  # rounds before those that count: caches, traced steps
FORM = Form("image", (1, 8, 8), 10)


def world(clients: int) -> ClientData:
    """Images of noise: what is learnt does not matter here."""
    draw = np.random.default_rng(0)
    each = ROWS + TEST
    x = torch.from_numpy(draw.integers(0, 256, (clients * each, *FORM.shape), dtype=np.uint8))
    y = torch.from_numpy(draw.integers(0, FORM.classes, clients * each))
    rows = np.arange(clients * each).reshape(clients, each)
    none = [np.empty(0, dtype=np.int64)] * clients
    return ClientData.of(x, y, list(rows[:, :ROWS]), none, list(rows[:, ROWS:]))


def players(name: str, model: str, clients: int, device: str) -> list[Any]:
    """What every worker builds for itself."""
    task = classification(lambda: build(model, FORM), device=device)
    recipe = Recipe(batch=BATCH)
    return [(METHODS[name](task, recipe=recipe), task, torch.arange(clients))]


class WorkerClocks:
    """Seconds of the processor that Ray's workers took, looked at between rounds.

    Nobody waits for the answers: a worker says how late it is when it has done what it was asked.
    """

    def __init__(self, sim: Simulation) -> None:
        slots = [] if isinstance(sim.clients, LocalClients) else sim.clients._slots  # type: ignore[attr-defined]
        self._actors = [slot.actor for slot in slots]
        self._looks: list[list[Any]] = []

    def look(self) -> None:
        ask = lambda actor: actor.__ray_call__.remote(lambda worker: time.process_time())
        self._looks.append([ask(actor) for actor in self._actors])

    def busiest(self) -> list[float]:
        """Of each round, the seconds of the worker that took most."""
        if not self._actors:
            return [0.0] * (len(self._looks) - 1)
        import ray

        seen = np.array([ray.get(look) for look in self._looks])
        return list(np.diff(seen, axis=0).max(1))


def measure(arguments: argparse.Namespace, clients: int, workers: int) -> dict[str, Any]:
    """One row of the table; no workers means this process."""
    make = partial(players, arguments.method, arguments.model, clients)
    begun = time.perf_counter()
    cluster = Cluster(make, workers, device=arguments.device, gpus=arguments.gpus)
    method, task, _ = make("cpu" if workers else arguments.device)[0]
    sim = Simulation(
        method,
        world(clients),
        task,
        rounds=arguments.rounds + WARM,
        recipe=Recipe(batch=BATCH),
        place=arguments.states,
        loop_mode=arguments.way,
        cluster=cluster if workers else None,
    )
    ready = time.perf_counter() - begun
    times, busy = [], []
    clocks = WorkerClocks(sim)
    clocks.look()
    share = arguments.cohort / clients if arguments.cohort else arguments.participation
    for number in range(arguments.rounds + WARM):
        cohort = draw_cohort(0, number, torch.arange(clients), share)
        begun, worked = time.perf_counter(), time.process_time()
        sim.step(cohort)
        times.append(time.perf_counter() - begun)
        busy.append(time.process_time() - worked)
        clocks.look()
    computed = clocks.busiest()
    scored = 0.0
    if not arguments.no_evaluation:
        begun = time.perf_counter()
        sim.score()
        scored = time.perf_counter() - begun
    place, chunk = sim.place, sim.chunk
    sim.close()
    median = statistics.median(times[WARM:])
    return {
        "clients": clients,
        "workers": workers,
        "cohort": len(cohort),
        "start_seconds": round(ready, 3),
        "first_round_seconds": round(times[0], 4),
        "round_seconds": round(median, 4),
        "processor_seconds": round(statistics.median(busy[WARM:]), 4),
        "worker_processor_seconds": round(statistics.median(computed[WARM:]), 4),
        "clients_per_second": round(len(cohort) / median, 1),
        "evaluation_seconds": round(scored, 4),
        "states": place,
        "chunk": chunk,
        "driver_peak_memory_bytes": peak_memory(torch.device("cpu")),
    }


def with_efficiency(rows: list[dict[str, Any]]) -> None:
    """Adds how well the work divides: 1 if twice the workers take half of the time."""
    for row in rows:
        alone = [r for r in rows if r["clients"] == row["clients"] and r["workers"] == 1]
        if row["workers"] and alone:
            for name in ("round", "evaluation"):
                took = row["workers"] * row[f"{name}_seconds"]
                if took:  # evaluation may be left out
                    row[f"{name}_efficiency"] = round(alone[0][f"{name}_seconds"] / took, 3)
            computed = lambda r: r["processor_seconds"] + r["worker_processor_seconds"]
            took = row["workers"] * computed(row)
            row["processor_efficiency"] = round(computed(alone[0]) / took, 3)


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    from speed import commit

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", default="ditto")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--clients", nargs="+", type=int, default=[1_000, 10_000])
    parser.add_argument("--workers", nargs="+", type=int, default=[0, 1, 2], help="0: no Ray")
    parser.add_argument("--participation", type=float, default=0.1)
    parser.add_argument("--cohort", type=int, default=0, help="instead: so many clients a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--way", default="plain", help="of loops: plain, traced or compiled")
    parser.add_argument("--states", help="where clients' states are: device, host or disk")
    parser.add_argument("--no-evaluation", action="store_true", help="rounds only")
    parser.add_argument("--device", default="cpu", help="of the workers: cpu or cuda")
    parser.add_argument("--gpus", type=float, default=1.0, help="that each worker takes")
    parser.add_argument("--commit", help="where there is no git to ask")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = []
    for clients in arguments.clients:
        for workers in arguments.workers:
            row = measure(arguments, clients, workers)
            print(json.dumps(row), flush=True)
            rows.append(row)
    with_efficiency(rows)
    name = hardware(torch.device(arguments.device))
    report = {
        "command": f"python {' '.join(sys.argv)}",
        "commit": arguments.commit or commit(),
        "version": fedtailor.__version__,
        "device": f"{arguments.device} ({name}, {os.cpu_count()} cores, one thread per worker)",
        "torch": torch.__version__,
        "task": f"{arguments.method}, {arguments.model} on 1x8x8, {ROWS} training and {TEST} test "
        f"rows per client, batch {BATCH}, "
        f"{arguments.cohort or format(arguments.participation, 'g')} of the clients per round, "
        f"{arguments.way}, median of {arguments.rounds} rounds",
        "rows": rows,
    }
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
