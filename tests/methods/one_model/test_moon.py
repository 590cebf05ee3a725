"""MOON: features near the global model's, and away from those of the client's last one."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedtailor import BadInput
from fedtailor.core import rng, tree
from fedtailor.core.form import Form
from fedtailor.core.method import Upload
from fedtailor.core.task import classification
from fedtailor.core.training import Recipe
from fedtailor.methods import fedavg, moon
from fedtailor.models import build
from tests.methods.worlds import (
    ENGINES,
    data_of,
    gap,
    labelled,
    mlp,
    near,
    one_number,
    play,
    ragged,
    random_like,
    same,
    simulate,
    snapshot,
    task_of,
    turn_of,
    two_layers,
)

IDENTITY, SWAP = [[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]


@pytest.mark.usefixtures("double")
def test_two_clients_by_hand() -> None:
    # z = A x with A = 1; the head is 0, so the loss has no slope for A. x = (1, 0).
    # client 0 kept a model with A = swap: z = z_g = (1, 0), z_p = (0, 1): cosines 1 and 0
    #   1/τ = log 3: p_g = 3/4, p_p = 1/4. The slope of cos_g for z is 0 at its maximum, that of
    #   cos_p is (0, 1): slope of A = μ p_p/τ (0, 1) x' = 4 1/4 log 3 at A[1, 0]
    #   with η = 1/2: A[1, 0] = -log(3)/2;  the head as ever: W = ∓1/4 x, b = ∓1/4
    # client 1 kept none: A stays.  The server's mean: A[1, 0] = -log(3)/4
    task = two_layers(IDENTITY, [[0.0, 0.0], [0.0, 0.0]])
    recipe = Recipe(batch=0, lr=0.5)
    method = moon(task, mu=4.0, temperature=1 / math.log(3), recipe=recipe)
    world = labelled([[([1.0, 0.0], 0)], [([1.0, 0.0], 1)]])
    w, turn = task.init(rng.key(0)), turn_of()
    found = []
    for client, kept in enumerate((1, 0)):
        state = method.start({"params": w}, w, rng.key(0))
        state["last"]["body.weight"] = torch.tensor([SWAP])
        state["kept"] = torch.tensor(kept)
        out = method.client({"params": w}, state, data_of(world, client), turn)
        assert same(tree.index(out.state["last"], 0), out.model)
        assert int(out.state["kept"]) == 1
        found.append(out.upload.mean)
    moved = -math.log(3) / 2
    assert found[0]["params"]["body.weight"].flatten().tolist() == near(1.0, 0.0, moved, 1.0)
    assert found[0]["params"]["head.weight"].flatten().tolist() == near(0.25, 0.0, -0.25, 0.0)
    assert found[1]["params"]["body.weight"].tolist() == IDENTITY
    up = Upload(tree.map(lambda a, b: (a + b) / 2, *found))
    server = method.receive({"params": w}, torch.arange(2), up, turn)
    assert server["params"]["body.weight"].flatten().tolist() == near(1.0, 0.0, moved / 2, 1.0)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("kept", [1, 2])
def test_it_is_a_loop_in_plain_pytorch(kept: int) -> None:
    """Cross-entropy of cosines whose right answer is the global model's, one step on all rows."""
    task, data = task_of(), data_of(ragged(), 1)
    method = moon(task, mu=0.7, temperature=0.3, buffer=2, recipe=Recipe(batch=0, lr=0.1))
    w = task.init(rng.key(3))
    last = [random_like(w, seed) for seed in (1, 2)]
    state = {"last": tree.stack(last), "kept": torch.tensor(kept)}
    out = method.client({"params": w}, state, data, turn_of())

    nets = [mlp() for _ in range(4)]
    for net, params in zip(nets, (w, w, *last), strict=True):
        net.load_state_dict(params)
    net, *others = nets
    x, y = data.x[data.rows], data.y[data.rows]
    z = net[:2](x)
    with torch.no_grad():
        theirs = [other[:2](x) for other in others[: 1 + kept]]
    cosines = torch.stack([nn.CosineSimilarity(dim=-1)(z, t) for t in theirs], 1) / 0.3
    loss = F.cross_entropy(net(x), y) + 0.7 * F.cross_entropy(cosines, torch.zeros_like(y))
    loss.backward()
    expected = {k: (p - 0.1 * p.grad).detach() for k, p in net.named_parameters()}
    assert gap(out.model, expected) < 1e-12
    # first in, first out
    assert same(tree.index(out.state["last"], 0), out.model)
    assert same(tree.index(out.state["last"], 1), last[0])
    assert int(out.state["kept"]) == 2


