"""Optimisers against `torch.optim`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import grad, vmap

from fedtailor.core import rng, tree
from fedtailor.core.steps import optim

pytestmark = pytest.mark.usefixtures("float64")

STEPS = 20


def start() -> tree.Params:
    return {"a": rng.normal(rng.key(1), 3, 2), "b": rng.normal(rng.key(2), 4)}


def loss(params: tree.Params, number: int) -> torch.Tensor:
    """Another bent bowl in every step, as mini-batches have it."""
    target = rng.normal(rng.key(3, number), 10)
    flat = torch.cat([params["a"].flatten(), params["b"]])
    return ((flat - target).square() + (flat * target).sin()).sum()


def ours(optimiser: optim.Optimizer) -> tree.Params:
    params = start()
    state = optimiser.init(params)
    for number in range(STEPS):
        step, state = optimiser.update(grad(loss)(params, number), state, params)
        params = tree.add(params, step)
    return params


def torchs(make: Callable[[list[torch.Tensor]], torch.optim.Optimizer]) -> tree.Params:
    params = {k: v.clone().requires_grad_() for k, v in start().items()}
    optimiser = make(list(params.values()))
    for number in range(STEPS):
        optimiser.zero_grad()
        loss(params, number).backward()
        optimiser.step()
    return {k: v.detach() for k, v in params.items()}


def assert_same(a: tree.Params, b: tree.Params) -> None:
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-12, atol=1e-12)


rates = st.floats(1e-4, 0.2)
decays = st.sampled_from([0.0, 1e-3, 0.1])


@settings(max_examples=15, deadline=None)
@given(rates, st.sampled_from([0.0, 0.5, 0.9]), decays)
def test_sgd(lr: float, momentum: float, decay: float) -> None:
    theirs = torchs(lambda p: torch.optim.SGD(p, lr=lr, momentum=momentum, weight_decay=decay))
    assert_same(ours(optim.sgd(lr, momentum, decay)), theirs)


@settings(max_examples=15, deadline=None)
@given(rates, decays)
def test_adam(lr: float, decay: float) -> None:
    theirs = torchs(lambda p: torch.optim.Adam(p, lr=lr, weight_decay=decay))
    assert_same(ours(optim.adam(lr, decay)), theirs)


@settings(max_examples=15, deadline=None)
@given(rates, decays)
def test_adamw(lr: float, decay: float) -> None:
    theirs = torchs(lambda p: torch.optim.AdamW(p, lr=lr, weight_decay=decay))
    assert_same(ours(optim.adamw(lr, decay)), theirs)


@pytest.mark.parametrize("made", ["sgd", "adam", "adamw"])
def test_weight_decay_may_spare_biases(made: str) -> None:
    """Found by the last part of their names, in trees of trees, too; as groups do in torch."""
    names = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    ours = getattr(optim, made)(0.1, weight_decay=0.3, decay_biases=False)
    params = {
        "net": {"unbiased.weight": rng.normal(rng.key(1), 3), "bias": rng.normal(rng.key(2), 3)}
    }
    weight, bias = (p.clone().requires_grad_() for p in params["net"].values())
    groups = [{"params": [weight]}, {"params": [bias], "weight_decay": 0.0}]
    theirs = names[made](groups, lr=0.1, weight_decay=0.3)
    state = ours.init(params)
    for _ in range(STEPS):
        theirs.zero_grad()
        ((weight - 1) * bias.sin()).sum().backward()
        grads = {"net": {"unbiased.weight": weight.grad.clone(), "bias": bias.grad.clone()}}
        theirs.step()
        step, state = ours.update(grads, state, params)
        params = tree.add(params, step)
        assert_same(params["net"], {"unbiased.weight": weight.detach(), "bias": bias.detach()})


def test_adam_with_other_constants() -> None:
    theirs = torchs(lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.5, 0.9), eps=1e-3))
    assert_same(ours(optim.adam(0.1, betas=(0.5, 0.9), eps=1e-3)), theirs)


def test_adamw_decays_by_default_as_torch_does() -> None:
    assert_same(ours(optim.adamw(0.1)), torchs(lambda p: torch.optim.AdamW(p, lr=0.1)))


@pytest.mark.parametrize(
    "make", [lambda lr: optim.sgd(lr, 0.9, 0.1), optim.adam, optim.adamw], ids=["sgd", "adam", "w"]
)
def test_the_rate_may_be_a_tensor(make: Callable[..., optim.Optimizer]) -> None:
    assert_same(ours(make(torch.tensor(0.05))), ours(make(0.05)))


@pytest.mark.parametrize(
    "optimiser",
    [optim.sgd(0.1), optim.sgd(0.1, 0.9, 0.1), optim.adam(0.1, 0.1), optim.adamw(0.1, 0.1)],
    ids=["plain", "momentum", "adam", "adamw"],
)
def test_update_changes_none_of_its_arguments(optimiser: optim.Optimizer) -> None:
    params = start()
    grads = grad(loss)(params, 0)
    _, state = optimiser.update(grads, optimiser.init(params), params)
    before = tree.flatten({"p": params, "g": grads, "s": state})
    copies = {k: v.clone() for k, v in before.items()}
    optimiser.update(grads, state, params)
    assert all(torch.equal(before[k], copies[k]) for k in before)


@pytest.mark.parametrize("optimiser", [optim.sgd(0.1, 0.9), optim.adam(0.1)], ids=["sgd", "adam"])
def test_many_clients_at_once(optimiser: optim.Optimizer) -> None:
    params = tree.stack([tree.scale(start(), f) for f in (1.0, -2.0)])
    grads = tree.scale(params, 0.3)
    state = vmap(optimiser.init)(params)
    step, state = vmap(optimiser.update)(grads, state, params)
    step, state = vmap(optimiser.update)(grads, state, params)
    for i in range(2):
        own, slope = tree.index(params, i), tree.index(grads, i)
        alone, memory = optimiser.update(slope, optimiser.init(own), own)
        alone, memory = optimiser.update(slope, memory, own)
        assert_same(tree.index(step, i), alone)


@pytest.mark.parametrize("limit", [1e-3, 0.5, 1e3])
def test_clip_norm(limit: float) -> None:
    grads = start()
    leaves = [torch.zeros_like(g).requires_grad_() for g in grads.values()]
    for leaf, g in zip(leaves, grads.values(), strict=True):
        leaf.grad = g.clone()
    torch.nn.utils.clip_grad_norm_(leaves, limit)
    theirs = {k: leaf.grad for k, leaf in zip(grads, leaves, strict=True)}
    assert_same(optim.clip_norm(grads, limit), theirs)


def test_a_limit_of_zero_is_none_and_short_gradients_stay() -> None:
    grads = start()
    assert optim.clip_norm(grads, 0) is grads
    assert all(torch.equal(p, grads[k]) for k, p in optim.clip_norm(grads, 1e6).items())
    zeros = tree.scale(grads, 0.0)
    assert float(tree.sq_norm(optim.clip_norm(zeros, 1.0))) == 0
