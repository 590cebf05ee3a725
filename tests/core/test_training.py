"""Local training against plain `torch.optim` loops."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap

from fedtailor.core import rng, tree
from fedtailor.core.data import Counts, Data
from fedtailor.core.errors import BadInput
from fedtailor.core.network.augmentation import crop_and_flip
from fedtailor.core.objectives import as_is, prox, sam
from fedtailor.core.rng import Turn
from fedtailor.core.scoring import mean_loss, score
from fedtailor.core.steps.scan import repeat
from fedtailor.core.task import Batch, Task, classification
from fedtailor.core.training import Recipe, descend, fit
from fedtailor.core.tree import Params, Tree

pytestmark = pytest.mark.usefixtures("float64")

X = rng.normal(rng.key(50), 40, 4)
Y = rng.bits(rng.key(51), 40) % 3


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def begin(task: Task) -> Params:
    return {k: v.double() for k, v in task.init(rng.key(0)).items()}


def client(n: int, padding: int = 0, first: int = 0, known: bool = False, val: int = 0) -> Data:
    rows = torch.cat([torch.arange(first, first + n), torch.zeros(padding, dtype=torch.int64)])
    val_rows = torch.arange(30, 30 + val)
    counts = Counts(torch.tensor([n]), torch.tensor([val])) if known else None
    return Data(X.double(), Y, rows, torch.tensor(n), val_rows, torch.tensor(val), counts)


def turn(round: int = 0, client: int = 0) -> Turn:
    return Turn(rng.key(0, rng.TURN, round, client), torch.tensor(round), torch.tensor(10))


def close(a: Tree, b: Tree, tolerance: float = 1e-12) -> None:
    assert list(a) == list(b)
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=tolerance, atol=tolerance)


def same(a: Params, b: Params) -> bool:
    return list(a) == list(b) and all(torch.equal(a[k], b[k]) for k in a)


def by_hand(
    build: Callable[[], nn.Module],
    params: Params,
    data: Data,
    when: Turn,
    recipe: Recipe,
    make: Callable[[list[Tensor]], torch.optim.Optimizer],
) -> Params:
    """An ordinary PyTorch loop that only takes its batch order from the recipe."""
    module = build()
    module.load_state_dict(params, strict=False)
    module.train()
    optimiser = make(list(module.parameters()))
    n = int(data.n)
    for epoch in range(recipe.epochs):
        order = rng.split(rng.fold(when.key, epoch))[0]
        rows = data.rows[:n][rng.permutation(order, n)]
        for low in range(0, n, recipe.batch or n):
            part = rows[low : low + (recipe.batch or n)]
            optimiser.zero_grad()
            F.cross_entropy(module(data.x[part]), data.y[part]).backward()
            if recipe.clip:
                nn.utils.clip_grad_norm_(module.parameters(), recipe.clip)
            optimiser.step()
    state = module.state_dict()
    return {k: state[k] for k in params}


@pytest.mark.parametrize(
    ("recipe", "make"),
    [
        (Recipe(epochs=3, batch=4, lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
        (Recipe(epochs=2, batch=0, lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
        (Recipe(epochs=2, batch=100, lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
        (
            Recipe(epochs=3, batch=5, lr=0.1, momentum=0.9, weight_decay=0.01),
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
        ),
        (Recipe(epochs=2, batch=3, lr=0.1, clip=0.2), lambda p: torch.optim.SGD(p, lr=0.1)),
        (
            Recipe(epochs=2, batch=4, lr=0.01, optimizer="adam"),
            lambda p: torch.optim.Adam(p, lr=0.01),
        ),
        (
            Recipe(epochs=2, batch=4, lr=0.01, optimizer="adamw", weight_decay=0.1),
            lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
        ),
    ],
    ids=["sgd", "all rows", "n < batch", "momentum", "clip", "adam", "adamw"],
)
@pytest.mark.parametrize("padding", [0, 5])
def test_fit_is_an_ordinary_training_loop(
    recipe: Recipe, make: Callable[[list[Tensor]], torch.optim.Optimizer], padding: int
) -> None:
    task = classification(network)
    params, data = begin(task), client(11, padding)
    found = fit(task, params, data, turn(), recipe)
    close(found, by_hand(network, params, data, turn(), recipe, make))
    assert not same(found, params)


def test_fit_with_batch_norm_is_an_ordinary_training_loop() -> None:
    # 12 rows in batches of 4: no short batch, whose repeated rows would enter the statistics
    task, recipe = classification(normed), Recipe(epochs=2, batch=4, lr=0.1)
    params, data = begin(task), client(12)
    expected = by_hand(normed, params, data, turn(), recipe, lambda p: torch.optim.SGD(p, lr=0.1))
    found = fit(task, params, data, turn(), recipe)
    close(found, expected)
    assert not torch.equal(found["1.running_mean"], params["1.running_mean"])


def test_fit_changes_none_of_its_arguments_and_keeps_the_layout() -> None:
    task = classification(normed)
    params = begin(task)
    before = {k: v.clone() for k, v in params.items()}
    found = fit(task, params, client(9, 2), turn(), Recipe(batch=4, momentum=0.9))
    assert same(params, before)
    assert list(found) == list(params)


@pytest.mark.parametrize("train", [("0.weight", "0.bias"), ("3.bias",), ()])
def test_what_is_not_trained_stays_to_the_last_bit(train: tuple[str, ...]) -> None:
    task = classification(normed)
    params = begin(task)
    found = fit(task, params, client(9), turn(), Recipe(batch=3, weight_decay=0.1), train=train)
    for name in params:
        if name in train:
            assert not torch.equal(found[name], params[name])
        elif name not in task.buffers:
            assert torch.equal(found[name], params[name])
    # statistics follow wherever there is training
    assert torch.equal(found["1.running_var"], params["1.running_var"]) == (not train)


def test_training_a_part_is_training_with_the_rest_frozen() -> None:
    task, recipe = classification(network), Recipe(epochs=2, batch=4, lr=0.1)
    params, data = begin(task), client(10)

    def frozen() -> nn.Module:
        module = network()
        module[0].requires_grad_(False)
        return module

    expected = by_hand(frozen, params, data, turn(), recipe, lambda p: torch.optim.SGD(p, lr=0.1))
    close(fit(task, params, data, turn(), recipe, train=("2.weight", "2.bias")), expected)


@pytest.mark.parametrize("padding", [1, 4])
@pytest.mark.parametrize("last", ["pad", "wrap", "drop"])
@pytest.mark.parametrize("steps", [0, 3])
def test_the_padding_of_a_chunk_does_not_show(padding: int, last: str, steps: int) -> None:
    task = classification(normed)
    recipe = Recipe(epochs=2, batch=4, steps=steps, last=last, momentum=0.9, weight_decay=0.1)  # type: ignore[arg-type]
    params = begin(task)
    alone = fit(task, params, client(7, known=True), turn(), recipe)
    close(fit(task, params, client(7, padding), turn(), recipe), alone)


@pytest.mark.parametrize("padding", [1, 4])
@pytest.mark.parametrize("last", ["pad", "wrap", "drop"])
@pytest.mark.parametrize("steps", [0, 3])
def test_the_padding_of_a_chunk_does_not_show_in_all_rows_at_once(
    padding: int, last: str, steps: int
) -> None:
    task = classification(network)
    recipe = Recipe(epochs=2, batch=0, steps=steps, last=last, momentum=0.9)  # type: ignore[arg-type]
    params = begin(task)
    alone = fit(task, params, client(7, known=True), turn(), recipe)
    close(fit(task, params, client(7, padding), turn(), recipe), alone)
    assert not same(alone, params)


@pytest.mark.parametrize("recipe", [Recipe(batch=0), Recipe(batch=0, steps=2)])
@pytest.mark.parametrize("padding", [0, 4])
def test_statistics_of_all_rows_at_once_are_refused(recipe: Recipe, padding: int) -> None:
    # repeats up to the width of the chunk weigh nothing in the loss, but would in BatchNorm
    task = classification(normed)
    params, data = begin(task), client(7, padding)
    with pytest.raises(BadInput, match="batch is 0, but BatchNorm needs") as caught:
        fit(task, params, data, turn(), recipe)
    assert "\n" not in str(caught.value) and "--batch" in str(caught.value)
    # where nothing is trained there is nothing to refuse
    assert same(fit(task, params, data, turn(), recipe, train=()), params)


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(epochs=2, batch=3, weight_decay=0.1, momentum=0.9),
        Recipe(epochs=2, batch=3, optimizer="adamw", weight_decay=0.1),
        Recipe(batch=0, weight_decay=0.1),
        Recipe(batch=3, weight_decay=0.1, last="drop"),
        Recipe(batch=3, weight_decay=0.1, last="wrap"),
        Recipe(steps=2, batch=3, weight_decay=0.1),
    ],
    ids=["sgd", "adamw", "all rows", "drop", "wrap", "steps"],
)
def test_a_client_without_rows_learns_nothing(recipe: Recipe) -> None:
    task = classification(normed if recipe.batch else network)
    params = begin(task)
    assert same(fit(task, params, client(0, padding=6), turn(), recipe), params)


@pytest.mark.parametrize("last", ["pad", "wrap"])
def test_many_clients_at_once_learn_what_each_learns_alone(last: str) -> None:
    task = classification(network)
    recipe = Recipe(epochs=2, batch=3, momentum=0.9, last=last)  # type: ignore[arg-type]
    params, ns = begin(task), [7, 4, 1, 0]
    rows = torch.stack([client(n, 7 - n, first=i * 7).rows for i, n in enumerate(ns)])
    keys = torch.stack([turn(client=i).key for i in range(4)])

    def one(own: Tensor, n: Tensor, key: Tensor) -> Params:
        data = client(0)._replace(rows=own, n=n)
        return fit(task, params, data, turn()._replace(key=key), recipe)

    together = vmap(one, randomness="different")(rows, torch.tensor(ns), keys)
    for i, n in enumerate(ns):
        alone = client(n, first=i * 7, known=True) if n else client(0, 1)
        close(tree.index(together, i), fit(task, params, alone, turn(client=i), recipe))


def test_steps_draw_that_many_batches() -> None:
    seen: list[list[int]] = []
    data = client(9)._replace(x=torch.arange(40.0)[:, None])

    def objective(theta: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tensor, Tree]:
        return theta["w"].sum() * 0, {"count": carried["count"] + 1}

    carried = {"count": torch.zeros(())}
    for steps in (1, 5):
        recipe = Recipe(epochs=7, steps=steps, batch=4)
        done = descend(objective, {"w": torch.ones(1)}, data, turn(), recipe, carried=carried)
        assert int(done.carried["count"]) == steps
        seen = [
            batch.x[:, 0].long().tolist() for batch in data.filled(recipe.plan(data, turn().key))
        ]
    assert len(seen) == 5
    for rows in seen:
        assert len(set(rows)) == 4 and set(rows) <= set(range(9))
    assert len({tuple(rows) for rows in seen}) > 1


def test_epochs_have_orders_of_their_own() -> None:
    data = client(9)._replace(x=torch.arange(40.0)[:, None])
    batches = list(data.filled(Recipe(epochs=3, batch=9).plan(data, turn().key)))
    orders = {tuple(batch.x[:, 0].tolist()) for batch in batches}
    assert len(orders) == 3
    assert all(sorted(order) == list(range(9)) for order in orders)
    # each step's dropout, noise and augmentation too
    assert len({int(batch.key) for batch in batches}) == 3


def test_an_epoch_draws_the_same_whatever_others_there_are() -> None:
    data, key = client(9), turn().key
    together = Recipe(epochs=3, batch=4).plan(data, key)
    passes = []
    for epoch in range(3):
        order, each = rng.split(rng.fold(key, epoch))
        passes.append(data.shuffle(order).steps(4, each))
    for name in ("rows", "weight", "active", "key"):
        apart = torch.cat([getattr(one, name) for one in passes])
        assert torch.equal(getattr(together, name), apart)


def rate(recipe: Recipe, round: int) -> float:
    step, _ = recipe.make_optimizer(recipe.rate(turn(round))).update(
        {"w": torch.ones(())}, {}, {"w": torch.ones(())}
    )
    return -float(step["w"])


def test_the_learning_rate_decays_by_round_to_its_floor() -> None:
    recipe = Recipe(lr=0.8, lr_decay=0.5, lr_floor=0.15)
    assert [rate(recipe, r) for r in range(5)] == pytest.approx([0.8, 0.4, 0.2, 0.15, 0.15], 1e-12)
    assert [rate(Recipe(lr=0.8), r) for r in range(3)] == [0.8] * 3


def test_proximal_gradient() -> None:
    task, mu = classification(normed), 0.7
    params = begin(task)
    anchor = {
        k: v + 0.1 * rng.normal(rng.key(5, i), *v.shape) for i, (k, v) in enumerate(params.items())
    }
    batch = next(client(6).batches(6, rng.key(0)))
    trained = tree.drop(params, task.buffers)
    near = prox(task, mu)
    found = grad(lambda p: near(params | p, batch, {"anchor": anchor})[0])(trained)
    alone = grad(lambda p: task.loss(params | p, batch)[0])(trained)
    pull = tree.scale(tree.sub(trained, tree.drop(anchor, task.buffers)), mu)
    close(found, tree.add(alone, pull))
    # running statistics are no part of the distance
    moved = anchor | {"1.running_mean": anchor["1.running_mean"] + 5}
    value = float(near(params, batch, {"anchor": anchor})[0])
    assert float(near(params, batch, {"anchor": moved})[0]) == value
    assert value == pytest.approx(
        float(task.loss(params, batch)[0])
        + mu / 2 * float(tree.sq_norm(tree.sub(trained, tree.drop(anchor, task.buffers)))),
        rel=1e-12,
    )


def test_prox_to_a_part_of_the_model() -> None:
    task = classification(network)
    params = begin(task)
    batch = next(client(6).batches(6, rng.key(0)))
    anchor = {"2.bias": params["2.bias"] - 1}
    difference = prox(task, 2.0)(params, batch, {"anchor": anchor})[0] - task.loss(params, batch)[0]
    assert float(difference) == pytest.approx(3.0, rel=1e-12)


def test_fit_passes_what_is_given_to_the_loss() -> None:
    task, recipe = classification(network), Recipe(epochs=1, batch=0, lr=0.1)
    params, data = begin(task), client(8)
    anchor = tree.scale(params, 0.5)
    found = fit(task, params, data, turn(), recipe, loss=prox(task, 3.0), given={"anchor": anchor})
    plainly = fit(task, params, data, turn(), recipe)
    pull = tree.scale(tree.sub(params, anchor), 0.1 * 3.0)
    close(found, tree.sub(plainly, pull))


def test_sam_is_two_passes() -> None:
    task, rho, recipe = classification(normed), 0.3, Recipe(epochs=1, batch=8, lr=0.1)
    params, data = begin(task), client(8)
    found = fit(task, params, data, turn(), recipe, gradient=sam(rho))

    module = normed()
    module.load_state_dict(params, strict=False)
    module.train()
    weights = list(module.parameters())
    loss = lambda: F.cross_entropy(module(data.x[data.rows]), data.y[data.rows])
    up = torch.autograd.grad(loss(), weights)
    statistics = {k: v.clone() for k, v in module.named_buffers()}
    norm = torch.cat([g.flatten() for g in up]).norm()
    with torch.no_grad():
        for w, g in zip(weights, up, strict=True):
            w += rho * g / norm
    down = torch.autograd.grad(loss(), weights)
    for (name, _), g in zip(module.named_parameters(), down, strict=True):
        torch.testing.assert_close(found[name], params[name] - 0.1 * g, rtol=1e-10, atol=1e-10)
    # the second pass looks at a point that is never used: its statistics do not count
    for name in task.buffers:
        torch.testing.assert_close(found[name], statistics[name], rtol=1e-12, atol=1e-12)


def test_sam_with_radius_zero_and_without_a_slope() -> None:
    task, recipe = classification(network), Recipe(batch=4)
    params, data = begin(task), client(8)
    close(
        fit(task, params, data, turn(), recipe, gradient=sam(0.0)),
        fit(task, params, data, turn(), recipe, gradient=as_is),
    )
    flat = lambda p, batch, given: (p["2.bias"].sum() * 0, {})
    assert same(fit(task, params, data, turn(), recipe, loss=flat, gradient=sam(0.5)), params)


def test_descend_projects_and_reports_the_last_loss() -> None:
    def objective(theta: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tensor, Tree]:
        return (theta["w"] * given["slope"]).sum(), {}

    # -1 a step from 2.5, not below 0: before the last of four steps it is 0 already
    done = descend(
        objective,
        {"w": torch.tensor([2.5])},
        client(4),
        turn(),
        Recipe(batch=1, lr=1.0),
        given={"slope": torch.ones(1)},
        project=lambda w: w.clamp(min=0),
    )
    assert float(done.theta["w"]) == 0
    assert float(done.loss) == 0
    short = descend(
        objective,
        {"w": torch.tensor([2.5])},
        client(2, padding=2),
        turn(),
        Recipe(batch=1, lr=1.0),
        given={"slope": torch.ones(1)},
    )
    assert float(short.theta["w"]) == 0.5
    assert float(short.loss) == 1.5  # of its own last batch, not of the chunk's


def test_batches_are_augmented_with_keys_of_their_own() -> None:
    keys: list[int] = []

    def augment(x: Tensor, key: Tensor) -> Tensor:
        keys.append(int(key))
        return x + 1

    task = classification(network, augment=augment)
    bare = classification(network)
    params, data = begin(task), client(8)
    found = fit(task, params, data, turn(), Recipe(epochs=2, batch=4))
    assert len(set(keys)) == 4
    steps = Recipe(epochs=2, batch=4).plan(data, turn().key).key.tolist()
    assert not set(keys) & set(steps)
    shifted = data._replace(x=data.x + 1)
    close(found, fit(bare, params, shifted, turn(), Recipe(epochs=2, batch=4)))
    # evaluation sees the examples as they are
    assert torch.equal(mean_loss(task, params, data), mean_loss(bare, params, data))


def test_augmentation_in_a_mapped_fit() -> None:
    build = lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    task = classification(build, augment=crop_and_flip)
    params = begin(task)
    x = (rng.bits(rng.key(1), 40 * 16) % 256).to(torch.uint8).view(40, 1, 4, 4)
    one = lambda rows, key: fit(
        task,
        params,
        client(5)._replace(x=x, rows=rows),
        turn()._replace(key=key),
        Recipe(epochs=2, batch=2),
    )
    rows, keys = torch.arange(10).view(2, 5), torch.stack([turn(client=i).key for i in (0, 1)])
    together = vmap(one, randomness="different")(rows, keys)
    for i in range(2):
        close(tree.index(together, i), one(rows[i], keys[i]))


def test_clipping_limits_a_step() -> None:
    task = classification(network)
    params = begin(task)
    moved = fit(task, params, client(8), turn(), Recipe(batch=0, lr=1.0, clip=1e-3))
    assert float(tree.sq_norm(tree.sub(moved, params)).sqrt()) == pytest.approx(1e-3, rel=0.01)


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("n", [1, 7, 20])
def test_score_counts_the_real_rows(n: int, padding: int) -> None:
    task = classification(normed)
    params = begin(task)
    logits = task.predict(params, X[:n].double())
    for size in (3, 128):
        found = score(task, params, client(n, padding), size)
        assert int(found.correct) == int((logits.argmax(-1) == Y[:n]).sum())
        expected = F.cross_entropy(logits, Y[:n], reduction="sum")
        torch.testing.assert_close(found.loss, expected, rtol=1e-12, atol=0)
    expected = F.cross_entropy(logits, Y[:n])
    torch.testing.assert_close(mean_loss(task, params, client(n, padding)), expected)


def test_a_score_of_no_rows_is_zero() -> None:
    task = classification(network)
    params = begin(task)
    assert [float(s) for s in score(task, params, client(0, padding=2))] == [0, 0]
    assert float(mean_loss(task, params, client(0, padding=2))) == 0


def test_a_score_of_rows_of_no_width_is_zero() -> None:
    task = classification(network)
    assert [float(s) for s in score(task, begin(task), client(3, val=0).val)] == [0, 0]


def halve(carry: Tree) -> Tree:
    return {"x": carry["x"] / 2, "turns": carry["turns"] + 1}


def small(carry: Tree) -> Tensor:
    return carry["x"] <= 1


def test_repeat_stops_each_client_on_its_own() -> None:
    xs = torch.tensor([8.0, 1.0, 3.0, 0.1])
    begin_at = lambda x: {"x": x, "turns": torch.zeros((), dtype=torch.int64)}
    alone = [repeat(halve, begin_at(x), until=small, limit=50) for x in xs]
    assert [int(a["turns"]) for a in alone] == [3, 0, 2, 0]
    # clients that were done at once are as they were
    assert [float(a["x"]) for a in alone] == [1.0, 1.0, 0.75, 0.1]
    together = vmap(lambda x: repeat(halve, begin_at(x), until=small, limit=50))(xs)
    for name in ("x", "turns"):
        assert torch.equal(together[name], torch.stack([a[name] for a in alone]))


def test_repeat_keeps_to_its_limit() -> None:
    never = lambda carry: carry["x"] < 0
    done = repeat(halve, {"x": torch.tensor(1.0), "turns": torch.tensor(0)}, until=never, limit=4)
    assert int(done["turns"]) == 4
    none = repeat(halve, {"x": torch.tensor(1.0), "turns": torch.tensor(0)}, until=never, limit=0)
    assert int(none["turns"]) == 0


def test_repeat_does_no_more_work_than_the_slowest_client_needs() -> None:
    calls = []

    def body(carry: Tree) -> Tree:
        calls.append(1)
        return halve(carry)

    run = lambda x: repeat(body, {"x": x, "turns": x * 0}, until=small, limit=50)
    vmap(run)(torch.tensor([2.0, 16.0]))
    assert len(calls) == 4


def test_what_a_finished_client_would_have_become_does_not_leak() -> None:
    # a body that blows up past the end: where() must not mix it in
    body = lambda carry: {"x": torch.where(carry["x"] <= 1, torch.nan, carry["x"] / 2)}
    together = vmap(lambda x: repeat(body, {"x": x}, until=small, limit=9)["x"])(
        torch.tensor([1.0, 8.0])
    )
    assert together.tolist() == [1.0, 1.0]
