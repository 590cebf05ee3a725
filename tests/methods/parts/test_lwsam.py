"""Layer-wise sharpness-aware minimisation: scores, perturbation, gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch.func import vmap

from fedtailor.core import rng, tree
from fedtailor.core.objectives import sam
from fedtailor.core.task import Batch, per_name
from fedtailor.core.training import Recipe, fit
from fedtailor.methods.parts.lwsam import beside, block_scores, lwsam, perturbation
from tests.methods.worlds import data_of, gap, ragged, random_like, task_of, turn_of

BLOCKS = (("a", "b"), ("c",))
GRADS = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([-4.0]), "c": torch.tensor([[12.0]])}
# |g| = 13; the blocks' norms are 5 and 12


@pytest.fixture(autouse=True)
def double():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def grads() -> dict:
    return tree.map(lambda p: p.double(), GRADS)


def scale(first: float, second: float) -> dict:
    return per_name(torch.tensor([first, second]), BLOCKS, GRADS)


def norm(values: dict, p: float = 2.0) -> float:
    return float(torch.cat([v.flatten() for v in values.values()]).norm(p))


# ------------------------------------------------------------------------------------------- scores


def test_scores_by_hand() -> None:
    """raw = |θ - w| / number of parameters: 5/3 in the first block, 2/1 in the second."""
    own = {"a": torch.tensor([3.0, 1.0]), "b": torch.tensor([5.0]), "c": torch.tensor([[1.0]])}
    received = {"a": torch.tensor([0.0, 1.0]), "b": torch.tensor([1.0]), "c": torch.tensor([[3.0]])}
    share = [(5 / 3) / (11 / 3), 2 / (11 / 3)]
    assert block_scores(own, received, BLOCKS, "sum1").tolist() == pytest.approx(share)
    mean = [2 * s for s in share]
    assert block_scores(own, received, BLOCKS, "mean1").tolist() == pytest.approx(mean)
    assert block_scores(own, received, BLOCKS, "identity").tolist() == [1, 1]


def test_equal_scores_where_nothing_differs() -> None:
    same = grads()
    assert block_scores(same, same, BLOCKS, "sum1").tolist() == [0.5, 0.5]
    assert block_scores(same, same, BLOCKS, "mean1").tolist() == [1, 1]
    # one block that does not differ has no score, and takes no share
    other = same | {"c": same["c"] + 1}
    assert block_scores(other, same, BLOCKS, "sum1").tolist() == [0, 1]
    tiny = same | {"c": same["c"] + 1e-12}
    assert block_scores(tiny, same, BLOCKS, "sum1").isfinite().all()


def test_scores_add_up() -> None:
    """Dividing by the dimension alone would not make them sum to 1."""
    task = task_of()
    received = task.init(torch.tensor(0))
    own = random_like(received, seed=1)
    for name, total in (("sum1", 1), ("mean1", len(task.blocks)), ("identity", len(task.blocks))):
        scores = block_scores(own, received, task.blocks, name)
        assert float(scores.sum()) == pytest.approx(total)
    # the scale of the difference does not matter, only its shape
    further = tree.add(received, tree.scale(tree.sub(own, received), 7.0))
    torch.testing.assert_close(
        block_scores(own, received, task.blocks, "mean1"),
        block_scores(further, received, task.blocks, "mean1"),
    )


# ------------------------------------------------------------------------------------- perturbation


def test_with_equal_scores_it_is_sam() -> None:
    """|ε| = ρ along g."""
    eps = perturbation(grads(), scale(1, 1), 0.65)
    assert eps["a"].tolist() == pytest.approx([0.15, 0.0])
    assert eps["b"].tolist() == pytest.approx([-0.2])
    assert eps["c"].tolist() == [pytest.approx([0.6])]
    assert norm(eps) == pytest.approx(0.65)


def test_norm_of_a_block() -> None:
    """ρ ξ_l |g_l| / |g|; a score of 0 leaves its block alone."""
    eps = perturbation(grads(), scale(0.5, 1.5), 2.6)
    assert norm(tree.pick(eps, BLOCKS[0])) == pytest.approx(2.6 * 0.5 * 5 / 13)
    assert norm(tree.pick(eps, BLOCKS[1])) == pytest.approx(2.6 * 1.5 * 12 / 13)
    alone = perturbation(grads(), scale(0, 2), 2.6)
    assert not alone["a"].any()
    assert not alone["b"].any()
    assert float(alone["c"]) == pytest.approx(2.6 * 2 * 12 / 13)


@pytest.mark.parametrize("p", [1.5, 2.0, 3.0, 10.0])
def test_other_norms(p: float) -> None:
    """The worst point of the p-ball: |ε|_p = ρ, and <g, ε> = ρ |g|_q reaches Hölder's bound."""
    q = p / (p - 1)
    eps = perturbation(grads(), scale(1, 1), 0.3, p)
    assert norm(eps, p) == pytest.approx(0.3)
    product = sum(float((g * e).sum()) for g, e in zip(GRADS.values(), eps.values(), strict=True))
    assert product == pytest.approx(0.3 * norm(GRADS, q))


