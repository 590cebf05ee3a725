"""The leaderboard: what a call plays, leaves for the next one, and how its rows are ranked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtailor.core.errors import Interrupted
from fedtailor.engine import Diverged
from fedtailor.methods import METHODS
from tests.benchmarks.scripts import load

board = load("leaderboard")
ranking = load("ranking")
TOO_LARGE = 1e38  # a learning rate with which anything diverges
TOLD = ("--rounds", "1", "--tune-rounds", "1", "--seeds", "2", "--rates", "0.01", "0.05")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small images whose brightness tells their class."""
    folder, draw = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    y = np.arange(300) % 10
    x = (draw.integers(0, 50, (300, 8, 8, 3)) + 20 * y[:, None, None, None]).astype(np.uint8)
    parts = {"x_train": x[:240], "y_train": y[:240], "x_test": x[240:], "y_test": y[240:]}
    np.savez(folder / "cifar10.npz", **parts)
    return folder


@pytest.fixture
def play(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, Any]]:
    monkeypatch.setattr(board, "LADDER", (0.01, 0.05))  # nothing lies beyond

    def call(*words: str) -> dict[str, Any]:
        shared = ["--folder", str(images), "--clients", "4", "--model", "linear", "--device", "cpu"]
        where = ["--results", str(tmp_path / "board"), "--commit", "abc"]
        board.main(["cifar10-dir", *shared, *where, "--compile", "never", *TOLD, *words])
        path = tmp_path / "board" / "cifar10-dir.json"
        return json.loads(path.read_text()) if path.exists() else {}

    return call


def test_every_method_has_its_turn_once() -> None:
    order = board.order()
    assert len(order) == len(set(order))
    assert set(order) == {*METHODS, *board.VARIANTS}
    assert order[:3] == ["fedavg", "local", "fedavg-finetuned"]


def test_a_method_is_tuned_on_validation_rows_and_judged_by_seed_and_client(
    play: Callable[..., dict[str, Any]],
) -> None:
    found = play("--methods", "fedavg")
    row, tested = found["rows"]["fedavg"], found["clients"]["test_rows"]
    tried = row["tuning"]["tried"]
    assert [t["setting"] for t in tried] == [{"lr": 0.01}, {"lr": 0.05}]
    assert row["tuning"]["ended"]
    best = max(tried, key=lambda t: t["val"])
    assert row["chosen"] == best["setting"]
    accuracy = ranking.accuracy_of(row, tested)
    assert accuracy.shape == (2, 4)
    assert accuracy.mean(axis=1) == pytest.approx(row["run"]["mean"], abs=1e-6)
    # a linear model of 8 x 8 x 3 numbers and ten classes, in four bytes each
    assert row["run"]["bytes"] == {"up": 4 * 1930, "down": 4 * 1930}
    assert found["calls"][0]["played"] == ["fedavg"]
    assert "--folder DATA --clients" in found["calls"][0]["command"]  # nobody's own places


