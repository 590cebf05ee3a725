"""Where local training begins."""

from __future__ import annotations

import pytest
import torch

from fedtailor.core import tree
from fedtailor.core.errors import BadInput
from fedtailor.core.method import Method, Outcome, Upload, download_of
from fedtailor.core.training import Recipe, fit
from fedtailor.methods import ditto, fedavg, local
from fedtailor.methods.mixture.fedala import Ala, with_ala
from fedtailor.methods.parts.lwsam import block_scores, with_scores
from fedtailor.methods.parts.start import with_finetuning
from tests.methods.worlds import (
    Probe,
    ala_alone,
    data_of,
    ragged,
    random_like,
    same,
    task_of,
    turn_of,
)


def setting(net: str = "mlp"):
    task = task_of(net)
    received = task.init(torch.tensor(1))
    return task, received, random_like(received, seed=4), data_of(ragged(), 1)


# ------------------------------------------------------------------------------------ fine-tuning


def test_finetuning_begins_after_some_epochs_and_remembers_nothing() -> None:
    task, received, own, data = setting()
    part = Probe(lambda host: with_finetuning(host, task, Recipe(steps=1, lr=0.3), 2))
    assert part.start(received, own) == {}
    begun = part.adapt(received, {}, {}, data, turn_of())
    expected = fit(task, received, data, turn_of().aside(), Recipe(epochs=2, lr=0.3))
    assert same(begun.params, expected)
    assert (begun.memory, begun.notes) == ({}, {})


def test_a_hosts_own_way_of_fine_tuning_sees_its_own_state() -> None:
    task, received, own, data = setting()
    host = fedavg(task)._replace(
        start=lambda msg, initial, key: {"kept": torch.tensor(7.0)},
        finetune=lambda msg, state, model, data, turn, recipe: {"kept": state["kept"]},
    )
    method, msg = with_finetuning(host, task, Recipe(), 1), {"params": received}
    state = method.start(msg, own, turn_of().key)
    assert method.finetune is not None
    found = method.finetune(msg, state, received, data, turn_of(), Recipe())
    assert float(found["kept"]) == 7
    assert with_finetuning(fedavg(task), task, Recipe(), 1).finetune is None


def test_without_epochs_it_is_the_host() -> None:
    host = fedavg(task_of())
    assert with_finetuning(host, task_of(), Recipe(), 0) is host


def test_the_global_model_is_told_where_it_was_the_personal_one() -> None:
    task, received, _, _ = setting()
    tuned = with_finetuning(fedavg(task), task, Recipe(), 1)
    assert fedavg(task).general is None
    assert tuned.general is not None and tuned.general({"params": received}, {}) is received
    assert download_of(tuned) is None, "a wrapped method is no host any more"


def test_a_model_that_is_not_the_downloaded_one_is_tested_as_it_is() -> None:
    """Ditto's v: nothing is adapted only to be thrown away."""
    task, received, own, _ = setting()
    tuned = with_finetuning(ditto(task), task, Recipe(), 1)
    assert tuned.personal({"params": received}, {"host": {"own": own}}, None, None) is own


def test_a_method_without_one_download_is_refused() -> None:
    with pytest.raises(BadInput, match="do not download one model"):
        with_finetuning(local(task_of()), task_of(), Recipe(), 1)


# ----------------------------------------------------------------------------------------- scores


class Scored:
    """`with_scores` around a host that trains nothing: it shows what training would be given."""

    def __init__(self, task, recipe: Recipe) -> None:
        nothing = lambda *_: {}

        def client(msg, state, data, turn) -> Outcome:
            self.given = msg["given"]
            return Outcome(state, Upload(), msg["trained"])

        host = Method(nothing, nothing, nothing, client, nothing, nothing, nothing)
        self.method = with_scores(host, "params", task, "mean1", recipe)

    def __call__(self, received, state, trained, data, turn) -> Outcome:
        return self.method.client({"params": received, "trained": trained}, state, data, turn)


def test_scores_compare_with_the_last_trained_copy() -> None:
    task, received, own, data = setting("norm")
    blocks = tuple(tuple(k for k in b if k not in task.buffers) for b in task.blocks)
    scored = Scored(task, Recipe(lr=0.3))
    state = scored.method.start({"params": received}, own, torch.tensor(0))
    first = scored(received, state, own, data, turn_of())
    assert first.notes["score"].tolist() == [1, 1], "nothing differs yet: equal scores"
    assert same(first.state["own"], own)
    later = scored(received, first.state, received, data, turn_of(3))
    expected = block_scores(own, received, blocks, "mean1")
    assert torch.equal(later.notes["score"], expected)
    assert abs(float(expected.sum()) - 2) < 1e-6
    assert not torch.equal(expected, torch.ones(2))
    # each parameter's score is its block's; running statistics have none
    assert scored.given["scale"].keys() == {k for block in blocks for k in block}
    for i, block in enumerate(blocks):
        assert all(scored.given["scale"][k] == expected[i] for k in block)
    assert float(scored.given["lr"]) == torch.tensor(0.3)


def test_scores_come_with_the_rounds_learning_rate() -> None:
    task, received, own, data = setting()
    scored = Scored(task, Recipe(lr=0.4, lr_decay=0.5, lr_floor=0.06))
    state = scored.method.start({"params": received}, own, torch.tensor(0))
    rates = []
    for t in range(4):
        scored(received, state, own, data, turn_of(t))
        rates.append(float(scored.given["lr"]))
    assert torch.allclose(torch.tensor(rates), torch.tensor([0.4, 0.2, 0.1, 0.06]))


# -------------------------------------------------------------------------------------------- ALA


def test_ala_begins_in_between_and_remembers_what_was_trained() -> None:
    task, received, own, data = setting()
    part = ala_alone(task, Recipe(), p=1)
    memory = part.start(received, received) | {"own": own}
    begun = part.adapt(received, memory, {}, data, turn_of(1))
    assert same(begun.memory["own"], begun.params), "as the host has left it"
    assert same(tree.drop(begun.params, task.head), tree.drop(received, task.head))
    assert not same(tree.pick(begun.params, task.head), tree.pick(received, task.head))
    assert set(begun.notes) == {"ala_weight", "ala_loss", "ala_epochs"}
    assert begun.notes["ala_weight"].shape == (1,)
    assert 0 < float(begun.notes["ala_weight"]) < 1


def test_ala_without_blocks_is_the_host() -> None:
    host = fedavg(task_of())
    assert with_ala(host, task_of(), Ala(p=0), Recipe()) is host
