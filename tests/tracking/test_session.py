"""Tracking: every round once, resumed runs go on, and a tool that fails stops nothing."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from fedtailor.cli import main
from fedtailor.core.errors import BadInput
from fedtailor.tracking import TOOLS, Tracking, read_tools
from fedtailor.tracking.protocol import TrackedRun, final_values, round_values
from fedtailor.tracking.tools import Open, opener, parse_tools


class Fake:
    """A tool that remembers what it is told, over several starts."""

    def __init__(self, failing: str = "") -> None:
        self.said: list[tuple[Any, ...]] = []
        self.id = ""
        self._failing = failing

    def open(self, run: TrackedRun, known: str, logged: int) -> Fake:
        self._may_fail("open")
        self.id = known or f"id-{len(self.said)}"
        self.said.append(("open", run.name, known, logged))
        return self

    def log(self, number: int, values: dict[str, float]) -> None:
        self._may_fail(f"log {number}")
        self.said.append(("log", number, values["accuracy/mean"]))

    def end(self, number: int, values: dict[str, float], clients: Path) -> None:
        self._may_fail("end")
        self.said.append(("end", number, values["final/mean"], clients.read_text()))

    def leave(self) -> None:
        self.said.append(("leave",))

    def _may_fail(self, what: str) -> None:
        if what == self._failing:
            raise RuntimeError("the network\nis down")


def line(number: int) -> dict[str, Any]:
    return {"round": number, "bytes": {"up": 1, "down": 2}, "pre": {"mean": number / 10}}


def make_run(folder: Path, seed: int = 0) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(f'# FedTailor\nmethod = "fedavg"\nseed = {seed}\n')
    return folder


def finish(folder: Path) -> None:
    (folder / "clients.csv").write_text("client,train\na,1\n")
    result = {"score": {"mean": 0.9}, "bytes": {"up": 3, "down": 6}, "rounds": 3, "seconds": 1}
    (folder / "result.json").write_text(json.dumps(result))


def tracking(home: Path, **fakes: Fake) -> Tracking:
    openers: dict[str, Open] = {name: fake.open for name, fake in fakes.items()}
    return Tracking(tuple(fakes), home, openers)


def test_a_run_is_told_round_by_round_and_at_its_end(tmp_path: Path) -> None:
    folder, fake = make_run(tmp_path / "run"), Fake()
    with tracking(folder, wandb=fake) as it:
        tell = it.run(folder)
        assert fake.said == [], "nothing before the first round"
        for number in (1, 2, 3):
            tell(line(number), 3)
        finish(folder)
    assert fake.said == [
        ("open", "fedavg-seed0", "", 0),
        ("log", 1, 0.1),
        ("log", 2, 0.2),
        ("log", 3, 0.3),
        ("end", 3, 0.9, "client,train\na,1\n"),
    ]


def test_a_resumed_run_goes_on_and_notes_nothing_twice(tmp_path: Path) -> None:
    folder, fake = make_run(tmp_path / "run"), Fake()
    with tracking(folder, wandb=fake) as it:
        it.remember()
        tell = it.run(folder)
        tell(line(1), 3)
        tell(line(2), 3)
    assert fake.said[-1] == ("leave",)
    assert read_tools(folder) == ("wandb",)
    first, fake.said = fake.id, []
    with tracking(folder, wandb=fake) as it:
        tell = it.run(folder)
        for number in (2, 3):  # the checkpoint was older than the last round
            tell(line(number), 3)
        finish(folder)
    assert fake.said[:2] == [("open", "fedavg-seed0", first, 2), ("log", 3, 0.3)]
    assert fake.said[2][0] == "end"
    fake.said = []
    with tracking(folder, wandb=fake) as it:
        it.run(folder)
    assert fake.said == [], "finished and told"


def test_an_end_that_was_not_told_is_told_later(tmp_path: Path) -> None:
    folder, fake = make_run(tmp_path / "run"), Fake()
    it = tracking(folder, wandb=fake)
    it.run(folder)(line(1), 3)
    finish(folder)  # and killed here
    with tracking(folder, wandb=fake) as it:
        it.run(folder)
    assert [said[0] for said in fake.said] == ["open", "log", "open", "end"]


def test_each_run_of_a_comparison_is_one_of_its_own(tmp_path: Path) -> None:
    fake = Fake()
    with tracking(tmp_path, wandb=fake) as it:
        for seed in (0, 1):
            folder = tmp_path / "runs" / f"fedavg-seed{seed}"
            tell = it.run(folder)  # before the folder is there
            make_run(folder, seed)
            tell(line(1), 1)
            finish(folder)
    names = [said[1] for said in fake.said if said[0] == "open"]
    assert names == ["fedavg-seed0", "fedavg-seed1"]
    assert [said[0] for said in fake.said] == ["open", "log", "end"] * 2


@pytest.mark.parametrize("failing", ["open", "log 2", "end"])
def test_a_tool_that_fails_is_left_out_and_said_once(
    failing: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, bad, good = make_run(tmp_path / "run"), Fake(failing), Fake()
    with (
        caplog.at_level(logging.WARNING, "fedtailor"),
        tracking(folder, mlflow=bad, wandb=good) as it,
    ):
        tell = it.run(folder)
        for number in (1, 2, 3):
            tell(line(number), 3)
        finish(folder)
    assert [said[0] for said in good.said] == ["open", "log", "log", "log", "end"]
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("mlflow cannot")
    assert "the network is down" in caplog.messages[0]


def test_a_broken_note_in_the_folder_is_none(tmp_path: Path) -> None:
    (tmp_path / "tracking.json").write_text("{")
    assert read_tools(tmp_path) == ()
    (tmp_path / "tracking.json").write_text("[1]")
    assert read_tools(tmp_path) == ()


def test_numbers_of_a_round() -> None:
    found = round_values(
        {
            "round": 2,
            "cohort": [0],
            "bytes": {"up": 5, "down": 7},
            "train_seconds": 0.5,
            "seconds": 1.5,
            "epsilon": {"delta": 1e-5, "max": 2.5, "each": [2.5]},
            "skipped": ["a"],
            "pre": {"mean": 0.5, "worst": 0.1, "bottom5": 0.2, "loss": 1.25},
            "global": {"mean": 0.4, "loss": 9},
        }
    )
    assert found == {
        "bytes/up": 5, "bytes/down": 7, "time/train_seconds": 0.5, "time/seconds": 1.5,
        "privacy/epsilon": 2.5, "clients/left_out": 1, "accuracy/mean": 0.5,
        "accuracy/worst": 0.1, "accuracy/bottom5": 0.2, "loss/test": 1.25,
        "accuracy_global/mean": 0.4,
    }  # fmt: skip
    infinite = {"round": 1, "bytes": {}, "epsilon": {"max": None}}
    assert round_values(infinite) == {}, "no guarantee is no number"


def test_numbers_of_a_result() -> None:
    result = {"score": {"mean": 0.9}, "bytes": {"up": 1, "down": 2}, "epsilon": None}
    assert final_values(result) == {
        "final/mean": 0.9, "final/bytes_up": 1, "final/bytes_down": 2
    }  # fmt: skip


def test_names_of_tools() -> None:
    assert parse_tools("mlflow, tensorboard,mlflow") == ("mlflow", "tensorboard")
    with pytest.raises(BadInput, match="did you mean 'tensorboard'"):
        parse_tools("tensorbord")
    with pytest.raises(BadInput, match="name tensorboard"):
        parse_tools(",")


@pytest.mark.parametrize("name", TOOLS)
def test_a_missing_package_is_named_with_its_cure(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(BadInput, match=rf"pip install {name}.*fedtailor\[track\]"):
        opener(name)


def test_bad_tools_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    for command in (["run", "fedavg"], ["compare", "fedavg"]):
        with pytest.raises(SystemExit) as end:
            main([*command, "--model", "mlp", "--track", "wandb", "--out", str(tmp_path / "out")])
        assert end.value.code == 2
        assert "--track wandb needs the package wandb" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_values_are_named_after_the_runs_metric(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "begun.json").write_text(json.dumps({"metric": "roc-auc"}))
    said: list[dict[str, float]] = []

    class Listening(Fake):
        def log(self, number: int, values: dict[str, float]) -> None:
            said.append(values)

    with tracking(folder, wandb=Listening()) as it:
        it.run(folder)({"round": 1, "pre": {"mean": 0.5}, "global": {"mean": 0.25}}, 3)
    assert said == [{"roc-auc/mean": 0.5, "roc-auc_global/mean": 0.25}]
