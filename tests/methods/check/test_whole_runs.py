"""What a run does besides rounds is checked, too: each check finds what it is for."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
import torch

from fedtailor.core import tree
from fedtailor.core.method import Method, Outcome
from fedtailor.methods import METHODS
from fedtailor.methods.check import whole_runs
from tests.methods.check.test_laws import broken, complaints

pytestmark = pytest.mark.usefixtures("small")


def test_finds_what_is_not_in_a_state() -> None:
    """A memory of its own is empty after a stop."""
    seen: list[Any] = []
    calls = count()

    def change(method: Method) -> Any:
        def receive(server: Any, ids: Any, upload: Any, turn: Any) -> Any:
            shift = 1e-3 * next(calls)
            seen.append(shift)
            return tree.map(lambda p: p + shift, method.receive(server, ids, upload, turn))

        return receive

    said = complaints(broken(receive=change), whole_runs.check_resume)
    assert "after a stop it differs: '" in said


def test_finds_a_model_that_goes_by_the_order_of_names() -> None:
    """A file has an order of its own."""

    def change(method: Method) -> Any:
        def personal(*args: Any) -> Any:
            own = method.personal(*args)
            return {"a": own, "b": tree.map(torch.zeros_like, own)}

        return personal

    def predict(method: Method) -> Any:
        return lambda model, x: method.predict(next(iter(model.values())), x)

    said = complaints(broken(personal=change, predict=predict), whole_runs.check_files)
    assert "the model of a file predicts otherwise" in said


def test_finds_fine_tuning_without_effect() -> None:
    blank = broken(predict=lambda method: lambda model, x: 0 * method.predict(model, x))
    assert "fine-tuning changed nothing" in complaints(blank, whole_runs.check_finetune)


def test_finds_what_dp_sgd_does_not_cover() -> None:
    def change(method: Method) -> Any:
        def client(msg: Any, state: Any, data: Any, turn: Any) -> Outcome:
            out = method.client(msg, state, data, turn)
            mean = data.x[data.rows].mean(0)
            return out._replace(upload=out.upload._replace(each={"means": mean}))

        return client

    said = complaints(broken(client=change), whole_runs.check_private)
    assert "'sent.means' depends on training rows without noise" in said
    stated = broken(client=change, not_private=lambda method: "it sends means of rows")
    assert complaints(stated, whole_runs.check_private) == ""


def test_networks_of_several_depths_are_played() -> None:
    """pMixFed has them; with an error in the shallow one it is found."""

    def factory(task: Any, *, recipe: Any, networks: Any = ()) -> Method:
        method = METHODS["pmixfed"](task, recipe=recipe, networks=networks)
        if networks and len(task.blocks) < len(networks[0].blocks):
            return method._replace(predict=lambda model, x: method.predict(model, x) / 0.0)
        return method

    assert complaints(METHODS["pmixfed"], whole_runs.check_networks) == ""
    assert "two networks" in complaints(factory, whole_runs.check_networks)
