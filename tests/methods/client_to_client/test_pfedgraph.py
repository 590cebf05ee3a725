"""pFedGraph: inferred collaboration graphs."""

from __future__ import annotations

import pytest
import torch

from fedtailor.core import rng, tree
from fedtailor.core.method import ClientCount, Upload
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.methods import fedavg, local, pfedgraph
from tests.methods.worlds import (
    ENGINES,
    HALF,
    data_of,
    gap,
    models,
    near,
    numbers,
    of_models,
    play,
    ragged,
    random_like,
    rows_of,
    same,
    simulate,
    snapshot,
    task_of,
    turn_of,
)


def apart() -> Task:
    """Rows above 0 teach a, others b: clients of one kind move at right angles to the other's."""
    error = lambda p, x: torch.where(x > 0, p["a"] - x, p["b"] - x) ** 2 / 2
    return numbers({"a": 0.0, "b": 0.0}, error)


def slope(w: tuple[float, float], c: tuple[float, float]) -> tuple[float, float]:
    """The slope of ⟨c, w⟩/|w|."""
    square = w[0] ** 2 + w[1] ** 2
    dot = c[0] * w[0] + c[1] * w[1]
    return tuple(ci / square**0.5 - dot * wi / square**1.5 for ci, wi in zip(c, w, strict=True))


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("sign", ["towards", "published"])
@pytest.mark.parametrize("reference", ["cosine", "approx"])
def test_two_clients_by_hand(reference: str, sign: str, engine: str) -> None:
    # round 0, from (0, 0): (1, 0) and (0, -2); S = 1 for itself, 0 for the other; q = 1/4, 3/4
    # q + S/1.6: client 0: (0.875, 0.75) - 0.3125 = (0.5625, 0.4375)
    #            client 1: (0.25, 1.375): less 0.375 and not below 0: (0, 1)
    # w̄ = (0.5625, -0.875) and (0, -2);  c = (0.5625, -0.4375) and (0, -1)
    task = apart()
    method = pfedgraph(task, lam=1.0, reference=reference, sign=sign, recipe=HALF)
    sim = simulate(method, rows_of([[2.0], [-4.0] * 3]), task, engine=engine)
    play(sim)
    assert sim.server["graph"].flatten().tolist() == near(0.5625, 0.4375, 0.0, 1.0)
    assert of_models(sim, "a") == near(0.5625, 0.0)
    assert of_models(sim, "b") == near(-0.875, -2.0)
    # round 1: slopes (w̄_a - 2, 0) and (0, w̄_b + 4), and ∓ that of the cosine
    w, c = (0.5625, -0.875), (0.5625, -0.4375)
    if reference == "approx":
        length = (w[0] ** 2 + w[1] ** 2) ** 0.5
        c = (w[0] / length, w[1] / length)
    more = slope(w, c)
    way = 1 if sign == "towards" else -1
    first = (w[0] - 0.5 * (w[0] - 2 - way * more[0]), w[1] + 0.5 * way * more[1])
    play(sim, [[0]])
    # alone in its cohort: the graph is itself
    assert [of_models(sim, "a")[0], of_models(sim, "b")[0]] == near(*first)
    assert [of_models(sim, "a")[1], of_models(sim, "b")[1]] == near(0.0, -2.0)


def graph_of(
    uploads: list, sizes: list[int], alpha: float, difference: str = "all"
) -> torch.Tensor:
    task = task_of("norm")
    method = pfedgraph(task, alpha=alpha, difference=difference)
    count = ClientCount.of(torch.tensor(sizes))
    server = method.init(count, task.init(rng.key(0)), rng.key(0))
    up = Upload(each={"params": tree.stack(uploads)})
    return method.receive(server, torch.arange(len(sizes)), up, turn_of())["graph"]


