"""FedGen: a generator of features."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedtailor import BadInput
from fedtailor.core import rng, tree
from fedtailor.core.method import ClientCount, Upload
from fedtailor.core.training import Recipe
from fedtailor.methods import fedavg, fedgen
from fedtailor.methods.distillation.fedgen import class_shares, generated, random_labels
from tests.methods.worlds import (
    ENGINES,
    SIZES,
    data_of,
    gap,
    labelled,
    near,
    one_number,
    play,
    ragged,
    random_like,
    same,
    simulate,
    task_of,
    turn_of,
    two_layers,
)

SMALL = {"noise": 3, "hidden": 5, "generator_steps": 4, "generator_batch": 8}


def module(made: dict) -> nn.Sequential:
    """The generator as an ordinary network."""
    hidden, inputs = made["first.weight"].shape
    net = nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.BatchNorm1d(hidden),
        nn.ReLU(),
        nn.Linear(hidden, len(made["last.weight"])),
    )
    names = {"first": "0", "norm": "1", "last": "3"}
    renamed = {"mean": "running_mean", "var": "running_var"}
    state = {}
    for name, value in made.items():
        layer, what = name.split(".")
        state[f"{names[layer]}.{renamed.get(what, what)}"] = value.clone()
    net.load_state_dict(state, strict=False)
    return net


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine: str) -> None:
    # z = x, heads 0, lr 1. A generator that always makes the feature 2, whoever asks.
    # round 0 is FedAvg: x = 1 of class 0 against three rows x = 1 of class 1:
    #   client 0: W = b = (1/2, -1/2);  client 1: (-1/2, 1/2);  means with 1/4, 3/4: (-1/4, 1/4)
    task = two_layers([[1.0]], [[0.0], [0.0]])
    world = labelled([[([1.0], 0)], [([1.0], 1)] * 3])
    method = fedgen(
        task, a=3.0, b=2.0, **SMALL | {"generator_steps": 0}, recipe=Recipe(batch=0, lr=1.0)
    )
    sim = simulate(method, world, task, engine=engine)
    made = sim.server["generator"]
    made["last.weight"] = torch.zeros_like(made["last.weight"])
    made["last.bias"] = torch.tensor([2.0])
    sim.server["known"] = torch.tensor([1.0, 0.0])
    play(sim)
    assert sim.server["params"]["head.bias"].tolist() == near(-0.25, 0.25)
    assert sim.server["known"].tolist() == [1, 1]
    # round 1, client 1, class 0 alone is known, say: generated rows are of it
    #   real: logits ∓1/2: p = σ(-1) of class 0, slope of logit 0: p;  b term: target of z = 2:
    #   logits ∓3/4, t = σ(-3/2), slope p - t;  generated: q = t, slope of logit 0: q - 1
    #   a_1 = 3 0.98, b_1 = 2 0.98
    sigmoid = lambda x: 1 / (1 + math.exp(-x))
    p, t = sigmoid(-1.0), sigmoid(-1.5)
    sim.server["known"] = torch.tensor([1.0, 0.0])
    play(sim, [[1]])
    real, unreal = p + 1.96 * (p - t), 2.94 * (t - 1)
    bias, weight = (sim.server["params"][f"head.{name}"].flatten() for name in ("bias", "weight"))
    assert float(bias[0]) == near(-0.25 - real - unreal)
    assert float(weight[0]) == near(-0.25 - real * 1 - unreal * 2)


@pytest.mark.usefixtures("double")
def test_the_generator_learns_as_in_plain_pytorch() -> None:
    """Heads one by one, weighted by classes; Adam; BatchNorm in training mode."""
    task = task_of()
    method = fedgen(task, **SMALL, generator_lr=0.01)
    w, turn = task.init(rng.key(0)), turn_of(2)
    server = method.init(ClientCount.of(torch.tensor([5, 6, 7])), w, rng.key(0))
    heads = [tree.pick(random_like(w, seed), task.head) for seed in range(3)]
    rows = torch.tensor([[3.0, 0.0, 1.0], [1.0, 5.0, 0.0], [4.0, 0.0, 0.0]])
    up = Upload({"body": tree.drop(w, task.head)}, each={"head": tree.stack(heads), "rows": rows})
    after = method.receive(server, torch.arange(3), up, turn)["generator"]

    net = module(server["generator"])
    adam = torch.optim.Adam(net.parameters(), lr=0.01 * 0.98**2, weight_decay=1e-2)
    shares = class_shares(rows)
    assert shares.tolist() == [near(3 / 8, 1 / 8, 0.5), near(0.0, 1.0, 0.0), near(1.0, 0.0, 0.0)]
    for step in range(4):
        # class 2 has one row: it is not generated
        known = torch.tensor([1, 1, 0])
        y, drawn = random_labels(rng.fold(turn.key, step), known, 8, 3, torch.float64)
        assert set(y.tolist()) <= {0, 1}
        z = net(torch.cat([F.one_hot(y, 3), drawn], 1))
        loss = torch.zeros(())
        for k, head in enumerate(heads):
            said = F.linear(z, head["2.weight"], head["2.bias"])
            loss = loss + (shares[y, k] * F.cross_entropy(said, y, reduction="none")).mean()
        noise = ((drawn[:, None] - drawn[None]) ** 2).mean(2)
        features = (z[:, None] - z[None]).abs().mean(2)
        loss = loss + torch.exp(-(noise * features).mean())
        adam.zero_grad()
        loss.backward()
        adam.step()
    found = module(after)
    assert (
        gap(
            dict(found.state_dict()),
            dict(net.state_dict())
            | {"1.num_batches_tracked": found.state_dict()["1.num_batches_tracked"]},
        )
        < 1e-9
    )
    # and clients use it in evaluation mode
    net.eval()
    y, drawn = random_labels(rng.key(5), torch.ones(3), 8, 3, torch.float64)
    said = net(torch.cat([F.one_hot(y, 3), drawn], 1)).detach()
    assert gap({"z": generated(after, y, drawn)}, {"z": said}) < 1e-9
    # other heads, another generator; the order of clients does not matter
    other = up._replace(each=up.each | {"head": tree.stack([heads[1], *heads[1:]])})
    assert gap(method.receive(server, torch.arange(3), other, turn)["generator"], after) > 1e-4
    turned = tree.index(up.each, torch.tensor([2, 0, 1]))
    again = method.receive(server, torch.arange(3), up._replace(each=turned), turn)
    assert gap(again["generator"], after) < 1e-9


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("weighting", ["data", "uniform"])
def test_without_strength_it_is_fedavg_and_so_is_the_first_round(
    weighting: str, engine: str
) -> None:
    task, world = task_of("norm"), ragged()
    methods = (
        fedgen(task, a=0.0, b=0.0, weighting=weighting, **SMALL),
        fedgen(task, weighting=weighting, **SMALL),
        fedavg(task, weighting=weighting),
    )
    off, on, plain = (simulate(m, world, task, engine=engine) for m in methods)
    for sim in (off, on, plain):
        play(sim)
    assert gap(off.server["params"], plain.server["params"]) < 1e-12
    assert gap(on.server["params"], plain.server["params"]) < 1e-12
    for sim in (off, on, plain):
        play(sim, [[0, 1, 3]])
    assert gap(off.server["params"], plain.server["params"]) < 1e-12
    assert gap(on.server["params"], plain.server["params"]) > 1e-3


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("batch", [0, 8])
def test_a_client_trains_alike_whoever_else_takes_part(batch: int, engine: str) -> None:
    """With all rows at once, too, where a batch is padded to the longest client's."""
    task, world = task_of(), ragged()
    method = fedgen(task, **SMALL, recipe=Recipe(batch=batch, lr=0.05))
    sim = simulate(method, world, task, engine=engine)
    play(sim)
    trained = lambda *ids: dict(sim.models(ids=torch.tensor(ids), point="post"))[0]
    assert gap(trained(0), trained(0, 1)) < 1e-12  # 7 rows, alone and beside 20


