"""The conformance suite: what every method must hold, ours and yours.

fedtailor check fedala
fedtailor check my_package.my_module:my_method
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from fedtailor.core import rng, tree, wire
from fedtailor.core.form import Form, TaskKind
from fedtailor.core.method import Method, Upload
from fedtailor.core.rng import Turn
from fedtailor.core.task import TASKS, Task, classification
from fedtailor.core.training import Recipe
from fedtailor.core.tree import Tree
from fedtailor.core.turn import ClientTurn
from fedtailor.engine import ClientData, Simulation, draw_cohort
from fedtailor.engine.loops.runner import LoopMode
from fedtailor.methods import METHODS
from fedtailor.methods.describe import Factory, page

CLIENTS, FEATURES, CLASSES, ROUNDS = 8, 6, 3, 4
SIZES = (7, 33, 12, 25, 40, 18, 29, 21)
TOLERANCE = 1e-9


class CheckResult(NamedTuple):
    """What one check found.

    Attributes:
      check: what was looked at.
      passed: whether it holds.
      detail: what went wrong, if it does not.
    """

    check: str
    passed: bool
    detail: str


class CheckFailed(AssertionError):
    """A check that does not hold."""


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


def toy_federation(task: TaskKind = "classification", *, relabel_test: bool = False) -> ClientData:
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
    if relabel_test:
        unseen = np.concatenate(test)
        y[unseen] = (y[unseen] + 1) % CLASSES if task == "classification" else y[unseen[::-1]]
    return ClientData.of(torch.from_numpy(x), torch.from_numpy(y), train, val, test)


class Trial:
    """A method's factory with what the checks need around it."""

    def __init__(self, factory: Factory, options: dict[str, Any], network: str) -> None:
        self.factory, self.options = factory, options
        self.task = toy_task(network)
        self.width = 1 if network in TASK_OF else CLASSES
        self.recipe = Recipe(epochs=2, batch=8, lr=0.1)
        self.client_data = toy_federation(self.task.kind)
        self.method = self.build(factory, options)

    def build(self, factory: Factory, options: dict[str, Any]) -> Method:
        return factory(self.task, recipe=self.recipe, **options)

    def play(
        self,
        *,
        method: Method | None = None,
        engine: str = "vectorised",
        chunk: int = 0,
        rounds: int = ROUNDS,
        backwards: bool = False,
        loop_mode: LoopMode = "plain",
        client_data: ClientData | None = None,
    ) -> Simulation:
        fed = client_data or self.client_data
        sim = Simulation(
            method or self.method,
            fed,
            self.task,
            rounds=max(rounds, 1),
            engine=engine,
            chunk=chunk,
            loop_mode=loop_mode,
        )
        for r in range(rounds):
            cohort = draw_cohort(0, r, torch.arange(CLIENTS), 0.6)
            sim.step(cohort.flip(0) if backwards else cohort)
        return sim

    @cached_property
    def played(self) -> Simulation:
        """The run that several checks look at; none of them plays it on."""
        return self.play()

    def one_client(self) -> tuple[Tree, ClientTurn]:
        """The server, and one client's turn in a round that is not the first; all are copies."""
        server, initial = _copy(self.played.server), _copy(self.played.initial)
        turn = Turn(rng.key(3), torch.tensor(ROUNDS), torch.tensor(ROUNDS + 1)).of(torch.tensor(2))
        message = self.method.send(server, torch.tensor(2), turn)
        data = self.client_data.data(torch.tensor([2]))
        one = data._replace(
            rows=data.rows[0], n=data.n[0], val_rows=data.val_rows[0], val_n=data.val_n[0]
        )
        own = ClientTurn(self.method, initial, message, one, turn)
        return server, own._replace(kept=own.state())


def _trace(sim: Simulation) -> Tree:
    models = dict(sim.models())
    return {
        "server": sim.server,
        "clients": sim.states.rows,
        "models": {str(k): models[k] for k in sorted(models)},
    }


def _distance(a: Tree, b: Tree) -> float:
    one, two = tree.flatten(a), tree.flatten(b)
    if one.keys() != two.keys():
        return float("inf")
    return max(
        [float((one[k].double() - two[k].double()).abs().max()) for k in one if one[k].numel()],
        default=0.0,
    )


