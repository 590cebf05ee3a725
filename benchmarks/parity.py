"""Fast ways on a GPU against one client after another: speed must change no result.

    python benchmarks/parity.py --out benchmarks/results/parity-h200.json

Every method, five rounds with 60 % of eight unequal clients, in float32 without TF32, on networks
without and with BatchNorm and with convolutions; FedAvg also with DP-SGD. Reported is the largest
difference of any parameter of any client's model.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from speed import commit
from torch import nn

from fedtailor.core.task import classification
from fedtailor.core.training import Recipe
from fedtailor.core.tree import flatten
from fedtailor.engine import Simulation, draw_cohort
from fedtailor.engine.loops.runner import use_precision
from fedtailor.methods import METHODS
from fedtailor.methods.check import CLASSES, CLIENTS, FEATURES, NETWORKS, toy_federation

ROUNDS, LIMIT = 5, 1e-4
PRIVATE = Recipe(epochs=1, batch=8, lr=0.05, dp_clip=1.0, dp_noise=0.5)


def _convolved() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, FEATURES // 2)),
        nn.Conv2d(1, 4, 2, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * 2, CLASSES),
    )


NETS: dict[str, Callable[[], nn.Module]] = {**NETWORKS, "convolution": _convolved}


def play(method: str, network: str, way: str, recipe: Recipe, device: str) -> dict[str, Any]:
    """All clients' models after five rounds."""
    fed = toy_federation()
    rows = [part._replace(flat=part.flat.to(device)) for part in (fed.train, fed.val, fed.test)]
    fed = fed._replace(
        x=fed.x.float().to(device), y=fed.y.to(device), train=rows[0], val=rows[1], test=rows[2]
    )
    task = classification(NETS[network], device=device)
    engine = "sequential" if way == "sequential" else "vectorised"
    fast: Any = "plain" if way == "sequential" else way
    made = METHODS[method](task, recipe=recipe)
    sim = Simulation(made, fed, task, rounds=ROUNDS, engine=engine, loop_mode=fast, recipe=recipe)
    for number in range(ROUNDS):
        sim.step(draw_cohort(0, number, torch.arange(CLIENTS), 0.6))
    found = {f"{cid}/{k}": v for cid, m in sim.models() for k, v in flatten(m).items()}
    sim.close()
    return found


def compare(
    method: str,
    network: str,
    way: str,
    recipe: Recipe = Recipe(epochs=2, batch=8, lr=0.05),
    device: str = "cuda",
) -> float:
    """The largest difference of any parameter of any client's model."""
    use_precision("fp32")
    one, other = (play(method, network, w, recipe, device) for w in ("sequential", way))
    return max(float((one[k].double() - other[k].double()).abs().max()) for k in one)


def row_of(case: tuple[str, str, str, bool, str]) -> dict[str, Any]:
    """One method on one network in one way."""
    method, network, way, private, device = case
    recipe = {"recipe": PRIVATE} if private else {}
    row = {"method": method, "network": network, "way": way, "private": private}
    begun = time.perf_counter()
    try:
        row["apart"] = compare(method, network, way, device=device, **recipe)
        row["passed"] = row["apart"] < LIMIT
    except Exception:  # the other methods are to be tried too
        row |= {"failed": traceback.format_exc().splitlines()[-1], "passed": False}
    return row | {"seconds": round(time.perf_counter() - begun, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--ways", nargs="+", default=["traced", "compiled"])
    parser.add_argument("--methods", nargs="+", default=sorted(METHODS))
    parser.add_argument("--networks", nargs="+", default=list(NETS))
    parser.add_argument("--jobs", type=int, default=1, help="cases side by side")
    parser.add_argument("--commit", help="where there is no git to ask")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    name = torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU"
    report: dict[str, Any] = {
        "command": f"python {' '.join(sys.argv)}",
        "commit": arguments.commit or commit(),
        "device": f"{arguments.device} ({name}), {arguments.jobs} cases side by side",
        "torch": torch.__version__,
        "limit": LIMIT,
        "rows": [],
    }
    cases = [(m, n, False) for m in arguments.methods for n in arguments.networks]
    cases.append(("fedavg", "dense", True))
    jobs = [
        (method, network, way, private, arguments.device)
        for way in arguments.ways
        for method, network, private in cases
    ]
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, mp_context=spawned) as pool:
        for row in pool.map(row_of, jobs):
            print(json.dumps(row), flush=True)
            report["rows"].append(row)
            if arguments.out:
                arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
