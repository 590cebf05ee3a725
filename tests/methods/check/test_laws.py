"""The conformance suite passes what is sound and finds what is not."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import torch

import fedtailor.methods.check as suite
from fedtailor.core import tree
from fedtailor.core.errors import BadInput
from fedtailor.core.method import Method, Outcome, Upload
from fedtailor.core.training import Recipe
from fedtailor.methods import METHODS, ditto, local
from fedtailor.methods.check import PLAN, WITH_COMPILER, check_method, laws, whole_runs
from fedtailor.methods.check.world import TASK_OF
from fedtailor.methods.find import find

# of what is done again and again, three times are enough; `fedtailor check` takes the defaults
FEWER: dict[str, dict[str, int]] = {
    "pfedme": {"R": 3, "K": 3},
    "fedavg-c": {"F": 3},
    "fedprox-c": {"F": 3},
    "fedala": {"max_ala_epochs": 5},
    "fedrep": {"head_epochs": 2},
    "plgu-grep": {"head_epochs": 2},
    "fedtgp": {"server_epochs": 5},
    "fedgen": {"hidden": 8, "noise": 4, "generator_steps": 3},
}
# every method in daily use; what tells of rows is looked at in test_leakage.py
DAILY = {
    "dense": tuple(c for c in PLAN["dense"] if c is not whole_runs.check_private),
    "batch-norm": (laws.check_state, laws.check_engines, laws.check_personal),
}


# one of each mechanism: control variates, a pull, a head, mixing, others' models, meta steps
OF_EACH_KIND = ("scaffold", "ditto", "fedrep", "fedala", "fedfomo", "perfedavg-hf")
# what they are made of, regression and survival do not have
ONLY_CLASSES = (
    "fedphp", "pmixfed",
    "fml", "feddistill", "fedkd",
    "fedrod", "fedproto", "gpfl", "knn-per", "fedtgp", "fedgh", "fedpac", "fedas",
    "fedgen",
)  # fmt: skip
NORMED = (*OF_EACH_KIND, "fedavg", "fedbn", "pfedhn", "apfl", "pmixfed", "cfl")


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("name", "network"),
    [
        (name, network)
        if network == "dense" or name in NORMED
        else pytest.param(name, network, marks=pytest.mark.slow)
        for name in METHODS
        for network in DAILY
    ],
)
def test_every_method_passes(name: str, network: str) -> None:
    found = check_method(METHODS[name], plan={network: DAILY[network]}, **FEWER.get(name, {}))
    assert len(found) == len(DAILY[network])
    assert not [f for f in found if not f.passed]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("task", TASK_OF)
@pytest.mark.parametrize(
    "name",
    [n if n in OF_EACH_KIND else pytest.param(n, marks=pytest.mark.slow) for n in METHODS],
)
def test_every_method_learns_every_task_that_it_does_not_refuse(
    name: str, task: str, request: pytest.FixtureRequest
) -> None:
    laws_of_task = PLAN[task]
    if name != "ditto" and not request.config.getoption("--slow"):
        # a method's steps are traced with classes above, and a task's losses with one method
        laws_of_task = tuple(law for law in laws_of_task if law is not laws.check_traced)
    found = check_method(METHODS[name], plan={task: laws_of_task}, **FEWER.get(name, {}))
    refused = [f for f in found if f.check.startswith("it refuses")]
    assert bool(refused) == (name in ONLY_CLASSES)
    assert refused or len(found) == len(laws_of_task)
    assert not [f for f in found if not f.passed]


def test_tasks_and_reasons_are_known() -> None:
    assert suite.tasks_of(METHODS["fedphp"])["regression"] == (
        "its distillation compares class probabilities"
    )
    assert not any(suite.tasks_of(METHODS["pmixfed"], mix_policy="gradual").values())


def test_all_networks_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    short = dict.fromkeys(PLAN, (laws.check_personal,))
    monkeypatch.setattr(suite, "PLAN", short)
    findings = check_method(local)
    assert len(findings) == 4
    assert {kind for kind in PLAN for f in findings if f"[{kind}]" in f.check} == set(PLAN)


def test_a_method_may_be_checked_one_client_after_another() -> None:
    """What cannot be mapped is broken with one engine, and holds with the other."""

    def change(method: Method) -> Any:
        def client(msg: Any, state: Any, data: Any, turn: Any) -> Outcome:
            if data.n > 10:  # a question to the host
                return method.client(msg, state, data, turn)
            return method.client(msg, state, data, turn)

        return client

    plan = {"dense": (laws.check_engines, laws.check_traced)}
    mapped = check_method(broken(client=change), plan=plan)
    assert not mapped[0].passed
    assert "data.n > 10" in mapped[0].detail
    assert "torch.where" in mapped[0].detail
    assert mapped[1].detail == "the same as above"  # a line is shown once
    alone = check_method(broken(client=change), plan=plan, engine="sequential")
    assert all(f.passed for f in alone)


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
    """What the suite, or only some of its checks, has to say; one network finds a flaw."""
    findings = check_method(factory, plan={"dense": checks or PLAN["dense"]})
    return "\n".join(f"{f.check}: {f.detail}" for f in findings if not f.passed)


pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.mark.usefixtures("small")
def test_the_base_of_the_broken_ones_is_sound() -> None:
    assert complaints(broken()) == ""


@pytest.mark.usefixtures("small")
def test_finds_a_state_changed_in_place() -> None:
    def change(method: Method) -> Any:
        def client(msg: Any, state: Any, data: Any, turn: Any) -> Outcome:
            for leaf in tree.leaves(state):
                leaf.add_(1e-3)
            return method.client(msg, state, data, turn)

        return client

    # Ditto's first state is the server's own tensors: whichever is looked at first is named
    assert "was changed by a call" in complaints(broken(client=change), laws.check_pure)


@pytest.mark.usefixtures("small")
def test_finds_a_message_changed_in_place() -> None:
    def change(method: Method) -> Any:
        def personal(msg: Any, state: Any, data: Any, turn: Any) -> Any:
            for leaf in tree.leaves(msg):
                leaf.mul_(0.5)
            return method.personal(msg, state, data, turn)

        return personal

    assert "was changed by a call" in complaints(broken(personal=change), laws.check_pure)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("twin", ["fedavg", "local"])
def test_finds_a_default_that_disables_the_method(twin: str) -> None:
    def factory(task: Any, *, mu: float = 0.0, recipe: Recipe = Recipe()) -> Method:
        return METHODS[twin](task, recipe=recipe)

    factory.__doc__ = "Switched off.\n\nArgs:\n  mu: strength; 0 switches it off." + REFERENCE
    assert f"exactly the model of {twin}" in complaints(factory, laws.check_not_disabled)


@pytest.mark.usefixtures("small")
def test_finds_a_prediction_that_looks_at_its_batch() -> None:
    def change(method: Method) -> Any:
        def predict(model: Any, x: Any) -> Any:
            logits = method.predict(model, x)
            return logits - logits.mean(0)

        return predict

    assert "what else is in the batch" in complaints(broken(predict=change), laws.check_personal)


@pytest.mark.usefixtures("small")
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
    said = complaints(factory, laws.check_state)
    assert "keeps its names, shapes and types" in said
    assert "'seen' is float64 of shape (2,) before a turn and float64 of shape (3,) after" in said


@pytest.mark.usefixtures("small")
def test_finds_chance_that_does_not_come_from_the_turn() -> None:
    def change(method: Method) -> Any:
        def client(msg: Any, state: Any, data: Any, turn: Any) -> Outcome:
            out = method.client(msg, state, data, turn)
            noisy = tree.map(lambda p: p + 1e-3 * torch.randn(p.shape), out.state)
            return out._replace(state=noisy)

        return client

    assert complaints(broken(client=change), laws.check_pure, laws.check_engines) != ""


@pytest.mark.usefixtures("small")
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

    assert complaints(broken(client=change), laws.check_pure, laws.check_engines) != ""


@pytest.mark.usefixtures("small")
def test_finds_a_missing_reference() -> None:
    factory = broken()
    factory.__doc__ = "Nobody knows where it comes from."
    assert "no 'Reference:' section" in complaints(factory, laws.check_page)


@pytest.mark.usefixtures("small")
def test_finds_a_missing_docstring_and_a_silent_option() -> None:
    def factory(task: Any, *, mu: float = 1.0, recipe: Recipe = Recipe()) -> Method:
        return ditto(task, recipe=recipe)

    assert "no first line" in complaints(factory, laws.check_page)
    factory.__doc__ = "Silent." + REFERENCE
    assert "no meaning in 'Args:' for mu" in complaints(factory, laws.check_page)


@pytest.mark.usefixtures("small")
def test_finds_test_rows_that_leak() -> None:
    """A method that reaches round its arguments to the labels of everybody's rows."""

    def change(method: Method) -> Any:
        def client(msg: Any, state: Any, data: Any, turn: Any) -> Outcome:
            out = method.client(msg, state, data, turn)
            peek = 1e-3 * data.y.double().square().sum()  # of all rows, test rows among them
            return out._replace(state=tree.map(lambda p: p + peek, out.state))

        return client

    assert "other test rows gave another result" in complaints(
        broken(client=change), laws.check_no_leak
    )


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("whose", ["test", "other"])
def test_finds_examples_that_are_not_the_client_s(whose: str) -> None:
    """What is easily written by mistake: `data.x` for the client's rows of it."""

    def change(method: Method) -> Any:
        def client(msg: Any, state: Any, data: Any, turn: Any) -> Outcome:
            rows = data.x if whose == "test" else data.x[:5]  # the first client trains on these
            peek = 1e-3 * rows.mean()
            out = method.client(msg, state, data, turn)
            return out._replace(state=tree.map(lambda p: p + peek, out.state))

        return client

    said = complaints(broken(client=change), laws.check_no_leak)
    told = {"test": "other test rows gave", "other": "with other rows of other clients a turn ends"}
    assert told[whose] in said
    assert "`data.x[data.rows]`" in said


