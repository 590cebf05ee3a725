"""Weights for block-wise mixtures."""

from __future__ import annotations

import pytest
import torch
from torch.func import vmap

from fedtailor.core import rng, tree
from fedtailor.methods.parts.layerwise import init_weigher, mixture, weigh

CLIENTS, BLOCKS, EMBED, HIDDEN, DEPTH = 5, 3, 7, 6, 2
EVERYONE = torch.ones(CLIENTS, dtype=torch.bool)


def net(norm: str, seed: int = 0) -> tree.Tree:
    return init_weigher(rng.key(seed), CLIENTS, BLOCKS, EMBED, HIDDEN, DEPTH, norm)


def test_shapes() -> None:
    made = net("softmax")
    assert made["embed"].shape == (EMBED,)
    sizes = [tuple(layer["weight"].shape) for layer in made["body"].values()]
    assert sizes == [(HIDDEN, EMBED), (HIDDEN, HIDDEN)]
    assert list(made["heads"]) == ["0", "1", "2"]
    assert all(head["weight"].shape == (CLIENTS, HIDDEN) for head in made["heads"].values())
    assert all(head["bias"].shape == (CLIENTS,) for head in made["heads"].values())


def test_heads_of_the_public_code() -> None:
    """relu_norm: weights in (0, 1), no bias; every head and client its own."""
    made = net("relu_norm")
    for head in made["heads"].values():
        assert ((head["weight"] >= 0) & (head["weight"] < 1)).all()
        assert not head["bias"].any()
    assert not torch.equal(made["heads"]["0"]["weight"], made["heads"]["1"]["weight"])
    assert not torch.equal(
        made["heads"]["0"]["weight"], net("relu_norm", 1)["heads"]["0"]["weight"]
    )


@pytest.mark.parametrize("norm", ["softmax", "relu_norm"])
def test_rows_are_in_the_simplex(norm: str) -> None:
    for seed in range(20):
        weights = weigh(net(norm, seed), torch.tensor(2), EVERYONE, norm)
        assert weights.shape == (BLOCKS, CLIENTS)
        assert (weights >= 0).all()
        torch.testing.assert_close(weights.sum(1), torch.ones(BLOCKS))


def test_logits_by_hand() -> None:
    """z = relu(2 · 1 - 3) = 0 is cut off, z = relu(2 · 2 - 3) = 1 is not."""
    made = {
        "embed": torch.tensor([2.0]),
        "body": {"0": {"weight": torch.tensor([[2.0]]), "bias": torch.tensor([-3.0])}},
        "heads": {"0": {"weight": torch.tensor([[1.0], [-1.0], [3.0]]), "bias": torch.zeros(3)}},
    }
    weights = weigh(made, torch.tensor(0), EVERYONE[:3], "relu_norm")
    assert weights.tolist() == [[0.25, 0, 0.75]]
    soft = weigh(made, torch.tensor(0), EVERYONE[:3], "softmax")
    torch.testing.assert_close(soft[0], torch.tensor([1.0, -1.0, 3.0]).softmax(0))
    flat = weigh(made | {"embed": torch.tensor([1.0])}, torch.tensor(0), EVERYONE[:3], "softmax")
    assert flat[0].tolist() == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("norm", ["softmax", "relu_norm"])
def test_who_never_trains_has_a_weight_in_the_own_row_alone(norm: str) -> None:
    trains = torch.tensor([True, True, True, False, False])
    among = [weigh(net(norm), torch.tensor(i), trains, norm) for i in (0, 3)]
    assert not among[0][:, 3:].any()
    assert not among[1][:, 4].any()
    assert among[1][:, 3].all()
    for weights in among:
        torch.testing.assert_close(weights.sum(1), torch.ones(BLOCKS))


@pytest.mark.parametrize("cid", [0, 2])
def test_where_no_logit_is_positive_it_is_the_own_model(cid: int) -> None:
    """relu_norm has nothing to divide by: one-hot, and no NaN in the gradient either."""
    dead = net("relu_norm")
    dead["heads"]["1"]["weight"] = -dead["heads"]["1"]["weight"]
    weights = weigh(dead, torch.tensor(cid), EVERYONE, "relu_norm")
    assert weights[1].tolist() == [float(i == cid) for i in range(CLIENTS)]
    assert weights[0].count_nonzero() > 1

    def total(embed: torch.Tensor) -> torch.Tensor:
        return (
            weigh(dead | {"embed": embed}, torch.tensor(cid), EVERYONE, "relu_norm").square().sum()
        )

    assert torch.func.grad(total)(dead["embed"]).isfinite().all()


def test_mixture_by_hand() -> None:
    models = {"a": torch.tensor([[1.0, 2.0], [3.0, 6.0]]), "b": torch.tensor([10.0, 30.0])}
    weights = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
    mixed = mixture(weights, models, (("a",), ("b",)))
    assert mixed["a"].tolist() == [2, 4]
    assert float(mixed["b"]) == 25
    one = mixture(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), models, (("a",), ("b",)))
    assert one["a"].tolist() == [3, 6]
    assert float(one["b"]) == 10


@pytest.mark.parametrize("norm", ["softmax", "relu_norm"])
def test_maps_over_clients(norm: str) -> None:
    nets = [net(norm, seed) for seed in range(4)]
    ids = torch.arange(4)
    together = vmap(lambda n, i: weigh(n, i, EVERYONE, norm))(tree.stack(nets), ids)
    alone = torch.stack([weigh(n, i, EVERYONE, norm) for n, i in zip(nets, ids, strict=True)])
    torch.testing.assert_close(together, alone)
