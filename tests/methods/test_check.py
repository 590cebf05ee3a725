"""The conformance suite passes what is sound and finds what is not."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import torch

import fedtailor.methods.check as suite
from fedtailor.core import tree
from fedtailor.core.method import Method, Outcome, Upload
from fedtailor.core.training import Recipe
from fedtailor.methods import METHODS, ditto, local
from fedtailor.methods.check import CHECKS, NETWORKS, check_method

SLOW = ("fedala", "fedrep", "fedfomo", "plgu-grep", "plgu-ghn")  # one network in daily use
MARKS: dict[tuple[str, str], Any] = {(name, "batch-norm"): pytest.mark.slow for name in SLOW}
# of what is done again and again, three times are enough; `fedtailor check` takes the defaults
FEWER: dict[str, dict[str, int]] = {
    "pfedme": {"R": 3, "K": 3},
    "fedavg-c": {"F": 3},
    "fedprox-c": {"F": 3},
}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("name", "network"),
    [
        pytest.param(name, network, marks=MARKS.get((name, network), []))
        for name in METHODS
        for network in NETWORKS
    ],
)
def test_every_method_passes(name: str, network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "NETWORKS", {network: NETWORKS[network]})
    monkeypatch.setattr(suite, "TASK_OF", {})
    findings = check_method(METHODS[name], **FEWER.get(name, {}))
    assert len(findings) == len(CHECKS)
    assert not [f for f in findings if not f.passed]


# one of each mechanism: control variates, a pull, a head, mixing, others' models, meta steps
OF_EACH_KIND = ("scaffold", "ditto", "fedrep", "fedala", "fedfomo", "perfedavg-hf")


@pytest.mark.parametrize("task", ["regression", "survival"])
@pytest.mark.parametrize(
    "name",
    [n if n in OF_EACH_KIND else pytest.param(n, marks=pytest.mark.slow) for n in METHODS],
)
def test_every_method_learns_every_task_that_it_does_not_refuse(
    name: str, task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "NETWORKS", {})
    monkeypatch.setattr(suite, "TASK_OF", {task: task})
    findings = check_method(METHODS[name], **FEWER.get(name, {}))
    refused = [f for f in findings if f.check.startswith("it refuses")]
    assert bool(refused) == (name in ("fedphp", "pmixfed"))
    assert refused or len(findings) == len(suite.CHECKS_OF_TASKS)
    assert not [f for f in findings if not f.passed]


def test_tasks_and_reasons_are_known() -> None:
    assert suite.tasks_of(METHODS["fedphp"])["regression"] == (
        "its distillation compares class probabilities"
    )
    assert not any(suite.tasks_of(METHODS["pmixfed"], mix_policy="gradual").values())


def test_both_networks_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "CHECKS", (suite.check_page, suite.check_personal))
    monkeypatch.setattr(suite, "CHECKS_OF_TASKS", (suite.check_personal,))
    findings = check_method(local)
    assert len(findings) == 6
    kinds = {*NETWORKS, *suite.TASK_OF}
    assert {kind for kind in kinds for f in findings if f"[{kind}]" in f.check} == kinds


# --- methods that are broken, each in one way ---
# All start from Ditto, which has a state, an upload and a personal model.

REFERENCE = "\n\nReference: nobody."


def broken(base: Callable[..., Method] = ditto, **changes: Callable[[Method], Any]) -> Any:
    """A factory of `base` with some of its functions replaced."""

    def factory(task: Any, *, recipe: Recipe = Recipe()) -> Method:
        method = base(task, recipe=recipe)
        return method._replace(**{name: change(method) for name, change in changes.items()})

    factory.__doc__ = "A method that is broken." + REFERENCE
    return factory


def complaints(factory: Any, *checks: Callable[[Any], None]) -> str:
    """What the suite, or only some of its checks, has to say."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suite, "CHECKS", checks or CHECKS)
        patch.setattr(suite, "TASK_OF", {})
        findings = check_method(factory)
    return "\n".join(f"{f.check}: {f.detail}" for f in findings if not f.passed)


