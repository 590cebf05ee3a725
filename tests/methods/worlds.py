"""Small worlds: tasks whose gradients are plain numbers, and ragged clients for small nets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedtailor.core import rng, tree
from fedtailor.core.data import Data
from fedtailor.core.form import Form
from fedtailor.core.method import Download, Method, Outcome, Upload, beginning
from fedtailor.core.rng import Turn
from fedtailor.core.task import Batch, Task, classification
from fedtailor.core.training import Recipe
from fedtailor.core.tree import Params, Tree
from fedtailor.engine import ClientData, RoundReport, Simulation
from fedtailor.methods import METHODS
from fedtailor.methods.mixture.fedala import Ala, with_ala
from fedtailor.methods.parts.start import Start

ENGINES = ("sequential", "vectorised")
HALF = Recipe(batch=0, lr=0.5)  # one step a round on all rows: halves the way to their mean

# One method of each kind, for what is costly to ask of all of them.
NAMES = ("local", "fedavg", "fedprox", "ditto", "fedrep", "fedala", "fedfomo", "pfedhn")

# Shorter than by default, where only equality is asked for.
QUICK: dict[str, dict[str, Any]] = {
    "fedrep": {"head_epochs": 2},
    "fedgen": {"hidden": 8, "noise": 4, "generator_steps": 3},
    "fedala": {"max_ala_epochs": 3},
    "pfedhn": {"hidden": 8, "depth": 1},
    "fedavg-c": {"F": 1},
    "fedprox-c": {"F": 1},
    "fedbabu": {"F": 1},
    "pfedme": {"R": 2, "K": 2},
    "plgu-grep": {"head_epochs": 1},
    "plgu-ghn": {"hidden": 8, "depth": 1},
    "fedtgp": {"server_epochs": 3},
    "pfedla": {"hidden": 8, "embed": 4, "depth": 1},
    "heurpfedla": {"hidden": 8, "embed": 4, "depth": 1},
}


# ---------------------------------------------------------------- tasks with numbers for networks


def numbers(
    start: dict[str, float],
    error: Callable[[Params, Tensor], Tensor],
    *,
    factor: float = 1.0,
) -> Task:
    """A task whose parameters are single numbers, one block each.

    Its loss is `factor` times the mean of `error(params, x)` over the rows x, both when training
    and, as cross-entropy of the label 0, when evaluating: with the logits (0, log(e^L - 1)) that
    cross-entropy is log(1 + e^L - 1) = L.
    """

    def init(key: Tensor) -> Params:
        return {name: torch.tensor(value) for name, value in start.items()}

    def loss(params: Params, batch: Batch) -> tuple[Tensor, Params]:
        each = factor * error(params, batch.x)
        return (each * batch.weight).sum() / batch.weight.sum().clamp(min=1), {}

    def predict(params: Params, x: Tensor) -> Tensor:
        each = factor * error(params, x)
        least = torch.finfo(each.dtype).tiny  # no loss at all is a finite logit, too
        return torch.stack([torch.zeros_like(each), torch.expm1(each).clamp(min=least).log()], -1)

    return Task(init, loss, predict, tuple((name,) for name in start))


def one_number(factor: float = 1.0) -> Task:
    """w begins at 0 and learns with (w - x)²/2: its gradient is w minus the rows' mean."""
    return numbers({"w": 0.0}, lambda p, x: (p["w"] - x) ** 2 / 2, factor=factor)


def two_numbers() -> Task:
    """Body a and head b begin at 0; the loss (a - x)²/2 + (b - x)²/2 keeps them apart."""
    error = lambda p, x: (p["a"] - x) ** 2 / 2 + (p["b"] - x) ** 2 / 2
    return numbers({"a": 0.0, "b": 0.0}, error)


def product() -> Task:
    """Body a and head b begin at 1; the loss (a b - x)²/2 ties them together."""
    return numbers({"a": 1.0, "b": 1.0}, lambda p, x: (p["a"] * p["b"] - x) ** 2 / 2)


def rows_of(
    train: Sequence[Sequence[float]],
    val: Sequence[Sequence[float]] | None = None,
    test: Sequence[Sequence[float]] | None = None,
) -> ClientData:
    """A federation of numbers: one list per client and part."""
    val = val or train
    test = test or val
    flat: list[float] = []

    def part(lists: Sequence[Sequence[float]]) -> list[np.ndarray]:
        found = []
        for one in lists:
            found.append(np.arange(len(flat), len(flat) + len(one)))
            flat.extend(one)
        return found

    parts = [part(lists) for lists in (train, val, test)]
    x = torch.tensor(flat)
    return ClientData.of(x, torch.zeros(len(flat), dtype=torch.int64), *parts)


def two_clients() -> ClientData:
    """One row, 2, against three rows with the mean 8. Validation rows are 3 and 6."""
    return rows_of([[2.0], [7.0, 8.0, 9.0]], [[3.0], [6.0]])


