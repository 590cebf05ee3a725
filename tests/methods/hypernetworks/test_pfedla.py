"""pFedLA and HeurpFedLA: by hand, the sign of the hypernetworks' step, limits and bytes."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.func import grad

from fedtailor.core import tree
from fedtailor.core.task import Batch, Task, classification
from fedtailor.core.training import Recipe
from fedtailor.methods import fedavg, heurpfedla, local, pfedla
from fedtailor.methods.parts.layerwise import mixture, weigh
from tests.methods.worlds import (
    ENGINES,
    HALF,
    data_of,
    gap,
    models,
    near,
    of_models,
    play,
    ragged,
    rows_of,
    same,
    simulate,
    task_of,
    two_numbers,
)

RECIPE = Recipe(epochs=2, batch=8, lr=0.1)
SMALL = {"embed": 4, "hidden": 5, "depth": 2}
COHORTS = [[0, 1, 2, 3], [1, 2, 5], [0, 3, 4], [0, 1, 2, 3, 4, 5]]
NORMS = ("softmax", "relu_norm")


def deep() -> nn.Module:
    """4-5-5-3: 25 + 30 + 18 parameters."""
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3))


def _task() -> Task:
    return classification(deep)


def _weights(sim) -> torch.Tensor:
    """α [block, client, client]."""
    return sim.records()["aggregation_weights"]


# ---------------------------------------------------------------------------------------- by hand


def _net(heads: list) -> dict:
    """Two clients' nets: embedding 1, one hidden number z = relu(1 · 1 + 0) = 1; given heads."""
    one = torch.ones(2, 1)
    return {
        "embed": one.clone(),
        "body": {"0": {"weight": one[..., None].clone(), "bias": torch.zeros(2, 1)}},
        "heads": {
            str(i): {
                "weight": torch.tensor([weight, weight])[..., None],
                "bias": torch.tensor([bias, bias]),
            }
            for i, (weight, bias) in enumerate(heads)
        },
    }


def _stored() -> dict:
    """θ_0 = (1, 0), θ_1 = (3, 4)."""
    return {"a": torch.tensor([1.0, 3.0]), "b": torch.tensor([0.0, 4.0])}


