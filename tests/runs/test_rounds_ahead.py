"""Rounds that begin while a GPU still plays the last one; a CPU stands in for it."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fedtailor
from fedtailor.core import tree
from fedtailor.core.errors import Interrupted
from fedtailor.core.method import Method, Outcome, Upload
from fedtailor.engine import Diverged, Simulation
from fedtailor.methods import fedavg
from tests.runs.runlab import SMALL, TIMES, history, models, result, timeless

LONG: dict[str, Any] = SMALL | {"rounds": 9, "eval_every": 4, "participation": 0.5}


@pytest.fixture(autouse=True)
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Simulation, "works_meanwhile", True)


class Order:
    """What happens in which order: rounds that begin, and lines that are written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        for name in ("step", "begin"):
            monkeypatch.setattr(Simulation, name, self._noted(name, getattr(Simulation, name)))

    def _noted(self, name: str, fn: Any) -> Any:
        def noted(sim: Simulation, *args: Any, **named: Any) -> Any:
            self.seen.append(f"{name} {sim.round + 1}")
            return fn(sim, *args, **named)

        return noted

    def watch(self, line: dict[str, Any], rounds: int) -> None:
        self.seen.append(f"line {line['round']}")


def untimed(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k not in TIMES} for line in history(folder)]


def test_rounds_go_one_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also past an evaluation, which is looked at meanwhile."""
    order = Order(monkeypatch)
    fedtailor.run("fedavg", watch=order.watch, **LONG)
    between = [what for i in range(2, 10) for what in (f"begin {i}", f"line {i - 1}")]
    assert order.seen == ["begin 1", *between, "line 9"]


def test_an_evaluation_that_may_end_the_run_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    order = Order(monkeypatch)
    fedtailor.run("fedavg", watch=order.watch, **LONG | {"patience": 9})
    assert order.seen == [
        *("begin 1", "begin 2", "line 1", "begin 3", "line 2", "line 3", "step 4", "line 4"),
        *("begin 5", "begin 6", "line 5", "begin 7", "line 6", "line 7", "step 8", "line 8"),
        *("step 9", "line 9"),
    ]


@pytest.mark.parametrize("settings", [{"on_nan": "skip"}, {"eval_every": 1, "patience": 9}])
def test_what_must_be_known_first_is_waited_for(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    order = Order(monkeypatch)
    fedtailor.run("fedavg", watch=order.watch, **LONG | settings)
    assert order.seen == [f"{what} {i}" for i in range(1, 10) for what in ("step", "line")]


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedavg", {}),
        ("fedavg", {"eval_every": 1, "metric": "log-loss"}),
        ("pfedla", {"eval_every": 1, "checkpoint_every": 2}),  # the server's records
        ("apfl", {"eval_every": 1, "join": "5:1"}),  # a global model beside personal ones
        ("fedbabu", {"eval_every": 1, "finetune": 1, "keep_path": 2}),
        ("ditto", {"checkpoint_every": 2}),
        ("fedfomo", {"chunk": 1}),
        ("scaffold", {"join": "5:1", "dropout": 0.3}),
        ("centralised", {"patience": 1}),
        ("ditto", {"dp_clip": 1.0, "dp_noise": 1.0, "model": "linear"}),
    ],
)
def test_a_run_is_the_same_to_the_last_bit(
    method: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "dp_noise" in settings:
        pytest.importorskip("dp_accounting")
    ahead, apart = tmp_path / "ahead", tmp_path / "apart"
    fedtailor.run(method, out=ahead, **LONG | settings)
    monkeypatch.setattr(Simulation, "works_meanwhile", False)
    fedtailor.run(method, out=apart, **LONG | settings)
    assert models(ahead) == models(apart)
    assert untimed(ahead) == untimed(apart)
    assert timeless(result(ahead)) == timeless(result(apart))
    for kind in ("records", "path"):
        one, other = (
            {f.name: f.read_bytes() for f in (d / kind).glob("*")} for d in (ahead, apart)
        )
        assert one == other


def test_ctrl_c_saves_all_rounds_that_have_begun(tmp_path: Path) -> None:
    def press(line: dict[str, Any], rounds: int) -> None:
        if line["round"] == 5:  # by then the sixth has begun
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match="round 6"):
        fedtailor.run("ditto", out=tmp_path / "cut", watch=press, **LONG)
    assert [line["round"] for line in history(tmp_path / "cut")] == [1, 2, 3, 4, 5, 6]
    fedtailor.resume(tmp_path / "cut")
    fedtailor.run("ditto", out=tmp_path / "whole", **LONG)
    assert models(tmp_path / "cut") == models(tmp_path / "whole")
    assert untimed(tmp_path / "cut") == untimed(tmp_path / "whole")


@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_checkpoint_has_the_rounds_that_are_written_down(every: int, tmp_path: Path) -> None:
    class Cut(Exception):
        pass

    def cut(line: dict[str, Any], rounds: int) -> None:
        if line["round"] == 7:
            raise Cut

    settings = LONG | {"checkpoint_every": every}
    with pytest.raises(Cut):
        fedtailor.run("ditto", out=tmp_path / "cut", watch=cut, **settings)
    fedtailor.resume(tmp_path / "cut")
    fedtailor.run("ditto", out=tmp_path / "whole", **settings)
    assert models(tmp_path / "cut") == models(tmp_path / "whole")
    assert untimed(tmp_path / "cut") == untimed(tmp_path / "whole")


def ill_from(round: int, *, stumbles: bool) -> Any:
    """FedAvg whose uploads are no numbers from a round on; its server may stumble over a model."""

    def make(task: Any, *, recipe: Any) -> Method:
        base = fedavg(task, recipe=recipe)

        def client(msg: Any, state: Any, data: Any, turn: Any) -> Outcome:
            done = base.client(msg, state, data, turn)
            params = tree.map(lambda p: torch.where(turn.round >= round, torch.nan, p), done.model)
            return done._replace(upload=done.upload._replace(mean={"params": params}))

        def receive(server: Any, ids: Tensor, up: Upload, turn: Any) -> Any:
            if stumbles and not bool(tree.finite(server)):
                raise ArithmeticError("no numbers")
            return base.receive(server, ids, up, turn)

        return base._replace(client=client, receive=receive)

    return make


def test_models_of_clients_that_diverged_may_refuse_to_answer(tmp_path: Path) -> None:
    def make(task: Any, *, recipe: Any) -> Method:
        base = ill_from(5, stumbles=False)(task, recipe=recipe)

        def predict(model: Any, x: Tensor) -> Tensor:
            if not bool(torch.stack([p.isfinite().all() for p in model.values()]).all()):
                raise ArithmeticError("no numbers")
            return base.predict(model, x)

        return base._replace(predict=predict)

    with pytest.raises(Diverged, match="in round 6:"):
        fedtailor.run(make, **LONG | {"eval_every": 1, "engine": "sequential"})


@pytest.mark.parametrize("stumbles", [False, True])
def test_who_diverged_is_named_with_the_first_round(stumbles: bool, tmp_path: Path) -> None:
    with pytest.raises(Diverged, match="in round 6:") as caught:
        fedtailor.run(ill_from(5, stumbles=stumbles), out=tmp_path / "ill", **LONG)
    lines = history(tmp_path / "ill")
    assert [line["round"] for line in lines] == [1, 2, 3, 4, 5]
    assert len(caught.value.clients) == 2  # the cohort of the sixth