@pytest.mark.parametrize("engine", ENGINES)
def test_without_strength_it_is_fedavg_and_so_is_a_first_participation(engine: str) -> None:
    """Whenever that is: a latecomer has no last model to be driven away from."""
    task, world = task_of("norm"), ragged()
    off, on, plain = (
        simulate(m, world, task, engine=engine)
        for m in (moon(task, mu=0.0), moon(task), fedavg(task))
    )
    for sim in (off, on, plain):
        play(sim, [[0, 1, 3]])
    assert same(off.server["params"], plain.server["params"])
    assert gap(on.server["params"], plain.server["params"]) < 1e-6
    on.server = plain.server  # the same to the last bit
    for sim in (on, plain):
        play(sim, [[2, 4]])
    assert gap(on.server["params"], plain.server["params"]) < 1e-6
    on.server = plain.server
    for sim in (on, plain):
        play(sim, [[0, 2]])
    assert gap(on.server["params"], plain.server["params"]) > 1e-5


@pytest.mark.usefixtures("double")
def test_much_temperature_is_no_contrast() -> None:
    task, world = task_of(), ragged()
    sims = [
        simulate(m, world, task) for m in (moon(task, temperature=1e9), moon(task), fedavg(task))
    ]
    for sim in sims:
        play(sim, 2)
    hot, default, plain = (sim.server["params"] for sim in sims)
    assert gap(hot, plain) < 1e-7
    assert gap(default, plain) > 1e-4


@pytest.mark.usefixtures("double")
def test_other_models_are_looked_at_in_evaluation_mode() -> None:
    """Two public codes run them in training mode, where they depend on the batch."""
    make = lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    task, data, recipe = (
        classification(make),
        data_of(ragged(), 1),
        Recipe(steps=1, batch=8, lr=0.1),
    )
    w = task.init(rng.key(3))
    last = random_like(w, 1, 0.1)
    state = {"last": tree.stack([last]), "kept": torch.tensor(1)}
    method = moon(task, mu=0.7, temperature=0.3, recipe=recipe)
    out = method.client({"params": w}, state, data, turn_of())

    net, *others = (make() for _ in range(3))
    for module, params in zip((net, *others), (w, w, last), strict=True):
        module.load_state_dict(params, strict=False)
    (batch,) = data.filled(recipe.plan(data, turn_of().key))
    z = net[:3](batch.x)
    with torch.no_grad():
        theirs = [other.eval()[:3](batch.x) for other in others]
    cosines = torch.stack([F.cosine_similarity(z, t) for t in theirs], 1) / 0.3
    loss = F.cross_entropy(net[3](z), batch.y)
    loss = loss + 0.7 * F.cross_entropy(cosines, torch.zeros_like(batch.y))
    loss.backward()
    expected = {k: (p - 0.1 * p.grad).detach() for k, p in net.named_parameters()}
    assert gap(tree.drop(out.model, task.buffers), expected) < 1e-12
    running = {k: v for k, v in net.named_buffers() if k in task.buffers}
    assert gap(tree.pick(out.model, task.buffers), running) < 1e-12


@pytest.mark.usefixtures("double")
def test_batches_of_one_row() -> None:
    """A public code squeezes them to nothing: here a step is that of a plain loop."""
    task = two_layers(IDENTITY, [[0.0, 0.0], [0.0, 0.0]])
    w = task.init(rng.key(0))
    one = labelled([[([1.0, 0.0], 0)]])
    method = moon(task, mu=4.0, temperature=1 / math.log(3), recipe=Recipe(batch=1, lr=0.5))
    state = method.start({"params": w}, w, rng.key(0))
    state["last"]["body.weight"] = torch.tensor([SWAP])
    state["kept"] = torch.tensor(1)
    out = method.client({"params": w}, state, data_of(one, 0), turn_of())
    moved = -math.log(3) / 2  # as by hand above
    assert out.model["body.weight"].flatten().tolist() == near(1.0, 0.0, moved, 1.0)


def test_absent_clients_keep_their_models() -> None:
    task, world = task_of("norm"), ragged()
    sim = simulate(moon(task), world, task)
    play(sim)
    before = snapshot(sim)["states"]
    play(sim, [[0, 3]])
    for client in range(6):
        kept = same(tree.index(before, client), tree.index(sim.states.rows, client))
        assert kept == (client not in (0, 3))


def test_features_of_no_length_have_no_direction() -> None:
    """All units dead: cosines are 0, and nothing becomes NaN."""
    task = two_layers([[0.0, 0.0]], [[1.0], [-1.0]])
    sim = simulate(moon(task), labelled([[([1.0, 2.0], 0)], [([2.0, 1.0], 1)]]), task)
    play(sim, 3)
    assert all(leaf.isfinite().all() for leaf in tree.leaves(sim.server))


def test_the_authors_network_is_contrasted_after_its_projection() -> None:
    """d² + 257 d + 256 numbers more, d = 84; the projection itself has no ReLU at its end."""
    form = Form("image", (3, 32, 32), 10)
    task = classification(lambda: build("moon-cnn", form), form=form)
    params = task.init(rng.key(0))
    extra = sum(p.numel() for k, p in params.items() if k.startswith("project"))
    assert extra == 84**2 + 257 * 84 + 256
    x = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    features = task.features(params, x)
    assert features.shape == (4, 256)
    assert (features < 0).any()
    assert moon(task).client is not fedavg(task).client


def test_a_network_without_a_head_is_refused() -> None:
    with pytest.raises(BadInput, match="MOON contrasts features, but the network's head is no"):
        moon(one_number())
