"""How long runs will take, roughly: operations against a speed measured once."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from fedtailor.core.errors import Interrupted
from fedtailor.core.form import Form
from fedtailor.core.version import __version__
from fedtailor.partition import parse_partition
from fedtailor.reproduce.playing.effort import effort
from fedtailor.results.config import Config
from fedtailor.results.storage import write_atomically
from fedtailor.runs.build import DEFAULT_CLIENTS, DEFAULT_MODELS, choose_device

COUNTED = 2  # examples: a normalisation without statistics of its own takes no single one
TRAINING = 3  # a step costs about three times its forward pass
# rows with the official test rows, the share of these, and the form: without reading the files
SIZES: dict[str, tuple[int, float, Form]] = {
    "digits": (1_797, 0.25, Form("image", (1, 8, 8), 10)),
    "mnist": (70_000, 1 / 7, Form("image", (1, 28, 28), 10)),
    "fashion-mnist": (70_000, 1 / 7, Form("image", (1, 28, 28), 10)),
    "emnist": (131_600, 1 / 7, Form("image", (1, 28, 28), 47)),
    "cifar10": (60_000, 1 / 6, Form("image", (3, 32, 32), 10)),
    "cifar100": (60_000, 1 / 6, Form("image", (3, 32, 32), 100)),
    "tiny-imagenet": (110_000, 1 / 11, Form("image", (3, 64, 64), 200)),
    "ag-news": (127_600, 1 / 17, Form("text", (200,), 4, 98_635)),
}


def _cache_file() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "fedtailor" / "estimates.json"


def _kept() -> dict[str, float]:
    """Figures that were found earlier."""
    with suppress(OSError, ValueError):
        known = json.loads(_cache_file().read_text(encoding="utf-8"))
        if isinstance(known, dict):
            return {k: float(v) for k, v in known.items() if isinstance(v, int | float)}
    return {}


def _remembered(name: str, find: Callable[[], float]) -> float:
    """A figure that takes a while to find, kept for the next time."""
    if name in (known := _kept()):
        return known[name]
    value, path = find(), _cache_file()
    with suppress(OSError):  # no place to keep it: found again the next time
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(_kept() | {name: value}))
    return value


def _count(model: str, form: Form) -> float:
    from torch.utils.flop_counter import FlopCounterMode

    from fedtailor.models import build

    with torch.device("meta"):
        network = build(model, form).eval()
        kind = torch.long if form.kind == "text" else torch.float32
        examples = torch.zeros(COUNTED, *form.shape, dtype=kind)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        network(examples)
    return float(counter.get_total_flops()) / COUNTED


@cache
def forward_operations(model: str, form: Form) -> float:
    """Floating-point operations of a forward pass of one example."""
    shape = "x".join(map(str, form.shape))
    name = f"{__version__} forward {model} {shape} {form.classes}"
    return _remembered(name, lambda: _count(model, form))


def _measure(device: str) -> float:
    from fedtailor.api import run

    batch, steps, clients = 10, 4, 10
    walls: list[float] = []
    works: list[float] = []  # of the processor: others may be at it as well

    def note(line: dict[str, Any], _: int) -> None:
        walls.append(line["train_seconds"])
        works.append(time.process_time())

    try:
        run(
            "fedavg",
            watch=note,
            image_size=32,
            model="cnn",
            clients=clients,
            partition="iid",
            steps=steps,
            batch=batch,
            rounds=4,
            eval_every=4,
            compile="never",
            device=device,
        )
    except Interrupted:  # there is nothing that could go on later
        raise KeyboardInterrupt from None
    forward = forward_operations("cnn", Form("image", (1, 32, 32), 10))
    took = min(walls)
    if device == "cpu":  # the second and third round: neither preparing nor evaluating
        took = min(works[1] - works[0], works[2] - works[1]) / torch.get_num_threads()
    return TRAINING * forward * batch * steps * clients / max(took, 1e-6)


def real_device(device: str) -> str:
    """What `auto` stands for here."""
    return str(choose_device(device)) if device == "auto" else device


def _speed_name(device: str) -> str:
    what = torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu"
    return f"{__version__} speed {what} {torch.get_num_threads()} threads"


@cache
def speed(device: str = "auto") -> float:
    """Operations a second that this machine does in a small training run."""
    device = real_device(device)
    return _remembered(_speed_name(device), lambda: _measure(device))


def is_measured(device: str) -> bool:
    """Whether the speed is known already: to measure it would use the device."""
    return _speed_name(real_device(device)) in _kept()


def _form(config: Config) -> tuple[int, float, Form] | None:
    if config.data not in SIZES:
        return None
    rows, official, form = SIZES[config.data]
    if config.image_size and form.kind == "image":
        side = config.image_size
        form = form._replace(shape=(form.shape[0], side, side))
    return rows, official, form


def _dealt(config: Config, rows: int, clients: int) -> int:
    """The rows that clients have: not all of them, where the partition limits a client's."""
    limit = None if config.partition == "auto" else parse_partition(config.partition).limit
    return rows if limit is None else min(rows, limit * clients)


def operations(config: Config) -> float | None:
    """Of a whole run, by its settings; None where that cannot be told."""
    found = _form(config)
    if found is None:
        return None
    rows, official, form = found
    model = DEFAULT_MODELS[form.kind] if config.model == "auto" else config.model
    try:
        forward = forward_operations(model, form)
    except Exception:  # a network of somebody's own may do anything: an estimate stops no run
        return None
    clients = config.clients or DEFAULT_CLIENTS
    rows = _dealt(config, rows, clients)
    tested = rows * (official if config.official_test else config.test)
    validated = (rows - tested) * config.val
    each = max(1, round((rows - tested - validated) / clients))
    steps = config.recipe().count(each)
    size = min(config.batch, each) if config.batch else each
    trained = config.rounds * config.participation * clients * steps * size * TRAINING
    # before and after training, on test and validation rows
    evaluated = (
        config.rounds / config.eval_every * (tested + validated) * (1 + config.participation)
    )
    own = effort(config)
    return forward * (trained * own.training + evaluated * own.testing)


def seconds(configs: Iterable[Config], device: str = "auto") -> float | None:
    """Estimated time of some runs, one after another; None where it cannot be told."""
    found = [operations(config) for config in configs]
    known = [f for f in found if f is not None]
    return sum(known) / speed(device) if known and len(known) == len(found) else None


def in_words(duration: float | None) -> str:
    """A time for people: two digits, since it is an estimate."""
    if duration is None:
        return "?"
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if duration >= size:
            count = duration / size
            return (
                f"~{float(f'{count:.2g}'):,.0f} {unit}" if count >= 10 else f"~{count:.1f} {unit}"
            )
    return f"~{max(1, round(duration))} s"
