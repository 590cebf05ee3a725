r"""Fast ways on a GPU against one client after another: speed must change no result.

    python benchmarks/parity.py --out benchmarks/results/parity-h200.json

Every method, five rounds with 60 % of eight unequal clients, in float32 without TF32, on networks
without and with BatchNorm and with convolutions; FedAvg also with DP-SGD. Reported is the largest
difference of any parameter of any client's model. Networks with recurrent layers, attention, random
numbers, frozen layers and branches, for some methods, also run twice:

    python benchmarks/parity.py --methods fedavg fedala apfl \
        --networks lstm gru transformer noise branches frozen
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from speed import commit
from torch import Tensor, nn

from fedtailor.core.task import classification
from fedtailor.core.training import Recipe
from fedtailor.core.tree import flatten
from fedtailor.engine import Simulation, draw_cohort
from fedtailor.engine.loops.runner import use_precision
from fedtailor.methods import METHODS
from fedtailor.methods.check.world import CLASSES, CLIENTS, FEATURES, NETWORKS, toy_federation

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


def _convolved_with_statistics() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, FEATURES // 2)),
        nn.Conv2d(1, 4, 2, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 4, 2),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * 2 * (FEATURES // 2), CLASSES),
    )


class _Sequence(nn.Module):
    """Features as a sequence of numbers; the layer's output at the last of them decides."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.lift, self.layer, self.fc = nn.Linear(1, 4), layer, nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        said = self.layer(self.lift(x[..., None]))
        out: Tensor = self.fc((said[0] if isinstance(said, tuple) else said)[:, -1])
        return out


class _Branches(nn.Linear):
    """Asks for a number: clients are played one after another."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (2 if x.sum().item() > 0 else 1)


class _Noisy(nn.Linear):
    """Draws in three ways."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(x + 0.1 * torch.randn_like(x), 0.2)
        return super().forward(x * torch.empty_like(x).bernoulli_(0.8))


def _frozen() -> nn.Module:
    made = NETWORKS["dense"]()
    made[0].requires_grad_(False)
    return made


NETS: dict[str, Callable[[], nn.Module]] = {
    **NETWORKS,
    "convolution": _convolved,
    "convolution-bn": _convolved_with_statistics,
}
# not for every method: whatever `--networks` names
MORE: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: _Sequence(
        nn.LSTM(4, 5, 2, batch_first=True, bidirectional=True, dropout=0.2), 10
    ),
    "gru": lambda: _Sequence(nn.GRU(4, 5, batch_first=True), 5),
    "transformer": lambda: _Sequence(
        nn.TransformerEncoderLayer(4, 2, 8, dropout=0.2, batch_first=True), 4
    ),
    "noise": lambda: _Noisy(FEATURES, CLASSES),
    "branches": lambda: _Branches(FEATURES, CLASSES),
    "frozen": _frozen,
}


def play(method: str, network: str, way: str, recipe: Recipe, device: str) -> dict[str, Any]:
    """All clients' models after five rounds."""
    fed = toy_federation()
    fed = fed._replace(x=fed.x.float().to(device), y=fed.y.to(device))
    task = classification((NETS | MORE)[network], device=device)
    engine = "sequential" if way == "sequential" else "vectorised"
    fast: Any = "plain" if way == "sequential" else way
    made = METHODS[method](task, recipe=recipe)
    sim = Simulation(made, fed, task, rounds=ROUNDS, engine=engine, loop_mode=fast, recipe=recipe)
    for number in range(ROUNDS):
        sim.step(draw_cohort(0, number, torch.arange(CLIENTS), 0.6))
    found = {f"{cid}/{k}": v for cid, m in sim.models() for k, v in flatten(m).items()}
    sim.close()
    return found


def again(method: str, network: str, way: str, device: str) -> float:
    """The largest difference between two runs in the same way: 0 to the last bit."""
    recipe = Recipe(epochs=2, batch=8, lr=0.05)
    one, other = (play(method, network, way, recipe, device) for _ in range(2))
    return max(float((one[k] - other[k]).abs().max()) for k in one)


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


class _Told(logging.Handler):
    """Hears of steps that are run in a plainer way than was asked for."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.slower: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "slower" in (said := record.getMessage()) or "slowly" in said:
            self.slower.append(said)


def row_of(case: tuple[str, str, str, bool, str]) -> dict[str, Any]:
    """One method on one network in one way."""
    method, network, way, private, device = case
    recipe = {"recipe": PRIVATE} if private else {}
    row = {"method": method, "network": network, "way": way, "private": private}
    begun = time.perf_counter()
    told = _Told()
    logging.getLogger("fedtailor").addHandler(told)
    try:
        row["apart"] = compare(method, network, way, device=device, **recipe)
        row["passed"] = row["apart"] < LIMIT
        if network in MORE:
            row["again"] = again(method, network, way, device)
            row["passed"] = row["passed"] and row["again"] == 0
    except Exception:  # the other methods are to be tried too
        row |= {"failed": traceback.format_exc().splitlines()[-1], "passed": False}
    finally:
        logging.getLogger("fedtailor").removeHandler(told)
    if told.slower:  # another way was compared
        row |= {"failed": told.slower[0], "passed": False}
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