# ------------------------------------------------------------------ linear body and head, by hand


class TwoLayers(nn.Module):
    """Features z = A x, outputs W z + b, from the numbers given."""

    def __init__(self, body: list[list[float]], head: list[list[float]]) -> None:
        super().__init__()
        self.body = nn.Linear(len(body[0]), len(body), bias=False)
        self.head = nn.Linear(len(head[0]), len(head))
        with torch.no_grad():
            self.body.weight.copy_(torch.tensor(body))
            self.head.weight.copy_(torch.tensor(head))
            self.head.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


def two_layers(body: list[list[float]], head: list[list[float]]) -> Task:
    """Classification with features z = A x and outputs W z + b; b begins at 0."""
    form = Form("table", (len(body[0]),), len(head))
    return classification(lambda: TwoLayers(body, head), form=form)


def labelled(train: Sequence[Sequence[tuple[Sequence[float], int]]]) -> ClientData:
    """Clients with these rows (x, y), for training, validation and tests alike."""
    ends = np.cumsum([0, *(len(rows) for rows in train)])
    own = [np.arange(low, high) for low, high in pairwise(ends)]
    x = torch.tensor([list(x) for rows in train for x, _ in rows])
    y = torch.tensor([y for rows in train for _, y in rows])
    return ClientData.of(x, y, own, own, own)


# ---------------------------------------------------------------------- small nets, ragged clients

SIZES = (7, 20, 13, 17, 9, 11)


def ragged(
    sizes: Sequence[int] = SIZES, *, image: bool = False, val: int = 4, seed: int = 0
) -> ClientData:
    """Clients with few and many rows, each of mostly two of three classes."""
    maker = np.random.default_rng(seed)
    shape = (1, 5, 5) if image else (4,)
    centres = maker.normal(size=(3, *shape))
    x, y, parts = [], [], [[], [], []]
    for client, size in enumerate(sizes):
        labels = maker.choice(3, size=size + val + 5, p=np.roll([0.6, 0.3, 0.1], client))
        begin = len(y)
        y.extend(labels)
        x.append(centres[labels] + 0.7 * maker.normal(size=(len(labels), *shape)))
        ends = begin + np.cumsum([0, size, val, 5])
        for part, low, high in zip(parts, ends[:-1], ends[1:], strict=True):
            part.append(np.arange(low, high))
    stored = torch.tensor(np.concatenate(x), dtype=torch.get_default_dtype())
    return ClientData.of(stored, torch.tensor(np.array(y)), *parts)


def mlp() -> nn.Module:
    """4-6-3: 51 parameters, 30 of them in the body."""
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def deeper_mlp() -> nn.Module:
    """4-9-6-3: its head is as wide as that of `mlp`."""
    return nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 6), nn.Tanh(), nn.Linear(6, 3))


def norm_net() -> nn.Module:
    """With BatchNorm and Dropout."""
    return nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 3)
    )


def conv_net() -> nn.Module:
    """For images of 5 x 5."""
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3, 3)
    )


NETS: dict[str, Callable[[], nn.Module]] = {"mlp": mlp, "norm": norm_net, "conv": conv_net}


def make(name: str, task: Task, recipe: Recipe = Recipe(), **options: Any) -> Method:
    """A method by its name."""
    return METHODS[name](task, recipe=recipe, **options)


def quick(name: str, task: Task, recipe: Recipe = Recipe()) -> Method:
    """A method with its defaults, but for what only takes time."""
    return make(name, task, recipe, **QUICK.get(name, {}))


class Probe:
    """What a wrapper does where training begins: it is put around a host that does not train."""

    def __init__(self, wrap: Callable[[Method], Method]) -> None:
        def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
            params = beginning(msg, msg["params"])
            return Outcome(state, Upload({"params": params}), params)

        nothing: Any = lambda *_: {}
        download = Download("params", client, lambda state, training: state.get("rest", {}))
        host = Method(nothing, nothing, nothing, client, nothing, nothing, nothing)
        self.method = wrap(host._replace(download=download))

    def start(self, received: Params, initial: Params) -> Tree:
        """What a new client remembers."""
        return self.method.start({"params": received}, initial, rng.key(0))

    def adapt(self, received: Params, memory: Tree, rest: Params, data: Data, turn: Turn) -> Start:
        """Where training begins, what is remembered then, and notes."""
        state = memory | ({"host": {"rest": rest}} if rest else {})
        out = self.method.client({"params": received}, state, data, turn)
        return Start(out.model, tree.drop(out.state, ["host"]), out.notes)


def ala_alone(task: Task, recipe: Recipe, **options: Any) -> Probe:
    """Adaptive local aggregation by itself."""
    return Probe(lambda host: with_ala(host, task, Ala(**options), recipe))


# --------------------------------------------------------------------------- playing and comparing


def simulate(method: Method, client_data: ClientData, task: Task, **options: Any) -> Simulation:
    """A simulation of ten rounds; options as the simulation's own."""
    return Simulation(method, client_data, task, **{"rounds": 10, **options})