TINY = {"embed": 1, "hidden": 1, "depth": 1, "hn_lr": 0.1, "recipe": HALF}


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine):
    """(a - x)²/2 + (b - x)²/2, half the way a round; client 0 has x = 4, client 1 x = 8."""
    task = two_numbers()
    sim = simulate(pfedla(task, **TINY), rows_of([[4.0], [7.0, 8.0, 9.0]]), task, engine=engine)
    heads = [([0.0, 0.0], [0.0, 0.0]), ([0.0, 1.0], [0.0, -1.0])]
    sim.server |= {"models": _stored(), "nets": _net(heads)}
    # logits: a (0, 0); b (0, 1 - 1): all α are 1/2. θ_bar = ((1 + 3)/2, (0 + 4)/2) = (2, 2)
    assert of_models(sim, "a") == near(2.0, 2.0)
    assert of_models(sim, "b") == near(2.0, 2.0)
    # client 0: (2, 2) -> (3, 3), Δ = (1, 1); client 1: -> (5, 5), Δ = (3, 3)
    # ∂θ_bar/∂logit_j = α_j (θ_j - θ_bar): a (-1/2, 1/2), b (-1, 1); client 1 gets three times that
    # client 0, η = 0.1: head a: weight and bias + (-0.05, 0.05);
    #   head b: weight (0, 1) + (-0.1, 0.1), bias (0, -1) + (-0.1, 0.1)
    #   z gets 0 · (-1) + 1 · 1 = 1 (head a's weights are 0): body and embedding + 0.1
    # client 1: head a ± 0.15, head b ± 0.3, body and embedding + 0.3
    play(sim)
    nets = sim.server["nets"]
    assert nets["heads"]["0"]["weight"][..., 0].tolist() == [near(-0.05, 0.05), near(-0.15, 0.15)]
    assert nets["heads"]["0"]["bias"].tolist() == [near(-0.05, 0.05), near(-0.15, 0.15)]
    assert nets["heads"]["1"]["weight"][..., 0].tolist() == [near(-0.1, 1.1), near(-0.3, 1.3)]
    assert nets["heads"]["1"]["bias"].tolist() == [near(-0.1, -0.9), near(-0.3, -0.7)]
    assert nets["body"]["0"]["weight"].flatten().tolist() == near(1.1, 1.3)
    assert nets["body"]["0"]["bias"].flatten().tolist() == near(0.1, 0.3)
    assert nets["embed"].flatten().tolist() == near(1.1, 1.3)
    assert sim.server["models"]["a"].tolist() == near(3.0, 5.0)
    # z = 1.1 1.1 + 0.1 = 1.31 and 1.3 1.3 + 0.3 = 1.99. How far apart the logits are:
    #   client 0: a 0.1 1.31 + 0.1 = 0.231, b 1.2 1.31 - 0.8 = 0.772
    #   client 1: a 0.3 1.99 + 0.3 = 0.897, b 1.6 1.99 - 0.4 = 2.784
    # α for client 1's model: σ of that. θ_bar = 3 + 2 σ
    expected = [[0.231, 0.897], [0.772, 2.784]]
    for block, logits in zip(_weights(sim), expected, strict=True):
        assert block[:, 1].tolist() == near(*(1 / (1 + math.exp(-z)) for z in logits))
    assert of_models(sim, "a") == near(4.114989126275212, 4.420665223534373)
    assert of_models(sim, "b") == near(4.367906750033155, 4.883610130840134)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_heuristic_by_hand(engine):
    """As above with k = 1; block b's weights are (3/4, 1/4): client 0 keeps b, client 1 a."""
    task = two_numbers()
    world = rows_of([[4.0], [7.0, 8.0, 9.0]])
    sim = simulate(heurpfedla(task, k=1, **TINY), world, task, engine=engine)
    heads = [([0.0, 0.0], [0.0, 0.0]), ([0.0, 0.0], [math.log(3), 0.0])]
    sim.server |= {"models": _stored(), "nets": _net(heads)}
    sim.states.put(torch.arange(2), {"buffers": {}, "own": _stored()})
    # client 0: a is sent: (1 + 3)/2 = 2; b is its own: 0. -> (3, 2), Δ = (1, 2)
    # client 1: a is its own: 3; b is sent: 3/4 0 + 1/4 4 = 1. -> (5.5, 4.5), Δ = (2.5, 3.5)
    assert of_models(sim, "a") == near(2.0, 3.0)
    assert of_models(sim, "b") == near(0.0, 1.0)
    (report,) = play(sim)
    assert report.down.tolist() == [8, 8]  # one number of float64; whose, is not counted
    assert report.up.tolist() == [16, 16]
    assert sim.server["models"]["a"].tolist() == near(3.0, 5.5)
    assert sim.server["models"]["b"].tolist() == near(2.0, 4.5)
    assert sim.states.rows["own"]["b"].tolist() == near(2.0, 4.5)
    # only what was sent teaches. client 0, a: ± 1/2 1 · 0.1
    # client 1, b: α_j (θ_j - 1) = (-3/4, 3/4), times 3.5 and 0.1: ± 0.2625
    heads = sim.server["nets"]["heads"]
    assert heads["0"]["bias"].tolist() == [near(-0.05, 0.05), [0, 0]]
    assert heads["1"]["bias"].tolist() == [
        near(math.log(3), 0.0),
        near(math.log(3) - 0.2625, 0.2625),
    ]
    assert heads["1"]["weight"][..., 0].tolist() == [[0, 0], near(-0.2625, 0.2625)]


# -------------------------------------------------------------------------------------- weights


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("norm", NORMS)
def test_rows_stay_in_the_simplex(norm, engine):
    """And they do move."""
    task, world = _task(), ragged()
    method = pfedla(task, normalisation=norm, hn_lr=0.5, recipe=RECIPE, **SMALL)
    sim = simulate(method, world, task, engine=engine)
    before = _weights(sim)
    play(sim, COHORTS)
    after = _weights(sim)
    assert after.shape == (3, 6, 6)
    assert (after >= 0).all()
    torch.testing.assert_close(after.sum(-1), torch.ones(3, 6))
    assert (after - before).abs().max() > 1e-3


