"""One run against several side by side: seeds, learning rates or options, in turns in one process.

    python benchmarks/side_by_side.py --out FILE.json                 # two CPU cores: minutes
    python benchmarks/side_by_side.py --device cuda --out FILE.json   # under a minute
    python benchmarks/side_by_side.py --axis ditto.lam fedala.eta     # eight values of an option
    python benchmarks/side_by_side.py --device cuda --compile fused --axis ditto.lam --out FILE.json

A round is what a user waits for: training, evaluation, history. The way a run takes (plain or
traced) is that of a run of 200 rounds, which is stopped after a few: the first two, where steps are
traced, are left out. Ratios are of medians; one run and several take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from speed import commit

from fedtailor.methods.find import find
from fedtailor.results.config import Config, make_config
from fedtailor.results.objects import separate
from fedtailor.runs.data import RunData, load_run_data
from fedtailor.runs.device import hardware
from fedtailor.runs.several.together import RunToPlay, play_together
from fedtailor.runs.tuning.space import space_of

ROUNDS = 200  # that decide about the way
RATES = (0.003, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2)
PREPARING = 2  # rounds


class Enough(Exception):
    """The rounds that are to be timed have been played."""


def images(rows: int = 10_000, clients: int = 20) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Random images of 3x32x32 at clients of unequal sizes."""
    draw = np.random.default_rng(0)
    sizes = np.maximum(40, (draw.dirichlet([0.5] * clients) * rows).astype(int))
    return {
        f"client-{i}": (
            draw.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8),
            np.arange(n) % 10,
        )
        for i, n in enumerate(sizes)
    }


def settings(case: str, compile: str) -> dict[str, Any]:
    """What the runs of a case share."""
    name, model = case.split("-")
    shared: dict[str, Any] = {"model": model, "batch": 10, "rounds": ROUNDS, "compile": compile}
    if name == "images":
        return shared | {"data": images()}
    return shared | {"data": "digits", "clients": 20}


def values_of(method: str, option: str) -> list[float]:
    """As many values of an option as rates, spread over what is tried of it."""
    (axis,) = space_of(find(method), method, {option: ""})
    return axis.points(len(RATES))


def configs(
    method: str, case: str, device: str, compile: str, option: str = ""
) -> dict[str, list[Config]]:
    """One run, and five seeds and eight learning rates, or eight values of an option."""
    name, named, objects = separate(method, settings(case, compile) | {"device": device})
    made = lambda **more: make_config(name, named | more, {}, objects)
    if option:
        values = values_of(method, option)
        several = [make_config(name, named, {option: value}, objects) for value in values]
        return {"one": several[:1], "8 values": several}
    return {
        "one": [made()],
        "5 seeds": [made(seed=seed) for seed in range(5)],
        "8 rates": [made(lr=rate) for rate in RATES],
    }


def timed(runs: list[Config], data: RunData, rounds: int) -> tuple[list[float], float, int]:
    """Seconds of each round of all runs, of preparing, and how many went side by side."""
    moments: list[float] = []
    begun = time.monotonic()

    def watch(line: dict[str, Any], total: int) -> None:
        moments.append(time.monotonic())
        if line["round"] == rounds:
            raise Enough

    ends = play_together([RunToPlay(c, None, data, lambda: watch) for c in runs], keep_going=True)
    for end in ends:
        if not isinstance(end.error, Enough):
            raise end.error or RuntimeError("a run ended before its time")
    together = max(end.runner.together for end in ends if end.runner)
    last = moments[len(runs) - 1 :: len(runs)] if together == len(runs) else []
    if not last:  # in groups or one by one: all rounds of a group, and then those of the next
        whole = moments[-1] - begun
        return [whole / rounds], 0.0, together
    each = [after - before for before, after in pairwise(last)]
    return each[PREPARING - 1 :], last[PREPARING - 1] - begun, together


def row_of(
    method: str, case: str, device: str, compile: str, rounds: int, repeats: int, option: str = ""
) -> dict[str, Any]:
    """Medians of all kinds, and their ratios to one run."""
    kinds = configs(method, case, device, compile, option)
    data = load_run_data(kinds["one"][0])
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    row: dict[str, Any] = {"method": method, "case": case, "clients": data.client_data.clients}
    row |= {"option": option} if option else {}
    for _ in range(repeats):
        for kind, runs in kinds.items():
            each, preparing, together = timed(runs, data, rounds)
            found[kind] += each
            row[kind] = {"side_by_side": together, "preparing_seconds": round(preparing, 2)}
    for kind, each in found.items():
        row[kind] |= {
            "seconds": statistics.median(each),
            "spread": [min(each), max(each)],
            "ratio": statistics.median(each) / statistics.median(found["one"]),
        }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cpu")
    parser.add_argument("--methods", nargs="+", default=["fedavg"])
    parser.add_argument("--axis", nargs="+", metavar="METHOD.OPTION", help="values of these")
    parser.add_argument("--cases", nargs="+", choices=["digits-mlp", "digits-cnn", "images-cnn"])
    parser.add_argument("--compile", choices=["never", "auto", "fused"], default="never")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--commit", help="where there is no git to ask")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    cases = (
        arguments.cases
        or {"cpu": ["digits-mlp", "digits-cnn"], "cuda": ["images-cnn"]}[arguments.device]
    )
    rows = []
    for named in arguments.axis or [f"{method}." for method in arguments.methods]:
        method, _, option = named.rpartition(".")
        for case in cases:
            row = row_of(
                method,
                case,
                arguments.device,
                arguments.compile,
                arguments.rounds,
                arguments.repeats,
                option,
            )
            rows.append(row)
            kinds = [k for k in row if k[0].isdigit()]
            told = ", ".join(f"{k} {row[k]['ratio']:.2f}x" for k in kinds)
            print(
                f"{method} {option} {case}: one {row['one']['seconds']:.4f} s a round, {told}",
                flush=True,
            )
    kept = {
        "command": " ".join(["python", *sys.argv]),
        "commit": arguments.commit or commit(),
        "device": arguments.device,
        "hardware": hardware(torch.device(arguments.device)),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "load": os.getloadavg(),
        "rows": rows,
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
