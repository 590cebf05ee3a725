"""What methods tell of rows beside their noisy gradients, and that they are refused for it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import fedtailor
from fedtailor.core.data import Data
from fedtailor.core.errors import BadInput
from fedtailor.core.method import Method, Outcome, Upload, by_size
from fedtailor.core.objectives import Slope
from fedtailor.core.rng import Turn
from fedtailor.core.task import Batch, Task
from fedtailor.core.training import Recipe, descend, fit
from fedtailor.core.tree import Tree
from fedtailor.methods import METHODS, fedavg
from fedtailor.methods.check import toy_federation, toy_task
from fedtailor.methods.find import find
from fedtailor.methods.leakage import Leaks, leaks_of, refuse_leaks
from tests.methods.worlds import QUICK

NOISE = Recipe(batch=4, lr=0.1, dp_clip=1.0, dp_noise=1.0)
PRIVATE: dict[str, Any] = {
    "model": "linear", "clients": 3, "rounds": 1, "batch": 200, "dp_clip": 1.0, "dp_noise": 1.0,
}  # fmt: skip
NOT_PRIVATE = (
    "fedala", "fedavg-data", "centralised", "qfedavg", "term", "feddistill",
    "fedrod", "feddbe", "fedproto", "gpfl", "knn-per", "fedtgp", "fedgh", "fedpac", "fedas",
    "fedgen",
)  # fmt: skip
PARTS = ("fedavg+adam", "fedavg+avgm", "ditto+yogi", "fedrep+adagrad", "fedsim+mix", "fedalt+mix")


def found(method: Any, **options: Any) -> Leaks:
    task = toy_task()
    return leaks_of(method(task, recipe=NOISE, **options), task, toy_federation())


@pytest.fixture(autouse=True)
def double() -> Any:
    """Rows of the toy federation are float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", [*METHODS, *PARTS])
def test_every_method_states_what_it_tells(name: str) -> None:
    options = QUICK.get(name.split("+")[0], {})
    said = find(name)(toy_task(), recipe=NOISE, **options)
    if said.not_private:
        assert name in NOT_PRIVATE
        return
    leaks = found(find(name), **options)
    assert leaks.train == ()
    assert bool(leaks.val) == said.validates
    assert said.validates == (name in ("fedfomo", "fedfomo-ma", "pmixfed", *PARTS[-2:]))


def test_adaptive_local_aggregation_tells_of_losses() -> None:
    """It ends where losses without noise settle."""
    leaks = found(METHODS["fedala"], max_ala_epochs=2)
    assert leaks.train == ("noted.ala_loss",)


# --- methods that leak, each in one way ---


def leaking(client: Any) -> Any:
    """FedAvg whose clients do something else."""

    def factory(task: Task, *, recipe: Recipe = Recipe()) -> Method:
        host = fedavg(task, recipe=recipe)
        return host._replace(client=partial(client, host, task, recipe), download=None)

    return factory


def sent(params: Any, data: Data) -> Outcome:
    return Outcome({}, Upload({"params": params}, by_size(data, "data")), params)


def class_means(host: Method, task: Task, recipe: Recipe, *args: Any) -> Outcome:
    """As FedProto's prototypes: means of rows."""
    out, data = host.client(*args), args[2]
    mean = data.x[data.rows].double().mean(0)
    return out._replace(upload=out.upload._replace(each={"means": mean}))


def class_counts(host: Method, task: Task, recipe: Recipe, *args: Any) -> Outcome:
    """As FedRoD's: the loss is weighted by how many rows of each class there are. Every row's
    gradient is clipped, and yet tells of all the others."""
    msg, _, data, turn = args
    labels = (data.y[data.rows][:, None] == torch.arange(3)).double()
    given = {"prior": labels.sum(0) / data.n}

    def weighted(params: Any, batch: Batch, given: Tree) -> tuple[Tensor, Any]:
        assert task.outputs is not None
        logits, buffers = task.outputs(params, batch)
        return (logits * given["prior"]).sum(), buffers

    loss = {"loss": weighted, "given": given}
    return sent(fit(task, msg["params"], data, turn, recipe, **loss), data)


def weight_by_labels(host: Method, task: Task, recipe: Recipe, *args: Any) -> Outcome:
    out, data = host.client(*args), args[2]
    return out._replace(upload=out.upload._replace(weight=1 + data.y[data.rows].double().sum()))


def note_of_loss(host: Method, task: Task, recipe: Recipe, *args: Any) -> Outcome:
    """The loss of the last batch has no noise."""
    msg, _, data, turn = args
    done = descend(lambda th, b, g, c: task.loss(th, b), msg["params"], data, turn, recipe)
    return sent(done.theta, data)._replace(notes={"loss": done.loss})


