"""FedSelect: entries that move most become personal."""

from __future__ import annotations

import pytest
import torch

from fedtailor.core import rng, tree
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.methods import fedavg, fedselect, local
from tests.methods.worlds import (
    ENGINES,
    HALF,
    data_of,
    gap,
    models,
    near,
    numbers,
    play,
    ragged,
    rows_of,
    same,
    simulate,
    snapshot,
    task_of,
    turn_of,
)


def four_numbers() -> Task:
    """w of four entries, with loss Σ_i c_i (w_i - x)²/2, c = (0.1, 0.2, 0.4, 0.8): the last moves
    most."""
    curves = (0.1, 0.2, 0.4, 0.8)
    error = lambda p, x: sum(c * (p["w"][..., i] - x) ** 2 / 2 for i, c in enumerate(curves))
    plain = numbers({"w": 0.0}, error)
    return plain._replace(init=lambda key: {"w": torch.zeros(4)})


def sixty_four_numbers() -> Task:
    curves = torch.linspace(0.1, 0.9, 64)
    plain = numbers({"w": 0.0}, lambda p, x: ((p["w"] - x[..., None]) ** 2 * curves).mean(-1))
    return plain._replace(init=lambda key: {"w": torch.zeros(64)})


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("sends", ["whole", "shared"])
def test_two_clients_by_hand(engine: str, sends: str) -> None:
    # η = 1/2, one step of a pass: an entry goes c/2 of its way to x; x = 2 and 8, equal weights.
    # round 0: w_i = c_i x/2 = (0.1, 0.2, 0.4, 0.8) and four times that; all shared: mean 2.5 c_i
    # round 1 (every = 1, p = 1/4): shared entries again, 2.5 c_i + (x - 2.5 c_i) c_i/2; of four
    #   the one with the largest change becomes personal: the last, at both clients
    # round 2: the last entry stays at its client's, the others come from the server
    task, c = four_numbers(), torch.tensor([0.1, 0.2, 0.4, 0.8])
    method = fedselect(task, every=1, sends=sends, recipe=HALF)
    sim = simulate(method, rows_of([[2.0], [8.0]]), task, engine=engine)
    play(sim)
    first = 2.5 * c
    assert sim.server["params"]["w"].tolist() == near(*first.tolist())
    assert not sim.states.rows["personal"]["w"].any()
    play(sim)
    ends = [first + (x - first) * c / 2 for x in (2.0, 8.0)]
    assert sim.states.rows["personal"]["w"].tolist() == [[False] * 3 + [True]] * 2
    # what has just become personal was shared a last time
    second = (ends[0] + ends[1]) / 2
    assert sim.server["params"]["w"].tolist() == near(*second.tolist())
    found = [model["w"] for model in models(sim).values()]
    for model, end in zip(found, ends, strict=True):
        assert model.tolist() == near(*second[:3].tolist(), float(end[3]))
    play(sim)
    for x, model, own in zip((2.0, 8.0), found, sim.states.rows["own"]["w"], strict=True):
        assert own.tolist() == near(*(model + (x - model) * c / 2).tolist())
    # nobody shares the last entry: the server keeps it
    assert float(sim.server["params"]["w"][3]) == near(float(second[3]))
    # 1/4 of three is round(0.75) = 1 more: the third
    assert sim.states.rows["personal"]["w"].tolist() == [[False, False, True, True]] * 2


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_with_nothing_selected_it_is_fedavg(engine: str) -> None:
    """With equal weights; the passes over personal entries change nothing."""
    task, world = task_of(), ragged()
    recipe = Recipe(weight_decay=0.1, momentum=0.5, batch=8)
    methods = (
        fedselect(task, p=0.0, every=1, recipe=recipe),
        fedavg(task, weighting="uniform", recipe=recipe),
        fedselect(task, every=1, recipe=recipe),
    )
    sims = [simulate(m, world, task, engine=engine) for m in methods]
    for sim in sims:
        play(sim, [[0, 1, 3], [1, 2, 4, 5], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]])
    off, plain, on = map(models, sims)
    assert gap(off, plain) < 1e-12
    assert gap(on, plain) > 1e-3


@pytest.mark.usefixtures("double")
def test_with_everything_selected_it_is_local() -> None:
    """Batches of the first passes are drawn apart, so all rows at once are compared."""
    task, world = task_of(), ragged()
    recipe = Recipe(batch=0, epochs=2, weight_decay=0.1)
    mine = simulate(fedselect(task, recipe=recipe), world, task)
    theirs = simulate(local(task, recipe=recipe), world, task)
    message = {"params": mine.initial}
    state = mine.method.start(message, mine.initial, rng.key(0))
    state["personal"] = {k: torch.ones_like(m) for k, m in state["personal"].items()}
    # biases too, for once
    state["personal"] |= {k: torch.ones_like(v).bool() for k, v in mine.initial.items()}
    state["reference"] = mine.initial
    out = mine.method.client(message, state, data_of(world, 2), turn_of())
    alone = theirs.method.client({}, {"own": mine.initial}, data_of(world, 2), turn_of())
    assert gap(out.model, alone.model) < 1e-12
    assert all(float(part.abs().max()) == 0 for part in out.upload.mean["values"].values())