def _fixed_weights(sim, logits: torch.Tensor) -> None:
    """Every client's row of α is the softmax of its row of logits, whatever its embedding."""
    for head in sim.server["nets"]["heads"].values():
        head["weight"].zero_()
        head["bias"].copy_(logits)


@pytest.mark.parametrize("engine", ENGINES)
def test_own_weights_only_is_local(engine):
    """η = 0 and one-hot weights. θ_bar + (θ - θ_bar) rounds, hence a tolerance."""
    task, world = _task(), ragged()
    ours = simulate(pfedla(task, hn_lr=0.0, recipe=RECIPE, **SMALL), world, task, engine=engine)
    _fixed_weights(ours, 500 * torch.eye(6))
    theirs = simulate(local(task, recipe=RECIPE), world, task, engine=engine)
    assert torch.equal(_weights(ours), torch.eye(6).expand(3, 6, 6))
    for cohort in COHORTS:
        play(ours, [cohort])
        play(theirs, [cohort])
        assert gap(models(ours), models(theirs)) < 1e-6


@pytest.mark.parametrize("engine", ENGINES)
def test_weights_by_rows_is_fedavg(engine):
    """α_ij = n_j/Σ n, everybody there: every θ_bar is FedAvg's model."""
    task, world = _task(), ragged()
    ours = simulate(pfedla(task, hn_lr=0.0, recipe=RECIPE, **SMALL), world, task, engine=engine)
    _fixed_weights(ours, world.train.n.log().expand(6, 6))
    theirs = simulate(fedavg(task, recipe=RECIPE), world, task, engine=engine)
    for _ in range(3):
        play(ours)
        play(theirs)
        for model in models(ours).values():
            assert gap(model, theirs.server["params"]) < 1e-6


# ---------------------------------------------------------------------------- the sign of the step


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_learnt_nothing_taught(engine, norm):
    """Δ = 0 leaves the hypernetworks as they are."""
    task, world = _task(), ragged()
    method = pfedla(task, normalisation=norm, hn_lr=10.0, recipe=replace(RECIPE, lr=0.0), **SMALL)
    sim = simulate(method, world, task, engine=engine)
    sim.server["models"] = tree.map(
        lambda p: p + torch.randn(p.shape, generator=torch.Generator().manual_seed(1)),
        sim.server["models"],
    )
    before = tree.map(torch.clone, sim.server["nets"])
    play(sim)
    assert same(sim.server["nets"], before)


def _slopes(task, world, hn_lr, norm, make=pfedla) -> list[float]:
    """<∇_ψ L_i(θ_bar_i), ψ_new - ψ_old> of every client after one round with one full batch."""
    method = make(task, hn_lr=hn_lr, normalisation=norm, recipe=Recipe(batch=0, lr=0.05), **SMALL)
    sim = simulate(method, world, task)
    maker = torch.Generator().manual_seed(3)
    sim.server["models"] = tree.map(
        lambda p: p + 0.5 * torch.randn(p.shape, generator=maker), sim.server["models"]
    )
    stored, old = sim.server["models"], sim.server["nets"]
    play(sim)
    moved = tree.sub(sim.server["nets"], old)
    found = []
    for i in range(world.clients):
        data = data_of(world, i)
        rows = data.rows[: int(data.n)]
        batch = Batch(data.x[rows], data.y[rows], torch.ones(len(rows)), torch.tensor(True), None)

        def loss(net, i=i, batch=batch):
            weights = weigh(net, torch.tensor(i), sim.server["trains"], norm)
            return task.loss(mixture(weights, stored, task.blocks), batch)[0]

        slope = grad(loss)(tree.index(old, i))
        step = tree.index(moved, i)
        found.append(float(sum((a * b).sum() for a, b in zip(
            tree.leaves(slope), tree.leaves(step), strict=True))))  # fmt: skip
    return found


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("norm", NORMS)
def test_the_hypernetworks_descend(norm):
    """The step goes down the client's own loss; with the public codes' sign it goes up."""
    task, world = _task(), ragged()
    ours = _slopes(task, world, 1e-3, norm)
    wrong = _slopes(task, world, -1e-3, norm)
    assert all(slope < 0 for slope in ours)
    assert all(slope > 0 for slope in wrong)
    assert ours == pytest.approx([-slope for slope in wrong])


