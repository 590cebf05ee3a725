"""One run of a reproduction: what is half done goes on, what is finished stays as it is."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from fedtailor.core.errors import BadInput, Interrupted
from fedtailor.reproduce.playing.play import DataCache, PlannedRun, plan_run, play
from fedtailor.results.config import make_config
from tests.runs.runlab import SMALL, history

CONFIG = make_config("fedavg", SMALL | {"partition": "iid", "device": "cpu"}, {})


def press_after(number: int) -> Any:
    def watch(line: dict[str, Any], rounds: int) -> None:
        if line["round"] == number:
            signal.raise_signal(signal.SIGINT)

    return watch


@pytest.fixture
def half(tmp_path: Path) -> PlannedRun:
    """A run that was stopped after the first of its three rounds."""
    task = plan_run(CONFIG, tmp_path, "a run")
    with pytest.raises(Interrupted):
        play(task, DataCache(), press_after(1))
    return task


def test_a_run_that_goes_on_is_played_once(half: PlannedRun) -> None:
    """Also where a page about it could not be written: none is needed."""
    (half.folder / "report.html").mkdir()
    seen: list[int] = []
    play(half, DataCache(), lambda line, rounds: seen.append(line["round"]))
    assert seen == [2, 3]
    assert half.finished


def test_bad_input_while_it_is_played_does_not_begin_it_anew(half: PlannedRun) -> None:
    seen: list[int] = []

    def watch(line: dict[str, Any], rounds: int) -> None:
        seen.append(line["round"])
        raise BadInput("nothing can be written any more")

    with pytest.raises(BadInput, match="any more"):
        play(half, DataCache(), watch)
    assert seen == [2]
    play(half, DataCache())
    assert [line["round"] for line in history(half.folder)] == [1, 2, 3]


def test_a_checkpoint_that_cannot_be_used_begins_it_anew(half: PlannedRun) -> None:
    config = half.folder / "config.toml"
    config.write_text(config.read_text().replace("lr = 0.1", "lr = 0.2"))
    seen: list[int] = []
    play(half, DataCache(), lambda line, rounds: seen.append(line["round"]))
    assert seen == [1, 2, 3]
    assert "lr = 0.1" in config.read_text()


def test_models_that_another_keeps_stay(tmp_path: Path) -> None:
    """A table waits for a run that a picture of the models plays."""
    picture = plan_run(CONFIG, tmp_path, "a picture", needs_models=True)
    table = plan_run(CONFIG, tmp_path, "a table")
    play(picture, DataCache())
    play(table, DataCache())
    assert table.finished
    assert picture.finished
    assert (picture.folder / "checkpoint").is_dir()


def test_interrupted_in_its_last_round_it_is_finished_and_tidied(tmp_path: Path) -> None:
    task = plan_run(CONFIG, tmp_path, "a run")
    with pytest.raises(Interrupted):
        play(task, DataCache(), press_after(3))
    assert task.finished
    assert not (task.folder / "models").exists()