def test_what_is_there_is_not_played_again(
    play: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = play("--methods", "fedavg")
    seen: list[str] = []
    tuned = board.tuned
    monkeypatch.setattr(
        board, "tuned", lambda name, *rest: [seen.append(name), tuned(name, *rest)][1]
    )
    second = play("--methods", "fedavg", "local")
    assert seen == ["local"]
    assert second["rows"]["fedavg"] == first["rows"]["fedavg"]
    assert [call["played"] for call in second["calls"]] == [["fedavg"], ["local"]]
    play("--methods", "fedavg", "--again")
    assert seen == ["local", "fedavg"]


def test_without_time_nothing_begins(play: Callable[..., dict[str, Any]], capsys: Any) -> None:
    assert play("--methods", "fedavg", "--seconds", "0") == {}
    assert "1 of 1 methods are left" in capsys.readouterr().out


def test_a_run_that_is_cut_off_keeps_its_search(
    play: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned = board.tuned

    def slow(name: str, world: Any, clock: Any) -> dict[str, Any]:
        found: dict[str, Any] = tuned(name, world, clock)
        clock.until = 0.0  # the time is over when its run begins
        return found

    monkeypatch.setattr(board, "tuned", slow)
    cut = play("--methods", "fedavg", "local")
    assert list(cut["rows"]) == ["fedavg"]
    assert "run" not in cut["rows"]["fedavg"]
    monkeypatch.setattr(board, "tuned", None)  # a second search would fail
    whole = play("--methods", "fedavg")
    assert whole["rows"]["fedavg"]["tuning"] == cut["rows"]["fedavg"]["tuning"]
    assert len(whole["rows"]["fedavg"]["run"]["right"]) == 2


def test_a_method_that_fails_is_a_row_with_its_reason(
    play: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    together = board.play_together

    def broken(runs: Any, **how: Any) -> Any:
        if runs[0].config.method == "fedavg":
            raise RuntimeError("no such\nkernel")
        return together(runs, **how)

    monkeypatch.setattr(board, "play_together", broken)
    found = play("--methods", "fedavg", "local")
    assert found["rows"]["fedavg"]["failed"] == "RuntimeError: no such kernel"
    assert "run" in found["rows"]["local"]
    lines = ranking.body(found, ranking.ranked(found))
    assert [line[0] for line in lines] == ["1. local ≈", "fedavg"]
    assert lines[1][1] == "failed: RuntimeError: no such kernel"
    assert "fedavg" not in ranking.left_of(found)


def diverging(together: Any, *rates: float) -> Any:
    """Plays runs; with these rates the second seed diverges."""

    def play(runs: Any, **how: Any) -> Any:
        first, second = together(runs, **how)
        if runs[0].config.lr in rates:
            second = second._replace(result={}, error=Diverged(["client-3"], 9))
        return [first, second]

    return play


def trial(rate: float, val: float | None) -> dict[str, Any]:
    return {"setting": {"lr": rate}, "val": val, "failed": None if val else "diverged"}


@pytest.mark.parametrize(
    ("vals", "expected"),
    [
        ({0.01: 0.2, 0.03: 0.5, 0.1: 0.4}, None),  # within
        ({0.01: 0.2, 0.03: 0.3, 0.1: 0.4}, 0.3),
        ({0.01: 0.4, 0.03: 0.3, 0.1: 0.2}, 0.003),
        ({0.01: 0.2, 0.03: 0.3, 0.1: 0.4, 0.3: None}, None),  # what lies beyond diverges
        ({0.01: 0.2, 0.03: 0.3, 0.1: None}, None),
        ({0.01: 0.3, 0.03: None, 0.1: None}, 0.003),
        ({0.3: 0.1, 1.0: 0.2}, None),  # the ladder ends
        ({0.01: None, 0.03: None, 0.1: None}, 0.003),  # nothing is known yet: down
        ({0.001: None, 0.0003: None}, 0.0001),
        ({0.0001: None, 0.0003: None}, None),
        ({0.001: 0.4, 0.003: 0.3, 0.01: None}, 0.0003),
    ],
)
def test_a_rate_at_the_edge_is_not_the_last_word(
    vals: dict[float, float | None], expected: float | None
) -> None:
    assert board.beyond([trial(rate, val) for rate, val in vals.items()]) == expected


def test_other_settings_have_no_edge() -> None:
    tried = [{"setting": {"lam": 15.0, "K": 5}, "val": 0.5, "failed": None}]
    assert board.beyond(tried) is None
    assert board.beyond([{"setting": {}, "val": 0.5, "failed": None}]) is None
    assert board.beyond([one | {"val": None} for one in tried]) is None


def test_a_search_goes_on_beyond_the_edge_and_its_choice_is_played(
    play: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = play("--methods", "fedavg")
    first = found["rows"]["fedavg"]
    assert first["chosen"] == {"lr": 0.05}
    del first["tuning"]["ended"]  # as if its search had not gone so far
    (tmp_path / "board" / "cifar10-dir.json").write_text(json.dumps(found))
    monkeypatch.setattr(board, "LADDER", (0.01, 0.05, 0.2))
    row = play("--methods", "fedavg")["rows"]["fedavg"]
    tried = {t["setting"]["lr"]: t["val"] for t in row["tuning"]["tried"]}
    assert list(tried) == [0.01, 0.05, 0.2]
    assert tried[0.2] > tried[0.05]
    assert row["chosen"] == {"lr": 0.2}
    assert row["run"]["mean"] != first["run"]["mean"]
    assert row["tuning"]["seconds"] > first["tuning"]["seconds"]


def test_a_rate_beyond_the_edge_that_diverges_is_one_that_failed(
    play: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "LADDER", (0.01, 0.05, TOO_LARGE))
    row = play("--methods", "fedavg")["rows"]["fedavg"]
    last = row["tuning"]["tried"][-1]
    assert last["setting"] == {"lr": TOO_LARGE} and last["val"] is None
    assert "diverged (NaN or infinity) in round 1" in last["failed"]
    assert row["chosen"] == {"lr": 0.05} and len(row["run"]["right"]) == 2
    assert "failed" not in row


def test_where_all_rates_diverge_smaller_ones_are_tried(
    play: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "LADDER", (0.01, 0.05, TOO_LARGE))
    two = ("--rates", str(2 * TOO_LARGE), str(3 * TOO_LARGE))
    row = play("--methods", "fedavg", *two)["rows"]["fedavg"]
    tried = {t["setting"]["lr"]: t["val"] is not None for t in row["tuning"]["tried"]}
    assert list(tried) == [2 * TOO_LARGE, 3 * TOO_LARGE, TOO_LARGE, 0.05, 0.01]
    assert list(tried.values()) == [False, False, False, True, True]
    assert row["tuning"]["ended"] and row["chosen"] in ({"lr": 0.05}, {"lr": 0.01})
    assert "failed" not in row


def test_a_method_that_diverges_with_every_rate_of_the_ladder_says_which_were_tried(
    play: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "LADDER", (TOO_LARGE,))
    found = play("--methods", "fedavg", "--rates", str(2 * TOO_LARGE), str(3 * TOO_LARGE))
    row = found["rows"]["fedavg"]
    assert row["failed"].startswith("none could be tried to the end (lr=2e+38, lr=3e+38, lr=1e+38)")
    assert "diverged (NaN or infinity) in round 1" in row["failed"]
    assert len(row["tuning"]["tried"]) == 3 and row["tuning"]["ended"]
    assert ranking.body(found, ranking.ranked(found))[0][1].startswith("failed: none could be")


def test_what_a_contender_declares_is_played_recorded_and_shown(
    play: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = play("--methods", "apple")
    row = found["rows"]["apple"]
    assert row["declared"] == {"eta2": 0.001}
    assert row["run"]["options"]["eta2"] == 0.001
    assert "(eta2=0.001, edge" in ranking.setting_of(row, found["clients"]["test_rows"])
    few = board.Declared("centralised", {"batch": 5}, {})  # no client has 100 rows here
    monkeypatch.setitem(board.VARIANTS, "centralised", few)
    seen: list[int] = []
    together = board.play_together
    monkeypatch.setattr(
        board,
        "play_together",
        lambda runs, **how: [seen.extend(r.config.batch for r in runs), together(runs, **how)][1],
    )
    assert play("--methods", "centralised")["rows"]["centralised"]["declared"] == {"batch": 5}
    assert seen == [5, 5]


def test_what_is_declared_for_one_world_is_not_played_in_others() -> None:
    few = board.declared("fedtgp", "cifar100-dir")
    assert few.told == {"server_batch": 100}
    assert board.declared("fedtgp", "cifar10-dir").told == {}
    assert board.declared("apple", "cifar100-pat").told == board.VARIANTS["apple"].told != {}


def test_a_search_with_other_settings_does_not_count(
    play: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(contender: str, row: Any, chosen: Any, world: Any, clock: Any, save: Any) -> None:
        clock.until = 0.0
        raise board.OutOfTime

    monkeypatch.setattr(board, "all_seeds", cut)
    before = play("--methods", "fedprox")["rows"]["fedprox"]
    assert "declared" not in before and before["tuning"]["ended"] and "run" not in before
    fewer = board.Declared("fedprox", {"batch": 5}, {})
    monkeypatch.setitem(board.VARIANTS, "fedprox", fewer)
    after = play("--methods", "fedprox")["rows"]["fedprox"]
    assert after["declared"] == {"batch": 5}
    values = lambda row: [trial["val"] for trial in row["tuning"]["tried"]]
    assert values(after) != values(before)


def test_where_time_is_short_seeds_are_played_one_by_one_and_kept(
    play: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = play("--methods", "fedavg")["rows"]["fedavg"]
    assert whole["run"]["side_by_side"] == 2
    monkeypatch.setattr(board, "expected", lambda row, world, seeds: 1e12)
    played, seen = board.played, []

    def one_call_each(contender: str, chosen: Any, world: Any, clock: Any, seeds: Any) -> Any:
        seen.append(list(seeds))
        found = played(contender, chosen, world, clock, seeds)
        clock.until = 0.0  # the time is over when the next one begins
        return found

    monkeypatch.setattr(board, "played", one_call_each)
    cut = play("--methods", "fedavg", "--again")["rows"]["fedavg"]
    assert "run" not in cut and [part["seeds"] for part in cut["parts"]] == [[0]]
    row = play("--methods", "fedavg")["rows"]["fedavg"]
    assert seen == [[0], [1], [1]]  # the second was cut off once
    assert "parts" not in row and row["run"]["side_by_side"] == 1
    assert set(row["run"]) == set(whole["run"])
    for name in ("right", "mean", "val_by_round", "bytes", "still_rising"):
        assert row["run"][name] == whole["run"][name]


def test_how_long_seeds_take_is_told_by_the_search() -> None:
    budget = board.Budget([0.01, 0.03], tune_rounds=10, rounds=40, seeds=3)
    world = board.World("w", {}, None, budget)
    row = {"tuning": {"tried": [trial(0.01, 0.5), trial(0.03, None)], "seconds": 20.0}}
    assert board.expected(row, world, 3) == 2.0 * 40 * 3


def test_where_a_seed_diverges_the_next_best_rate_counts(
    play: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = play("--methods", "fedavg")["rows"]["fedavg"]["tuning"]["tried"]
    best, other = (t["setting"]["lr"] for t in sorted(tried, key=lambda t: -t["val"]))
    monkeypatch.setattr(board, "play_together", diverging(board.play_together, best))
    found = play("--methods", "fedavg", "--again")
    row = found["rows"]["fedavg"]
    assert row["chosen"] == {"lr": other}
    assert [one["setting"] for one in row["diverged"]] == [{"lr": best}]
    rate = dict(zip(ranking.HEADER, ranking.body(found, ranking.ranked(found))[0], strict=True))
    assert rate["rate"] == f"{other:g} (edge, {best:g} diverged)"


def test_a_method_that_always_diverges_is_no_result(
    play: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "play_together", diverging(board.play_together, 0.01, 0.05))
    row = play("--methods", "fedavg")["rows"]["fedavg"]
    told = "with every rate: 1 of 2 seeds: client-3 diverged (NaN or infinity) in round 9"
    assert row["failed"].startswith(told)
    assert "run" not in row


def test_several_processes_share_a_world(play: Callable[..., dict[str, Any]]) -> None:
    found = play("--methods", "fedavg", "local", "fedprox", "--jobs", "2")
    assert set(found["rows"]) == {"fedavg", "local", "fedprox"}
    assert all("run" in row for row in found["rows"].values())
    assert sorted(m for call in found["calls"] for m in call["played"]) == [
        "fedavg", "fedprox", "local",
    ]  # fmt: skip
    assert {call["jobs"] for call in found["calls"]} == {2}
    assert "at_work" not in found
    alone = play("--methods", "fedavg", "--again")
    assert alone["rows"]["fedavg"]["run"]["right"] == found["rows"]["fedavg"]["run"]["right"]


HANGING = """
import os, signal, sys, time
if "--lane" not in sys.argv:  # also where tests run in the background, which hears no Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, {folder!r})
import leaderboard as board

def hang(*told):
    os.write(1, b"at it\\n")  # in one piece: several processes write here
    left, _ = signal.getitimer(signal.ITIMER_REAL)  # after which the system ends this process
    if 0 < left < {grace}:  # the call's time is over: nobody need wait until the grace is, too
        signal.setitimer(signal.ITIMER_REAL, 0.1)
    time.sleep(100)
    print("at it for ever", flush=True)

board.__file__, board.GRACE, board.play_world = __file__, {grace}, hang
board.Clock.may_begin = True
board.main()
"""


def hanging(images: Path, tmp_path: Path, seconds: float, grace: float) -> list[str]:
    """A script and its words: two processes that are both within a round without end."""
    script = tmp_path / "hanging.py"
    script.write_text(HANGING.format(folder=str(Path(board.__file__).parent), grace=grace))
    small = ["--clients", "4", "--model", "linear", "--device", "cpu", "--methods", "fedavg"]
    where = ["--folder", str(images), "--results", str(tmp_path / "board"), "--commit", "abc"]
    how = ["--jobs", "2", "--seconds", str(seconds)]
    return [str(script), "cifar10-dir", *small, *where, *how]


def test_processes_end_in_time_though_a_round_does_not(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    script, *words = hanging(images, tmp_path, seconds=0.1, grace=60.0)
    monkeypatch.setattr(board, "__file__", script)  # what they are started from
    monkeypatch.setattr(board.Clock, "may_begin", True)
    board.main(words)
    out, err = capfd.readouterr()
    assert out.splitlines() == ["at it", "at it", "cifar10-dir: 1 of 1 methods are left"]
    assert "Traceback" not in err


def test_ctrl_c_ends_all_processes_with_one_line(images: Path, tmp_path: Path) -> None:
    call = subprocess.Popen(
        [sys.executable, *hanging(images, tmp_path, seconds=500, grace=15.0)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert call.stdout is not None
    assert [call.stdout.readline() for _ in range(2)] == ["at it\n"] * 2
    os.killpg(call.pid, signal.SIGINT)
    out, err = call.communicate(timeout=20)  # their output ends with the last of them
    told = [line for line in err.splitlines() if "taken as classes" not in line]
    assert told == ["leaderboard: stopped; the same call goes on with what is left"]
    assert out == "" and call.returncode == 130


def test_a_run_that_somebody_stops_is_no_failed_one(
    play: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    together = board.play_together

    def stopped(runs: Any, **how: Any) -> Any:
        raise Interrupted(None, 1)

    monkeypatch.setattr(board, "play_together", stopped)
    with pytest.raises(SystemExit) as end:
        play("--methods", "fedavg")
    assert end.value.code == 130
    assert capsys.readouterr().err.splitlines()[-1].startswith("leaderboard: stopped;")
    monkeypatch.setattr(board, "play_together", together)
    assert "run" in play("--methods", "fedavg")["rows"]["fedavg"]


def test_no_two_calls_take_the_same_contender(
    play: Callable[..., dict[str, Any]], images: Path, tmp_path: Path
) -> None:
    found = play("--methods", "local")
    settings, budget = found["settings"], board.Budget(**found["budget"])
    settings["data"] = str(images / settings["data"])
    of = board.Board(tmp_path / "board" / "cifar10-dir.json", "cifar10-dir", settings, budget)
    data = board.load_run_data(board.make_config("fedavg", settings, {}))
    told = {"commit": "abc", "device": "cpu", "jobs": 2}
    one, other = (
        board.Call(of, board.World("cifar10-dir", settings, data, budget), told) for _ in range(2)
    )
    contenders = ("local", "fedavg", "fedprox")
    (first, row), (second, _) = one.take(contenders), other.take(contenders)
    assert (first, second) == ("fedavg", "fedprox")
    assert one.take(contenders) is None
    one.save(first, row | {"tuning": {}})
    other.save(second, {"failed": "nothing"}, ended=True)
    one.save(first, row | {"tuning": {}}, ended=True)  # cut off: somebody else may take it
    told_of = of.read()
    assert told_of["rows"]["fedprox"] == {"failed": "nothing"}
    assert [call["played"] for call in told_of["calls"]] == [["local"], [], ["fedprox"]]
    assert "at_work" not in told_of
    taken = other.take(contenders)
    assert taken is not None and taken[0] == "fedavg" and taken[1]["tuning"] == {}


def test_whoever_was_at_work_when_a_call_was_cut_off_is_not_any_more(
    play: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    found = play("--methods", "local")
    path = tmp_path / "board" / "cifar10-dir.json"
    path.write_text(json.dumps(found | {"at_work": ["fedavg"]}))
    again = play("--methods", "fedavg")
    assert "run" in again["rows"]["fedavg"] and "at_work" not in again


def test_memory_that_is_too_small_for_several_runs_is_enough_for_one() -> None:
    asked = []

    def play(together: bool) -> str:
        asked.append(together)
        if together:
            raise board.torch.OutOfMemoryError("CUDA out of memory")
        return "played"

    assert board.side_by_side_if_it_fits(play) == "played"
    assert asked == [True, False]


def test_another_budget_is_refused(play: Callable[..., dict[str, Any]], capsys: Any) -> None:
    play("--methods", "local")
    with pytest.raises(SystemExit) as end:
        play("--methods", "fedavg", "--rounds", "2")
    assert end.value.code == 2
    told = capsys.readouterr().err.strip().splitlines()[-1]
    assert told.startswith("leaderboard: budget is {")
    assert "give the same, or another --results" in told


# --- ranks ---


def accuracies(gain: float, noise: float = 0.0, seeds: int = 3, clients: int = 40) -> np.ndarray:
    draw = np.random.default_rng(1)
    base = np.tile(np.linspace(0.3, 0.8, clients), (seeds, 1))
    return base + gain + noise * draw.standard_normal((seeds, clients))


def test_differences_beyond_chance_are_told_from_noise() -> None:
    ours = {"far": accuracies(0.05, 0.02), "near": accuracies(0.0, 0.02)}
    ours["under"] = accuracies(-0.05, 0.02)
    found = ranking.differences(ours, accuracies(0.0))
    assert {m: d.answer for m, d in found.items()} == {
        "far": "above", "near": "cannot tell", "under": "below",
    }  # fmt: skip
    assert found["far"].low < found["far"].mean < found["far"].high
    assert found["far"].mean == pytest.approx(0.05, abs=0.01)


def test_a_seed_that_says_otherwise_leaves_it_open() -> None:
    lucky = accuracies(0.0)
    lucky[0] += 0.2
    lucky[1:] -= 0.02  # the mean gain is 0.053 at every client, and one training's
    assert ranking.differences({"a": lucky}, accuracies(0.0))["a"].answer == "cannot tell"


def test_differences_are_corrected_for_the_number_of_methods() -> None:
    """One that would be beyond chance by itself, among many that are nothing."""
    d = np.array([0.02] * 6 + [-0.001])  # p is 2/128 by itself
    one = np.tile(d, (2, 1))
    assert ranking.differences({"a": one}, 0 * one)["a"].answer == "above"
    many = {"a": one} | {f"m{i}": 0 * one for i in range(9)}
    assert ranking.differences(many, 0 * one)["a"].answer == "cannot tell"


def report(rows: dict[str, list[str]]) -> dict[str, Any]:
    run = {
        "bytes": {"up": 3514152, "down": 7000000}, "seconds": 41.6, "preparing_seconds": 9.9,
        "still_rising": True,
    }  # fmt: skip
    tried = [{"setting": {"lr": rate}, "val": rate, "failed": None} for rate in (0.01, 0.03, 0.1)]
    tuning = {"tried": tried, "seconds": 12.4, "ended": True}
    known = {"tuning": tuning, "chosen": {"lr": 0.1}, "diverged": []}
    tested = [10, 0, *[10] * 9]
    mean = lambda line: sum(map(int, line.split())) / sum(tested)
    return {
        "world": "cifar10-dir",
        "clients": {"test_rows": tested},
        "budget": {"rates": [0.01, 0.03, 0.1], "tune_rounds": 15, "rounds": 60, "seeds": 2},
        "calls": [{"commit": "abc", "device": "cuda (H200)", "seconds": 540.0}] * 2,
        "rows": {
            m: known | {"run": run | {"right": right, "mean": [mean(line) for line in right]}}
            for m, right in rows.items()
        },
    }


def test_a_line_says_what_was_measured() -> None:
    low, high = "2 0 3 4 5 4 3 4 5 4 3", "9 0 9 8 9 7 9 9 8 9 9"
    made = report({"fedavg": [low, low], "ditto": [high, high]})
    found = ranking.body(made, ranking.ranked(made))
    best, last = (dict(zip(ranking.HEADER, line, strict=True)) for line in found)
    assert best["method"] == "1. ditto ≈"
    assert last["method"] == "2. fedavg"
    assert best["mean % ± seeds"] == "86.0 ± 0.0"
    assert best["worst tenth %"] == "70.0"  # of ten clients with test rows
    assert best["to the best, points"] == last["to FedAvg, points"] == "–"
    assert best["to FedAvg, points"].startswith("**+49.0 (")
    assert last["to the best, points"].startswith("**-49.0 (")
    assert ranking.gap(ranking.Difference(-0.0001, -0.02, 0.0, "cannot tell")) == (
        "+0.0 (-2.0 to +0.0)"
    )
    assert best["rate"] == "0.1 (edge)"
    assert best["MB up / down"] == "3.51 / 7.00"
    assert best["s tuning + run (preparing)"] == "12 + 42 (10)"
    assert best["still rising"] == "yes"
    assert best["to training alone, points"] == "–"  # it was not played
    told = "Of 2 methods ditto has the best mean. Beyond chance, 1 are above FedAvg and 0 below it"
    assert ranking.summary(ranking.ranked(made)) == f"{told}; 0 are neither."
    made["rows"]["local"] = made["rows"]["fedavg"]
    best = dict(zip(ranking.HEADER, ranking.body(made, ranking.ranked(made))[0], strict=True))
    assert best["to training alone, points"].startswith("**+49.0 (")
    assert ranking.summary(ranking.ranked(made)).endswith(
        "Beyond chance, 1 are above training alone and 0 below it; 1 are neither."
    )


def test_a_model_that_diverged_at_the_end_has_nothing_right_and_is_told() -> None:
    made = report({"fedbabu": ["9 0 0 8 9 7 9 9 8 9 9", "9 0 9 8 9 7 9 9 8 9 9"]})
    run = made["rows"]["fedbabu"]["run"]
    run["mean"][0] = 77 / 90  # of nine clients: the tenth's model says nothing finite
    line = ranking.body(made, ranking.ranked(made))[0]
    found = dict(zip(ranking.HEADER, line, strict=True))
    assert found["rate"] == "0.1 (edge, 1 model diverged at the end)"
    assert found["mean % ± seeds"] == "81.5 ± 6.4"
    assert run["mean"][0] > 0.85  # what the run itself says, of those with a model


def test_the_page_says_what_was_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tables = load("tables")
    monkeypatch.setattr(tables.ranking, "RESULTS", tmp_path)
    empty = tables.leaderboard("cifar10-pat")
    assert empty.startswith("Not run yet: `python benchmarks/leaderboard.py cifar10-pat --folder ")
    some = report({"fedavg": ["1 0 2 3 4 5 6 7 8 9 1"] * 2})
    (tmp_path / "cifar10-pat.json").write_text(json.dumps(some))
    text = tables.leaderboard("cifar10-pat")
    assert f"Not run yet ({len(board.order()) - 1}): local, fedavg-finetuned, fedala" in text
    assert "2 calls, 0.3 h in all" in text


def test_a_picture_is_drawn_of_what_there_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ranking, "RESULTS", tmp_path)
    monkeypatch.setattr(ranking, "PICTURES", tmp_path)
    ranking.main()
    assert not list(tmp_path.iterdir())
    rows = {"fedavg": ["1 0 2 3 4 5 6 7 8 9 1"] * 2, "local": ["2 0 3 4 5 6 7 8 9 9 3"] * 2}
    (tmp_path / "cifar10-dir.json").write_text(json.dumps(report(rows)))
    ranking.main()
    for name in ("leaderboard-cifar10-dir.png", "leaderboard.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_over_all_worlds_only_what_is_beyond_chance_in_each_is_said_to_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tables = load("tables")
    monkeypatch.setattr(tables.ranking, "RESULTS", tmp_path)
    assert tables.leaderboards("leaderboard") == "Not run yet."
    alone, more, less = (" ".join([str(n)] * 11) for n in (3, 4, 2))
    rows = {"local": [alone] * 2, "fedala": [more] * 2, "ditto": [more] * 2, "fedavg": [less] * 2}
    one = report(rows)
    one["clients"]["test_rows"] = [5] * 11
    other = json.loads(json.dumps(one))
    other["rows"]["ditto"]["run"]["right"] = [less] * 2
    other["rows"]["fedrep"] = other["rows"]["fedala"]  # in one world alone
    for world, found in (("cifar10-dir", one), ("cifar10-pat", other)):
        (tmp_path / f"{world}.json").write_text(json.dumps(found))
    assert tables.leaderboards("leaderboard").startswith(
        "3 methods were played in all 2 divisions so far. Above training alone beyond chance in "
        "each of them: 1 (fedala); in some: 1; in none: 1 (fedavg)."
    )
    worlds = list(tables.ranking.all_worlds().values())
    assert tables.ranking.everywhere(worlds) == ["fedala", "fedrep", "ditto", "fedavg"]
