"""FedKD: adaptive mutual distillation, truncated updates."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedtailor import BadInput
from fedtailor.core import rng, tree, wire
from fedtailor.core.form import Form
from fedtailor.core.method import ClientCount
from fedtailor.core.task import classification
from fedtailor.core.training import Recipe
from fedtailor.engine import Diverged
from fedtailor.methods import fedkd
from fedtailor.methods.distillation.fedkd import (
    as_message,
    from_message,
    singular_values,
    truncated,
)
from fedtailor.models.named import build
from tests.methods.worlds import (
    ENGINES,
    data_of,
    gap,
    labelled,
    mlp,
    models,
    near,
    one_number,
    play,
    ragged,
    same,
    simulate,
    task_of,
    turn_of,
    two_layers,
)

YES = torch.tensor(True)


def through(matrix: torch.Tensor, energy: float) -> tuple[torch.Tensor, int]:
    """A matrix after the wire, and how many numbers that took."""
    message = as_message(truncated({"w": matrix}, torch.tensor(energy)), YES)
    return from_message(message, {"w": matrix})["w"], int(wire.size(message)) // 8


# ------------------------------------------------------------------------------------ truncation


@pytest.mark.usefixtures("double")
def test_directions_by_hand() -> None:
    # diag(4, 2, 1, 0, ...): energies 16, 4, 1 of 21: 0.76, 0.95, 1
    matrix = torch.diag(torch.tensor([4.0, 2.0, 1.0, *[0.0] * 7]))
    for energy, k in ((0.7, 1), (0.77, 2), (0.95, 2), (0.96, 3), (1.0, 3)):
        found, sent = through(matrix, energy)
        kept = torch.diag(torch.tensor([4.0, 2.0, 1.0][:k] + [0.0] * (10 - k)))
        assert torch.allclose(found, kept, atol=1e-12)
        assert sent == k * 21


@pytest.mark.usefixtures("double")
def test_embeddings_travel_whole() -> None:
    """A table has a row for each word: of those that a client never saw nothing would be left."""
    task = classification(lambda: build("transformer", Form("text", (6,), 3, vocabulary=40)))
    assert task.embeddings == ("embedding.weight",)
    method, turn = fedkd(task), turn_of()
    server = method.init(ClientCount.of(torch.tensor([4, 4])), task.init(rng.key(0)), rng.key(1))
    for name, part in method.send(server, torch.tensor(0), turn)["update"].items():
        plain = server["params"][name].ndim < 2 or name in task.embeddings
        assert ("factors" in part) == (not plain)
    table = torch.randn(30, 4)
    (found,) = truncated({"w": table}, torch.tensor(0.5), whole=["w"]).values()
    assert list(found) == ["dense"] and torch.equal(found["dense"], table)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("shape", [(10, 50), (2, 50), (50, 3), (8, 4, 3, 3)])
@pytest.mark.parametrize("energy", [0.5, 0.95, 1.0])
def test_what_is_lost_is_no_more_than_allowed(shape: tuple[int, ...], energy: float) -> None:
    """Against numpy; never more numbers than the matrix has, and never nothing."""
    maker = torch.Generator().manual_seed(1)
    # energies that fall, so that few directions have most of it
    matrix = torch.randn(shape, generator=maker) * torch.arange(1, shape[0] + 1).view(
        -1, *[1] * (len(shape) - 1)
    )
    found, sent = through(matrix, energy)
    flat = matrix.reshape(shape[0], -1)
    sigma = np.linalg.svd(flat.numpy(), compute_uv=False)
    shares = np.cumsum(sigma**2) / (sigma**2).sum()
    k = int((shares < energy - 1e-12).sum()) + 1
    assert sent == min(k * (sum(flat.shape) + 1), flat.numel())
    lost = float((found - matrix).square().sum() / matrix.square().sum())
    assert lost <= 1 - energy + 1e-12
    assert float(found.abs().max()) > 0


@pytest.mark.usefixtures("double")
def test_a_flat_spectrum_is_not_zeroed_and_zero_stays_zero() -> None:
    """All directions alike: two public codes find no rank that is enough, and send nothing."""
    found, sent = through(torch.eye(4), 0.99)
    assert torch.allclose(found, torch.eye(4))
    assert sent == 16
    found, _ = through(torch.zeros(6, 6), 0.95)
    assert float(found.abs().max()) == 0


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("shape", [(6, 9), (9, 6), (7, 7)])
@pytest.mark.parametrize("scale", [1.0, 1e-170, 1e170])
def test_directions_are_those_of_a_decomposition(shape: tuple[int, int], scale: float) -> None:
    """Whatever the scale: its squares are neither 0 nor infinite."""
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(2)) * scale
    u, sigma, v = singular_values(matrix)
    assert np.allclose(sigma / scale, np.linalg.svd(matrix / scale, compute_uv=False), rtol=1e-12)
    assert torch.allclose(u * (sigma / scale) @ v, matrix / scale, atol=1e-13)
    assert torch.allclose(u.mT @ u, torch.eye(6 if shape != (7, 7) else 7), atol=1e-12)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("shape", [(30, 40), (40, 30)])
def test_all_the_energy_of_few_directions_is_few_directions(shape: tuple[int, int]) -> None:
    """What squaring rounds off is no energy: a matrix of rank 3 is sent as three directions."""
    maker = torch.Generator().manual_seed(3)
    rows, columns = shape
    left, right = (torch.randn(n, 3, generator=maker) for n in shape)
    found, sent = through(left @ right.mT, 1.0)
    assert torch.allclose(found, left @ right.mT, atol=1e-12)
    assert sent == 3 * (rows + columns + 1)


@pytest.mark.parametrize("engine", ENGINES)
def test_who_diverges_is_named(engine: str) -> None:
    """An update that is not finite has no decomposition; it is not the method that ends there."""
    data, task = (
        labelled([[([1.0], 0)], [([float("nan")], 1)]]),
        two_layers([[1.0]], [[0.0], [0.0]]),
    )
    sim = simulate(fedkd(task, recipe=Recipe(batch=0)), data, task, engine=engine)
    with pytest.raises(Diverged) as caught:
        play(sim)
    assert caught.value.clients == ["client-1"]


# --------------------------------------------------------------------------------- distillation


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine: str) -> None:
    # x = 1, bodies 1 and 3 (teacher, student), heads 0: p = (1/2, 1/2), CE = log 2, KL = 0
    # S = 2 log 2, h_t - W h_s = 1 - 3 = -2;  slopes:
    #   body of the teacher: 2 (-2)/S;  of the student: -2 W (-2)/S = 4/S;  W: -2 h_s (-2)/S = 12/S
    #   heads as ever: logit 0 of class 0 has -1/2, of class 1 1/2: W = ±h/2, b = ±1/2
    # two clients, of class 0 and 1: the student's heads cancel, its body has moved by -4/S
    task = two_layers([[1.0]], [[0.0], [0.0]])
    world = labelled([[([1.0], 0)], [([1.0], 1)]])
    method = fedkd(task, recipe=Recipe(batch=0, lr=1.0))
    sim = simulate(method, world, task, engine=engine)
    sim.server["params"]["body.weight"] = torch.tensor([[3.0]])
    play(sim)
    scale = 2 * np.log(2)
    own, student = sim.states.rows["own"], sim.server["params"]
    assert own["body.weight"].flatten().tolist() == near(1 + 4 / scale, 1 + 4 / scale)
    assert own["head.weight"].flatten().tolist() == near(0.5, -0.5, -0.5, 0.5)
    assert sim.states.rows["map"].flatten().tolist() == near(1 - 12 / scale, 1 - 12 / scale)
    assert student["body.weight"].flatten().tolist() == [near(3 - 4 / scale)]
    assert student["head.weight"].flatten().tolist() == near(0.0, 0.0)
    # the second time it is the update that travels: the same student
    play(sim)
    kept = sim.states.rows["student"]["body.weight"].flatten().tolist()
    assert kept == near(3 - 4 / scale, 3 - 4 / scale)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("literal", [False, True])
def test_it_is_two_optimisers_in_plain_pytorch(literal: bool) -> None:
    """`literal`, both follow the sum of both losses, and nothing in it is a constant."""
    task, data, turn = task_of(), data_of(ragged(), 1), turn_of()
    recipe = Recipe(batch=0, epochs=3, lr=0.1, momentum=0.5)
    method = fedkd(task, first_energy=1.0, last_energy=1.0, literal=literal, recipe=recipe)
    fixed = (lambda value: value) if literal else torch.Tensor.detach
    first, second = task.init(rng.key(1)), task.init(rng.key(2))
    sim = simulate(method, ragged(), task)
    message = sim.method.send(sim.server | {"params": second}, torch.tensor(1), turn)
    state = method.start(message, first, rng.key(0))
    out = method.client(message, state, data, turn)

    f, g = mlp(), mlp()
    f.load_state_dict(first)
    g.load_state_dict(second)
    W = torch.eye(6, requires_grad=True)
    steps = [
        torch.optim.SGD(values, lr=0.1, momentum=0.5)
        for values in ([*f.parameters()], [*g.parameters(), W])
    ]
    x, y = data.x[data.rows], data.y[data.rows]
    kl = torch.nn.KLDivLoss(reduction="batchmean")
    for _ in range(3):
        of_f, of_g = f[:2](x), g[:2](x)
        one, two = f[2](of_f), g[2](of_g)
        hard = [F.cross_entropy(outputs, y) for outputs in (one, two)]
        S = fixed(hard[0] + hard[1])
        losses = (
            hard[0]
            + (kl(one.log_softmax(1), fixed(two.softmax(1))) + F.mse_loss(of_f, fixed(of_g @ W.T)))
            / S,
            hard[1]
            + (kl(two.log_softmax(1), fixed(one.softmax(1))) + F.mse_loss(of_g @ W.T, fixed(of_f)))
            / S,
        )
        for step in steps:
            step.zero_grad()
        sum(losses).backward()
        for step in steps:
            step.step()
    assert gap(out.model, f.state_dict()) < 1e-12
    assert gap({"W": out.state["map"]}, {"W": W.detach()}) < 1e-12
    update = from_message(out.upload.each["change"], second)
    assert gap(tree.add(second, update), g.state_dict()) < 1e-12


# -------------------------------------------------------------------------------------- rounds


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_clients_and_server_have_the_same_student(engine: str) -> None:
    """Those who were in the last cohort get the update, others the whole; bytes tell them apart."""
    task, world = task_of("norm"), ragged()
    method = fedkd(task, first_energy=0.3, last_energy=0.3)  # one direction of each matrix
    sim = simulate(method, world, task, engine=engine)
    cohorts = [[0, 1, 2], [0, 1, 3], [0, 2, 3, 4]]
    was: list[int] = []
    for cohort in cohorts:
        before = tree.map(torch.clone, sim.server["params"])
        (report,) = play(sim, [cohort])
        for client in cohort:
            mine = tree.index(sim.states.rows["student"], client)
            assert gap(mine, before) < 1e-12
        whole = [client not in was for client in cohort]
        assert [down == 8 * 75 for down in report.down.tolist()] == whole
        assert all(down <= 8 * 75 for down in report.down.tolist())
        assert all(0 < up <= 8 * 75 for up in report.up.tolist())
        was = cohort


@pytest.mark.usefixtures("double")
def test_all_energy_loses_nothing() -> None:
    """Then the server's student is the mean of what clients have."""
    task, world = task_of("norm"), ragged()
    ends = []
    for energy in (1.0, 0.3):
        method = fedkd(task, first_energy=energy, last_energy=energy)
        sim = simulate(method, world, task)
        play(sim)
        ends.append(sim.server["params"])
    first = simulate(method, world, task).server["params"]
    sent = []
    for client in range(6):
        sim = simulate(fedkd(task, first_energy=1.0, last_energy=1.0), world, task)
        play(sim, [[client]])
        sent.append(sim.server["params"])
    mean = tree.map(lambda *p: torch.stack(p).mean(0), *sent)
    assert gap(ends[0], mean) < 1e-9
    assert gap(ends[1], mean) > 1e-4
    assert gap(first, mean) > 1e-3


def test_clients_without_a_teacher_use_the_student() -> None:
    task, world = task_of("norm"), ragged()
    sim = simulate(fedkd(task), world, task)
    play(sim, [[0, 1, 2, 3]])
    found = models(sim)
    assert same(found["5"], sim.server["params"])
    assert same(found["0"], tree.index(sim.states.rows["own"], 0))


def test_a_network_without_a_head_is_refused() -> None:
    with pytest.raises(BadInput, match="FedKD compares features, but the network's head is no"):
        fedkd(one_number())