@pytest.mark.usefixtures("double")
def test_labels_are_uniform_over_known_classes() -> None:
    y, drawn = random_labels(rng.key(1), torch.tensor([1.0, 0, 1, 1]), 6000, 2, torch.float64)
    counts = torch.bincount(y, minlength=4)
    assert counts[1] == 0
    assert all(1850 < int(counts[c]) < 2150 for c in (0, 2, 3))
    assert 0 <= float(drawn.min()) < 0.01 < 0.99 < float(drawn.max()) < 1


def test_a_cohort_of_single_rows_leaves_the_generator_alone() -> None:
    """No class of which anybody has more than one: nothing to learn from."""
    task = two_layers([[1.0]], [[0.0], [0.0]])
    world = labelled([[([1.0], 0)], [([1.0], 1)]])
    sim = simulate(fedgen(task, **SMALL), world, task)
    before = tree.map(torch.clone, sim.server["generator"])
    play(sim, 2)
    assert same(before, sim.server["generator"])


def test_bytes() -> None:
    """Model, generator and known classes down; model and counts up."""
    task = task_of()
    sim = simulate(fedgen(task, **SMALL), ragged(), task)
    made = (3 + 3) * 5 + 5 + 4 * 5 + 5 * 6 + 6
    (report,) = play(sim)
    assert report.down.tolist() == [4 * (51 + made + 3)] * 6
    assert report.up.tolist() == [4 * (51 + 3)] * 6


def test_a_network_without_a_head_is_refused() -> None:
    with pytest.raises(BadInput, match="FedGen generates features, but the network's head is no"):
        fedgen(one_number())


def test_data_of_one_client_is_enough_for_a_step() -> None:
    """The client's function without an engine, in the second round."""
    task, world = task_of("norm"), ragged()
    sim = simulate(fedgen(task, **SMALL), world, task)
    play(sim)
    message = sim.method.send(sim.server, torch.tensor(1), turn_of(1))
    out = sim.method.client(message, {}, data_of(world, 1), turn_of(1))
    assert out.upload.each["rows"].sum() == SIZES[1]
    assert all(leaf.isfinite().all() for leaf in tree.leaves(out.model))