def _same(a: Tree, b: Tree) -> bool:
    one, two = tree.flatten(a), tree.flatten(b)
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


def _copy(values: Tree) -> Tree:
    return tree.map(torch.clone, values)


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise CheckFailed(otherwise)


# --- the checks ---


def check_page(trial: Trial) -> None:
    """it explains itself: a title, a paper, a meaning and a default for every option"""
    found = page(trial.factory)
    _demand(bool(found.title), "the docstring has no first line")
    _demand(bool(found.reference), "the docstring has no 'Reference:' section")
    silent = [option.name for option in found.options if not option.meaning]
    _demand(not silent, f"no meaning in 'Args:' for {', '.join(silent)}")


def check_pure(trial: Trial) -> None:
    """its functions change none of their arguments, and the same call gives the same answer"""
    server, own = trial.one_client()
    before = _copy(server), _copy(own.message), _copy(own.state())
    (first, _), (second, _) = own.play(), own.play()
    own.personal()
    everyone = tree.map(lambda leaf: leaf.new_ones(()), first.upload.mean)
    upload = Upload(first.upload.mean, everyone, tree.stack([first.upload.each]))
    trial.method.receive(server, torch.tensor([2]), upload, own.turn)
    for name, was, now in zip(
        ("server", "message", "state"), before, (server, own.message, own.state()), strict=True
    ):
        _demand(_same(was, now), f"the {name} was changed by a call")
    for name, one, two in zip(("mean", "weight", "each"), first.upload, second.upload, strict=True):
        same = _same(one, two) if isinstance(one, dict) else bool(one == two)
        _demand(same, f"two equal calls of client gave different uploads ({name})")
    _demand(_same(first.state, second.state), "two equal calls of client gave different states")
    _demand(_same(first.model, second.model), "two equal calls of client gave different models")


def check_state(trial: Trial) -> None:
    """a client's state keeps its names, shapes and types"""
    _, own = trial.one_client()
    kinds = [
        {k: (tuple(v.shape), v.dtype) for k, v in tree.flatten(state).items()}
        for state in (own.state(), own.play()[0].state)
    ]
    _demand(kinds[0] == kinds[1], f"before {kinds[0]}, after {kinds[1]}")


def check_wire(trial: Trial) -> None:
    """messages and uploads survive the wire, and their bytes are counted as sent"""
    _, own = trial.one_client()
    upload = own.play()[0].upload
    for name, sent in (("message", own.message), ("mean", upload.mean), ("each", upload.each)):
        back = wire.unpack(wire.pack(sent), sent)
        _demand(bool(wire.size(back) == wire.size(sent)), f"{name}: another size after the wire")
        _demand(_same(wire.as_sent(sent), wire.as_sent(back)), f"{name}: changed by the wire")


def check_engines(trial: Trial) -> None:
    """engines, chunks and the order of clients make no difference (float64, 1e-9)"""
    reference = _trace(trial.play(engine="sequential"))
    for name, other in (
        ("all clients at once", trial.played),
        ("chunks of 3", trial.play(chunk=3)),
        ("the cohort in another order", trial.play(backwards=True)),
        ("steps traced and replayed", trial.play(loop_mode="traced")),
    ):
        apart = _distance(reference, _trace(other))
        if other is not trial.played:
            other.close()
        _demand(apart <= TOLERANCE, f"{name}: {apart:.1e} apart from one after another")


def check_absent(trial: Trial) -> None:
    """clients that are absent, and evaluation, change nothing"""
    sim = trial.play()
    before = _copy(sim.states.rows)
    sim.outputs()
    _demand(_same(before, sim.states.rows), "evaluation changed a client's state")
    cohort = torch.tensor([0, 3])
    sim.step(cohort)
    others = torch.tensor([i for i in range(CLIENTS) if i not in (0, 3)])
    untouched = _same(tree.index(before, others), tree.index(sim.states.rows, others))
    _demand(untouched, "a round changed the state of a client that did not take part")


