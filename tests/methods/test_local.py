"""Local: nobody talks to anybody."""

import pytest
import torch

from fedtailor.methods import local
from tests.methods.worlds import (
    ENGINES,
    HALF,
    models,
    near,
    of_models,
    one_number,
    play,
    ragged,
    rows_of,
    same,
    simulate,
    task_of,
    two_clients,
)


@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine):
    # lr 1/2 and gradient w - mean halve the way to the client's own mean, 2 or 8:
    #   client 0:  0 -> 1 -> 1.5
    #   client 1:  0 -> 4 -> 6
    task = one_number()
    sim = simulate(local(task, recipe=HALF), two_clients(), task, engine=engine)
    play(sim)
    assert sim.states.rows["own"]["w"].tolist() == near(1.0, 4.0)
    play(sim)
    assert sim.states.rows["own"]["w"].tolist() == near(1.5, 6.0)
    assert of_models(sim, "w") == near(1.5, 6.0)
    assert sim.server == {}


def test_scores_are_of_the_own_model_on_test_and_validation_rows():
    # after one round 1 and 4; (1 - 3)²/2 = 2 and (4 - 6)²/2 = 2 on the validation rows;
    # on the test rows 5 and (8, 2): (1 - 5)²/2 = 8 and 8 + 2 = 10
    task = one_number()
    world = rows_of([[2.0], [7.0, 8.0, 9.0]], [[3.0], [6.0]], [[5.0], [8.0, 2.0]])
    sim = simulate(local(task, recipe=HALF), world, task)
    play(sim)
    assert sim.score().val.loss.tolist() == near(2.0, 2.0)
    assert sim.score().test.loss.tolist() == near(8.0, 10.0)
    # and on the training rows, for the gap: (1 - 2)²/2 and (9 + 16 + 25)/2
    assert sim.score(part="train").test.loss.tolist() == near(0.5, 25.0)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_trains_exactly_in_its_own_rounds(engine):
    """Others' absence or presence changes nothing for a client."""
    task, world = task_of(), ragged()
    alone, among = (
        simulate(local(task), world, task, engine="sequential" if i == 0 else engine)
        for i in range(2)
    )
    play(alone, [[2], [4], [2], [4]])
    play(among, [[0, 2, 5], [1, 3], [2, 3], [0, 1]])
    ours, theirs = alone.states.rows["own"], among.states.rows["own"]
    for name in ours:
        torch.testing.assert_close(theirs[name][2], ours[name][2], rtol=0, atol=1e-6)
    # client 4 was never drawn in the second world: it has the common initial model
    assert same(models(among)["4"], among.initial)
    assert not same(models(alone)["4"], alone.initial)
