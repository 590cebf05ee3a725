"""Whole jobs by the clock: from the start of a process to its written report, against the loop.

    python benchmarks/jobs.py --device cuda --out benchmarks/results/jobs-h200.json

FedTailor's side is the command a user types, in a process of its own. `cold`: no compiled program
is there from an earlier one (Python's own bytecode is, as after any first start); `warm`: once
more. The loop's side (`loops.py`) on the same rows: a few of its rounds and one of its evaluations
are timed in the same run, and counted as often as the job has them; its import, loading and saving
are not counted. 60,000 random images of 3x32x32 in ten classes, divided by Dirichlet(0.1): speed
does not depend on what they show.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from loops import LOOPS, Loop
from speed import commit, seconds

import fedtailor
from fedtailor.engine.loops.runner import use_precision
from fedtailor.results.config import make_config
from fedtailor.runs.data import RunData, load_run_data
from fedtailor.runs.device import hardware

BATCH, LR, EVERY = 10, 0.005, 20


@dataclass(frozen=True)
class Job:
    """One row of the table.

    Attributes:
      name: for `--only`.
      at_least: the ratio that was asked for; `at_most` the seconds.
      timed: rounds of the loop that are timed; those before are played, but not timed. The first
        of several counts once, as itself.
    """

    name: str
    method: str
    rounds: int = 200
    at_least: float = 0.0
    at_most: float = 0.0
    timed: tuple[int, ...] = (0,)
    settings: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def given(self, data: Path, device: str) -> dict[str, Any]:
        """Its settings by name."""
        return {
            "data": str(data),
            "clients": 100,
            "partition": "dirichlet:0.1",
            "model": "cnn",
            "batch": BATCH,
            "lr": LR,
            "rounds": self.rounds,
            "eval_every": EVERY,
            "device": device,
        } | self.settings


JOBS = (
    Job("fedavg-200", "fedavg", at_least=45),
    Job("fedala-200", "fedala", at_least=45, timed=(1, 2)),
    Job("fedavg-20", "fedavg", rounds=20, at_least=12),
    Job("fedala-20", "fedala", rounds=20, at_least=12, timed=(1, 2)),
    Job("ditto-200", "ditto", at_least=30),
    Job("fedrep-200", "fedrep", at_least=30),
    Job("fedfomo-200", "fedfomo", at_least=30, timed=(1,), options={"M": 5}),
    Job("pmixfed-200", "pmixfed", at_least=30, timed=(1,)),
    Job("plgu-lf-200", "plgu-lf", at_least=30),
    Job("pfedla-200", "pfedla", at_least=30, timed=(1,)),
    Job(
        "cohorts-1500",
        "fedavg",
        rounds=1500,
        at_most=22,
        settings={
            "clients": 1000,
            "partition": "iid",
            "participation": 0.05,
            "eval_every": 100,
            "lr": 0.1,
        },
    ),
)


def make_data(path: Path) -> None:
    """As many images as CIFAR-10 has."""
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, (60_000, 3, 32, 32), dtype=np.uint8)
    np.savez(path, x=x, y=draw.integers(0, 10, 60_000))


def command(job: Job, data: Path, device: str, out: Path) -> list[str]:
    said = [sys.executable, "-m", "fedtailor", "run", job.method, "--out", str(out)]
    for name, value in job.given(data, device).items():
        said += [f"--{name.replace('_', '-')}", str(value)]
    for name, value in job.options.items():
        said += ["--set", f"{name}={value}"]
    return said


def play(job: Job, data: Path, device: str, out: Path, cache: Path) -> dict[str, Any]:
    """The job as a user runs it; what is compiled is kept in `cache` and nowhere else."""
    env = os.environ | {
        "XDG_CACHE_HOME": str(cache),
        "PYTHONPYCACHEPREFIX": str(cache.parent / "bytecode"),
    }
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    begun = time.perf_counter()
    done = subprocess.run(
        command(job, data, device, out), env=env, capture_output=True, text=True, check=False
    )
    took = time.perf_counter() - begun
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    result = json.loads((out / "result.json").read_text())
    preparing = result["preparing_seconds"]
    return {
        "seconds": took,
        "preparing_seconds": preparing,
        "training_seconds": result["train_seconds"] - preparing,
        "rest_seconds": took - result["train_seconds"],
        "seconds_by_phase": result["seconds_by_phase"],
        "way": result["way"],
        "score": result["score"]["mean"],
    }


def evaluation(loop: Loop, data: RunData) -> None:
    """Every client's model on its validation and test rows, one client after another."""
    fed = data.client_data
    for cid in loop.clients:
        params = loop.own.get(cid) or loop.server
        if not all(name in params for name in loop.names):
            params = loop.server | params
        for part in (fed.val, fed.test):
            begin, count = int(part.offset[cid]), int(part.n[cid])
            rows = part.flat[begin : begin + count].cpu()
            held = [loop.fetch(rows_of) for rows_of in rows.split(128)] if count else []
            loop.judge_by(params, held, lambda out, y: (out.argmax(-1) == y).sum()).item()


