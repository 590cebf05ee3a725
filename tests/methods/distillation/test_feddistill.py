"""FedDistill: what clients say of each class on average."""

from __future__ import annotations

import math

import pytest
import torch

from fedtailor.core import tree
from fedtailor.core.training import Recipe
from fedtailor.methods import fedavg, feddistill, local
from tests.methods.worlds import (
    ENGINES,
    gap,
    labelled,
    models,
    near,
    play,
    ragged,
    same,
    simulate,
    snapshot,
    task_of,
    two_layers,
)

ONE = Recipe(batch=0, lr=1.0)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


# z = x and a head of 0.  Client 0: x = 1 of class 0.  Client 1: x = 1 of class 0, x = -1 of 1.
# round 0, no targets:  client 0: slopes of logit 0 -1/2, so W = b = (1/2, -1/2): at x = 1 logits ±1
#   client 1: W = (1/2, -1/2), b = 0: logits ±1/2 at x = 1, ∓1/2 at x = -1
WORLD = [[([1.0], 0)], [([1.0], 0), ([-1.0], 1)]]
FIRST, SECOND = sigmoid(2), sigmoid(1)  # what they say of class 0


def played(rounds: int, engine: str, world: list = WORLD, **options):
    task = two_layers([[1.0]], [[0.0], [0.0]])
    sim = simulate(feddistill(task, recipe=ONE, **options), labelled(world), task, engine=engine)
    play(sim, rounds)
    return sim


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine: str) -> None:
    sim = played(1, engine)
    assert sim.server["rows"].tolist() == [2, 1]
    assert sim.server["sums"].flatten().tolist() == near(
        FIRST + SECOND, 2 - FIRST - SECOND, 1 - SECOND, SECOND
    )
    # round 1, targets of others:  client 0, class 0: client 1's.  Slope of logit 0:
    #   CE: FIRST - 1, KL: FIRST - SECOND
    # client 1, class 0: client 0's; class 1: nobody else's. Means of two rows, slope of b[0]:
    #   (SECOND - 1 + SECOND - FIRST + 1 - SECOND)/2
    play(sim)
    bias = sim.states.rows["own"]["head.bias"][:, 0].tolist()
    assert bias == near(0.5 - (2 * FIRST - 1 - SECOND), -(SECOND - FIRST) / 2)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_everybodys_mean_by_hand(engine: str) -> None:
    # class 0: (FIRST + SECOND)/2; class 1: client 1's own SECOND, for which KL has no slope
    sim = played(2, engine, leave_one_out=False, gamma=2.0)
    both = (FIRST + SECOND) / 2
    bias = sim.states.rows["own"]["head.bias"][:, 0].tolist()
    assert bias == near(
        0.5 - (FIRST - 1 + 2 * (FIRST - both)),
        -(SECOND - 1 + 2 * (SECOND - both) + 1 - SECOND) / 2,
    )