@pytest.mark.usefixtures("small")
def test_finds_a_method_that_does_not_learn() -> None:
    def change(method: Method) -> Any:
        def client(msg: Any, state: Any, data: Any, turn: Any) -> Outcome:
            return Outcome(state, Upload({"params": msg["params"]}), state["own"])

        return client

    assert "the loss on training rows falls" in complaints(broken(client=change), laws.check_learns)


@pytest.mark.usefixtures("small")
def test_finds_predictions_of_a_wrong_shape_and_of_nan() -> None:
    wrong = broken(predict=lambda m: lambda model, x: m.predict(model, x)[:, :2])
    assert "outputs of shape (5, 2)" in complaints(wrong, laws.check_personal)
    lost = broken(predict=lambda m: lambda model, x: m.predict(model, x) / 0.0)
    assert "not finite" in complaints(lost, laws.check_personal)


@pytest.mark.usefixtures("small")
def test_an_error_inside_a_method_is_a_finding() -> None:
    def change(method: Method) -> Any:
        def personal(msg: Any, state: Any, data: Any, turn: Any) -> Any:
            raise ZeroDivisionError("oh")

        return personal

    said = complaints(broken(personal=change), laws.check_personal)
    assert 'ZeroDivisionError: raise ZeroDivisionError("oh") (test_laws.py, line' in said