def mean_of_all(host: Method, task: Task, recipe: Recipe, *args: Any) -> Outcome:
    """Takes everybody's rows for its own."""
    out, data = host.client(*args), args[2]
    return out._replace(upload=out.upload._replace(each={"mean": data.x.double().mean(0)}))


def own_training(host: Method, task: Task, recipe: Recipe, *args: Any) -> Outcome:
    """Forgets to train with the recipe's privacy."""
    msg, _, data, turn = args
    return sent(fit(task, msg["params"], data, turn, Recipe(batch=4)), data)


def peeking(host: Method, task: Task, recipe: Recipe, *args: Any) -> Outcome:
    """Looks at the batch where it should only look at the gradient."""
    msg, _, data, turn = args

    def gradient(at: Slope) -> Slope:
        def slope(theta: Tree, batch: Batch, given: Tree, carried: Tree) -> Any:
            grads, loss, changed = at(theta, batch, given, carried)
            shift = (batch.x * batch.weight[:, None]).mean()
            return {k: g + shift for k, g in grads.items()}, loss, changed

        return slope

    return sent(fit(task, msg["params"], data, turn, recipe, gradient=gradient), data)


def sound(host: Method, task: Task, recipe: Recipe, *args: Any) -> Outcome:
    out: Outcome = host.client(*args)
    return out


@pytest.mark.parametrize(
    ("client", "name"),
    [
        (class_means, "sent.means"),
        (class_counts, "sent.params.4.bias"),
        (weight_by_labels, "sent.weight"),
        (note_of_loss, "noted.loss"),
        (own_training, "sent.params.0.bias"),
        (peeking, "sent.params.0.bias"),
    ],
)
def test_finds_what_noise_does_not_cover(client: Any, name: str) -> None:
    leaks = found(leaking(client))
    assert name in leaks.train
    assert leaks.train[0].partition(".")[0] == name.partition(".")[0]
    assert leaks.val == ()


def test_finds_who_takes_everybody_s_rows_for_its_own() -> None:
    assert found(leaking(mean_of_all)) == Leaks(("sent.mean",), ("sent.mean",))


def test_what_is_sound_is_found_sound() -> None:
    assert found(leaking(sound)) == Leaks()


def test_what_was_kept_is_found_when_it_is_sent() -> None:
    """A mean that stays with the client for a round."""

    def factory(task: Task, *, recipe: Recipe = Recipe()) -> Method:
        host = fedavg(task, recipe=recipe)

        def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
            out = host.client(msg, {}, data, turn)
            upload = out.upload._replace(each={"before": state["mean"]})
            return out._replace(state={"mean": data.x[data.rows].mean(0)}, upload=upload)

        start = lambda msg, initial, key: {"mean": torch.zeros(6)}
        return host._replace(client=client, start=start, download=None)

    assert found(factory).train == ("sent.before",)


# --- what is said ---


def test_rows_that_need_no_protection_may_be_used() -> None:
    method, val = fedavg(toy_task()), Leaks(val=("sent.weights", "sent.more"))
    refuse_leaks("mine", method, Leaks(), "nothing")
    refuse_leaks("mine", method, val, "validation")
    with pytest.raises(BadInput, match=r"'mine': 'sent.weights' \(and 1 more\) depends on val"):
        refuse_leaks("mine", method, val, "nothing")
    with pytest.raises(BadInput, match="depends on training rows"):
        refuse_leaks("mine", method, Leaks(train=("sent.x",)), "validation")


def test_a_run_refuses_what_leaks() -> None:
    """Means of rows were once sent under an ε."""
    torch.set_default_dtype(torch.float32)
    with pytest.raises(BadInput, match=r"'sent.means' depends on training rows without noise"):
        fedtailor.run(leaking(class_means), **PRIVATE)
    fedtailor.run(leaking(sound), **PRIVATE)
    fedtailor.run(leaking(class_means), **PRIVATE | {"dp_clip": 0.0, "dp_noise": 0.0})


def test_validation_rows_are_refused_unless_they_are_public() -> None:
    torch.set_default_dtype(torch.float32)
    with pytest.raises(BadInput, match="--dp-public validation") as error:
        fedtailor.run("fedfomo", **PRIVATE)
    assert "\n" not in str(error.value)
    assert fedtailor.run("fedfomo", **PRIVATE, dp_public="validation")["epsilon"]["max"] > 0


def test_counted_class_weights_are_refused() -> None:
    with pytest.raises(BadInput, match="class-weights is 'balanced'"):
        fedtailor.run("fedavg", **PRIVATE, class_weights="balanced")
