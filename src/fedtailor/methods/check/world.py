"""The small world that methods are checked in: tasks, clients, and runs of a method on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedtailor.core import rng, tree
from fedtailor.core.errors import BadInput
from fedtailor.core.form import Form, TaskKind
from fedtailor.core.method import Method
from fedtailor.core.rng import Turn
from fedtailor.core.task import TASKS, Task, classification
from fedtailor.core.training import Recipe
from fedtailor.core.tree import Tree
from fedtailor.core.turn import ClientTurn
from fedtailor.engine import ClientData, ClientStates, Simulation, draw_cohort
from fedtailor.engine.loops.runner import LoopMode
from fedtailor.methods import METHODS
from fedtailor.methods.check.failures import listening, with_cause
from fedtailor.methods.describe import Factory

CLIENTS, FEATURES, CLASSES, ROUNDS = 8, 6, 3, 3
SIZES = (5, 19, 9, 14, 24, 11, 16, 8)
TOLERANCE = 1e-9


def _dense() -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, CLASSES)
    )


def _normed() -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 12),
        nn.BatchNorm1d(12),
        nn.Dropout(0.2),
        nn.ReLU(),
        nn.Linear(12, CLASSES),
    )


def _one_number() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 12), nn.Tanh(), nn.Linear(12, 1))


NETWORKS: dict[str, Callable[[], nn.Module]] = {"dense": _dense, "batch-norm": _normed}
# networks of one number are called by their task
TASK_OF: dict[str, TaskKind] = {"regression": "regression", "survival": "survival"}


def toy_task(network: str = "dense") -> Task:
    """A task of the toy federation: one of `NETWORKS` with classes, `regression`, `survival`."""
    if network in TASK_OF:
        kind = TASK_OF[network]
        return TASKS[kind](_one_number, form=Form("table", (FEATURES,), 0, task=kind))
    return classification(NETWORKS[network], form=Form("table", (FEATURES,), CLASSES))


def toy_federation(task: TaskKind = "classification", *, other_test: bool = False) -> ClientData:
    """Eight clients of unequal size, each with its own linear rule."""
    draw = np.random.Generator(np.random.Philox(key=7))
    total = 2 * sum(SIZES)
    x = draw.standard_normal((total, FEATURES))
    shared = draw.standard_normal((FEATURES, CLASSES))
    ends = np.cumsum([2 * s for s in SIZES])
    rows = np.split(np.arange(total), ends[:-1])
    told = np.zeros((total, CLASSES))
    for own in rows:
        told[own] = x[own] @ (shared + draw.standard_normal((FEATURES, CLASSES)))
    y = told.argmax(-1)
    if task == "regression":
        y = told[:, 0] / told[:, 0].std()
    elif task == "survival":  # who is at risk dies early, unless somebody stopped looking
        y = np.stack([np.exp(-told[:, 0] / 3), told[:, 1] > 0], axis=1).astype(np.float64)
    cut = [(r[:s], r[s : s + s // 3], r[s + s // 3 :]) for r, s in zip(rows, SIZES, strict=True)]
    train, val, test = (list(part) for part in zip(*cut, strict=True))
    stored = torch.from_numpy(x), torch.from_numpy(y)
    if other_test:
        stored = with_others(*stored, torch.from_numpy(np.concatenate(test)))
    return ClientData.of(*stored, train, val, test)


def with_others(x: Tensor, y: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Examples and labels in which some rows are others, so that sums over them are others, too.

    Example:
      >>> with_others(torch.zeros(2, 1), torch.tensor([0, 2]), torch.tensor([1]))
      (tensor([[0.],
              [1.]]), tensor([0, 0]))
    """
    x, y = x.clone(), y.clone()
    x[rows] = 1 - x[rows]
    if not y.is_floating_point():
        y[rows] = (y[rows] + 1) % CLASSES
    elif y.ndim == 1:
        y[rows] = 1 - y[rows]
    else:  # later, and who had the event does not have it
        y[rows] = torch.stack([y[rows, 0] + 1, 1 - y[rows, 1]], 1)
    return x, y


class CheckFailed(AssertionError):
    """A check that does not hold."""


