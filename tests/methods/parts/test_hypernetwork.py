"""Networks that write parameters."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import grad, vmap

from fedtailor.core import rng, tree
from fedtailor.methods.parts.hypernetwork import apply_linear, linear, mlp_writer, table_writer

pytestmark = pytest.mark.usefixtures("float64")


def params() -> tree.Params:
    return {"0.weight": torch.ones(3, 2), "0.bias": torch.zeros(3), "1.scale": torch.tensor(2.0)}


NAMES = ("0.weight", "1.scale")
SHAPES = {"0.weight": (3, 2), "1.scale": ()}


def test_a_linear_layer_begins_as_torchs_does() -> None:
    ours = linear(rng.key(0), 50, 400)
    bound = 50**-0.5
    for leaf, shape in ((ours["weight"], (400, 50)), (ours["bias"], (400,))):
        assert leaf.shape == shape
        assert 0.97 * bound < float(leaf.abs().max()) <= bound
        # uniform on [-bound, bound]
        assert float(leaf.std()) == pytest.approx(bound / 3**0.5, rel=0.1)
        assert abs(float(leaf.mean())) < 0.1 * bound
    theirs = nn.Linear(50, 400)
    assert float(theirs.weight.detach().abs().max()) == pytest.approx(bound, rel=0.03)


def test_a_linear_layer_does_what_torchs_does() -> None:
    ours, x = linear(rng.key(0), 5, 3), rng.normal(rng.key(1), 5)
    torch.testing.assert_close(
        apply_linear(ours, x), nn.functional.linear(x, ours["weight"], ours["bias"])
    )


def test_written_parameters_have_the_names_and_shapes_of_the_model() -> None:
    writer = mlp_writer(SHAPES, hidden=8, depth=2, embed=4)
    net = writer.init(5, params(), rng.key(0))
    written = writer.write(net, torch.tensor(3))
    assert {k: v.shape for k, v in written.items()} == {k: params()[k].shape for k in NAMES}


@pytest.mark.parametrize(("embed", "clients", "size"), [(0, 10, 3), (0, 3, 1), (7, 10, 7)])
def test_the_size_of_an_embedding(embed: int, clients: int, size: int) -> None:
    net = mlp_writer(SHAPES, 8, 1, embed).init(clients, params(), rng.key(0))
    assert net["embed"].shape == (clients, size)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_the_network_is_the_published_one(depth: int) -> None:
    """Linear, then `depth` times (ReLU, Linear), then a head per parameter."""
    writer = mlp_writer(SHAPES, hidden=8, depth=depth, embed=4)
    net = writer.init(5, params(), rng.key(0))
    layers: list[nn.Module] = [nn.Linear(4, 8)]
    for _ in range(depth):
        layers += [nn.ReLU(), nn.Linear(8, 8)]
    body = nn.Sequential(*layers)
    assert len(net["body"]) == depth + 1
    lines = [m for m in body if isinstance(m, nn.Linear)]
    for i, module in enumerate(lines):
        module.load_state_dict(net["body"][str(i)])
    z = body(net["embed"][2])
    written = writer.write(net, torch.tensor(2))
    for name in NAMES:
        head = nn.Linear(8, params()[name].numel())
        head.load_state_dict(net["heads"][name])
        torch.testing.assert_close(written[name], head(z).view(params()[name].shape))


def test_the_network_depends_on_the_key_and_clients_differ() -> None:
    writer = mlp_writer(SHAPES, 8, 1, 4)
    net = writer.init(5, params(), rng.key(0))
    again, other = (writer.init(5, params(), rng.key(k)) for k in (0, 1))
    flat = lambda n: torch.cat([p.flatten() for p in tree.leaves(n)])
    assert torch.equal(flat(net), flat(again))
    assert not torch.equal(flat(net), flat(other))
    written = [writer.write(net, torch.tensor(i))["0.weight"] for i in range(5)]
    assert len(torch.stack(written).unique(dim=0)) == 5
    # no two layers share their numbers
    assert not torch.equal(net["heads"]["1.scale"]["bias"], net["body"]["0"]["bias"][:1])


@pytest.mark.parametrize("make", [lambda: mlp_writer(SHAPES, 8, 1, 4), lambda: table_writer(NAMES)])
def test_many_clients_at_once(make) -> None:
    writer = make()
    net = writer.init(5, params(), rng.key(0))
    ids = torch.tensor([4, 0, 2])
    together = vmap(writer.write, (None, 0))(net, ids)
    for row, cid in enumerate(ids):
        alone = writer.write(net, cid)
        for name in NAMES:
            torch.testing.assert_close(together[name][row], alone[name], rtol=1e-12, atol=1e-12)


def test_only_the_own_embedding_has_a_gradient() -> None:
    writer = mlp_writer(SHAPES, 8, 1, 4)
    net = writer.init(5, params(), rng.key(0))
    slope = grad(lambda n: tree.sq_norm(writer.write(n, torch.tensor(1))))(net)
    touched = slope["embed"].abs().sum(1) > 0
    assert touched.tolist() == [False, True, False, False, False]
    assert float(tree.sq_norm(slope["body"])) > 0


def test_a_table_writes_the_common_initial_parameters() -> None:
    writer = table_writer(NAMES)
    net = writer.init(3, params(), rng.key(0))
    for cid in range(3):
        written = writer.write(net, torch.tensor(cid))
        assert all(torch.equal(written[k], params()[k]) for k in NAMES)


def test_a_network_can_be_used_by_another_writer() -> None:
    first = mlp_writer(SHAPES, 8, 1, 4)
    net = first.init(5, params(), rng.key(0))
    again = mlp_writer(SHAPES, 8, 1, 4).write(net, torch.tensor(0))
    written = first.write(net, torch.tensor(0))
    assert list(again) == list(written)
    assert all(torch.equal(again[k], written[k]) for k in written)