def _vectors() -> Task:
    """One block of four numbers with the loss |w - e_x|²/2, e_x the x-th unit vector."""
    units = torch.eye(4)

    def error(w, x):
        return (w - units[x.long()]).square().sum(-1) / 2

    def loss(params, batch):
        each = error(params["w"][None], batch.x)
        return (each * batch.weight).sum() / batch.weight.sum().clamp(min=1), {}

    def predict(params, x):
        each = error(params["w"][None], x)
        return torch.stack([-each, each], -1)

    return Task(lambda key: {"w": torch.zeros(4)}, loss, predict, (("w",),))


def _toy(hn_lr: float, norm: str = "softmax") -> tuple[torch.Tensor, list[float]]:
    """Client 0's weights after learning among four fixed models, and the losses on the way."""
    task = _vectors()
    world = rows_of([[2.0], [0.0], [0.0], [0.0]])  # client 0's optimum is the model e_2
    method = pfedla(task, hn_lr=hn_lr, normalisation=norm, recipe=HALF, **SMALL)
    sim = simulate(method, world, task, rounds=90, seed=3)
    losses = []
    for _ in range(90):
        sim.server["models"] = {"w": torch.eye(4)}  # the stored models stay as they are
        weights = _weights(sim)[0, 0]
        losses.append(float((weights - torch.eye(4)[2]).square().sum() / 2))
        play(sim, [[0]])
    return _weights(sim)[0, 0], losses


def test_the_best_model_gets_all_the_weight():
    """α goes to the one-hot vector of model 2, and the loss falls all the way."""
    weights, losses = _toy(3.0)
    assert float(weights[2]) > 0.99
    assert losses[-1] < 1e-3 < losses[0]
    assert all(after <= before + 1e-6 for before, after in pairwise(losses))


def test_with_the_other_sign_it_gets_none():
    """What both public codes do: the loss climbs, and model 2 loses all its weight."""
    weights, losses = _toy(-3.0)
    assert float(weights[2]) < 0.01
    assert losses[-1] > losses[0]


# -------------------------------------------------------------------------------------- HeurpFedLA


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("norm", NORMS)
def test_keeping_nothing_is_pfedla(norm, engine):
    """k = 0, exactly."""
    task, world = _task(), ragged()
    options = {"normalisation": norm, "hn_lr": 0.1, "recipe": RECIPE, **SMALL}
    found = []
    for method in (heurpfedla(task, k=0, **options), pfedla(task, **options)):
        sim = simulate(method, world, task, engine=engine)
        reports = play(sim, COHORTS)
        found.append({"server": sim.server, "models": models(sim)})
        assert all(r.down.tolist() == [4 * 73] * len(r.ids) for r in reports)
    assert same(*found)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("k", [3, 8])
def test_keeping_everything_is_local(k, engine):
    """k = n, exactly, and nothing is sent down. The hypernetworks learn nothing."""
    task, world = _task(), ragged()
    ours = simulate(heurpfedla(task, k=k, recipe=RECIPE, **SMALL), world, task, engine=engine)
    theirs = simulate(local(task, recipe=RECIPE), world, task, engine=engine)
    nets = tree.map(torch.clone, ours.server["nets"])
    for cohort in COHORTS:
        (report,) = play(ours, [cohort])
        play(theirs, [cohort])
        assert report.down.tolist() == [0] * len(cohort)
        assert report.up.tolist() == [4 * 73] * len(cohort)
        assert same(models(ours), models(theirs))
    assert same(ours.server["nets"], nets)
    # the server follows by adding up what it is told
    assert gap(ours.server["models"], ours.states.rows["own"]) < 1e-5