class Trial:
    """A method's factory with what the checks need around it."""

    def __init__(
        self, factory: Factory, options: dict[str, Any], network: str, engine: str = "vectorised"
    ) -> None:
        self.factory, self.options, self.network = factory, options, network
        self.engine, self.heard = engine, list[str]()
        self.task = toy_task(network)
        self.width = 1 if network in TASK_OF else CLASSES
        self.recipe = Recipe(epochs=2, batch=8, lr=0.1)
        self.client_data = toy_federation(self.task.kind)
        self.method = self.build(factory, options)

    def build(self, factory: Factory, options: dict[str, Any]) -> Method:
        made = factory(self.task, recipe=self.recipe, **options)
        if not isinstance(made, Method):
            raise BadInput(f"the factory returns {type(made).__name__}: let it return a Method")
        return made

    def play(
        self,
        *,
        method: Method | None = None,
        engine: str = "",
        chunk: int = 0,
        rounds: int | None = None,
        until: int | None = None,
        backwards: bool = False,
        loop_mode: LoopMode = "plain",
        client_data: ClientData | None = None,
    ) -> Simulation:
        rounds = ROUNDS if rounds is None else rounds
        with listening(self.heard):
            sim = Simulation(
                method or self.method,
                client_data or self.client_data,
                self.task,
                rounds=max(rounds, 1),
                engine=engine or self.engine,
                chunk=chunk,
                loop_mode=loop_mode,
            )
            self.go_on(sim, rounds if until is None else until, backwards=backwards)
        return sim

    def go_on(self, sim: Simulation, until: int | None = None, *, backwards: bool = False) -> None:
        """Plays a run on, to its end if not `until` an earlier round."""
        for r in range(sim.round, sim.rounds if until is None else until):
            cohort = draw_cohort(0, r, torch.arange(CLIENTS), 0.6)
            sim.step(cohort.flip(0) if backwards else cohort)

    def at(self, sim: Simulation, carried: Callable[[Tree], Tree]) -> Simulation:
        """Another run at the point where one is, with states as they are when `carried` there."""
        again = self.play(until=0)
        again.server, again.round = carried(sim.server), sim.round
        met = [ClientStates(ids, carried(rows)) for ids, rows in sim.client_states()]
        again.clients.restore_states(met)
        return again

    def demand_speed(self) -> None:
        """Nothing had to be done in a slower way so far."""
        if self.heard:
            demand(False, with_cause(self.heard[0], self.heard[0]))

    @cached_property
    def played(self) -> Simulation:
        """The run that several checks look at; none of them plays it on."""
        return self.play()

    @cached_property
    def begun(self) -> Simulation:
        """The same after its first round; nobody plays it on, either."""
        return self.play(until=1)

    def yardstick(self, name: str) -> Tree:
        """Everyone's model after the same rounds of another method."""
        return _yardstick(name, self.network, ROUNDS, SIZES, self.engine)

    def one_client(self) -> tuple[Tree, ClientTurn]:
        """The server, and one client's turn in a round that is not the first; all are copies."""
        return self._turn_in(self.played)

    def first_turn(self) -> ClientTurn:
        """One client's turn in the first round."""
        return self._turn_in(self.play(rounds=0))[1]

    def _turn_in(self, sim: Simulation) -> tuple[Tree, ClientTurn]:
        server, initial = copy_of(sim.server), copy_of(sim.initial)
        turn = Turn(rng.key(3), torch.tensor(ROUNDS), torch.tensor(ROUNDS + 1)).of(torch.tensor(2))
        message = self.method.send(server, torch.tensor(2), turn)
        data = self.client_data.data(torch.tensor([2]))
        one = data._replace(
            rows=data.rows[0], n=data.n[0], val_rows=data.val_rows[0], val_n=data.val_n[0]
        )
        own = ClientTurn(self.method, initial, message, one, turn)
        return server, own._replace(kept=own.state())


@cache
def _yardstick(name: str, network: str, rounds: int, sizes: tuple[int, ...], engine: str) -> Tree:
    trial = Trial(METHODS[name], {}, network, engine)
    return everyones_models(trial.play(rounds=rounds))


def everyones_models(sim: Simulation) -> Tree:
    """Everyone's model, by id."""
    models = dict(sim.models())
    return {str(k): models[k] for k in sorted(models)}


def came_to(sim: Simulation) -> Tree:
    """All that a run has come to."""
    return {"server": sim.server, "clients": sim.states.rows, "models": everyones_models(sim)}


def apart(a: Tree, b: Tree) -> str:
    """The leaf that differs most, by how much, and its shape; empty if none does by much."""
    one, two = tree.flatten(a), tree.flatten(b)
    if one.keys() != two.keys():
        return f"only one of them has {', '.join(sorted(one.keys() ^ two.keys())[:3])}"
    shapes = [k for k in one if one[k].shape != two[k].shape]
    if shapes:
        return f"'{shapes[0]}' is {_shape(one[shapes[0]])} and {_shape(two[shapes[0]])}"
    far = {k: float((one[k].double() - two[k].double()).abs().max()) for k in one if one[k].numel()}
    worst = max(far, key=lambda k: (math.isnan(far[k]), far[k]), default="")
    if not worst or far[worst] <= TOLERANCE:
        return ""
    return f"'{worst}' ({_shape(one[worst])}) by {far[worst]:.1e}"


def _shape(leaf: Tensor) -> str:
    return " x ".join(map(str, leaf.shape)) or "one number"


def same(a: Tree, b: Tree) -> bool:
    """Whether two trees are the same to the last bit."""
    one, two = tree.flatten(a), tree.flatten(b)
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


def copy_of(values: Tree) -> Tree:
    """A tree of its own."""
    return tree.map(torch.clone, values)


def demand(holds: bool, otherwise: str) -> None:
    """A check's verdict: what is wrong, unless it holds."""
    if not holds:
        raise CheckFailed(otherwise)


@contextmanager
def in_float64() -> Iterator[None]:
    """Within, new tensors are float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