def play_loop(job: Job, data: RunData, device: str) -> dict[str, Any]:
    """What the loop would take for all of the job's rounds and evaluations."""
    form, fed = data.encoder.form, data.client_data
    loop = LOOPS[job.method]("cnn", form, fed, 0, LR, BATCH, device, job.options, rounds=job.rounds)
    share = job.settings.get("participation", 1.0)
    cohort = list(range(int(share * len(loop.clients))))
    for number in range(max(job.timed) + 1):
        loop.prepare(number, cohort)
    if device == "cuda":  # the libraries' first calls are nobody's fault
        LOOPS["fedavg"]("cnn", form, fed, 0, LR, BATCH, device).round(0, [0])
    took = {n: seconds(device, loop.round, n, cohort) for n in range(max(job.timed) + 1)}
    judged = seconds(device, evaluation, loop, data)
    first, usual = took[job.timed[0]], took[job.timed[-1]]
    evaluations = job.rounds // job.settings.get("eval_every", EVERY)
    return {
        "round_seconds": usual,
        "first_seconds": first,
        "evaluation_seconds": judged,
        "seconds": first + usual * (job.rounds - 1) + judged * evaluations,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--only", nargs="+", help="names of jobs")
    parser.add_argument("--rounds", type=int, help="instead of their own: preparing needs few")
    parser.add_argument("--no-loop", action="store_true", help="FedTailor's side alone")
    parser.add_argument("--repeats", type=int, default=1, help="of the warm job")
    parser.add_argument("--commit", help="where there is no git to ask")
    parser.add_argument("--out", type=Path)
    said = parser.parse_args()
    device = torch.device(said.device)
    use_precision("tf32")
    report: dict[str, Any] = {
        "command": f"python {' '.join(sys.argv)}",
        "commit": said.commit or commit(),
        "version": fedtailor.__version__,
        "device": f"{said.device} ({hardware(device)}, {torch.get_num_threads()} threads)",
        "torch": torch.__version__,
        "rows": [],
    }
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "images.npz"
        make_data(data)
        for job in JOBS:
            if said.only and job.name not in said.only:
                continue
            if said.rounds:
                name = f"{job.method}-{said.rounds}"
                job = replace(job, name=name, rounds=said.rounds, at_least=0.0, at_most=0.0)
            folder = Path(scratch) / job.name
            if not report["rows"]:  # Python's bytecode
                few = replace(job, rounds=2, settings=job.settings | {"eval_every": 2})
                play(few, data, said.device, folder / "first", Path(scratch) / "first")
            cold = play(job, data, said.device, folder / "cold", folder)
            warm = [
                play(job, data, said.device, folder / f"warm{i}", folder)
                for i in range(said.repeats)
            ]
            row: dict[str, Any] = {
                "name": job.name,
                "method": job.method,
                "rounds": job.rounds,
                "at_least": job.at_least,
                "at_most": job.at_most,
                "cold": cold,
                "warm": warm,
            }
            if not said.no_loop:
                config = make_config(job.method, job.given(data, said.device), job.options)
                row["loop"] = play_loop(job, load_run_data(config), said.device)
                row["ratio"] = row["loop"]["seconds"] / cold["seconds"]
            print(json.dumps(row), flush=True)
            report["rows"].append(row)
            if said.out:
                said.out.parent.mkdir(parents=True, exist_ok=True)
                said.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
