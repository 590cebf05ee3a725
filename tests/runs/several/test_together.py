"""Runs that share a program: each leaves what it would have left alone, also if it was stopped."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedtailor import BadInput
from fedtailor.core.errors import Interrupted
from fedtailor.engine import Diverged
from fedtailor.results.config import Config, make_config
from fedtailor.results.folder import open_folder
from fedtailor.results.lock import LOCK
from fedtailor.results.storage import load_tensors
from fedtailor.runs.run import Watcher, play_config
from fedtailor.runs.several.together import RunToPlay, play_together
from tests.runs.runlab import TIMES, held, history, result

pytestmark = pytest.mark.usefixtures("float64")

SMALL: dict[str, Any] = {
    "model": "mlp", "clients": 4, "rounds": 3, "batch": 200, "lr": 0.1, "participation": 0.75,
    "finetune": 1, "checkpoint_every": 1,
}  # fmt: skip
# how it was played, not what came of it
WAYS = (*TIMES, "side_by_side", "chunk", "preparing_seconds", "seconds")


def configs(*changes: dict[str, Any], method: str = "ditto", **more: Any) -> list[Config]:
    return [make_config(method, SMALL | more | change, {}) for change in changes]


RUNS = ({"seed": 0}, {"seed": 1, "lr": 0.03}, {"seed": 2, "split_seed": 1})


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    home = tmp_path_factory.mktemp("alone")
    for i, change in enumerate(RUNS):
        play_config(*configs(change), open_folder(home / str(i)))
    return [home / str(i) for i in range(len(RUNS))]


def same(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            if name not in WAYS:
                same(one[name], other[name])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            same(a, b)
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=1e-9, abs=1e-9)
    else:
        assert one == other


def same_folders(one: Path, other: Path) -> None:
    same(result(one), result(other))
    same(history(one), history(other))
    kept, theirs = (
        {p.relative_to(f) for p in f.rglob("*") if p.is_file() and "checkpoint" not in p.parts}
        for f in (one, other)
    )
    assert kept == theirs
    for path in sorted(p for p in kept if p.suffix == ".safetensors"):
        mine, yours = load_tensors(one / path), load_tensors(other / path)
        assert mine.keys() == yours.keys()
        for name in mine:
            torch.testing.assert_close(mine[name], yours[name], rtol=1e-6, atol=1e-6)
            if path.parts[0] == "models":
                torch.testing.assert_close(mine[name], yours[name], rtol=1e-9, atol=1e-9)


def to_play(home: Path, watch: Callable[[int], Watcher | None] = lambda i: None) -> list[RunToPlay]:
    return [
        RunToPlay(config, home / str(i), announce=lambda i=i: watch(i))  # type: ignore[misc]
        for i, config in enumerate(configs(*RUNS))
    ]


def test_each_folder_is_as_if_the_run_had_been_alone(alone: list[Path], tmp_path: Path) -> None:
    ends = play_together(to_play(tmp_path))
    assert [end.result["side_by_side"] for end in ends] == [3, 3, 3]
    for i, folder in enumerate(alone):
        same_folders(tmp_path / str(i), folder)
    assert not list(tmp_path.rglob(LOCK))


class PowerCut(Exception):
    pass


@pytest.mark.parametrize("when", [{0: 2, 1: 2, 2: 2}, {0: 1, 1: 3}])
def test_runs_that_were_cut_off_go_on(
    when: dict[int, int], alone: list[Path], tmp_path: Path
) -> None:
    def cut(i: int) -> Watcher:
        def watch(line: dict[str, Any], rounds: int) -> None:
            if line["round"] == when.get(i):
                raise PowerCut

        return watch

    ends = play_together(to_play(tmp_path, cut), keep_going=True)
    assert [isinstance(end.error, PowerCut) for end in ends] == [i in when for i in range(3)]
    again: dict[int, list[int]] = {}

    def note(i: int) -> Watcher:
        return lambda line, rounds: again.setdefault(i, []).append(line["round"])

    left = [run for i, run in enumerate(to_play(tmp_path, note)) if i in when]
    play_together(left)
    # the round that died before its checkpoint is played again, those before it are not
    assert again == {i: list(range(number, 4)) for i, number in when.items()}
    for i, folder in enumerate(alone):
        same_folders(tmp_path / str(i), folder)


def test_ctrl_c_stops_all_of_them_between_rounds(alone: list[Path], tmp_path: Path) -> None:
    def press(i: int) -> Watcher:
        def watch(line: dict[str, Any], rounds: int) -> None:
            if i == 0 and line["round"] == 1:
                signal.raise_signal(signal.SIGINT)

        return watch

    with pytest.raises(Interrupted):
        play_together(to_play(tmp_path, press))
    assert all(1 <= len(history(tmp_path / str(i))) < 3 for i in range(3))
    play_together(to_play(tmp_path))
    for i, folder in enumerate(alone):
        same_folders(tmp_path / str(i), folder)


def test_a_rate_that_diverges_ends_alone(tmp_path: Path) -> None:
    runs = configs({"lr": 0.1}, {"lr": 1e200}, method="fedavg")
    first, second = play_together(
        [RunToPlay(config, tmp_path / str(i)) for i, config in enumerate(runs)], keep_going=True
    )
    assert first.error is None and isinstance(second.error, Diverged)
    assert first.result["rounds"] == len(first.history) == 3
    assert (tmp_path / "1" / "failed.json").exists()
    with pytest.raises(Diverged, match=r"^fedavg: client-0, .* diverged"):
        play_together(runs)
    with pytest.raises(Diverged, match=r"^b: client-0, .* diverged .* in round 1:") as caught:
        play_together([RunToPlay(c, tmp_path / n) for c, n in zip(runs, "ab", strict=True)])
    assert (caught.value.clients[0], caught.value.round) == ("client-0", 1)


@pytest.mark.parametrize(
    ("method", "shared", "changes", "why"),
    [
        ("fedavg", {"engine": "sequential"}, ({"seed": 0}, {"seed": 1}), "engine is 'sequential'"),
        ("fedavg", {"freeze": "fc1.*"}, ({"seed": 0}, {"seed": 1}), "frozen parameters are drawn"),
        ("fedavg", {"chunk": 3}, ({"seed": 0}, {"seed": 1}), "as many as cpu has room for"),
        ("apple", {}, ({"lr": 0.1}, {"lr": 0.2}), "apple: its weights' learning rate"),
        (
            "fedtailor.methods.one_model.fedprox:fedprox", {},
            ({"lr": 0.1}, {"lr": 0.2}), "is not known",
        ),
    ],
)  # fmt: skip
def test_what_cannot_share_a_program_goes_one_by_one(
    method: str,
    shared: dict[str, Any],
    changes: tuple[dict[str, Any], ...],
    why: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "fedtailor"):
        ends = play_together(configs(*changes, method=method, rounds=1, **shared))
    assert [end.result["side_by_side"] for end in ends] == [1, 1]
    said = [m for m in caplog.messages if "one after another" in m]
    assert len(said) == 1 and why in said[0]


def test_runs_that_differ_otherwise_do_not_go_together() -> None:
    first, second = configs({"seed": 0}, {"seed": 1}, method="fedavg", rounds=1)
    ends = play_together([first, replace(second, momentum=0.5), replace(second, seed=3)])
    assert [end.result["side_by_side"] for end in ends] == [2, 1, 2]


def test_as_many_go_together_as_there_is_room_for() -> None:
    runs = configs(*({"seed": i} for i in range(5)), method="fedavg", rounds=1, chunk=6)
    assert [end.result["side_by_side"] for end in play_together(runs)] == [2, 2, 2, 2, 1]
    alone = play_together(runs[:2], side_by_side=False)
    assert [end.result["side_by_side"] for end in alone] == [1, 1]


def test_a_folder_that_another_process_plays_is_left_alone(tmp_path: Path) -> None:
    first, second = configs({"seed": 0}, {"seed": 1}, method="fedavg", rounds=1)
    play_together([RunToPlay(second, tmp_path / "1")])
    (tmp_path / "1" / "result.json").unlink()
    with held(tmp_path / "1"), pytest.raises(BadInput, match="is being played by"):
        play_together([RunToPlay(first), RunToPlay(second, tmp_path / "1")])