@pytest.mark.usefixtures("double")
def test_what_the_graph_depends_on() -> None:
    """Rows are weights; lengths of moves and running statistics do not count; the alike share."""
    task, sizes = task_of("norm"), [5, 5, 5, 5]
    w = task.init(rng.key(0))
    moves = [tree.sub(random_like(w, seed), w) for seed in range(4)]
    found = graph_of([tree.add(w, m) for m in moves], sizes, 0.8)
    assert torch.allclose(found.sum(1), torch.ones(4))
    assert (found >= 0).all()
    assert (found.diagonal()[:, None] >= found - 1e-12).all()
    scaled = [tree.scale(m, s) for m, s in zip(moves, (1.0, 3.0, 0.1, 7.0), strict=True)]
    for move in scaled:
        for name in task.buffers:
            move[name] = move[name] + 100
    again = graph_of([tree.add(w, m) for m in scaled], sizes, 0.8)
    assert gap({"g": found}, {"g": again}) < 1e-9
    # client 1 moves almost as client 0 does: a cosine above 0.9 counts as 1
    alike = [moves[0], tree.add(moves[0], tree.scale(moves[1], 0.1)), *moves[2:]]
    near_zero = graph_of([tree.add(w, m) for m in alike], sizes, 1e-3)
    assert near_zero[0].tolist() == near(0.5, 0.5, 0.0, 0.0)
    assert near_zero[2].tolist() == near(0.0, 0.0, 1.0, 0.0)


@pytest.mark.usefixtures("double")
def test_heads_alone_may_be_compared() -> None:
    """Clients 0 and 1 have one head and unlike bodies; who has not moved is like nobody."""
    task = task_of("norm")
    w = task.init(rng.key(0))
    moves = [tree.sub(random_like(w, seed), w) for seed in range(3)]
    moves[1] |= tree.pick(moves[0], task.head)
    uploads = [tree.add(w, m) for m in moves] + [w]
    heads, whole = (graph_of(uploads, [5] * 4, 1e-3, name) for name in ("head", "all"))
    assert heads[0].tolist() == near(0.5, 0.5, 0.0, 0.0)
    assert whole[0].tolist() == near(1.0, 0.0, 0.0, 0.0)
    # cosines with no move are 0, also one's own: the sizes decide, and all rows are numbers
    even = graph_of(uploads, [5] * 4, 0.8)
    assert even[3].tolist() == near(0.25, 0.25, 0.25, 0.25)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_much_alpha_is_fedavg(engine: str) -> None:
    task, world = task_of("norm"), ragged()
    methods = (pfedgraph(task, alpha=1e9, lam=0.0), pfedgraph(task), fedavg(task))
    sims = [simulate(m, world, task, engine=engine) for m in methods]
    for sim in sims:
        play(sim, 2)
    off, on, plain = map(models, sims)
    assert gap(off, plain) < 1e-6
    assert gap(on, plain) > 1e-3


def test_one_client_trains_alone() -> None:
    task, world = task_of("norm"), ragged([23])
    sims = [simulate(m, world, task) for m in (pfedgraph(task, lam=0.0), local(task))]
    for sim in sims:
        play(sim, 3)
    assert same(*map(models, sims))


@pytest.mark.usefixtures("double")
def test_a_step_on_the_pull_raises_the_cosine() -> None:
    """With the sign of the authors' codes it falls."""
    task, data, turn = task_of(), data_of(ragged(), 1), turn_of()
    w, c = task.init(rng.key(1)), random_like(task.init(rng.key(2)), 3)
    still = task._replace(loss=lambda p, b: (0 * tree.sq_norm(p), {}))

    def cosine(params: dict) -> float:
        dot = sum(float((params[k] * c[k]).sum()) for k in c)
        return dot / float(tree.sq_norm(params).sqrt())

    for sign, way in (("towards", 1), ("published", -1)):
        method = pfedgraph(still, lam=0.1, sign=sign, recipe=Recipe(batch=0, lr=0.1))
        out = method.client({"params": w, "towards": c}, {}, data, turn)
        assert way * (cosine(out.model) - cosine(w)) > 1e-6


def test_the_absent_keep_what_is_theirs_and_newcomers_get_the_mean() -> None:
    task, world = task_of("norm"), ragged()
    sim = simulate(pfedgraph(task), world, task)
    play(sim, [[0, 1, 2, 3]])
    before = snapshot(sim)["server"]
    play(sim, [[0, 3]])
    for name in ("mixed", "towards"):
        for client in range(6):
            old, new = (tree.index(s[name], client) for s in (before, sim.server))
            assert same(old, new) == (client not in (0, 3))
    found = models(sim)
    assert same(found["4"], sim.server["mean"])
    assert same(found["2"], tree.index(sim.server["mixed"], 2))


def test_bytes() -> None:
    """Twice the model down, without running statistics the second time; `approx` once."""
    task = task_of("norm")
    for reference, down in (("cosine", 75 + 63), ("approx", 75)):
        (report,) = play(simulate(pfedgraph(task, reference=reference), ragged(), task))
        assert report.down.tolist() == [4 * down] * 6
        assert report.up.tolist() == [4 * 75] * 6
