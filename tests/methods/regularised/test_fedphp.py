"""FedPHP: an inherited personal model that teaches its successor."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.task import Batch, Task, weighted_mean
from fedtailor.core.training import Recipe
from fedtailor.core.tree import Params
from fedtailor.engine import ClientData
from fedtailor.methods import fedavg, fedphp
from tests.methods.worlds import (
    ENGINES,
    data_of,
    gap,
    models,
    module_of,
    near,
    of_models,
    play,
    ragged,
    same,
    simulate,
    snapshot,
    task_of,
)

COHORTS = [[0, 1, 3], [1, 2, 4, 5], [0, 2, 5]]


def _odds() -> Task:
    """One number w from 0, logits (w, 0): the label 0 has the probability s(w) = 1/(1 + e^-w)."""

    def predict(params: Params, x: Tensor) -> Tensor:
        w = params["w"] + 0 * x
        return torch.stack([w, torch.zeros_like(w)], -1)

    def outputs(params: Params, batch: Batch) -> tuple[Tensor, Params]:
        return predict(params, batch.x), {}

    def loss(params: Params, batch: Batch) -> tuple[Tensor, Params]:
        each = F.cross_entropy(predict(params, batch.x), batch.y, reduction="none")
        return weighted_mean(each, batch), {}

    init = lambda key: {"w": torch.zeros(())}
    return Task(init, loss, predict, (("w",),), outputs=outputs)


def _world() -> ClientData:
    """One row with the label 0 against three with the label 1."""
    y = torch.tensor([0, 1, 1, 1])
    rows = [np.arange(1), np.arange(1, 4)]
    return ClientData.of(torch.zeros(4), y, rows, rows, rows)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine):
    # λ = 1/2, temperature 2, steps of 4. The gradient of cross-entropy is s(w) - 1 for the label 0
    # and s(w) for the label 1; that of R = -s(H/2) log s(w) - s(-H/2) log s(-w) is s(w) - s(H/2).
    # round 0: H is the initial model, s(0) = 1/2:
    #   client 0:  0 + 4 (0.5/2 + 0/2) = 1    client 1:  -1    w = (1 - 3)/4 = -0.5
    #   first participation, μ_k = 0: H = 1 and -1
    # round 1:  s(-0.5) = 0.377540668798145, s(0.5) = 0.622459331201855
    #   client 0:  (-0.622459331201855 + 0.377540668798145 - 0.622459331201855)/2
    #     = -0.433688996802783     w_0 = -0.5 + 4 0.433688996802783 = 1.234755987211130
    #   client 1:  (0.377540668798145 + 0)/2
    #     = 0.188770334399073      w_1 = -0.5 - 0.755081337596291 = -1.255081337596291
    #   C T = 0.29 10 = 2.9, as a whole number 2; one participation before: μ_k = 0.9/2 = 0.45
    #   H_0 = 0.45 + 0.55 1.234755987211130 = 1.129115792966122
    #   H_1 = -0.45 - 0.55 1.255081337596291 = -1.140294735677960
    #   w = (1.234755987211130 - 3 1.255081337596291)/4 = -0.632622006394436
    task = _odds()
    recipe = Recipe(batch=0, lr=4.0)
    method = fedphp(task, lam=0.5, temperature=2.0, participation=0.29, recipe=recipe)
    sim = simulate(method, _world(), task, engine=engine)
    play(sim)
    assert of_models(sim, "w") == near(1.0, -1.0)
    assert float(sim.server["params"]["w"]) == near(-0.5)
    play(sim)
    assert of_models(sim, "w") == near(1.129115792966122, -1.140294735677960)
    assert float(sim.server["params"]["w"]) == near(-0.632622006394436)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("soften", ["teacher", "both"])
def test_the_gradient_is_that_of_the_loss_in_plain_torch(soften):
    """One step on all rows of a client, against autograd on an ordinary module."""
    task, world = task_of(), ragged()
    sim = simulate(
        fedphp(task, lam=0.3, soften=soften, recipe=Recipe(batch=0, lr=0.1)), world, task
    )
    play(sim)
    begun, taught = (
        module_of("mlp", p)
        for p in (sim.server["params"], tree.index(sim.states.rows, 2)["inherited"])
    )
    own = data_of(world, 2)
    rows = own.rows[: int(own.n)]
    logits, teacher = begun(own.x[rows]), taught(own.x[rows]).detach()
    if soften == "teacher":
        transfer = F.cross_entropy(logits, (teacher / 4).softmax(1))
    else:
        p, q = (teacher / 4).softmax(1), (logits / 4).softmax(1)
        transfer = 16 * (p * (p / q).log()).sum(1).mean()
    (0.7 * F.cross_entropy(logits, own.y[rows]) + 0.3 * transfer).backward()
    play(sim, [[2]])  # alone in its round, so the server's model is the one it trained
    stepped = {k: v.detach() - 0.1 * v.grad for k, v in begun.named_parameters()}
    assert gap(sim.server["params"], stepped) < 1e-12


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand_with_both_softened(engine):
    # λ = 1/2, temperature 2, steps of 4. The gradient of cross-entropy is s(w) - 1 for the label 0
    # and s(w) for the label 1; that of distillation, T² KL, is 2 (s(w/2) - s(H/2)).
    # round 0: H is the initial model, there is nothing to learn from it:
    #   client 0:  0 + 4 0.5 0.5 = 1      client 1:  -1      w = (1 - 3)/4 = -0.5
    #   first participation, μ_k = 0: H = 1 and -1
    # round 1:  s(-0.5) = 0.377540668798145, s(-0.25) = 0.437823499114202,
    #           s(0.5) = 0.622459331201855
    #   client 0:  (-0.622459331201855 + 2 (0.437823499114202 - 0.622459331201855))/2
    #     = -0.495865497688580      w_0 = -0.5 + 4 0.495865497688580 = 1.483461990754322
    #   client 1:  (0.377540668798145 + 2 (0.437823499114202 - 0.377540668798145))/2
    #     = 0.249053164715129       w_1 = -0.5 - 0.996212658860517 = -1.496212658860517
    #   C T = 0.2 10 = 2, one participation before: μ_k = 0.9/2 = 0.45
    #   H_0 = 0.45 + 0.55 1.483461990754322 = 1.265904094914877
    #   H_1 = -0.45 - 0.55 1.496212658860517 = -1.272916962373284
    #   w = (1.483461990754322 - 3 1.496212658860517)/4 = -0.751293996456807
    task = _odds()
    method = fedphp(
        task,
        lam=0.5,
        temperature=2.0,
        soften="both",
        participation=0.2,
        recipe=Recipe(batch=0, lr=4.0),
    )
    sim = simulate(method, _world(), task, engine=engine)
    play(sim)
    assert of_models(sim, "w") == near(1.0, -1.0)
    assert float(sim.server["params"]["w"]) == near(-0.5)
    play(sim)
    assert of_models(sim, "w") == near(1.265904094914877, -1.272916962373284)
    assert float(sim.server["params"]["w"]) == near(-0.751293996456807)


def test_the_momentum_of_inheritance_grows_and_stops_at_mu():
    # C T = 3: μ_k = 0, 0.2, 0.4, 0.6, 0.6, and then no more. It counts a client's own turns.
    task, world = task_of(), ragged()
    method = fedphp(task, mu=0.6, participation=0.3)
    sim = simulate(method, world, task)
    for expected in (0.0, 0.2, 0.4, 0.6, 0.6):
        old = snapshot(sim)["states"]["inherited"]
        play(sim, [[2]])
        # alone in its round, so the server's model is the one it trained
        blend = tree.lerp(sim.server["params"], tree.index(old, 2), expected)
        assert gap(tree.index(sim.states.rows["inherited"], 2), blend) < 1e-6
    assert sim.states.rows["times"].tolist() == [0.0, 0.0, 5.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("engine", ENGINES)
def test_without_distillation_the_global_path_is_fedavg(engine):
    """λ = 0: exact, for every μ; with λ > 0 it is not."""
    task, world = task_of("norm"), ragged()
    plain = simulate(fedavg(task), world, task, engine=engine)
    play(plain, COHORTS)
    for lam, mu in ((0.0, 0.9), (0.0, 0.0), (0.05, 0.9)):
        sim = simulate(fedphp(task, lam=lam, mu=mu), world, task, engine=engine)
        play(sim, COHORTS)
        assert same(sim.server, plain.server) == (lam == 0)
        assert torch.equal(sim.score(general=True).test.loss, plain.score().test.loss) == (lam == 0)


@pytest.mark.parametrize("engine", ENGINES)
def test_without_momentum_the_last_trained_model_is_inherited(engine):
    """μ = 0: H_k = w_k, exactly; with μ > 0 not from the second turn on."""
    task, world = task_of("norm"), ragged()
    for mu in (0.0, 0.9):
        sim = simulate(fedphp(task, mu=mu), world, task, engine=engine)
        play(sim)
        play(sim, [[1]])
        # alone in its round, so the server's model is the one it trained
        assert same(models(sim)["1"], sim.server["params"]) == (mu == 0)


def test_the_teacher_has_a_say():
    """The larger λ, the nearer the trained model stays to what the inherited one predicts."""
    task, world = task_of(), ragged()
    apart = []
    for lam in (0.0, 0.5, 1.0):
        method = fedphp(task, lam=lam, soften="both", recipe=Recipe(epochs=5))
        sim = simulate(method, world, task)
        play(sim, [[1]])
        x = world.x[world.train.flat]
        teacher = task.predict(sim.initial, x)
        apart.append(float((task.predict(sim.server["params"], x) - teacher).abs().mean()))
    assert apart[0] > apart[1] > apart[2]
    assert apart[2] < 1e-5  # λ = 1: from the teacher itself there is nothing to learn


@pytest.mark.parametrize("engine", ENGINES)
def test_absent_clients_inherit_nothing(engine):
    task, world = task_of("norm"), ragged()
    sim = simulate(fedphp(task), world, task, engine=engine)
    play(sim)
    before = snapshot(sim)["states"]
    play(sim, [[0, 3]])
    for client in range(6):
        kept = same(tree.index(before, client), tree.index(sim.states.rows, client))
        assert kept == (client not in (0, 3))
