"""FedTailor against the loop that other tools use, in one run, on this machine.

    python benchmarks/speed.py --device cuda --out benchmarks/results/speed-h200.json
    python benchmarks/speed.py --device cpu --out benchmarks/results/speed-cpu.json
    python benchmarks/speed.py --device cuda --only profile-unequal --ways traced compiled fused
    python benchmarks/speed.py --device cpu --only fedavg-100 moon --clients 4    # to try it out

The loop (`loops.py`, `more_loops.py`): one client after another, batches moved to the device each
step, `torch.optim.SGD`. Both sides play the same rounds of the same method on the same batches: 300
rows per client, batches of 10, one epoch. Evaluation for its own sake is excluded, what a method
itself looks at is not. FedTailor's first rounds, in which it traces and compiles, are reported
apart.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from loops import LOOPS
from more_loops import MORE_LOOPS
from torch.utils.flop_counter import FlopCounterMode

import fedtailor
from fedtailor.core import rng
from fedtailor.core.form import Form
from fedtailor.core.task import Batch, Task, classification
from fedtailor.core.training import Recipe
from fedtailor.engine import ClientData, Simulation
from fedtailor.engine.loops.runner import LoopMode, use_precision
from fedtailor.methods import METHODS
from fedtailor.models import build
from fedtailor.runs.device import hardware

ROWS, VAL, BATCH, LR = 300, 60, 10, 0.005
GREY, COLOUR = Form("image", (1, 28, 28), 10), Form("image", (3, 32, 32), 10)
PASSES = (
    6  # over all parameters: forward, backward, gradient written and read, update read and written
)


@dataclass(frozen=True)
class Case:
    """One row of the table.

    Attributes:
      name: for `--only`.
      where: `cuda` or `cpu`.
      at_least: the ratio that was asked for.
      timed: rounds of the loop that are timed; those before are played, but not timed.
      unequal: sizes as a Dirichlet(0.1) division of ten classes makes them.
    """

    name: str
    where: str
    at_least: float
    method: str = "fedavg"
    clients: int = 100
    model: str = "cnn"
    form: Form = GREY
    timed: tuple[int, ...] = (0,)
    unequal: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    precision: str = "tf32"
    rounds: int = 5
    batch: int = BATCH


CASES = (
    Case("fedavg-20", "cuda", 60, clients=20),
    Case("fedavg-100", "cuda", 100),
    Case("unequal", "cuda", 50, unequal=True),
    Case("fedala", "cuda", 50, "fedala", timed=(1, 2)),
    Case("ditto", "cuda", 50, "ditto"),
    Case("fedrep", "cuda", 50, "fedrep"),
    Case("fedfomo", "cuda", 50, "fedfomo", timed=(1,), options={"M": 5}),
    Case("pmixfed", "cuda", 50, "pmixfed", timed=(1,)),
    Case("plgu-lf", "cuda", 50, "plgu-lf"),
    Case("pfedla", "cuda", 50, "pfedla", timed=(1,)),
    # timed from the second round on: in the first there is nothing to pull to or to contrast with
    Case("fedproto", "cuda", 0, "fedproto", timed=(1,)),
    Case("fedpac", "cuda", 0, "fedpac", timed=(1,)),
    Case("fedcp", "cuda", 0, "fedcp", timed=(1,)),
    Case("moon", "cuda", 0, "moon", timed=(1,)),
    Case("fml", "cuda", 0, "fml", timed=(1,)),
    Case("resnet18", "cuda", 12, clients=20, model="resnet18", form=COLOUR, rounds=3),
    Case(
        "resnet18-bf16",
        "cuda",
        12,
        clients=20,
        model="resnet18",
        form=COLOUR,
        precision="bf16",
        rounds=3,
    ),
    Case("cpu-cnn-20", "cpu", 2.2, clients=20, rounds=15),
    Case("cpu-mlp-100", "cpu", 9, model="mlp", rounds=15),
    Case("cpu-mlp-20", "cpu", 0, clients=20, model="mlp", rounds=15),
)
# the largest client has 288 batches of colour images, all together 4,541
UNEQUAL, UNEQUAL_ROWS = Case("profile-unequal", "cuda", 0, form=COLOUR, unequal=True), 450
# FedBABU's CNN: four convolutions, each with BatchNorm, ReLU and a pool after it
NORMS, NORMS_ROWS = (
    [
        Case(f"{n} clients", "cuda", 0, clients=n, model="fedbabu-cnn", form=COLOUR, batch=32)
        for n in (10, 100)
    ],
    416,
)
WAY: dict[str, LoopMode] = {"cuda": "fused", "cpu": "compiled"}  # as `--compile auto` has long runs
GROWTH = 1.2  # at most: a round out of 10,000 clients against one out of 1,000


@dataclass(frozen=True)
class Passes:
    """What a round asks of the network, in passes over a client's training rows.

    A backward pass is two forward ones: products for the gradients of weights and of inputs. So
    FedAvg's epoch is 1 + 2 = 3, and a round costs (forward + 2 backward) / 3 times FedAvg's. What
    is not in passes (the server, losses, copies) is left out.
    """

    forward: int
    backward: int
    why: str


ROUND = {
    "fedavg": Passes(1, 1, "one epoch"),
    "fedproto": Passes(2, 1, "one epoch; class means with the trained model"),
    "fedpac": Passes(
        4, 1, "class means; the head's epoch, backward no further than the head; the body's; means"
    ),
    "fedcp": Passes(2, 1, "one epoch; the received body's features; and the gate, as a layer more"),
    "moon": Passes(3, 1, "one epoch; features of the received model and of the last one"),
    "fml": Passes(2, 2, "one epoch of two networks"),
}


def expected(case: Case, task: Task) -> dict[str, Any]:
    """How many times FedAvg's round this one should take by its operations, and why."""
    passes = ROUND.get(case.method)
    if passes is None:
        return {}
    times = (passes.forward + 2 * passes.backward) / 3
    if case.method == "fedcp":  # width to 2 width, forward and backward like all of the network
        assert task.split is not None
        with FlopCounterMode(display=False) as counter:
            x = torch.zeros(1, *case.form.shape, dtype=torch.uint8, device=task.device)
            task.predict(task.init(rng.key(0)), x)
        times += 2 * 2 * task.split.width**2 / counter.get_total_flops()
    return {
        "expected": times,
        "expected_from": f"{passes.forward} forward, {passes.backward} backward: {passes.why}",
    }