def check_personal(trial: Trial) -> None:
    """everyone has a model that predicts, whoever took part, and in evaluation mode"""
    sim = trial.play(rounds=1)
    for cid, model in sim.models():
        x = trial.client_data.x[:5]
        logits = trial.method.predict(model, x)
        shape = tuple(logits.shape)
        _demand(shape == (5, trial.width), f"client {cid}: outputs of shape {shape}")
        _demand(bool(logits.isfinite().all()), f"client {cid}: logits that are not finite")
        alone = torch.cat([trial.method.predict(model, one[None]) for one in x])
        _demand(
            bool(torch.allclose(alone, logits, atol=1e-9)),
            f"client {cid}: a prediction depends on what else is in the batch (training mode?)",
        )


def check_no_leak(trial: Trial) -> None:
    """test rows have no influence on anything that is learnt"""
    client_data = toy_federation(trial.task.kind, relabel_test=True)
    _demand(
        _same(_trace(trial.played), _trace(trial.play(client_data=client_data))),
        "other test labels gave another result",
    )


def check_learns(trial: Trial) -> None:
    """the loss on training rows falls"""
    before = trial.play(rounds=0).score(part="train").test.loss.sum()
    after = trial.play(rounds=8).score(part="train").test.loss.sum()
    _demand(bool(after < before), f"from {float(before):.3f} to {float(after):.3f}")


def check_not_disabled(trial: Trial) -> None:
    """with its defaults it is neither FedAvg nor training alone (unless it is one of them)"""
    mine = dict(trial.played.models())
    for name in ("fedavg", "local"):
        if trial.factory is METHODS[name]:
            continue
        theirs = dict(trial.play(method=trial.build(METHODS[name], {})).models())
        equal = all(isinstance(mine[i], dict) and _same(mine[i], theirs[i]) for i in mine)
        _demand(not equal, f"every client ends with exactly the model of {name}")


CHECKS: tuple[Callable[[Trial], None], ...] = (
    check_page,
    check_pure,
    check_state,
    check_wire,
    check_engines,
    check_absent,
    check_personal,
    check_no_leak,
    check_learns,
    check_not_disabled,
)


# what the kind of task may change; the others are held on classifications
CHECKS_OF_TASKS = (check_state, check_engines, check_personal, check_no_leak, check_learns)


def tasks_of(factory: Factory, **options: Any) -> dict[TaskKind, str]:
    """Each kind of task with the reason why a method does not have it; empty where it does.

    Example:
      >>> from fedtailor.methods import METHODS
      >>> tasks_of(METHODS["fedavg"])
      {'classification': '', 'regression': '', 'survival': ''}
    """
    made = {k: factory(toy_task(k if k in TASK_OF else "dense"), **options) for k in TASKS}
    return {kind: method.refuses.get(kind, "") for kind, method in made.items()}


@contextmanager
def _in_float64() -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def check_method(factory: Factory, **options: Any) -> list[CheckResult]:
    """Runs every check on every network, in float64.

    Args:
      factory: makes the method from a task, e.g. `fedtailor.METHODS["fedala"]`.
      options: hyper-parameters, if not the defaults.

    Example:
      >>> from fedtailor.methods import METHODS
      >>> all(result.passed for result in check_method(METHODS["local"]))
      True
    """
    results = []
    with _in_float64():
        for network in (*NETWORKS, *TASK_OF):
            try:
                trial = Trial(factory, options, network)
            except Exception as error:  # a stranger's factory may raise anything
                reason = f"{type(error).__name__}: {error}"
                results.append(CheckResult(f"it can be built [{network}]", False, reason))
                continue
            refused = trial.method.refuses.get(trial.task.kind)
            if refused:
                results.append(CheckResult(f"it refuses {network}: {refused}", True, ""))
                continue
            for check in CHECKS_OF_TASKS if network in TASK_OF else CHECKS:
                name = f"{check.__doc__} [{network}]"
                try:
                    check(trial)
                except CheckFailed as error:
                    results.append(CheckResult(name, False, str(error)))
                except Exception as error:  # a stranger's method may raise anything
                    results.append(CheckResult(name, False, f"{type(error).__name__}: {error}"))
                else:
                    results.append(CheckResult(name, True, ""))
    return results