def test_the_printed_exponent_explodes() -> None:
    """With exponent p - 1, |ε| = ρ/|g|; ours is ρ whatever the gradient's length."""
    for length in (13.0, 1.0, 0.11, 1e-3):
        g = tree.scale(grads(), length / 13)
        mass = sum(float(v.square().sum()) for v in g.values())  # Σ |g_l|_q^q with q = 2
        printed = tree.scale(g, 0.05 / mass ** (2 - 1))
        assert norm(printed) == pytest.approx(0.05 / length)
        assert norm(perturbation(g, scale(1, 1), 0.05)) == pytest.approx(0.05)
    assert pytest.approx(0.4545, abs=1e-4) == 0.05 / 0.11  # nine times the radius asked for


def test_asam() -> None:
    """Ρ Λ² g / |Λ g|: here Λ g has the blocks 1 · 5 and 2 · 12."""
    eps = perturbation(grads(), scale(1, 2), 1.0, form="asam")
    length = math.hypot(5, 24)
    assert float(eps["b"]) == pytest.approx(-4 / length)
    assert float(eps["c"]) == pytest.approx(4 * 12 / length)
    one = perturbation(grads(), scale(1, 1), 1.0, form="asam")
    assert gap(one, perturbation(grads(), scale(1, 1), 1.0)) < 1e-12


def test_no_gradient_no_perturbation() -> None:
    for p in (1.5, 2.0, 3.0):
        for form in ("eq5", "asam"):
            zero = tree.scale(grads(), 0.0)
            eps = perturbation(zero, scale(1, 1), 0.05, p, form)
            assert all(not e.any() for e in eps.values()), (p, form)


def test_maps_over_clients() -> None:
    many = tree.stack([tree.scale(grads(), f) for f in (1.0, -2.0, 0.0)])
    scales = tree.stack([scale(1, 1), scale(0.5, 1.5), scale(1, 1)])
    together = vmap(lambda g, s: perturbation(g, s, 0.1))(many, scales)
    for i in range(3):
        alone = perturbation(tree.index(many, i), tree.index(scales, i), 0.1)
        assert gap(tree.index(together, i), alone) < 1e-15


# ----------------------------------------------------------------------------------------- training


@pytest.mark.parametrize("net", ["mlp", "norm"])
def test_lwsam_with_equal_scores_trains_as_sam(net: str) -> None:
    """Equal to SAM over several steps, dropout and statistics included."""
    task, world = task_of(net), ragged()
    params = task.init(torch.tensor(1))
    data, recipe = data_of(world, 3), Recipe(epochs=2, batch=8, lr=0.1)
    names = [k for k in params if k not in task.buffers]
    given = {"scale": {k: torch.ones(()) for k in names}}
    ours = fit(task, params, data, turn_of(), recipe, gradient=lwsam(0.1), given=given)
    theirs = fit(task, params, data, turn_of(), recipe, gradient=sam(0.1))
    plain = fit(task, params, data, turn_of(), recipe)
    assert gap(ours, theirs) < 1e-12
    assert gap(ours, plain) > 1e-4
    still = fit(task, params, data, turn_of(), recipe, gradient=lwsam(0.0), given=given)
    if net == "mlp":  # no dropout, whose second mask is another one
        assert gap(still, plain) == 0


@pytest.mark.parametrize(("point", "flat"), [("theta", 1.2), ("w", -3.2)])
def test_two_models_in_one_pass_by_hand(point: str, flat: float) -> None:
    # F = x²/2, θ = 1, w = -3, ρ ξ = 0.1 · 2: the gradient at 1 + 0.2, or at -3 - 0.2
    keys = []

    def bowl(x, batch, given, carried):
        keys.append(int(batch.key))
        return x, x["a"].square() / 2, {"seen": x["a"]}

    one = torch.ones(1)
    batch = Batch(one, one.long(), one, torch.tensor(True), rng.key(3))
    pair = {"theta": {"a": torch.tensor(1.0)}, "w": {"a": torch.tensor(-3.0)}}
    given = {"scale": {"a": torch.tensor(2.0)}, "mask": {"a": torch.ones(())}}
    slope, loss, changed = beside(0.1, point=point)(bowl)(pair, batch, given, {})
    assert float(slope["theta"]["a"]) == 1
    assert float(slope["w"]["a"]) == pytest.approx(flat)
    # loss and statistics are θ's, of the first pass; every pass has noise of its own
    assert float(loss) == 0.5
    assert float(changed["seen"]) == 1
    assert len(set(keys)) == len(keys) == (2 if point == "theta" else 3)
