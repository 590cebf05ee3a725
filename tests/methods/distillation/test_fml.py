"""FML: a private network and a common one teach each other."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedtailor.core import rng, tree
from fedtailor.core.training import Recipe
from fedtailor.methods import fedavg, fml, local
from fedtailor.methods.parts.two_networks import divergence, fit_both
from tests.methods.worlds import (
    ENGINES,
    data_of,
    gap,
    labelled,
    mlp,
    models,
    near,
    play,
    ragged,
    same,
    simulate,
    snapshot,
    task_of,
    turn_of,
    two_layers,
)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine: str) -> None:
    # one feature, x = 1 for both clients; logits W x + b, the body stays where W = 0 or is 1.
    # private: W = 0: p_f = (1/2, 1/2).  meme: W = 0, b = (log 3, 0): p_g = (3/4, 1/4)
    # slopes for logit 0, α = β = 1/2:
    #   client 0, label 0:  f: 1/2 (1/2 - 1) + 1/2 (1/2 - 3/4) = -3/8
    #                       g: 1/2 (3/4 - 1) + 1/2 (3/4 - 1/2) = 0
    #   client 1, label 1:  f: 1/2 (1/2) + 1/2 (1/2 - 3/4) = 1/8
    #                       g: 1/2 (3/4) + 1/2 (3/4 - 1/2) = 1/2
    # with η = 1:  f: b = ±3/8 and ∓1/8;  g's mean: b[0] = log 3 - 1/4, W[0] = -1/4
    task = two_layers([[1.0]], [[0.0], [0.0]])
    world = labelled([[([1.0], 0)], [([1.0], 1)]])
    method = fml(task, recipe=Recipe(batch=0, lr=1.0))
    sim = simulate(method, world, task, engine=engine)
    log3 = float(torch.tensor(3.0).log())
    sim.server["params"]["head.bias"] = torch.tensor([log3, 0.0])
    play(sim)
    own, meme = sim.states.rows["own"], sim.server["params"]
    assert own["head.bias"].tolist() == [near(3 / 8, -3 / 8), near(-1 / 8, 1 / 8)]
    assert own["head.weight"].flatten().tolist() == near(3 / 8, -3 / 8, -1 / 8, 1 / 8)
    assert meme["head.bias"].tolist() == near(log3 - 0.25, 0.25)
    assert meme["head.weight"].flatten().tolist() == near(-0.25, 0.25)
    assert meme["body.weight"].tolist() == [[1.0]]


@pytest.mark.usefixtures("double")
def test_it_is_two_optimisers_in_plain_pytorch() -> None:
    """Both losses first, then both steps; targets are detached, KL is `batchmean`."""
    task, data, turn = task_of(), data_of(ragged(), 1), turn_of()
    recipe = Recipe(batch=0, epochs=3, lr=0.1, momentum=0.5, weight_decay=0.01)
    method = fml(task, alpha=0.3, beta=0.8, recipe=recipe)
    first, second = task.init(rng.key(1)), task.init(rng.key(2))
    state = method.start({"params": second}, first, rng.key(0))
    out = method.client({"params": second}, state, data, turn)

    f, g = mlp(), mlp()
    f.load_state_dict(first)
    g.load_state_dict(second)
    how = {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.01}
    steps = [torch.optim.SGD(net.parameters(), **how) for net in (f, g)]
    x, y = data.x[data.rows], data.y[data.rows]
    kl = torch.nn.KLDivLoss(reduction="batchmean")
    for _ in range(3):
        one, two = f(x), g(x)
        loss_f = 0.3 * F.cross_entropy(one, y)
        loss_f = loss_f + 0.7 * kl(one.log_softmax(1), two.softmax(1).detach())
        loss_g = 0.8 * F.cross_entropy(two, y)
        loss_g = loss_g + 0.2 * kl(two.log_softmax(1), one.softmax(1).detach())
        for step, loss in zip(steps, (loss_f, loss_g), strict=True):
            step.zero_grad()
            loss.backward()
            step.step()
    assert gap(out.model, f.state_dict()) < 1e-12
    assert gap(out.upload.mean["params"], g.state_dict()) < 1e-12


@pytest.mark.parametrize("engine", ENGINES)
def test_with_labels_alone_private_models_are_local(engine: str) -> None:
    task, world = task_of("norm"), ragged()
    sims = [simulate(m, world, task, engine=engine) for m in (fml(task, alpha=1.0), local(task))]
    for sim in sims:
        play(sim, 2)
    assert same(*map(models, sims))


@pytest.mark.parametrize("engine", ENGINES)
def test_with_labels_alone_the_meme_is_fedavgs(engine: str) -> None:
    task, world = task_of(), ragged()
    methods = (fml(task, alpha=1.0, beta=1.0), fml(task), fedavg(task, weighting="uniform"))
    sims = [simulate(m, world, task, engine=engine) for m in methods]
    first = sims[0].server
    for sim in sims:
        sim.server = first
        play(sim, [[0, 1, 3], [1, 2, 4, 5]])
    assert same(sims[0].server["params"], sims[2].server["params"])
    assert gap(sims[1].server["params"], sims[2].server["params"]) > 1e-4


@pytest.mark.usefixtures("double")
def test_the_target_has_no_slope() -> None:
    """In two public codes a model is also trained to make the other's target easy."""
    target, outputs = (torch.randn(4, 3, requires_grad=True) for _ in range(2))
    divergence(target, outputs).sum().backward()
    assert target.grad is None
    assert outputs.grad is not None
    same_net = divergence(outputs, outputs)
    assert same_net.abs().max() < 1e-12


