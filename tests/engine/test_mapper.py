"""One client after another, and all at once."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from fedtailor.core import objectives, rng, scoring, tree
from fedtailor.core import training as train
from fedtailor.core.objectives import exact_gradient
from fedtailor.core.rng import Turn
from fedtailor.core.scoring import Score
from fedtailor.core.task import Batch, classification
from fedtailor.core.training import Recipe
from fedtailor.engine import ClientData
from fedtailor.engine.mapper import MAPPERS, ClientContext, concatenate, sequential, vectorised

pytestmark = pytest.mark.usefixtures("float64")


def world(train: list[int], val: list[int]) -> ClientData:
    deck = iter(range(200))
    deal = lambda sizes: [np.array([next(deck) for _ in range(k)], dtype=int) for k in sizes]
    x = rng.normal(rng.key(0), 200, 4, dtype=torch.float64)
    y = rng.bits(rng.key(1), 200) % 3
    return ClientData.of(x, y, deal(train), deal(val), deal([2] * len(train)))


def contexts(client_data: ClientData, server: Any, states: Any) -> ClientContext:
    ids = torch.arange(client_data.clients)
    turn = Turn(rng.key(0, rng.TURN, 1), torch.tensor(1), torch.tensor(9))
    fresh = ids % 2 == 0
    part = client_data.part(ids, "test")
    return ClientContext(server, ids, states, client_data.data(ids), part, turn.of(ids), fresh)


class Result(NamedTuple):
    state: dict[str, Any]
    total: Tensor
    seen: Tensor
    best: Tensor


def compare(a: Any, b: Any) -> None:
    if isinstance(a, Tensor):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
        return
    assert type(a) is type(b) and len(a) == len(b)
    keys = a if isinstance(a, dict) else range(len(a))
    for key in keys:
        compare(a[key], b[key])


def toy(client: ClientContext) -> Result:
    """Something of everything."""
    server, cid, state, data, test, turn, fresh, *_ = client
    total = sum(
        (b.x * b.weight[:, None]).sum() for b in data.shuffle(turn.key).batches(2, turn.key)
    )
    seen = sum((b.y * b.weight).sum() for b in test.batches(2, turn.key))
    best = sum((b.x * b.weight[:, None]).sum() for b in data.val.batches(3, turn.key))
    mixed = tree.where(fresh, tree.map(torch.zeros_like, state), state)
    moved = {"deep": {"w": mixed["w"] + server["w"] * cid + rng.normal(turn.key, 2)}, "none": {}}
    return Result(moved, total, seen + turn.round, best * data.n)  # type: ignore[arg-type]


def test_both_mappers_give_the_same() -> None:
    client_data = world([5, 3, 1, 4], [3, 1, 2, 2])
    states = {"w": rng.normal(rng.key(4), 4, 2)}
    given = contexts(client_data, {"w": torch.ones(2)}, states)
    compare(sequential(toy)(given), vectorised(toy)(given))
    assert set(MAPPERS) == {"sequential", "vectorised"}


def test_results_keep_their_form_in_both() -> None:
    """Parts that are empty, the same for all, or within each other come back as they were."""

    def fn(client: ClientContext) -> Any:
        shared = {"w": client.server["w"], "none": {}}
        return Result(shared, client.cid, torch.tensor(3), (client.state["w"], ()))  # type: ignore[arg-type]

    states = {"w": rng.normal(rng.key(4), 3, 2)}
    given = contexts(world([5, 3, 1], [1, 1, 1]), {"w": torch.ones(2)}, states)
    found = vectorised(fn)(given)
    assert found.best[1] == () and found.state["none"] == {} and found.seen.tolist() == [3, 3, 3]
    compare(sequential(fn)(given), found)
    assert vectorised(lambda client: ({}, ()))(given) == ({}, ())


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(epochs=2, batch=2, momentum=0.9, weight_decay=0.1),
        Recipe(epochs=2, batch=2, last="drop"),
        Recipe(epochs=2, batch=2, last="wrap"),
        Recipe(steps=3, batch=2),
        Recipe(batch=0, optimizer="adam"),
    ],
    ids=["pad", "drop", "wrap", "steps", "all rows"],
)
def test_training_is_the_same_in_both(recipe: Recipe) -> None:
    task = classification(lambda: nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.3), nn.Linear(5, 3)))
    client_data = world([5, 3, 1, 4], [1, 1, 1, 1])

    def fit(client: ClientContext) -> Any:
        return train.fit(task, client.server, client.data, client.turn, recipe)

    given = contexts(client_data, task.init(rng.key(0)), {})
    compare(sequential(fit)(given), vectorised(fit)(given))


def test_a_client_without_rows_is_the_same_in_both() -> None:
    task = classification(lambda: nn.Sequential(nn.Linear(4, 3)))
    client_data = world([3, 0], [1, 1])

    def fit(client: ClientContext) -> Any:
        return train.fit(
            task, client.server, client.data, client.turn, Recipe(batch=2, weight_decay=0.5)
        )

    given = contexts(client_data, task.init(rng.key(0)), {})
    compare(sequential(fit)(given), vectorised(fit)(given))


def test_a_client_without_validation_rows_can_be_scored_in_both() -> None:
    task = classification(lambda: nn.Sequential(nn.Linear(4, 3)))
    client_data = world([3, 2], [1, 0])

    def score(client: ClientContext) -> Score:
        return scoring.score(task, client.server, client.data.val)

    given = contexts(client_data, task.init(rng.key(0)), {})
    compare(vectorised(score)(given), sequential(score)(given))


@pytest.mark.parametrize("last", ["wrap", "drop"])
def test_all_rows_at_once_are_the_same_in_both(last: str) -> None:
    task = classification(lambda: nn.Sequential(nn.Linear(4, 3)))
    client_data = world([5, 3], [1, 1])

    def fit(client: ClientContext) -> Any:
        return train.fit(task, client.server, client.data, client.turn, Recipe(batch=0, last=last))  # type: ignore[arg-type]

    given = contexts(client_data, task.init(rng.key(0)), {})
    compare(sequential(fit)(given), vectorised(fit)(given))


def test_join_puts_chunks_in_order() -> None:
    parts = [
        Score(torch.tensor([2, 0]), torch.tensor([2.5, 0.5])),
        Score(torch.tensor([1]), torch.tensor([1.5])),
    ]
    joined = concatenate(parts, torch.tensor([2, 0, 1]).argsort())
    assert isinstance(joined, Score)
    assert joined.correct.tolist() == [0, 1, 2]
    assert joined.loss.tolist() == [0.5, 1.5, 2.5]


def test_gradients_of_one_client_are_those_of_all_at_once() -> None:
    """Also those within an objective, and within a mapping of the client's own."""
    client_data = world([7, 3], [1, 1])

    def loss(theta: Any, batch: Any, given: Any, carried: Any) -> tuple[Tensor, Any]:
        return ((batch.x @ theta["w"]).tanh() ** 2 * batch.weight).sum(), {"seen": theta["w"] * 2}

    slope = exact_gradient(loss)

    def after_a_step(theta: Any, batch: Any, given: Any, carried: Any) -> tuple[Tensor, Any]:
        gradient, _, _ = slope(theta, batch, given, carried)
        return loss(tree.sub(theta, tree.scale(gradient, 0.1)), batch, given, carried)[0], {}

    taken: list[str] = []

    def note(*arguments: Any) -> Any:
        taken.append("one")
        return by_autograd(*arguments)

    def act(client: ClientContext) -> dict[str, Any]:
        data, key = client.data, client.turn.key
        rows = data.rows[:3]
        batch = Batch(data.x[rows], data.y[rows], torch.ones(3), torch.tensor(True), key)
        theta = {"w": rng.normal(key, 4)}
        found, value, changed = slope(theta, batch, {}, {})
        inner = exact_gradient(after_a_step)(theta, batch, {}, {})[0]
        several = vmap(lambda w: slope({"w": w}, batch, {}, {})[0]["w"])(rng.normal(key, 5, 4))
        return {"found": found, "value": value, "changed": changed, "inner": inner, "all": several}

    by_autograd = objectives._by_autograd
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(objectives, "_by_autograd", note)
        stacked = contexts(client_data, {}, {})
        at_once = vectorised(act)(stacked)
        assert not taken
        alone = sequential(act)(stacked)
        assert taken == ["one"] * 4  # of two clients: itself, and the outer of two
    assert not any(leaf.requires_grad for leaf in tree.leaves(alone))
    compare(at_once, alone)
