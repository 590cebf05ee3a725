"""Comparisons: the same for all methods, summed up rightly, and resumed without waste."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fedtailor
from fedtailor import BadInput
from fedtailor.api import resume
from fedtailor.core.errors import Interrupted
from fedtailor.results.collect import collect
from fedtailor.results.config import read_config
from fedtailor.results.config.spread import spread_options
from fedtailor.results.folder import run_folder
from fedtailor.results.lock import LOCK, FolderLocked
from fedtailor.results.numbers import rows
from fedtailor.runs.comparison.plan import ComparisonPlan
from fedtailor.runs.comparison.play import open_comparison
from tests.runs.runlab import held

pytestmark = pytest.mark.usefixtures("without_pictures")

compare = partial(fedtailor.compare, yardsticks=False)  # most tests need no more than `local`
SMALL: dict[str, Any] = {
    "model": "mlp", "clients": 5, "rounds": 3, "batch": 150, "lr": 0.1, "participation": 0.6,
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("comparison") / "c"
    compare("fedavg", "fedprox", seeds=2, out=folder, options={"fedprox.mu": 0.5}, **SMALL)
    return folder


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def history(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(row) for row in (folder / "history.jsonl").read_text().splitlines()]


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


def test_the_summary_says_whose_training_had_not_ended(made: Path, tmp_path: Path) -> None:
    def ends(folder: Path) -> dict[str, Any]:
        return {m: row["still_rising"] for m, row in summary(folder)["table"].items()}

    assert set(ends(made).values()) == {None}, "of three rounds nobody can say"
    slow = {"rounds": 18, "lr": 0.02, "participation": 1.0}
    compare("fedavg", out=tmp_path / "c", **SMALL | slow)
    assert ends(tmp_path / "c")["fedavg"] is True


def test_training_alone_is_added(made: Path) -> None:
    found = summary(made)
    assert found["methods"] == ["local", "fedavg", "fedprox"]
    assert found["yardstick_added"]
    assert found["seeds"] == [0, 1]
    assert list(found["table"]) == found["methods"]


def test_all_methods_meet_the_same_clients_and_cohorts(made: Path) -> None:
    for seed in (0, 1):
        runs = [run_folder(made, m, seed) for m in ("local", "fedavg", "fedprox")]
        cohorts = [[line["cohort"] for line in history(run)] for run in runs]
        assert cohorts[0] == cohorts[1] == cohorts[2]
        tables = [
            [row.split(",")[:4] for row in (run / "clients.csv").read_text().splitlines()]
            for run in runs
        ]
        assert tables[0] == tables[1] == tables[2]
        assert len({tuple(c) for c in cohorts[0]}) > 1


def test_seeds_differ_in_cohorts_but_not_in_clients(made: Path) -> None:
    one, two = (run_folder(made, "fedavg", seed) for seed in (0, 1))
    assert [x["cohort"] for x in history(one)] != [x["cohort"] for x in history(two)]
    sizes = [
        [row.split(",")[:4] for row in (run / "clients.csv").read_text().splitlines()]
        for run in (one, two)
    ]
    assert sizes[0] == sizes[1]


def test_a_run_of_a_comparison_is_that_run_alone(made: Path, tmp_path: Path) -> None:
    """Nothing leaks from one method to the next: the same numbers as `fedtailor run`."""
    place = run_folder(made, "fedprox", 1)
    method, given, options = read_config(place / "config.toml")
    fedtailor.run(str(method), out=tmp_path / "alone", options=options, **given)
    for path in (place / "models").iterdir():
        assert path.read_bytes() == (tmp_path / "alone" / "models" / path.name).read_bytes()


def test_all_methods_start_from_the_same_model() -> None:
    """With a learning rate of 0 nothing is learnt: everybody keeps the initial model."""
    found = compare("fedavg", "ditto", **SMALL | {"lr": 0.0, "rounds": 1})
    each = [row["per_client"] for row in found["table"].values()]
    assert each[0] == each[1] == each[2]
    assert all(row["better_off"] == row["worse_off"] == 0 for row in found["table"].values())


def test_the_table_comes_from_the_results(made: Path) -> None:
    table = summary(made)["table"]
    for method, row in table.items():
        runs = [result(run_folder(made, method, seed)) for seed in (0, 1)]
        for key in ("mean", "weighted", "bottom5", "top5", "worst"):
            values = [run["accuracy"][key] for run in runs]
            assert row["accuracy"][key]["mean"] == pytest.approx(np.mean(values), abs=2e-6)
            assert row["accuracy"][key]["std"] == pytest.approx(np.std(values, ddof=1), abs=2e-6)
        for client, value in row["per_client"].items():
            each = np.mean([run["per_client"][client] for run in runs])
            assert value == pytest.approx(each, abs=2e-6)
        assert [point["round"] for point in row["curve"]] == [1, 2, 3]
        assert row["curve"][-1]["mean"] == pytest.approx(row["accuracy"]["mean"]["mean"], abs=1e-6)
        assert all(p["low"] <= p["mean"] <= p["high"] for p in row["curve"])


def test_better_and_worse_off_are_counted_against_training_alone(made: Path) -> None:
    table = summary(made)["table"]
    alone = table["local"]["per_client"]
    for row in table.values():
        gains = {name: row["per_client"][name] - alone[name] for name in alone}
        assert row["better_off"] == sum(g > 1e-6 for g in gains.values())
        assert row["worse_off"] == sum(g < -1e-6 for g in gains.values())
        assert row["gain"] == pytest.approx(gains, abs=3e-6)
    assert table["local"]["better_off"] == table["local"]["worse_off"] == 0


def test_held_out_clients_gain_nothing_over_a_model_that_nobody_trained(tmp_path: Path) -> None:
    compare("fedavg", out=tmp_path / "c", held_out=2, **SMALL)
    found, own = summary(tmp_path / "c"), result(tmp_path / "c" / "runs" / "local-seed0")
    held = own["held_out"]
    assert len(held) == 2 and found["decision"]["clients"] == 3
    assert set(found["decision"]["left_out"]) == set(held)
    assert not set(held) & set(found["table"]["fedavg"]["gain"])
    assert any("over clients, also those held out" in line for line in found["verdict"])
    again = collect([tmp_path / "c"])
    told = dict(zip(again.clients, rows(again)[1]["gain"], strict=True))
    assert {name for name, gain in told.items() if gain is None} == set(held)
    # fine-tuned before the final test, they do train alone
    compare("fedavg", out=tmp_path / "d", held_out=2, finetune=1, **SMALL)
    assert summary(tmp_path / "d")["decision"]["left_out"] == {}


def test_clients_that_no_round_of_training_alone_had_gain_nothing_over_it(tmp_path: Path) -> None:
    """Before, a client that was never drawn gained over the network that everybody began with."""
    settings = SMALL | {"participation": 0.2, "rounds": 2}
    compare("fedavg", out=tmp_path / "c", **settings)
    found, own = summary(tmp_path / "c"), result(tmp_path / "c" / "runs" / "local-seed0")
    never = own["never_trained"]
    assert 3 <= len(never) <= 4
    assert set(found["decision"]["left_out"]) == set(never)
    assert not set(never) & set(found["table"]["fedavg"]["gain"])
    assert any("over clients, also those never trained" in line for line in found["verdict"])
    again = collect([tmp_path / "c"])
    told = dict(zip(again.clients, rows(again)[1]["gain"], strict=True))
    assert {name for name, gain in told.items() if gain is None} == set(never)
    # with another seed other clients are drawn; a gain is the mean over all seeds
    compare("fedavg", out=tmp_path / "d", seeds=2, **settings)
    each = [result(tmp_path / "d" / "runs" / f"local-seed{n}")["never_trained"] for n in (0, 1)]
    assert set(summary(tmp_path / "d")["decision"]["left_out"]) == set(each[0]) | set(each[1])


def test_the_verdict_is_made_of_the_decision(made: Path) -> None:
    found = summary(made)
    decision = found["decision"]
    assert decision["metric"] == found["metric"] == "accuracy"
    assert decision["method"] in ("fedavg", "fedprox")
    assert set(found["others"]) == {"fedavg", "fedprox"} - {decision["method"]}
    gains = found["table"][decision["method"]]["gain"].values()
    assert decision["gain"] == pytest.approx(sum(gains) / 5, abs=1e-5)
    assert decision["interval"][0] <= decision["gain"] <= decision["interval"][1]
    assert decision["speaks_for"] == "these sites"  # five are too few to speak for others
    assert set(found["clients"]) == set(found["test_rows"])
    assert "than alone" in found["verdict"][0]


def test_repeats_draw_splits_and_seeds_anew_for_the_same_clients(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    found = fedtailor.compare("fedavg", repeats=2, seeds=2, out=folder, **SMALL | {"rounds": 1})
    assert found["methods"] == ["local", "centralised", "linear", "fedavg"]
    assert found["seeds"] == [0, 1, 2, 3]
    runs = {m: [result(run_folder(folder, m, s)) for s in range(4)] for m in found["methods"]}
    for of in runs.values():
        assert [run["split_seed"] for run in of] == [0, 0, 1, 1]
        assert len({run["owners_digest"] for run in of}) == 1
        digests = [run["rows_digest"] for run in of]
        assert digests[0] == digests[1] != digests[2] == digests[3]
    assert runs["linear"][0]["model"] == "linear"
    assert found["constant"]["accuracy"]["mean"] > 0
    page = (folder / "report.html").read_text()
    assert "centralised" in page and "linear" in page
    (folder / "summary.json").unlink()
    shutil.rmtree(run_folder(folder, "fedavg", 3))
    assert timeless(dict(resume(folder))) == timeless(dict(found))


@pytest.mark.parametrize(
    ("settings", "left_out"),
    [
        ({"models": "mlp-2:2,mlp:3"}, {"centralised", "linear"}),
        ({"model": "linear"}, {"linear"}),
    ],
)
def test_yardsticks_that_cannot_be_had_are_named(
    settings: dict[str, Any], left_out: set[str]
) -> None:
    plan = ComparisonPlan(["pmixfed"], 1, SMALL | settings, {})
    assert set(plan.left_out) == left_out
    assert not left_out & set(plan.methods)


def test_a_margin_makes_a_difference_too_small_to_matter() -> None:
    found = compare("fedavg", margin=2.0, **SMALL | {"rounds": 1})
    assert found["decision"]["answer"] == "no difference"
    with pytest.raises(BadInput, match="margin is -1"):
        compare("fedavg", margin=-1.0, **SMALL)


def test_pictures(made: Path) -> None:
    for name in ("score", "gain_per_client", "clients"):
        with Image.open(made / f"{name}.png") as picture:
            picture.load()
            assert picture.width > 300
        assert "<svg" in (made / f"{name}.svg").read_text()[:2000]
    with Image.open(made / "partition.png") as picture:
        picture.load()


def test_options_reach_their_method_only(made: Path) -> None:
    table = summary(made)["table"]
    assert table["fedprox"]["options"]["mu"] == 0.5
    assert "mu" not in table["fedavg"]["options"]


def test_spreading_options() -> None:
    spread = spread_options(
        ["local", "fedavg", "fedprox"], {"weighting": "uniform", "fedprox.weighting": "data"}
    )
    assert spread == {
        "local": {}, "fedavg": {"weighting": "uniform"}, "fedprox": {"weighting": "data"},
    }  # fmt: skip


def test_an_option_for_one_method_goes_before_one_for_all() -> None:
    spread = spread_options(["fedprox"], {"fedprox.weighting": "data", "weighting": "uniform"})
    assert spread == {"fedprox": {"weighting": "data"}}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fedala.s": 1}, "fedala"),
        ({"fedavg.mu": 1}, "unknown option"),
        ({"nonsense": 1}, "unknown option"),
        ({"fedprox.muu": 1}, "did you mean"),
        ({"mu": -1}, "at least 0"),
    ],
)
def test_options_that_nobody_has(options: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        ComparisonPlan(["fedavg", "fedprox"], 1, {}, options)


@pytest.mark.parametrize(
    ("methods", "seeds", "said"),
    [
        ([], 1, "no methods"),
        (["fedavg"], 0, "seeds is 0"),
        (["fedavg"], 10**20, "to 1,000"),
        (["fedavg", "fedavg"], 1, "twice"),
    ],
)
def test_plans_that_make_no_sense(methods: list[str], seeds: int, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        ComparisonPlan(methods, seeds, {}, {})


def test_a_seed_that_is_no_number() -> None:
    with pytest.raises(BadInput):
        ComparisonPlan(["fedavg"], 1, {"seed": "abc"}, {})


# --- interruption ---


class PowerCut(Exception):
    pass


def cut_in(method: str, number: int) -> Any:
    def announce(name: str, seed: int, done: int, runs: int) -> Any:
        def watch(line: dict[str, Any], rounds: int) -> None:
            if name == method and line["round"] == number:
                raise PowerCut

        return watch

    return announce


def timeless(found: dict[str, Any]) -> dict[str, Any]:
    table = {
        m: {k: v for k, v in row.items() if k not in ("seconds", "peak_memory_bytes")}
        for m, row in found["table"].items()
    }
    return found | {"table": table}


def test_an_interrupted_comparison_goes_on(tmp_path: Path) -> None:
    settings = SMALL | {"checkpoint_every": 1, "options": {"fedala.max_ala_epochs": 2}}
    with pytest.raises(PowerCut):
        compare("fedavg", "fedala", out=tmp_path / "c", announce=cut_in("fedavg", 2), **settings)
    assert not (tmp_path / "c" / "summary.json").exists()
    done = run_folder(tmp_path / "c", "local", 0) / "result.json"
    before = done.stat().st_mtime_ns
    played: list[tuple[str, int]] = []

    def announce(name: str, seed: int, done: int, runs: int) -> Any:
        return lambda line, rounds: played.append((name, line["round"]))

    resume(tmp_path / "c", announce=announce)
    assert done.stat().st_mtime_ns == before, "a finished run was run again"
    # round 2 died before its checkpoint, so it is played again; round 1 is not
    assert played == [("fedavg", 2), ("fedavg", 3), *(("fedala", r) for r in (1, 2, 3))]
    whole = compare("fedavg", "fedala", **settings)
    assert timeless(summary(tmp_path / "c")) == timeless(whole)


def test_a_comparison_does_not_go_on_with_other_data(tmp_path: Path) -> None:
    """A finished run on the old rows beside one on new rows would be compared like with unlike."""
    table, folder = tmp_path / "sites.csv", tmp_path / "both"
    draw = np.random.default_rng(0)
    rows = [f"{x:.3f},{'ab'[int(x > 0)]},{i % 3}" for i, x in enumerate(draw.standard_normal(120))]
    table.write_text("\n".join(["value,outcome,site", *rows]) + "\n")
    settings = {
        "data": str(table), "label": "outcome", "client_column": "site", "model": "mlp",
        "rounds": 1, "batch": 20,
    }  # fmt: skip
    compare("fedavg", out=folder, **settings)
    shutil.rmtree(run_folder(folder, "fedavg", 0))
    resume(folder)  # the data are what they were
    shutil.rmtree(run_folder(folder, "fedavg", 0))
    other = [row.replace("a", "c").replace("b", "a").replace("c", "b") for row in rows]
    table.write_text("\n".join(["value,outcome,site", *other]) + "\n")
    with pytest.raises(BadInput, match=r"data have changed since .*local-seed0"):
        resume(folder)
    assert not run_folder(folder, "fedavg", 0).exists()


def test_a_broken_result_of_a_comparison_is_one_line(made: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(made, tmp_path / "broken")
    (run_folder(folder, "fedavg", 0) / "result.json").write_text("{")
    with pytest.raises(BadInput, match=r"fedavg-seed0/result\.json' cannot be read"):
        resume(folder)


def test_ctrl_c_in_the_last_round_of_a_run_stops_the_comparison(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    begun: list[str] = []

    def announce(name: str, seed: int, done: int, runs: int) -> Any:
        begun.append(name)

        def watch(line: dict[str, Any], rounds: int) -> None:
            if name == "local" and line["round"] == rounds:
                signal.raise_signal(signal.SIGINT)

        return watch

    with pytest.raises(Interrupted):
        compare("fedavg", out=folder, announce=announce, **SMALL)
    assert begun == ["local"]
    done = run_folder(folder, "local", 0) / "result.json"
    before = done.stat().st_mtime_ns
    resume(folder)
    assert done.stat().st_mtime_ns == before, "a finished run was run again"
    assert timeless(summary(folder)) == timeless(compare("fedavg", **SMALL))


OVERWRITE = """
import sys
from pathlib import Path
from fedtailor.runs.comparison.play import open_comparison
from fedtailor.runs.comparison.plan import ComparisonPlan
from fedtailor.results.lock import FolderLocked
try:
    open_comparison(ComparisonPlan(["fedavg"], 1, {}, {}), Path(sys.argv[1]), overwrite=True)