def sizes_of(case: Case, rows: int = ROWS) -> list[int]:
    """Training rows of each client, `rows` on average."""
    if not case.unequal:
        return [rows] * case.clients
    draw = np.random.default_rng(0)
    shares = draw.dirichlet(np.full(case.clients, 0.1), size=10).sum(0) / 10
    return [max(case.batch, int(rows * case.clients * share)) for share in shares]


def world(sizes: list[int], form: Form, device: str, val: int = VAL) -> ClientData:
    """Random images. Speed does not depend on what they show."""
    make = torch.Generator(device).manual_seed(0)
    total = sum(sizes) + val * len(sizes)
    x = torch.randint(
        0, 256, (total, *form.shape), dtype=torch.uint8, device=device, generator=make
    )
    y = torch.randint(0, form.classes, (total,), device=device, generator=make)
    ends = np.cumsum([0, *(n + val for n in sizes)])
    train = [np.arange(low, low + n) for low, n in zip(ends, sizes, strict=False)]
    held = [np.arange(low + n, low + n + val) for low, n in zip(ends, sizes, strict=False)]
    none = [np.empty(0, dtype=np.int64)] * len(sizes)
    return ClientData.of(x, y, train, held, none)


def seconds(device: str, fn: Any, *arguments: Any) -> float:
    """How long `fn` takes, all of its work on the device included."""
    sync = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    sync()
    begun = time.perf_counter()
    fn(*arguments)
    sync()
    return time.perf_counter() - begun


def simulation(case: Case, fed: ClientData, device: str, way: str, **more: Any) -> Simulation:
    compute = torch.bfloat16 if case.precision == "bf16" else None
    task = classification(lambda: build(case.model, case.form), device=device, compute=compute)
    recipe = Recipe(epochs=1, batch=case.batch, lr=LR)
    method = METHODS[case.method](task, recipe=recipe, **case.options)
    return Simulation(method, fed, task, recipe=recipe, rounds=100, loop_mode=way, **more)