@pytest.mark.parametrize("engine", ENGINES)
def test_retained_blocks_are_the_own(engine):
    """The k blocks with the largest self-weight are the client's, the others as written."""
    task, world = _task(), ragged()
    k0, k1 = (
        simulate(
            heurpfedla(task, k=k, hn_lr=0.5, recipe=RECIPE, **SMALL), world, task, engine=engine
        )
        for k in (0, 1)
    )
    play(k1, 3)
    k0.server = k1.server  # what would be written for the same server
    written, received = models(k0), models(k1)
    chosen = set()
    for client in range(6):
        own = tree.index(k1.states.rows["own"], client)
        kept = int(_weights(k1)[:, client, client].argmax())
        chosen.add(kept)
        for number, block in enumerate(task.blocks):
            source = own if number == kept else written[str(client)]
            assert gap(tree.pick(received[str(client)], block), tree.pick(source, block)) < 1e-6
    assert len(chosen) > 1, "a choice that is the same for all would not show whose it is"


@pytest.mark.parametrize("engine", ENGINES)
def test_ties_go_to_the_lower_block(engine):
    """All self-weights are 1/6; the blocks next to the input are kept."""
    task, world = _task(), ragged()
    for k, sent in ((1, 30 + 18), (2, 18)):
        sim = simulate(heurpfedla(task, k=k, recipe=RECIPE, **SMALL), world, task, engine=engine)
        _fixed_weights(sim, torch.zeros(6, 6))
        (report,) = play(sim)
        assert report.down.tolist() == [4 * sent] * 6


# ------------------------------------------------------------------------------------------- bytes


@pytest.mark.parametrize("engine", ENGINES)
def test_bytes(engine):
    """The downlink shrinks with k by the retained blocks, to 0; the uplink never does."""
    task, world = _task(), ragged()
    sizes = [25, 30, 18]
    downs = []
    for k in range(5):
        sim = simulate(heurpfedla(task, k=k, recipe=RECIPE, **SMALL), world, task, engine=engine)
        self_weight = torch.stack([_weights(sim)[:, i, i] for i in range(6)])
        kept = self_weight.argsort(descending=True, stable=True)[:, :k]
        expected = [4 * (73 - sum(sizes[b] for b in row)) for row in kept.tolist()]
        (report,) = play(sim)
        assert report.down.tolist() == expected
        assert report.up.tolist() == [4 * 73] * 6
        downs.append(report.down)
    assert all((b <= a).all() for a, b in pairwise(downs))
    assert downs[0].tolist() == [4 * 73] * 6
    assert not downs[3].any()


# -------------------------------------------------------------------------------- other behaviour


@pytest.mark.parametrize("engine", ENGINES)
def test_only_the_cohort_is_taught(engine):
    """Others' hypernetworks and models stay; their models still count for everybody."""
    task, world = _task(), ragged()
    sim = simulate(pfedla(task, hn_lr=0.5, recipe=RECIPE, **SMALL), world, task, engine=engine)
    play(sim)
    before = tree.map(torch.clone, sim.server)
    play(sim, [[1, 4]])
    for client in range(6):
        there = client in (1, 4)
        for part in ("models", "nets"):
            one, two = (tree.index(s[part], client) for s in (before, sim.server))
            assert same(one, two) == (not there)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("make", [pfedla, heurpfedla])
def test_running_statistics_stay_with_the_client(make, engine):
    """Buffers neither travel nor are mixed. Parameters: 24 + 6 + 12 + 21 = 63."""
    task, world = task_of("norm"), ragged()
    sim = simulate(make(task, recipe=Recipe(batch=8), **SMALL), world, task, engine=engine)
    report = play(sim, 2)[1]
    assert report.up.tolist() == [4 * 63] * 6
    assert not set(sim.server["models"]) & set(task.buffers)
    means = sim.states.rows["buffers"]["1.running_mean"]
    assert len({tuple(row) for row in means.tolist()}) == 6
    for client, model in models(sim).items():
        assert torch.equal(model["1.running_mean"], means[int(client)])
