"""Clients that are slow, and rounds that do not wait for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedtailor
from fedtailor.core.errors import BadInput
from fedtailor.report.page import page_data
from fedtailor.results.collect import collect
from fedtailor.results.config import make_config
from fedtailor.results.folder import read_clients
from fedtailor.runs.several.together import play_together

# every client has as many steps: a normal one takes 1, a slow one 4
SMALL: dict[str, Any] = {"model": "linear", "clients": 6, "rounds": 4, "steps": 3, "slow": "0.3:4"}


def told(history: list[dict[str, Any]], *names: str) -> list[list[Any]]:
    return [[line[name] for name in names] for line in history]


def test_without_a_deadline_a_round_waits_for_the_slow() -> None:
    run = fedtailor.run("fedavg", **SMALL)
    usual = fedtailor.run("fedavg", **SMALL | {"slow": ""})
    assert [line["simulated_time"] for line in run.history] == [4.0] * 4
    assert all("stragglers" not in line for line in run.history)
    assert all("simulated_time" not in line for line in usual.history)
    assert run["score"] == usual["score"]  # who is slow has no say in training
    assert run["simulated_time"] == 16.0


def test_a_round_ends_at_the_deadline_without_the_late() -> None:
    run = fedtailor.run("ditto", **SMALL, deadline=2)
    late = run.history[0]["stragglers"]
    assert len(late) == 2  # 0.3 of 6 clients
    for line in run.history:
        assert line["stragglers"] == late
        assert sorted(line["cohort"] + late) == list(range(6))
        assert line["simulated_time"] == 2.0
    names = [*run["per_client"]]
    assert run["stragglers"] == {names[i]: 4 for i in late}
    assert run["never_in_time"] == [names[i] for i in late]
    # those who count are what they are in a round of theirs alone: as many bytes
    assert run["bytes"]["up"] * 6 == fedtailor.run("ditto", **SMALL)["bytes"]["up"] * 4


def test_more_steps_take_longer_and_a_short_deadline_waits_for_one(tmp_path: Path) -> None:
    settings = SMALL | {"steps": 0, "slow": "", "partition": "dirichlet:0.3", "clients": 5}
    run = fedtailor.run("fedavg", **settings, deadline=0.01, out=tmp_path / "r")
    rows = [int(row["train"]) for row in read_clients(tmp_path / "r").values()]
    steps = [-(-n // 10) for n in rows]
    least = [i for i, n in enumerate(steps) if n == min(steps)]
    assert all(line["cohort"] == least for line in run.history)
    took = min(steps) / sorted(steps)[2]
    assert took < 1 and run.history[0]["simulated_time"] == round(took, 6)


def leaves_out_the_same(**other_engine: Any) -> None:
    """Ray's turn comes in tests/engine/ray, where its workers have started anyway."""
    settings = SMALL | {"rounds": 2, "deadline": 2.0, "dropout": 0.2, "device": "cpu"}
    settings["options"] = {"max_ala_epochs": 2}
    usual = fedtailor.run("fedala", **settings)
    other = fedtailor.run("fedala", **settings, **other_engine)
    names = ("cohort", "dropped", "stragglers", "simulated_time")
    assert told(other.history, *names) == told(usual.history, *names)
    assert other["score"]["mean"] == pytest.approx(usual["score"]["mean"], abs=0.02)


def test_every_engine_leaves_out_the_same_clients() -> None:
    leaves_out_the_same(engine="sequential")


def test_a_resumed_run_ends_as_the_whole_one(tmp_path: Path) -> None:
    settings = SMALL | {"deadline": 2.0, "dropout": 0.3, "participation": 0.7}
    whole = fedtailor.run("fedavg", **settings)

    def kill(line: dict[str, Any], rounds: int) -> None:
        if line["round"] == 2:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        fedtailor.run("fedavg", **settings, out=tmp_path / "r", checkpoint_every=1, watch=kill)
    again = fedtailor.resume(tmp_path / "r")
    assert again["score"] == whole["score"]
    assert again["simulated_time"] == whole["simulated_time"]
    names = ("cohort", "dropped", "stragglers", "simulated_time")
    assert told(again.history, *names) == told(whole.history, *names)


def test_nobody_waits_for_clients_that_train_alone_or_for_rows_in_one_place() -> None:
    alone = fedtailor.run("local", **SMALL, deadline=2)
    assert all(line["stragglers"] == [] for line in alone.history)
    assert alone["simulated_time"] == 16.0  # the slow ones take their time
    settings = SMALL | {"steps": 0, "epochs": 1, "batch": 10, "partition": "iid"}
    whole = fedtailor.run("centralised", **settings, deadline=2, dropout=0.5)
    assert all(line["stragglers"] == line["dropped"] == [] for line in whole.history)
    assert whole.history[0]["simulated_time"] == pytest.approx(6, abs=0.2)


def test_seeds_of_runs_with_a_deadline_are_played_one_after_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runs = [make_config("fedavg", SMALL | {"deadline": 2, "seed": seed}, {}) for seed in (0, 1)]
    with caplog.at_level("INFO", logger="fedtailor"):
        ends = play_together(runs)
    assert "with --deadline their rounds have unequal numbers of clients" in caplog.text
    late = [end.history[0]["stragglers"] for end in ends]
    assert late[0] != late[1]  # drawn from the seed
    single = fedtailor.run("fedavg", **SMALL, deadline=2, seed=1)
    assert ends[1].result["score"] == single["score"]
    assert single.history[0]["stragglers"] == late[1]


def test_slow_clients_alone_do_not_keep_seeds_apart() -> None:
    runs = [make_config("fedavg", SMALL | {"seed": seed}, {}) for seed in (0, 1)]
    ends = play_together(runs)
    assert [end.result["side_by_side"] for end in ends] == [2, 2]
    assert [end.result["simulated_time"] for end in ends] == [16.0, 16.0]


def test_the_page_shows_accuracy_by_simulated_time_and_who_was_late(tmp_path: Path) -> None:
    fedtailor.run("fedavg", **SMALL, deadline=2, out=tmp_path / "r")
    page = page_data(collect([tmp_path / "r"]))
    assert page["curves"][0]["simulated"] == [2.0, 4.0, 6.0, 8.0]
    (told,) = [n for n in page["notes"] if "missed the deadline 8 times (--deadline)" in n]
    assert "never in time: client-" in told
    assert 'id="simulated-chart"' in (tmp_path / "r" / "report.html").read_text()
    fedtailor.run("fedavg", **SMALL | {"slow": ""}, out=tmp_path / "usual")
    assert (
        'simulated-chart"'
        not in (tmp_path / "usual" / "report.html").read_text().split("<script")[0]
    )


@pytest.mark.parametrize("slow", ["0.2", "0:4", "1.5:4", "0.2:1", "0.2:nan", "0.2:inf", "a:b"])
def test_what_is_no_share_and_factor_is_refused(slow: str) -> None:
    with pytest.raises(BadInput, match=f"slow is '{slow}': give SHARE:FACTOR"):
        fedtailor.run("fedavg", **SMALL | {"slow": slow})