def measure(case: Case, device: str, floors: dict[str, float]) -> dict[str, Any]:
    """One row: the loop first, then FedTailor, and how far apart they end."""
    way = WAY[device]
    use_precision(case.precision)
    sizes = sizes_of(case)
    fed = world(sizes, case.form, device)
    everyone = list(range(case.clients))
    loop = (LOOPS | MORE_LOOPS)[case.method](
        case.model, case.form, fed, 0, LR, case.batch, device, case.options, rounds=100
    )
    for number in range(max(case.timed) + 1):
        loop.prepare(number, everyone)
    if device == "cuda":  # the libraries' first calls are nobody's fault
        warm = LOOPS["fedavg"](case.model, case.form, fed, 0, LR, case.batch, device)
        warm.round(0, [0])
    slow = {n: seconds(device, loop.round, n, everyone) for n in range(max(case.timed) + 1)}

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    sim = simulation(case, fed, device, way)
    ids = torch.arange(case.clients)
    for _ in range(max(case.timed) + 1):
        sim.step(ids)
    apart = _apart(loop.server, sim.server)
    for _ in range(2):
        sim.step(ids)
    number = max(case.timed)
    times, loop_times = [], [slow[number]]
    for _ in range(case.rounds):
        times.append(seconds(device, sim.step, ids))
        if device == "cpu":  # in turns: other work on the machine slows both
            number += 1
            loop.prepare(number, everyone)
            loop_times.append(seconds(device, loop.round, number, everyone))
    fast, slowly = statistics.median(times), statistics.median(loop_times)
    steps = -(-max(sizes) // case.batch)
    floor = _floors(sim.task, case, sizes, floors)
    row = {
        "name": case.name,
        "work": f"{case.method}, {case.model}, {case.clients} clients"
        + (", unequal" if case.unequal else "")
        + (f", {case.precision}" if case.precision != "tf32" else ""),
        "loop_seconds": slowly,
        "seconds": fast,
        "middle_half": {"loop": _middle_half(loop_times), "fedtailor": _middle_half(times)},
        "ratio": slowly / fast,
        "at_least": case.at_least,
        "steps": steps,
        "step_ms": 1e3 * fast / steps,
        "way": way,
        "preparing_seconds": sim.clients.runner.seconds,
        "peak_memory_gb": torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None,
        "largest_difference": apart,
        **expected(case, sim.task),
        **floor,
    }
    for name in ("memory", "compute"):
        if f"{name}_floor_seconds" in row:
            row[f"of_{name}_floor"] = row[f"{name}_floor_seconds"] / fast
    if len(case.timed) > 1:  # FedALA's first mixing round, which it trains to convergence
        number = case.timed[0]
        row["first_mixing"] = {"loop_seconds": slow[number]} | _mixing(case, fed, device, number)
    if device == "cuda":
        rows = lambda: sim.score(part="train")
        rows()
        row["score_seconds"] = seconds(device, rows)  # all training rows of all clients
    sim.close()
    return row


def _middle_half(times: list[float]) -> list[float] | None:
    """Between which seconds half of the rounds lie; None of few rounds."""
    if len(times) < 8:
        return None
    quarters = statistics.quantiles(times, n=4)
    return [quarters[0], quarters[2]]


def _mixing(case: Case, fed: ClientData, device: str, number: int) -> dict[str, float]:
    """The same round again in a new simulation: compiled code is there already."""
    sim = simulation(case, fed, device, WAY[device])
    ids = torch.arange(case.clients)
    for _ in range(number):
        sim.step(ids)
    before = sim.clients.runner.seconds
    took = seconds(device, sim.step, ids)
    made = sim.clients.runner.seconds - before
    sim.close()
    return {"seconds": took - made, "preparing_seconds": made}


def _apart(one: dict[str, Any], other: dict[str, Any]) -> float | None:
    """The largest difference of the server's parameters, where both have some."""
    if not one:
        return None
    found = next((other[k] for k in ("params", "shared") if k in other), other)
    return max(float((one[k] - found[k]).abs().max()) for k in found if k in one)


def _floors(task: Task, case: Case, sizes: list[int], known: dict[str, float]) -> dict[str, float]:
    """What a round of FedAvg cannot be faster than: its bytes and its arithmetic."""
    if case.method != "fedavg" or not known:
        return {}
    params = task.init(rng.key(0))
    device = next(iter(params.values())).device
    batch = Batch(
        torch.zeros(case.batch, *case.form.shape, dtype=torch.uint8, device=device),
        torch.zeros(case.batch, dtype=torch.int64, device=device),
        torch.ones(case.batch, device=device),
        torch.ones((), dtype=torch.bool, device=device),
        rng.key(0, device=device),
    )
    leaves = {k: v.requires_grad_(k not in task.buffers) for k, v in params.items()}
    with FlopCounterMode(display=False) as counter:
        task.loss(leaves, batch)[0].backward()
    steps = sum(-(-n // case.batch) for n in sizes)
    size = sum(p.numel() for p in params.values()) * 4
    return {
        "memory_floor_seconds": steps * PASSES * size / known["bytes_per_second"],
        "compute_floor_seconds": steps * counter.get_total_flops() / known["flops_per_second"],
    }


def device_limits(device: str) -> dict[str, float]:
    """What this device reaches in a large copy and in a large TF32 product."""
    if device != "cuda":
        return {}
    use_precision("tf32")
    a = torch.randn(8192, 8192, device=device)
    big = torch.empty(1 << 29, device=device)
    other = torch.empty_like(big)
    times: dict[str, list[float]] = {"copy": [], "product": []}
    for _ in range(6):
        times["copy"].append(seconds(device, other.copy_, big))
        times["product"].append(seconds(device, torch.mm, a, a))
    return {
        "bytes_per_second": 2 * big.numel() * 4 / min(times["copy"]),
        "flops_per_second": 2 * 8192**3 / min(times["product"]),
    }


def growth(device: str) -> dict[str, Any]:
    """A round of FedALA with 100 clients out of 1,000 and out of 10,000, states in host memory."""
    found = {}
    for clients in (1_000, 10_000):
        case = Case("growth", device, 0, "fedala", clients)
        fed = world([ROWS] * clients, GREY, device, val=0)
        sim = simulation(case, fed, device, WAY[device], place="host", chunk=100)
        draw = np.random.default_rng(0)
        times = []
        for number in range(25):
            cohort = torch.from_numpy(np.sort(draw.choice(clients, 100, replace=False)))
            took = seconds(device, sim.step, cohort)
            if number >= 10:
                times.append(took)
        found[str(clients)] = statistics.median(times)
        sim.close()
        print(json.dumps({"growth": found}), flush=True)
    return {"seconds": found, "ratio": found["10000"] / found["1000"], "at_most": GROWTH}


def profile(
    device: str, case: Case, ways: Sequence[str] = ("plain", "traced", "compiled"), rows: int = ROWS
) -> dict[str, Any]:
    """Where the time of a round goes, way by way."""
    use_precision(case.precision)
    sizes = sizes_of(case, rows)
    fed, ids = world(sizes, case.form, device), torch.arange(case.clients)
    found: dict[str, Any] = {"client_steps": sum(-(-n // case.batch) for n in sizes)}
    found["steps"] = max(-(-n // case.batch) for n in sizes)
    for way in ways:
        try:
            found[way] = _profiled(simulation(case, fed, device, way), ids, device, found["steps"])
        except Exception:  # a way that fails must not take the others with it
            traceback.print_exc()
            found[way] = {"failed": traceback.format_exc().splitlines()[-1]}
        print(json.dumps({way: found[way]}), flush=True)
    return found


def _profiled(sim: Simulation, ids: torch.Tensor, device: str, steps: int) -> dict[str, Any]:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    first = [seconds(device, sim.step, ids) for _ in range(3)]
    took = statistics.median(seconds(device, sim.step, ids) for _ in range(3))
    where = ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU
    everywhere = None
    if device == "cpu":  # threads of their own do the work
        everywhere = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    given = list({ProfilerActivity.CPU, where})
    with record(activities=given, experimental_config=everywhere) as seen:
        seconds(device, sim.step, ids)
    kinds: dict[str, float] = {}
    kernels = []
    for event in seen.key_averages():
        took_here = event.self_device_time_total if device == "cuda" else event.self_cpu_time_total
        if event.device_type.name.lower() == device and took_here:
            kind = _kind(event.key)
            kinds[kind] = kinds.get(kind, 0.0) + took_here / 1e6
            kernels.append((took_here / 1e6, event.count, event.key[:80]))
    busy, count = sum(kinds.values()), sum(kernel[1] for kernel in kernels)
    prepared = sim.preparing_seconds
    sim.close()
    return {
        "seconds": took,
        "busy_seconds": busy,
        "kernels": count,
        "kernels_per_step": round(count / steps, 1),
        "shares": {k: round(v / busy, 3) for k, v in sorted(kinds.items(), key=lambda e: -e[1])},
        "first_round_seconds": first[0],
        "preparing_seconds": prepared,
        "table": [
            {"kernel": name, "count": n, "seconds": round(t, 6)}
            for t, n, name in sorted(kernels, reverse=True)[:25]
        ],
    }


_KINDS = {
    "matrix products": ("gemm", "gemv", "cublas", "splitK", "::mm", "addmm", "bmm"),
    "convolutions": ("conv", "cudnn", "implicit", "dgrad", "wgrad", "winograd"),
    "patches": ("im2col", "col2im", "unfold", "fold"),
    "pooling": ("pool",),
    "copies": ("Memcpy", "copy"),
    "fused by the compiler": ("triton", "CompiledFxGraph"),
}


_OWN = {
    "_forward",
    "_spread",
    "_input_gradient",
    "_weight_parts",
    "_add_parts",
    "_cross_entropy",
    "_moment_parts",
    "_moments",
    "_norm",
    "_gradient_parts",
    "_gradient_sums",
    "_norm_input",
}


def _kind(kernel: str) -> str:
    if kernel.startswith("triton"):
        return "fused by the compiler"
    if kernel in _OWN:
        return "own kernels"
    for kind, words in _KINDS.items():
        if any(word.lower() in kernel.lower() for word in words):
            return kind
    return "other element-wise kernels"


def beside(row: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, float]:
    """How many times the round of FedAvg on the same work, of the same run, a row takes."""
    same = "fedavg," + row.get("work", "").partition(",")[2]
    base = next((other["seconds"] for other in rows if other.get("work") == same), None)
    if base is None or "expected" not in row:
        return {}
    times = row["seconds"] / base
    return {"beside_fedavg": times, "of_expected": times / row["expected"]}


def commit() -> str:
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cpu")
    parser.add_argument(
        "--only", nargs="+", help="names of rows, growth, profile, profile-unequal or profile-norms"
    )
    parser.add_argument(
        "--ways", nargs="+", default=["traced", "compiled", "fused"], help="of profile-unequal"
    )
    parser.add_argument("--profile", nargs="+", metavar="METHOD", help="only where their rounds go")
    parser.add_argument("--clients", type=int, help="instead of a row's own number, to try it out")
    parser.add_argument("--commit", help="where there is no git to ask")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = arguments.device
    known = {case.name for case in CASES} | {
        "growth",
        "profile",
        "profile-unequal",
        "profile-norms",
    }
    if unknown := sorted(set(arguments.only or ()) - known):
        parser.error(f"--only: no row {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    name = hardware(torch.device(device))
    report: dict[str, Any] = {
        "command": f"python {' '.join(sys.argv)}",
        "commit": arguments.commit or commit(),
        "version": fedtailor.__version__,
        "device": f"{device} ({name}, {torch.get_num_threads()} threads)",
        "torch": torch.__version__,
        "task": f"one round, {ROWS} rows per client, batch {BATCH}, one epoch",
        "limits": device_limits(device),
        "rows": [],
    }

    def wanted(name: str) -> bool:
        return not arguments.only or name in arguments.only

    def save() -> None:
        if arguments.out:
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(json.dumps(report, indent=1) + "\n")

    if arguments.profile:
        by_name = {case.name: case for case in CASES}
        report["profile"] = {}
        for method in arguments.profile:
            case = by_name.get(method) or Case(method, device, 0, method)
            case = replace(case, clients=arguments.clients or case.clients)
            way = WAY[device]
            report["profile"][method] = profile(device, case, [way])[way]
            save()
        return
    for case in CASES:
        # a row that is named is played anywhere
        if case.name in arguments.only if arguments.only else case.where == device:
            if arguments.clients:
                case = replace(case, clients=arguments.clients)
            try:
                row = measure(case, device, report["limits"])
            except Exception:  # a row that fails must not take the others with it
                traceback.print_exc()
                row = {"name": case.name, "failed": traceback.format_exc().splitlines()[-1]}
            report["rows"].append(row)
            row |= beside(row, report["rows"])
            print(json.dumps(row), flush=True)
            save()
    if device == "cuda":
        if wanted("growth"):
            report["growth"] = growth(device)
            save()
        if wanted("profile"):
            report["profile"] = profile(device, Case("profile", device, 0))
            save()
        if arguments.only and "profile-unequal" in arguments.only:
            report["profile-unequal"] = profile(device, UNEQUAL, arguments.ways, UNEQUAL_ROWS)
            save()
        if arguments.only and "profile-norms" in arguments.only:
            report["profile"] = {
                case.name: profile(device, case, ["fused"], NORMS_ROWS)["fused"] for case in NORMS
            }
            save()


if __name__ == "__main__":
    main()
