"""Searches as they are played: on validation rows alone, and the same after a stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedtailor
from fedtailor.core.errors import BadInput
from fedtailor.partition import save_partition
from fedtailor.results.config import make_config
from fedtailor.runs.data import load_run_data
from fedtailor.runs.several.together import play_together
from fedtailor.runs.tuning import play
from tests.runs.runlab import LOST, table

SMALL: dict[str, Any] = {
    "model": "linear", "clients": 3, "rounds": 3, "partition": "iid", "batch": 60,
}  # fmt: skip


def untimed(found: Any) -> Any:
    if isinstance(found, dict):
        return {k: untimed(v) for k, v in found.items() if k != "seconds"}
    return [untimed(v) for v in found] if isinstance(found, list) else found


def test_test_rows_do_not_change_what_is_chosen(tmp_path: Path) -> None:
    draws, small = np.random.default_rng(0), SMALL | {"batch": 20}  # few rows
    y = np.arange(120) % 3
    x = draws.normal(size=(120, 4)).astype(np.float32) + y[:, None]
    np.savez(tmp_path / "rows.npz", x=x, y=y)
    first = load_run_data(make_config("local", {"data": str(tmp_path / "rows.npz"), **small}, {}))
    save_partition(first.partition, tmp_path / "partition.npz")
    poisoned = np.concatenate(first.partition.test)
    bad_x, bad_y = x.copy(), y.copy()
    bad_x[poisoned], bad_y[poisoned] = 1e6, 0
    np.savez(tmp_path / "bad.npz", x=bad_x, y=bad_y)
    settings = {k: v for k, v in small.items() if k not in ("clients", "partition")}
    settings["partition_file"] = str(tmp_path / "partition.npz")
    clean, dirty = (
        fedtailor.tune("fedprox", trials=4, data=str(tmp_path / name), **settings)["methods"]
        for name in ("rows.npz", "bad.npz")
    )
    assert untimed(clean) == untimed(dirty)
    tested = [
        fedtailor.run("fedprox", data=str(tmp_path / name), **settings)["score"]["loss"]
        for name in ("rows.npz", "bad.npz")
    ]
    assert tested[0] != tested[1]  # the poison would have been seen


def test_a_table_with_clients_is_searched_for_training_alone_too(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    rows = [f"{'abc'[i % 3]},{draws.normal():.3f},{draws.normal():.3f}" for i in range(90)]
    (tmp_path / "prices.csv").write_text("\n".join(["ward,crp,price", *rows]), encoding="utf-8")
    own: dict[str, Any] = {"label": "price", "client_column": "ward", "rounds": 2, "batch": 10}
    found = fedtailor.tune("local", trials=2, data=str(tmp_path / "prices.csv"), **own)
    assert found["methods"]["local"]["failed"] == 0


@pytest.mark.parametrize("dies_at", [2, 7])
def test_a_search_that_was_killed_goes_on_to_the_same_end(tmp_path: Path, dies_at: int) -> None:
    how: dict[str, Any] = {"trials": 6, "over": {"lr": "", "mu": "0.1,1"}, **SMALL}
    whole = fedtailor.tune("fedprox", **how, out=tmp_path / "whole")
    rounds = 0

    def announce(name: str, folder: Path, after: int) -> Any:
        def tell(line: dict[str, Any], last: int) -> None:
            nonlocal rounds
            rounds += 1
            if rounds == dies_at:
                raise KeyboardInterrupt

        return tell

    with pytest.raises(KeyboardInterrupt):
        fedtailor.tune("fedprox", **how, out=tmp_path / "killed", announce=announce)
    trials = tmp_path / "killed" / "trials.jsonl"
    if trials.exists():
        trials.write_bytes(trials.read_bytes() + b'{"method": "fed')  # cut off in a write
    resumed = fedtailor.resume(tmp_path / "killed")
    assert untimed(resumed["methods"]) == untimed(whole["methods"])
    files = sorted(p.name for p in (tmp_path / "killed").iterdir())
    assert files == sorted(p.name for p in (tmp_path / "whole").iterdir())
    assert "runs" not in files


@pytest.mark.parametrize(
    ("method", "over", "calls"),
    [("fedavg", {}, 1), ("ditto", {"lam": "0.1,1", "own_epochs": "1,2"}, 2)],
)
def test_side_by_side_chooses_what_one_by_one_does(
    method: str, over: dict[str, str], calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared: list[int] = []

    def noting(runs: Any, **how: Any) -> Any:
        ends = play_together(runs, **how)
        shared.append(max(end.runner.together for end in ends if end.runner))
        return ends

    monkeypatch.setattr(play, "play_together", noting)
    how: dict[str, Any] = {"trials": 4, "search": "grid", "prune": False, "over": over, **SMALL}
    both = [fedtailor.tune(method, **how, side_by_side=s)["methods"] for s in (True, False)]
    # all that may share a program does, and one after another nothing does
    assert shared == [4 // calls] * calls + [1] * calls
    for trials in zip(*(found[method]["trials"] for found in both), strict=True):
        assert trials[0]["setting"] == trials[1]["setting"]
        assert list(trials[0]["values"].values()) == pytest.approx(
            list(trials[1]["values"].values()), abs=0.02
        )


def test_the_chosen_file_is_what_run_takes(tmp_path: Path) -> None:
    found = fedtailor.tune("fedprox", "pfedhn", trials=1, out=tmp_path / "t", **SMALL)
    for method in ("fedprox", "pfedhn"):
        text = (tmp_path / "t" / "chosen" / f"{method}.toml").read_text()
        assert f'method = "{method}"' in text
        fedtailor.run(method, **SMALL, **found.chosen(method))
    assert len(found.table()) == 2


def test_what_diverges_fails_alone() -> None:
    found = fedtailor.tune("fedavg", trials=3, over={"lr": "0.05,1e38"}, search="grid", **SMALL)
    told = found["methods"]["fedavg"]
    assert told["chosen"] == {"lr": 0.05}
    assert told["failed"] == 1


def test_a_setting_that_loses_a_client_is_not_chosen(tmp_path: Path) -> None:
    """Its mean would be over those clients alone that it does not harm."""
    rows = table(tmp_path / "rows.csv", {"a": 60, "b": 60, "c": 60}, huge="c")
    over = {"lr": "1e-30,0.05"}
    found = fedtailor.tune("fedavg", data=str(rows), trials=2, over=over, search="grid", **LOST)
    told = found["methods"]["fedavg"]
    assert (told["chosen"], told["failed"]) == ({"lr": 1e-30}, 1)
    assert told["trials"][1]["failed"].startswith("the final models of c diverged (no finite log-l")


def test_when_all_fail_the_reason_is_told() -> None:
    with pytest.raises(BadInput, match="no setting of 'fedavg'"):
        fedtailor.tune("fedavg", trials=1, over={"lr": "1e38"}, search="grid", **SMALL)


def test_what_diverges_after_the_first_rung_failed_too(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    rows = [f"{'ab'[i % 2]},{draws.normal():.3f},{draws.normal():.3f}" for i in range(80)]
    (tmp_path / "late.csv").write_text("\n".join(["ward,crp,price", *rows]), encoding="utf-8")
    how: dict[str, Any] = {
        "label": "price", "client_column": "ward", "model": "linear", "batch": 0, "rounds": 9,
        "task": "regression", "data": str(tmp_path / "late.csv"), "search": "grid",
    }  # fmt: skip
    late = "20000,30000,40000"  # errors grow by four places a round: infinite in the ninth
    found = fedtailor.tune("fedavg", trials=4, over={"lr": f"1e-30,{late}"}, **how)
    told = found["methods"]["fedavg"]
    values = {t["number"]: list(t["values"].values()) for t in told["trials"]}
    assert values[1][0] is not None and values[1][1] is None
    assert (told["chosen"], told["failed"]) == ({"lr": 1e-30}, 1)
    with pytest.raises(BadInput, match=r"to the end: .* diverged"):
        fedtailor.tune("fedavg", trials=3, over={"lr": late}, **how)


def test_the_worst_off_may_be_what_counts() -> None:
    found = fedtailor.tune("fedavg", trials=2, target="worst", prune=False, **SMALL)
    mean = fedtailor.tune("fedavg", trials=2, prune=False, **SMALL)
    values = [
        [list(t["values"].values())[-1] for t in one["methods"]["fedavg"]["trials"]]
        for one in (found, mean)
    ]
    assert all(worst <= whole for worst, whole in zip(*values, strict=True))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"val": 0.0}, "val is 0"),
        ({"search": "magic"}, "unknown search"),
        ({"target": "best"}, "unknown target"),
        ({"over": {"nu": ""}}, "option to tune"),
        ({"over": ["mu"]}, "over is .*: give a dict"),
        ({"over": {"local.mu": ""}}, "method in --over"),
    ],
)
def test_what_cannot_be_searched_is_told_and_leaves_no_folder(
    tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    with pytest.raises(BadInput, match=told):
        fedtailor.tune("fedprox", **(SMALL | {"trials": 2, "out": tmp_path / "t"} | change))
    assert not (tmp_path / "t").exists()


def test_other_data_are_not_gone_on_with(tmp_path: Path) -> None:
    fedtailor.tune("fedavg", trials=1, out=tmp_path / "t", **SMALL)
    kept = json.loads((tmp_path / "t" / "tuning.json").read_text())
    (tmp_path / "t" / "tuning.json").write_text(json.dumps(kept | {"data": "other"}))
    with pytest.raises(BadInput, match="data have changed"):
        fedtailor.resume(tmp_path / "t")


@pytest.mark.usefixtures("without_pictures")
def test_every_method_of_a_comparison_has_the_same_budget(tmp_path: Path) -> None:
    settings = SMALL | {"rounds": 2, "out": tmp_path / "c"}
    found = fedtailor.compare("fedprox", tune=2, repeats=2, **settings)
    tuned = found["tuned"]
    assert tuned["trials"] == 2
    assert set(tuned["methods"]) == {"local", "centralised", "linear", "fedprox"} - set(
        found["yardsticks_left_out"]
    )
    for splits in tuned["methods"].values():
        assert [one["tried"] for one in splits.values()] == [2, 2]
    for split, chosen in tuned["methods"]["fedprox"].items():
        config = (tmp_path / "c" / "runs" / f"fedprox-seed{split}" / "config.toml").read_text()
        assert f"lr = {chosen['chosen']['lr']}" in config
    page = (tmp_path / "c" / "report.html").read_text()
    assert "Every method had 2 trials" in page
    assert page.count("fedprox lr=") == 0  # one contender, whatever each split chose
    again = fedtailor.resume(tmp_path / "c")
    assert again["tuned"]["methods"] == tuned["methods"]
