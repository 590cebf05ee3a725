"""How much runs compute, counted as FedAvg by their settings: to hold small versions small."""

from __future__ import annotations

from functools import cache

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedtailor.core.form import Form
from fedtailor.models import build
from fedtailor.partition import parse_partition
from fedtailor.results.config import Config
from fedtailor.runs.data import DEFAULT_CLIENTS, DEFAULT_MODELS

COUNTED = 2  # examples: a normalisation without statistics of its own takes no single one
TRAINING = 3  # a step costs about three times its forward pass
# rows with the official test rows, the share of these, and the form
SIZES: dict[str, tuple[int, float, Form]] = {
    "digits": (1_797, 0.25, Form("image", (1, 8, 8), 10)),
    "mnist": (70_000, 1 / 7, Form("image", (1, 28, 28), 10)),
    "fashion-mnist": (70_000, 1 / 7, Form("image", (1, 28, 28), 10)),
    "emnist": (131_600, 1 / 7, Form("image", (1, 28, 28), 47)),
    "cifar10": (60_000, 1 / 6, Form("image", (3, 32, 32), 10)),
    "cifar100": (60_000, 1 / 6, Form("image", (3, 32, 32), 100)),
    "tiny-imagenet": (110_000, 1 / 11, Form("image", (3, 64, 64), 200)),
    "flamby-heart-disease": (740, 254 / 740, Form("table", (13,), 2)),
    "tcga-brca": (1_088, 222 / 1_088, Form("table", (39,), 0, task="survival")),
    "ag-news": (127_600, 1 / 17, Form("text", (200,), 4, 98_635)),
}


def form_of(data: str, side: int) -> Form:
    """The form of a data set, with pictures made that large if `side` is not 0."""
    form = SIZES[data][2]
    return (
        form._replace(shape=(form.shape[0], side, side)) if side and form.kind == "image" else form
    )


@cache
def forward_operations(model: str, form: Form) -> float:
    """Floating-point operations of a forward pass of one example."""
    with torch.device("meta"):
        network = build(model, form).eval()
        kind = torch.long if form.kind == "text" else torch.float32
        examples = torch.zeros(COUNTED, *form.shape, dtype=kind)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        network(examples)
    return float(counter.get_total_flops()) / COUNTED


def operations(config: Config) -> float:
    """Of a whole run, by its settings, if its method computed no more than FedAvg."""
    rows, official, _ = SIZES[config.data]
    form = form_of(config.data, config.image_size)
    model = DEFAULT_MODELS[form.kind] if config.model == "auto" else config.model
    clients = config.clients or DEFAULT_CLIENTS
    limit = None if config.partition == "auto" else parse_partition(config.partition).limit
    rows = rows if limit is None else min(rows, limit * clients)
    tested = rows * (official if config.official_test else config.test)
    validated = (rows - tested) * config.val
    each = max(1, round((rows - tested - validated) / clients))
    size = min(config.batch, each) if config.batch else each
    steps = config.recipe().count(each)
    trained = config.rounds * config.participation * clients * steps * size * TRAINING
    # before and after training, on test and validation rows
    tests = config.rounds / config.eval_every * (1 + config.participation)
    return forward_operations(model, form) * (trained + tests * (tested + validated))