except FolderLocked as error:
    print(error)
"""


def test_nobody_replaces_a_comparison_between_two_of_its_runs(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    said: list[str] = []

    def announce(name: str, seed: int, done: int, runs: int) -> None:
        if done == 1:  # the first run is finished, the second has not begun
            other = [sys.executable, "-c", OVERWRITE, str(folder)]
            said.append(subprocess.run(other, capture_output=True, text=True, check=True).stdout)

    compare("fedavg", out=folder, announce=announce, **SMALL)
    assert "is being played by process" in said[0]
    assert len(list(folder.glob("runs/*/result.json"))) == 2
    assert not list(folder.rglob(LOCK))


def test_a_comparison_that_another_process_is_at_is_left_alone(made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    shutil.copytree(made, folder)
    (folder / "summary.json").unlink()
    with held(folder), pytest.raises(FolderLocked, match="is being played by process"):
        resume(folder)
    assert not (folder / "summary.json").exists()
    resume(folder)  # its process was killed: free again
    assert timeless(summary(folder)) == timeless(summary(made))


def test_a_run_that_never_reached_a_checkpoint_starts_anew(made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    shutil.copytree(made, folder)
    place = run_folder(folder, "fedprox", 1)
    before = result(place)["accuracy"]
    (place / "result.json").unlink()
    shutil.rmtree(place / "checkpoint")
    resume(folder)
    assert result(place)["accuracy"] == before
    assert timeless(summary(folder)) == timeless(summary(made))


def test_a_comparison_of_own_data_goes_on_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [f"{c},{i % 3},{'ab'[i % 2]}" for c in "uvw" for i in range(20)]
    (tmp_path / "own.csv").write_text("\n".join(["client,x,label", *rows]) + "\n")
    monkeypatch.chdir(tmp_path)
    compare("fedavg", data="./own.csv", rounds=1, out=tmp_path / "c")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    resume(tmp_path / "c")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"methods": 3}'])
def test_a_broken_plan_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "comparison.json").write_text(text)
    with pytest.raises(BadInput, match="broken"):
        ComparisonPlan.from_json(tmp_path / "comparison.json")


def test_a_plan_of_another_version_is_refused(made: Path, tmp_path: Path) -> None:
    plan = json.loads((made / "comparison.json").read_text()) | {"version": "0.0.1"}
    (tmp_path / "comparison.json").write_text(json.dumps(plan))
    with pytest.raises(BadInput, match=r"0\.0\.1"):
        ComparisonPlan.from_json(tmp_path / "comparison.json")


def test_an_earlier_comparison_is_not_replaced_unasked(made: Path) -> None:
    with pytest.raises(BadInput, match="earlier run"):
        open_comparison(ComparisonPlan(["fedavg"], 1, {}, {}), made)
    assert (made / "summary.json").exists()


def test_a_client_without_test_rows_is_refused_by_name(tmp_path: Path) -> None:
    """With official test rows a client may get none of its own."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(60, 2)), np.arange(60) % 2
    np.savez(
        tmp_path / "own.npz",
        x_train=x, y_train=y, client_train=np.repeat(["a", "b", "c"], 20),
        x_test=x[:20], y_test=y[:20], client_test=np.repeat(["a", "b"], 10),
    )  # fmt: skip
    with pytest.raises(BadInput, match="client 'c'"):
        compare("fedavg", data=str(tmp_path / "own.npz"), official_test=True, rounds=1)