def test_the_meme_begins_elsewhere_and_serves_clients_without_a_model() -> None:
    """Weights of its own, drawn with the run's seed; client 4 and 5 never take part."""
    task, world = task_of("norm"), ragged()
    sims = [simulate(fml(task), world, task, seed=seed) for seed in (0, 0, 1)]
    first, again, other = (sim.server["params"] for sim in sims)
    assert same(first, again)
    assert not same(first, other)
    assert gap(first, sims[0].initial) > 0.1
    play(sims[0], [[0, 1, 2, 3]])
    found = models(sims[0])
    for client in range(6):
        own = tree.index(sims[0].states.rows["own"], client)
        if client < 4:
            assert same(found[str(client)], own)
        else:
            assert same(found[str(client)], sims[0].server["params"])


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("weighting", ["uniform", "data"])
def test_memes_are_averaged_with_their_running_statistics(weighting: str) -> None:
    """The server has the mean of what each client alone would have sent."""
    task, world = task_of("norm"), ragged()
    method = fml(task, weighting=weighting)
    alone = []
    for client in range(6):
        sim = simulate(method, world, task)
        play(sim, [[client]])
        alone.append(sim.server["params"])
    sim = simulate(method, world, task)
    play(sim)
    size = world.train.n.double() if weighting == "data" else torch.ones(6)
    share = size / size.sum()
    mean = tree.map(lambda *p: torch.tensordot(share, torch.stack(p), 1), *alone)
    assert gap(sim.server["params"], mean) < 1e-12
    assert gap(tree.pick(mean, task.buffers), tree.pick(alone[0], task.buffers)) > 1e-3


def test_private_models_of_the_absent_rest() -> None:
    task, world = task_of("norm"), ragged()
    sim = simulate(fml(task), world, task)
    play(sim)
    before = snapshot(sim)["states"]
    play(sim, [[0, 3]])
    for client in range(6):
        kept = same(tree.index(before, client), tree.index(sim.states.rows, client))
        assert kept == (client not in (0, 3))


@pytest.mark.usefixtures("double")
def test_a_limit_on_gradients_is_for_each_network() -> None:
    """The other network's gradient does not count in a network's length."""
    task, data = task_of(), data_of(ragged(), 1)
    own, common = task.init(rng.key(1)), task.init(rng.key(2))
    recipe = Recipe(batch=0, lr=1.0, clip=0.01)

    def loss(f, g, more, batch):
        one, _ = task.loss(f, batch)
        two, _ = task.loss(g, batch)
        return one + 100 * two, {}, {}

    ends = fit_both((task, task), own, common, loss, data, turn_of(), recipe)
    for begin, end in zip((own, common), ends, strict=False):
        assert float(tree.sq_norm(tree.sub(end, begin)).sqrt()) == pytest.approx(0.01, rel=1e-3)