def everyone(sim: Simulation) -> Tensor:
    """All ids."""
    return torch.arange(sim.client_data.clients)


def play(
    sim: Simulation, cohorts: int | Iterable[Sequence[int]] = 1, **options: Any
) -> list[RoundReport]:
    """Plays rounds, with everybody or with the cohorts given."""
    drawn = [everyone(sim)] * cohorts if isinstance(cohorts, int) else map(torch.tensor, cohorts)
    return [sim.step(ids, **options) for ids in drawn]


def models(sim: Simulation) -> Tree:
    """What each client would use now, by its id."""
    return {str(cid): params for cid, params in sorted(sim.models())}


def fine_tuned(sim: Simulation) -> Iterator[tuple[Tree, Tree]]:
    """Models of a client that has trained and of one held out, (before, after) fine-tuning."""
    play(sim, [[0, 1, 3]] * 2)
    before = models(sim)
    for cid, tuned in sim.models(Recipe(epochs=2, lr=0.1), ids=torch.tensor([0, 5])):
        yield before[str(cid)], tuned


def snapshot(sim: Simulation) -> Tree:
    """Copies of all that a simulation keeps."""
    kept = {"server": sim.server, "states": sim.states.rows, "met": sim.states.met}
    return tree.map(torch.clone, kept)


def outcome(sim: Simulation) -> Tree:
    """Copies of all that a simulation keeps, with the clients' models."""
    return snapshot(sim) | {"models": models(sim)}


def find(kept: Tree, name: str) -> Any:
    """What is called `name`, wherever in a tree it stands."""
    inner = [v for v in kept.values() if isinstance(v, dict)]
    found = [kept[name]] if name in kept else [find(v, name) for v in inner if _has(v, name)]
    assert len(found) == 1, f"{len(found)} entries called {name}"
    return found[0]


def _has(kept: Tree, name: str) -> bool:
    inner = [v for v in kept.values() if isinstance(v, dict)]
    return name in kept or any(_has(v, name) for v in inner)


def same(a: Tree, b: Tree) -> bool:
    """Whether two trees are the same to the last bit."""
    flat, other = tree.flatten(a), tree.flatten(b)
    return flat.keys() == other.keys() and all(torch.equal(flat[k], other[k]) for k in flat)


def gap(a: Tree, b: Tree) -> float:
    """The largest difference of two trees' numbers; NaN, which is near nothing, if there is one."""
    flat, other = tree.flatten(a), tree.flatten(b)
    assert {k: v.shape for k, v in flat.items()} == {k: v.shape for k, v in other.items()}
    apart = [(flat[k].double() - other[k].double()).abs().flatten() for k in flat]
    return float(torch.cat([*apart, torch.zeros(1)]).max())


def turn_of(round: int = 0, key: int = 0, rounds: int = 10) -> Turn:
    """A turn, for functions that are called without an engine."""
    return Turn(rng.key(key), torch.tensor(round), torch.tensor(rounds))


def task_of(net: str = "mlp") -> Task:
    """The classification task around one of `NETS`."""
    return classification(NETS[net])


def with_epochs(epochs: int, recipe: Recipe = Recipe()) -> Recipe:
    """The recipe with another number of epochs."""
    return replace(recipe, epochs=epochs)


def data_of(client_data: ClientData, client: int) -> Data:
    """One client's data, for functions that are called without an engine."""
    many = client_data.data(torch.tensor([client]))
    rows = (many.rows[0], many.n[0], many.val_rows[0], many.val_n[0])
    return Data(many.x, many.y, *rows, many.counts)


def classes_of(client_data: ClientData, client: int) -> int:
    """How many classes one client has rows of."""
    data = data_of(client_data, client)
    return len(data.y[data.rows[: int(data.n)]].unique())


def random_like(params: Params, seed: int, spread: float = 0.5) -> Params:
    """Other parameters of the same shapes."""
    maker = torch.Generator().manual_seed(seed)
    return {k: p + spread * torch.randn(p.shape, generator=maker) for k, p in params.items()}


def module_of(net: str, params: Params) -> nn.Module:
    """An ordinary module with these parameters: the yardstick from outside."""
    module = NETS[net]()
    left = module.load_state_dict(params, strict=False)
    assert all(name.endswith("num_batches_tracked") for name in left.missing_keys)
    assert not left.unexpected_keys
    return module


def near(*values: float) -> Any:
    """Numbers worked out by hand, up to rounding; several against a list, one against a number."""
    digits = 1e-10 if torch.get_default_dtype() == torch.float64 else 2e-6
    expected = list(values) if len(values) > 1 else values[0]
    return pytest.approx(expected, rel=digits, abs=digits)


def of_models(sim: Simulation, name: str) -> list[float]:
    """One entry of everybody's model."""
    return [float(model[name]) for model in models(sim).values()]