def test_masks_only_grow_to_the_known_shares() -> None:
    """Shares 1/4, 7/16, ...: of a tensor of 64 entries, rounded, until they pass the limit."""
    task, world = sixty_four_numbers(), rows_of([[1.0], [2.0]])
    sim = simulate(fedselect(task, every=1, recipe=HALF), world, task, rounds=12)
    shares, before = [], None
    for _ in range(10):
        play(sim)
        mask = sim.states.rows["personal"]["w"]
        if before is not None:
            assert (mask | before).equal(mask)
        before = mask.clone()
        shares.append(int(mask[0].sum()))
    # 16 of 64, 12 of 48, 9 of 36, round(6.75) of 27, round(5) of 20, round(3.75) of 15: 53/64 > 0.8
    assert shares == [0, 16, 28, 37, 44, 49, 53, 53, 53, 53]


@pytest.mark.usefixtures("double")
def test_equal_changes_are_taken_by_position_and_no_more_than_asked() -> None:
    """Only one entry of 64 moves: a cut by value would take them all."""
    only = torch.zeros(64).index_fill(0, torch.tensor([40]), 1.0)
    plain = numbers({"w": 0.0}, lambda p, x: ((p["w"] - x[..., None]) ** 2 * only).sum(-1) / 2)
    task = plain._replace(init=lambda key: {"w": torch.zeros(64)})
    sim = simulate(fedselect(task, every=1, recipe=HALF), rows_of([[1.0], [2.0]]), task)
    play(sim, 2)
    mask = sim.states.rows["personal"]["w"][0]
    assert mask.nonzero().flatten().tolist() == [*range(15), 40]


def test_biases_stay_shared_and_statistics_at_home() -> None:
    task, world = task_of("norm"), ragged()
    sim = simulate(fedselect(task, every=1), world, task)
    play(sim, 4)
    masks = sim.states.rows["personal"]
    assert sorted(masks) == ["0.weight", "1.weight", "4.weight"]
    assert all(m.any() for m in masks.values())
    for cid, model in models(sim).items():
        own = tree.index(sim.states.rows["own"], int(cid))
        assert same(tree.pick(model, task.buffers), tree.pick(own, task.buffers))
        assert torch.equal(model["4.bias"], sim.server["params"]["4.bias"])
        mask = masks["4.weight"][int(cid)]
        assert torch.equal(model["4.weight"][mask], own["4.weight"][mask])
        assert torch.equal(model["4.weight"][~mask], sim.server["params"]["4.weight"][~mask])


def test_turns_are_a_clients_own_and_the_absent_rest() -> None:
    task, world = task_of("norm"), ragged()
    sim = simulate(fedselect(task, every=2), world, task)
    play(sim, [[0, 1], [0], [0, 2]])
    grew = sim.states.rows["personal"]["4.weight"].flatten(1).any(1).tolist()
    assert grew == [True, False, False, False, False, False]
    before = snapshot(sim)["states"]
    play(sim, [[1, 2]])
    for client in range(6):
        kept = same(tree.index(before, client), tree.index(sim.states.rows, client))
        assert kept == (client not in (1, 2))


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_shared_entries_alone_are_enough(engine: str) -> None:
    """Models are the same, whoever takes part; the server knows everybody's masks."""
    task, world = task_of("norm"), ragged()
    recipe = Recipe(momentum=0.5, batch=8)
    sims = [
        simulate(fedselect(task, every=2, sends=sends, recipe=recipe), world, task, engine=engine)
        for sends in ("whole", "shared")
    ]
    for cohort in ([0, 1, 3], [0, 1, 2, 4], [0, 1, 2, 3], [0, 1, 2], [0, 1, 2, 3, 4, 5]):
        for sim in sims:
            play(sim, [cohort])
        assert gap(*map(models, sims)) < 1e-12
        assert gap(*(sim.server["params"] for sim in sims)) < 1e-12
        known, kept = sims[1].server["personal"], sims[1].states.rows["personal"]
        assert all(torch.equal(known[k], kept[k]) for k in known)
    assert known["4.weight"].any()
    assert sims[1].method.general is None


def test_bytes_fall_as_personal_shares_rise() -> None:
    """Of 64 entries 16 become personal, then 12, then 9; masks that grow are 8 bytes."""
    task = sixty_four_numbers()
    method = fedselect(task, every=1, sends="shared", recipe=HALF)
    sim = simulate(method, rows_of([[1.0], [2.0]]), task, rounds=12)
    for shared, told in ((64, 0), (64, 8), (48, 8), (36, 8), (27, 8)):
        (report,) = play(sim)
        assert report.down.tolist() == [4 * shared] * 2
        assert report.up.tolist() == [4 * shared + told] * 2


def test_bytes() -> None:
    """A model down; a model, and a number for each entry that may be personal, up."""
    task = task_of("norm")
    (report,) = play(simulate(fedselect(task), ragged(), task))
    assert report.down.tolist() == [4 * 75] * 6
    assert report.up.tolist() == [4 * (75 + 24 + 6 + 18)] * 6
