"""Where local training begins."""

from __future__ import annotations

import torch

from fedtailor.core import tree
from fedtailor.core.training import Recipe
from fedtailor.methods.parts.ala import ala
from fedtailor.methods.parts.lwsam import block_scores, scored
from fedtailor.methods.parts.start import Begun, as_received
from tests.methods.worlds import data_of, ragged, random_like, same, task_of, turn_of


def setting(net: str = "mlp"):
    task = task_of(net)
    received = task.init(torch.tensor(1))
    return task, received, random_like(received, seed=4), data_of(ragged(), 1)


def test_as_received_changes_and_remembers_nothing() -> None:
    task, received, own, data = setting()
    part = as_received(task, task.blocks, Recipe())
    memory = part.start(received, own)
    assert memory == {}
    begun = part.adapt(received, memory, {}, data, turn_of())
    assert isinstance(begun, Begun)
    assert begun.params is received
    assert (begun.memory, begun.notes, begun.given) == ({}, {}, {})
    assert part.keep(memory, own) == {}


def test_scored_begins_as_received_and_compares_with_the_last_trained_copy() -> None:
    task, received, own, data = setting("norm")
    blocks = tuple(tuple(k for k in b if k not in task.buffers) for b in task.blocks)
    part = scored("mean1")(task, task.blocks, Recipe(lr=0.3))
    memory = part.start(received, own)
    first = part.adapt(received, memory, {}, data, turn_of())
    assert same(first.params, received)
    assert first.notes["score"].tolist() == [1, 1], "nothing differs yet: equal scores"
    memory = part.keep(first.memory, own)
    later = part.adapt(received, memory, {}, data, turn_of(3))
    assert same(later.params, received)
    expected = block_scores(own, received, blocks, "mean1")
    assert torch.equal(later.notes["score"], expected)
    assert abs(float(expected.sum()) - 2) < 1e-6
    assert not torch.equal(expected, torch.ones(2))
    # each parameter's score is its block's; running statistics have none
    assert later.given["scale"].keys() == {k for block in blocks for k in block}
    for i, block in enumerate(blocks):
        assert all(later.given["scale"][k] == expected[i] for k in block)
    assert float(later.given["lr"]) == torch.tensor(0.3)


def test_scored_knows_the_rounds_learning_rate() -> None:
    task, received, own, data = setting()
    recipe = Recipe(lr=0.4, lr_decay=0.5, lr_floor=0.06)
    part = scored("mean1")(task, task.blocks, recipe)
    rates = [
        float(part.adapt(received, part.start(received, own), {}, data, turn_of(t)).given["lr"])
        for t in range(4)
    ]
    assert torch.allclose(torch.tensor(rates), torch.tensor([0.4, 0.2, 0.1, 0.06]))


def test_ala_begins_in_between_and_remembers_what_was_trained() -> None:
    task, received, own, data = setting()
    part = ala(p=1)(task, task.blocks, Recipe())
    memory = part.keep(part.start(received, received), own)
    assert same(memory["own"], own)
    begun = part.adapt(received, memory, {}, data, turn_of(1))
    assert same(tree.drop(begun.params, task.head), tree.drop(received, task.head))
    assert not same(tree.pick(begun.params, task.head), tree.pick(received, task.head))
    assert set(begun.notes) == {"ala_weight", "ala_loss", "ala_epochs"}
    assert begun.notes["ala_weight"].shape == (1,)
    assert 0 < float(begun.notes["ala_weight"]) < 1


def test_ala_without_blocks_is_as_received() -> None:
    task, received, own, data = setting()
    part = ala(p=0)(task, task.blocks, Recipe())
    assert part.start(received, own) == {}
    begun = part.adapt(received, {}, {}, data, turn_of(2))
    assert begun.params is received
    assert begun.notes == {}