@pytest.fixture
def quick(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One network is enough to find a flaw."""
    monkeypatch.setattr(suite, "TASK_OF", {})
    monkeypatch.setattr(suite, "NETWORKS", {"dense": NETWORKS["dense"]})


pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.mark.usefixtures("quick")
def test_the_base_of_the_broken_ones_is_sound() -> None:
    assert complaints(broken()) == ""


@pytest.mark.usefixtures("quick")
def test_finds_a_state_changed_in_place() -> None:
    def change(method: Method) -> Any:
        def client(msg: Any, state: Any, data: Any, turn: Any) -> Outcome:
            for leaf in tree.leaves(state):
                leaf.add_(1e-3)
            return method.client(msg, state, data, turn)

        return client

    # Ditto's first state is the server's own tensors: whichever is looked at first is named
    assert "was changed by a call" in complaints(broken(client=change), suite.check_pure)


@pytest.mark.usefixtures("quick")
def test_finds_a_message_changed_in_place() -> None:
    def change(method: Method) -> Any:
        def personal(msg: Any, state: Any, data: Any, turn: Any) -> Any:
            for leaf in tree.leaves(msg):
                leaf.mul_(0.5)
            return method.personal(msg, state, data, turn)

        return personal

    assert "was changed by a call" in complaints(broken(personal=change), suite.check_pure)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("twin", ["fedavg", "local"])
def test_finds_a_default_that_disables_the_method(twin: str) -> None:
    def factory(task: Any, *, mu: float = 0.0, recipe: Recipe = Recipe()) -> Method:
        return METHODS[twin](task, recipe=recipe)

    factory.__doc__ = "Switched off.\n\nArgs:\n  mu: strength; 0 switches it off." + REFERENCE
    assert f"exactly the model of {twin}" in complaints(factory, suite.check_not_disabled)


@pytest.mark.usefixtures("quick")
def test_finds_a_prediction_that_looks_at_its_batch() -> None:
    def change(method: Method) -> Any:
        def predict(model: Any, x: Any) -> Any:
            logits = method.predict(model, x)
            return logits - logits.mean(0)

        return predict

    assert "what else is in the batch" in complaints(broken(predict=change), suite.check_personal)


@pytest.mark.usefixtures("quick")
def test_finds_a_state_that_changes_shape() -> None:
    def change(method: Method) -> Any:
        def client(msg: Any, state: Any, data: Any, turn: Any) -> Outcome:
            out = method.client(msg, state, data, turn)
            return out._replace(state=out.state | {"seen": torch.zeros(3)})

        def start(msg: Any, initial: Any, key: Any) -> Any:
            return method.start(msg, initial, key) | {"seen": torch.zeros(2)}

        return {"client": client, "start": start}

    def factory(task: Any, *, recipe: Recipe = Recipe()) -> Method:
        method = ditto(task, recipe=recipe)
        return method._replace(**change(method))

    factory.__doc__ = "Its state grows." + REFERENCE
    assert "keeps its names, shapes and types" in complaints(factory)


@pytest.mark.usefixtures("quick")
def test_finds_chance_that_does_not_come_from_the_turn() -> None:
    def change(method: Method) -> Any:
        def client(msg: Any, state: Any, data: Any, turn: Any) -> Outcome:
            out = method.client(msg, state, data, turn)
            noisy = tree.map(lambda p: p + 1e-3 * torch.randn(p.shape), out.state)
            return out._replace(state=noisy)

        return client

    assert complaints(broken(client=change)) != ""


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("place", ["state", "upload"])
def test_finds_a_global_counter(place: str) -> None:
    """Whatever is counted outside the arguments: neither engine nor resumption can restore it."""
    calls = count()

    def change(method: Method) -> Any:
        def client(msg: Any, state: Any, data: Any, turn: Any) -> Outcome:
            out, shift = method.client(msg, state, data, turn), 1e-3 * next(calls)
            if place == "state":
                return out._replace(state=tree.map(lambda p: p + shift, out.state))
            mean = tree.map(lambda p: p + shift, out.upload.mean)
            return out._replace(upload=out.upload._replace(mean=mean))

        return client

    assert complaints(broken(client=change)) != ""


@pytest.mark.usefixtures("quick")
def test_finds_a_missing_reference() -> None:
    factory = broken()
    factory.__doc__ = "Nobody knows where it comes from."
    assert "no 'Reference:' section" in complaints(factory, suite.check_page)


@pytest.mark.usefixtures("quick")
def test_finds_a_missing_docstring_and_a_silent_option() -> None:
    def factory(task: Any, *, mu: float = 1.0, recipe: Recipe = Recipe()) -> Method:
        return ditto(task, recipe=recipe)

    assert "no first line" in complaints(factory, suite.check_page)
    factory.__doc__ = "Silent." + REFERENCE
    assert "no meaning in 'Args:' for mu" in complaints(factory, suite.check_page)


@pytest.mark.usefixtures("quick")
def test_finds_test_rows_that_leak() -> None:
    """A method that reaches round its arguments to the labels of everybody's rows."""

    def change(method: Method) -> Any:
        def client(msg: Any, state: Any, data: Any, turn: Any) -> Outcome:
            out = method.client(msg, state, data, turn)
            peek = 1e-3 * data.y.double().square().sum()  # of all rows, test rows among them
            return out._replace(state=tree.map(lambda p: p + peek, out.state))

        return client

    assert "other test labels gave another result" in complaints(
        broken(client=change), suite.check_no_leak
    )


@pytest.mark.usefixtures("quick")
def test_finds_a_method_that_does_not_learn() -> None:
    def change(method: Method) -> Any:
        def client(msg: Any, state: Any, data: Any, turn: Any) -> Outcome:
            return Outcome(state, Upload({"params": msg["params"]}), state["own"])

        return client

    assert "the loss on training rows falls" in complaints(
        broken(client=change), suite.check_learns
    )


@pytest.mark.usefixtures("quick")
def test_finds_predictions_of_a_wrong_shape_and_of_nan() -> None:
    wrong = broken(predict=lambda m: lambda model, x: m.predict(model, x)[:, :2])
    assert "outputs of shape (5, 2)" in complaints(wrong, suite.check_personal)
    lost = broken(predict=lambda m: lambda model, x: m.predict(model, x) / 0.0)
    assert "not finite" in complaints(lost, suite.check_personal)


@pytest.mark.usefixtures("quick")
def test_an_error_inside_a_method_is_a_finding() -> None:
    def change(method: Method) -> Any:
        def personal(msg: Any, state: Any, data: Any, turn: Any) -> Any:
            raise ZeroDivisionError("oh")

        return personal

    assert "ZeroDivisionError: oh" in complaints(broken(personal=change), suite.check_personal)


@pytest.mark.usefixtures("quick")
def test_an_error_in_the_factory_is_a_finding() -> None:
    def factory(task: Any, *, recipe: Recipe = Recipe()) -> Method:
        raise ZeroDivisionError("oh")

    factory.__doc__ = "It cannot even be made." + REFERENCE
    assert "ZeroDivisionError: oh" in complaints(factory)


@pytest.mark.usefixtures("quick")
def test_training_in_float64_is_undone_after_the_checks() -> None:
    assert torch.get_default_dtype() == torch.float32
    complaints(broken(local), suite.check_page)
    assert torch.get_default_dtype() == torch.float32
