"""Attacks on uploads that must succeed, and on protected ones that must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedtailor.analysis.audit.attacks import AttackPlan, recover
from fedtailor.analysis.audit.exposure import (
    Exposure,
    attacked,
    bases_of,
    guessed_labels,
    played,
    scale_of,
    update_of,
)
from fedtailor.analysis.audit.recovered import in_true_order, judged_images, to_pixels
from fedtailor.core import rng
from fedtailor.core.errors import BadInput
from fedtailor.core.method import ClientCount
from fedtailor.core.rng import Turn
from fedtailor.core.task import Task, classification
from fedtailor.core.training import Recipe
from fedtailor.methods import METHODS, Factory
from fedtailor.methods.find import find

SHAPE, CLASSES = (1, 6, 6), 5


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.Sigmoid(), nn.Conv2d(6, 6, 3, padding=1, stride=2),
        nn.Sigmoid(), nn.Flatten(), nn.Linear(54, CLASSES),
    ).double()  # fmt: skip


def layers(width: int = 24) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(36, width), nn.ReLU(), nn.Linear(width, CLASSES)
    ).double()


def rows(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    x = rng.uniform(rng.key(seed), count, *SHAPE, dtype=torch.float64) * 2 - 1
    return x, torch.arange(count) % CLASSES


def exposed(
    build: Callable[[], nn.Module],
    x: Tensor,
    y: Tensor,
    recipe: Recipe = Recipe(lr=0.1),
    method: str | Factory = "fedavg",
    seed: int = 0,
    **options: Any,
) -> Exposure:
    """What the server has after a client trained on these rows, at weights that are not small."""
    task: Task = classification(build)
    initial = {
        k: rng.uniform(rng.key(9, i), *v.shape, dtype=v.dtype) - 0.5
        for i, (k, v) in enumerate(task.init(rng.key(0)).items())
    }
    factory = METHODS[method] if isinstance(method, str) else method
    made = factory(task, recipe=recipe, **options)
    turn = Turn(rng.key(seed, 3), torch.tensor(0), torch.tensor(1))
    cid = torch.tensor(0)
    server = made.init(ClientCount.of(torch.tensor([len(y)])), initial, rng.key(0))
    message = made.send(server, cid, turn)
    state = made.start(message, initial, turn.at_start())
    held = (x, y) if made.validates else None
    upload, _ = played(made, initial, message, turn, state, x, y, held)
    known = Recipe(**{**vars(recipe), "dp_noise": 0.0})
    attackers = factory(task, recipe=known, **options)
    bases = bases_of(message, initial, upload)
    seen = update_of(upload, bases, scale_of(known, turn, len(y)))
    return Exposure(
        attackers, task, initial, message, turn, state, seen, bases, known, len(y), held
    )


def mean_psnr(exposure: Exposure, x: Tensor, y: Tensor, plan: AttackPlan) -> float:
    found = recover(exposure, y, SHAPE, plan, image=True)
    others = to_pixels(rows(20, seed=5)[0])
    judged: float = judged_images(to_pixels(found.x), to_pixels(x), others)["psnr"]["recovered"]
    return judged


# --- the target ---


@pytest.mark.parametrize("lr", [0.01, 1.0])
def test_one_step_shows_the_gradient_at_the_sent_model(lr: float) -> None:
    x, y = rows(3)
    exposure = exposed(layers, x, y, Recipe(lr=lr))
    net = layers()
    sent = {k: v.clone().requires_grad_() for k, v in exposure.message["params"].items()}
    loss = F.cross_entropy(functional_call(net, sent, (x,)), y)
    slopes = torch.autograd.grad(loss, [*sent.values()])
    for name, slope in zip(sent, slopes, strict=True):
        assert torch.allclose(exposure.of(name), slope, atol=1e-12)


@pytest.mark.parametrize(
    ("method", "options"), [("fedavg", {}), ("fedrep", {"head_epochs": 2}), ("scaffold", {})]
)
def test_several_steps_are_played_as_the_recipe_has_them(
    method: str, options: dict[str, Any]
) -> None:
    x, y = rows(5)
    recipe = Recipe(epochs=2, batch=2, lr=0.1, momentum=0.5)
    exposure = exposed(layers, x, y, recipe, method, **options)
    assert exposure.scale == 1.0
    made = exposure.imitate(x, y)
    assert all(torch.allclose(made[k], v, atol=1e-12) for k, v in exposure.seen.items())
    other = exposure.imitate(x.flip(0), y)
    assert not all(torch.allclose(other[k], v, atol=1e-6) for k, v in exposure.seen.items())


@pytest.mark.parametrize("method", ["fedavg", "fedfomo", "apple", "fedavg+median"])
def test_what_is_sent_is_held_against_where_the_client_began(method: str) -> None:
    x, y = rows(1)
    factory = METHODS.get(method) or find(method)
    assert guessed_labels(exposed(layers, x, y, method=factory), CLASSES, SHAPE).tolist() == [0]


# --- attacks that must succeed ---


def test_idlg_rebuilds_an_image_through_a_sigmoid_network() -> None:
    x, _ = rows(1)
    y = torch.tensor([3])
    exposure = exposed(convolutions, x, y)
    assert guessed_labels(exposure, CLASSES, SHAPE).tolist() == [3]
    assert mean_psnr(exposure, x, y, AttackPlan("idlg", 120)) > 60


def test_a_first_linear_layer_holds_its_input() -> None:
    x, y = rows(1)
    found = recover(exposed(layers, x, y), y, SHAPE, AttackPlan("analytic"), image=True)
    assert (found.x - x).abs().max() < 1e-6


def test_geiping_goes_by_the_angle_through_several_local_steps() -> None:
    x, y = rows(2)
    exposure = exposed(layers, x, y, Recipe(batch=1, lr=0.1))
    assert exposure.recipe.count(2) == 2
    assert mean_psnr(exposure, x, y, AttackPlan("geiping", 120, tv=0.0)) > 25


def test_geiping_descends_along_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []

    class Spied(torch.optim.Adam):
        def step(self, closure: Any = None) -> None:
            seen.append(self.param_groups[0]["params"][0].grad.clone())
            super().step(closure)

    monkeypatch.setattr(torch.optim, "Adam", Spied)
    x, y = rows(1)
    recover(exposed(layers, x, y), y, SHAPE, AttackPlan("geiping", 8), image=True)
    assert len(seen) == 8
    assert all(set(one.unique().tolist()) <= {-1.0, 0.0, 1.0} for one in seen)


def test_the_restart_that_fits_best_counts() -> None:
    x, y = rows(2)
    exposure = exposed(layers, x, y)
    first, several = (
        recover(exposure, y, SHAPE, AttackPlan("idlg", 3, n), image=True).misfit for n in (1, 6)
    )
    assert several < first


# --- labels ---


def test_labels_of_a_batch_are_counted_from_the_bias() -> None:
    x, _ = rows(4)
    y = torch.tensor([0, 0, 1, 3])
    assert guessed_labels(exposed(layers, x, y), CLASSES, SHAPE).tolist() == [0, 0, 1, 3]


def test_without_a_head_nothing_tells_the_labels() -> None:
    x, y = rows(1)
    assert guessed_labels(exposed(layers, x, y, method="fedrep"), CLASSES, SHAPE) is None


# --- what protects ---


def test_a_head_that_stays_at_home_protects() -> None:
    x, y = rows(1)
    exposure = exposed(convolutions, x, y, method="fedrep", head_epochs=1)
    known = mean_psnr(attacked(exposure), x, y, AttackPlan("idlg", 60))
    guess = lambda: {k: 1 - v for k, v in exposure.initial.items()}
    guessed = mean_psnr(attacked(exposure, guess=guess), x, y, AttackPlan("idlg", 60))
    assert known > 30 and guessed < 15


def test_noise_lowers_what_is_recovered() -> None:
    x, y = rows(1)
    found = []
    for noise in (0.0, 0.01, 0.1, 1.0):
        recipe = Recipe(lr=0.1, dp_clip=1.0, dp_noise=noise)
        each = [
            mean_psnr(exposed(layers, x, y, recipe, seed=s), x, y, AttackPlan("analytic"))
            for s in range(5)
        ]
        found.append(sum(each) / len(each))
    assert found == sorted(found, reverse=True)
    assert found[0] == 120.0 and found[-1] < 12


def test_many_rows_in_few_numbers_cannot_be_rebuilt() -> None:
    x, y = rows(40)
    plan = AttackPlan("idlg", 60)
    exposure = exposed(lambda: layers(4), x, y, Recipe(batch=0, lr=0.1))
    assert mean_psnr(exposure, x, y, plan) < 15
    one = exposed(convolutions, x[:1], y[:1])
    assert mean_psnr(one, x[:1], y[:1], plan) > 40


def test_the_analytic_attack_needs_a_first_linear_layer() -> None:
    x, y = rows(1)
    with pytest.raises(BadInput, match="first linear layer"):
        recover(exposed(convolutions, x, y), y, SHAPE, AttackPlan("analytic"), image=True)


def test_the_analytic_attack_finds_some_rows_of_a_batch() -> None:
    x, y = rows(3)
    exposure = exposed(lambda: layers(64), x, y)
    found = recover(exposure, y, SHAPE, AttackPlan("analytic"), image=True)
    assert found.x.shape == x.shape and in_true_order(found.x, x).isfinite().all()