def test_a_factory_that_returns_no_method_is_a_finding() -> None:
    found = check_method(lambda task, *, recipe: None)  # type: ignore[arg-type,return-value]
    assert found[0] == ("it can be built [dense]", False, found[0].detail)
    assert found[0].detail == "the factory returns NoneType: let it return a Method"


@pytest.mark.usefixtures("small")
def test_an_error_in_the_factory_is_a_finding() -> None:
    def factory(task: Any, *, recipe: Recipe = Recipe()) -> Method:
        raise ZeroDivisionError("oh")

    factory.__doc__ = "It cannot even be made." + REFERENCE
    assert 'ZeroDivisionError: raise ZeroDivisionError("oh") (test_laws.py, line' in (
        complaints(factory)
    )


@pytest.mark.usefixtures("small")
def test_training_in_float64_is_undone_after_the_checks() -> None:
    assert torch.get_default_dtype() == torch.float32
    complaints(broken(local), laws.check_page)
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.usefixtures("small")
def test_finds_a_host_number_in_a_state() -> None:
    def change(method: Method) -> Any:
        def client(msg: Any, state: Any, data: Any, turn: Any) -> Outcome:
            out = method.client(msg, state, data, turn)
            return out._replace(upload=out.upload._replace(each={"share": 0.5}))

        return client

    said = complaints(broken(client=change), laws.check_state)
    assert "client's upload: 'share' is of type float: make it a tensor" in said


@pytest.mark.usefixtures("small")
def test_finds_padding_that_counts() -> None:
    """A mean over all rows that are there, also those that only fill up: the leaf is named."""

    def change(method: Method) -> Any:
        def client(msg: Any, state: Any, data: Any, turn: Any) -> Outcome:
            out = method.client(msg, state, data, turn)
            shift = data.x[data.rows].mean()
            return out._replace(state=tree.map(lambda p: p + shift, out.state))

        return client

    said = complaints(broken(client=change), laws.check_engines)
    assert "'clients/own/" in said or "'models/" in said
    assert "padding" in said


@pytest.mark.slow
def test_steps_are_compiled_where_that_is_asked_for() -> None:
    found = check_method(METHODS["fedavg"], plan={"dense": (laws.check_compiled,)})
    assert [f.passed for f in found] == [True]
    assert set(WITH_COMPILER["dense"]) - set(PLAN["dense"]) == {laws.check_compiled}


def test_a_method_for_larger_cohorts_is_no_broken_one() -> None:
    """It is told what it needs, in one line, instead of thirty checks that could not be made."""
    with pytest.raises(BadInput, match=r"at least 7, this one has 5.*five of eight clients"):
        check_method(find("fedavg+krum:2"))
