"""FedTailor against the loop that other tools use, in one run, on this machine.

    python benchmarks/speed.py --out benchmarks/results/speed-cpu.json

The loop: one client after another, batches moved to the device each step, `torch.optim.SGD`. Both
sides train FedAvg for one epoch of 300 rows per client in batches of 10, evaluation excluded, and
end with the mean; the parameters they end with are compared.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import fedtailor
from fedtailor import rng
from fedtailor.engine import Federation, Simulation
from fedtailor.form import Form
from fedtailor.methods import fedavg
from fedtailor.models import build
from fedtailor.rng import Turn
from fedtailor.task import classification
from fedtailor.train import Recipe

ROWS, BATCH, LR = 300, 10, 0.005
FORM = Form("image", (1, 28, 28), 10)


def world(clients: int, device: str) -> Federation:
    draw = np.random.default_rng(0)
    x = torch.from_numpy(draw.integers(0, 256, (clients * ROWS, *FORM.shape), dtype=np.uint8))
    y = torch.from_numpy(draw.integers(0, FORM.classes, clients * ROWS))
    rows = list(np.arange(clients * ROWS).reshape(clients, ROWS))
    none = [np.empty(0, dtype=np.int64)] * clients
    return Federation.of(x.to(device), y.to(device), rows, none, none)


def loop(fed: Federation, model: str, initial: Any, orders: list[torch.Tensor], device: str) -> Any:
    """One round as other tools do it."""
    net = build(model, FORM).to(device).train()
    host_x, host_y = fed.x.cpu(), fed.y.cpu()
    mean = {k: torch.zeros_like(v) for k, v in initial.items()}
    for order in orders:
        net.load_state_dict(initial)
        optimiser = torch.optim.SGD(net.parameters(), lr=LR)
        for rows in order.split(BATCH):
            x = (host_x[rows].to(device).float() / 127.5) - 1
            optimiser.zero_grad()
            F.cross_entropy(net(x), host_y[rows].to(device)).backward()
            optimiser.step()
        for k, v in net.state_dict().items():
            mean[k] += v / len(orders)
    return mean


def batch_orders(fed: Federation, seed: int, device: str) -> list[torch.Tensor]:
    """The rows of each client in the order in which FedTailor visits them in round 0."""
    turn = Turn(rng.key(seed, rng.TURN, 0), torch.tensor(0), torch.tensor(1))
    out = []
    for i in range(fed.clients):
        data = fed.data(torch.tensor([i]))
        one = data._replace(rows=data.rows[0].cpu(), n=data.n[0].cpu())
        key = turn.of(torch.tensor(i)).at_client().key
        order, _ = rng.split(rng.fold(key, 0))
        out.append(one.shuffle(order).rows)
    return out


def timed(fn: Any, repeats: int, device: str) -> tuple[float, Any]:
    sync = torch.cuda.synchronize if device.startswith("cuda") else (lambda: None)
    times, result = [], None
    for _ in range(repeats):
        sync()
        begun = time.perf_counter()
        result = fn()
        sync()
        times.append(time.perf_counter() - begun)
    return statistics.median(times), result


def measure(model: str, clients: int, engine: str, device: str, repeats: int) -> dict[str, Any]:
    fed = world(clients, device)
    task = classification(lambda: build(model, FORM), device=device)
    recipe = Recipe(epochs=1, batch=BATCH, lr=LR)
    initial = task.init(rng.key(0, rng.INITIAL))
    orders = batch_orders(fed, 0, device)

    def ours() -> Any:
        sim = Simulation(fedavg(task, recipe=recipe), fed, task, engine=engine, recipe=recipe)
        sim.step(torch.arange(clients))
        return sim.server["params"]

    ours()  # first calls warm caches up, on both sides
    loop(fed, model, initial, orders[:2], device)
    loop_seconds, theirs = timed(lambda: loop(fed, model, initial, orders, device), repeats, device)
    our_seconds, mine = timed(ours, repeats, device)
    apart = max(float((mine[k] - theirs[k]).abs().max()) for k in mine)
    return {
        "model": model,
        "clients": clients,
        "engine": engine,
        "loop_seconds": round(loop_seconds, 4),
        "seconds": round(our_seconds, 4),
        "ratio": round(loop_seconds / our_seconds, 2),
        "largest_parameter_difference": apart,
    }


def commit() -> str:
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", nargs="+", default=["mlp", "cnn"])
    parser.add_argument("--clients", nargs="+", type=int, default=[20, 100])
    parser.add_argument("--engines", nargs="+", default=["vectorised", "sequential"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--commit", help="where there is no git to ask")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = []
    for model in arguments.models:
        for clients in arguments.clients:
            for engine in arguments.engines:
                row = measure(model, clients, engine, arguments.device, arguments.repeats)
                print(json.dumps(row), flush=True)
                rows.append(row)
    name = platform.processor() or platform.machine()
    if arguments.device.startswith("cuda"):
        name = torch.cuda.get_device_name()
    report = {
        "command": f"python {' '.join(sys.argv)}",
        "commit": arguments.commit or commit(),
        "version": fedtailor.__version__,
        "device": f"{arguments.device} ({name}, {torch.get_num_threads()} threads)",
        "torch": torch.__version__,
        "task": f"FedAvg, one round, {ROWS} rows per client of 1x28x28, batch {BATCH}, one epoch, "
        "median of the repeats, against one client after another with torch.optim.SGD",
        "rows": rows,
    }
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