@pytest.mark.usefixtures("double")
def test_logits_by_hand() -> None:
    # class 0: logits ±1 and ±1/2, of others; sums are of logits
    sim = played(1, "vectorised", targets="logits")
    assert sim.server["sums"].flatten().tolist() == near(1.5, -1.5, -0.5, 0.5)
    play(sim)
    bias = sim.states.rows["own"]["head.bias"][:, 0].tolist()
    assert bias == near(0.5 - (2 * FIRST - 1 - SECOND), -(SECOND - FIRST) / 2)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_shared_model_by_hand(engine: str) -> None:
    # after round 0: W = (1/2, -1/2) at both, b = (1/2, -1/2) and 0: the mean has b = (1/4, -1/4)
    sim = played(1, engine, share_model=True)
    assert sim.server["params"]["head.bias"].tolist() == near(0.25, -0.25)
    assert sim.server["params"]["head.weight"].flatten().tolist() == near(0.5, -0.5)
    assert sim.server["sums"][0].tolist() == near(FIRST + SECOND, 2 - FIRST - SECOND)
    # round 1, both from there: at x = 1 logits ±3/4, at x = -1 ∓1/4; targets are of the others
    one, two = sigmoid(1.5), sigmoid(-0.5)
    first = one - 1 + one - SECOND
    second = (one - 1 + one - FIRST + two) / 2
    play(sim)
    found = models(sim)
    assert same(found["0"], found["1"])
    assert float(found["0"]["head.bias"][0]) == near(0.25 - (first + second) / 2)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_shared_model_without_strength_is_fedavgs(engine: str) -> None:
    """With equal weights; who was held out has it, too. It costs a model each way."""
    task, world = task_of("norm"), ragged()
    methods = (
        feddistill(task, gamma=0.0, share_model=True),
        fedavg(task, weighting="uniform"),
        feddistill(task, share_model=True),
    )
    held = torch.tensor([5])
    off, plain, on = (simulate(m, world, task, engine=engine, held_out=held) for m in methods)
    for sim in (off, plain, on):
        (report,) = play(sim, [[0, 1, 3]])
        play(sim, [[1, 2, 4]])
    assert same(models(off), models(plain))
    assert gap(models(on), models(plain)) > 1e-4
    assert report.down.tolist() == [4 * (75 + 15)] * 3
    assert report.up.tolist() == [4 * (75 + 12)] * 3
    assert not methods[2].own_networks


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_who_is_in_a_classs_sums_is_known_round_after_round(engine: str) -> None:
    """Class 1 stays from round 0, where client 1 put it; class 0 is from round 1, without it."""
    sim = played(1, engine)
    kept = sim.server["sums"][1].tolist()
    play(sim, [[0]])
    assert sim.server["sums"][1].tolist() == kept
    assert sim.server["rows"].tolist() == [1, 1]
    assert sim.server["round"].tolist() == [1, 0]
    # client 1 again: of class 0 client 0's sums count whole, of class 1 there is only its own
    target = float(sim.server["sums"][0, 0])
    play(sim, [[1]])
    assert float(sim.states.rows["own"]["head.bias"][1, 0]) == near(-(SECOND - target) / 2)


@pytest.mark.parametrize("engine", ENGINES)
def test_without_strength_it_is_local(engine: str) -> None:
    task, world = task_of("norm"), ragged()
    methods = (feddistill(task, gamma=0.0), local(task), feddistill(task))
    sims = [simulate(m, world, task, engine=engine) for m in methods]
    for sim in sims:
        play(sim, 2)
    off, alone, on = map(models, sims)
    assert same(off, alone)
    assert gap(on, alone) > 1e-4


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("targets", ["probabilities", "logits"])
def test_a_constant_on_all_logits_changes_nothing(targets: str) -> None:
    """Two public codes take raw logits for probabilities: there it does."""
    task, world = task_of(), ragged()
    ends = []
    for constant in (0.0, -5.0):
        sim = simulate(feddistill(task, targets=targets), world, task)
        sim.initial["2.bias"] += constant
        play(sim, 3)
        ends.append(dict(sim.states.rows["own"]))
    ends[1]["2.bias"] = ends[1]["2.bias"] + 5.0
    assert gap(*ends) < 1e-9


def test_a_class_that_nobody_has_has_no_target() -> None:
    """Three classes, of which two are there: its row stays 0, and nothing is NaN."""
    task = two_layers([[1.0]], [[0.0], [0.0], [0.0]])
    sim = simulate(feddistill(task, recipe=ONE), labelled(WORLD), task)
    play(sim, 3)
    assert sim.server["rows"].tolist() == [2, 1, 0]
    assert sim.server["sums"][2].tolist() == [0, 0, 0]
    assert sim.server["round"].tolist() == [2, 2, -1]
    assert all(leaf.isfinite().all() for leaf in tree.leaves(sim.states.rows))


def test_bytes_and_absent_clients() -> None:
    """C² + C numbers each way, and C rounds down where clients leave themselves out."""
    task, world = task_of("norm"), ragged()
    for alone, down in ((True, 15), (False, 12)):
        sim = simulate(feddistill(task, leave_one_out=alone), world, task)
        (report,) = play(sim)
        assert report.down.tolist() == [4 * down] * 6
        assert report.up.tolist() == [4 * 12] * 6
    before = snapshot(sim)["states"]
    play(sim, [[0, 3]])
    for client in range(6):
        kept = same(tree.index(before, client), tree.index(sim.states.rows, client))
        assert kept == (client not in (0, 3))
