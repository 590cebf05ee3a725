"""The verdict in words, from summaries made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from fedtailor.results.verdict import verdict


def summary(seeds: int = 1, rows: int = 20, **accuracies: list[float]) -> dict[str, Any]:
    """A summary from each method's accuracies, client by client."""
    names = [f"c{i}" for i in range(len(accuracies["local"]))]
    table = {}
    for method, each in accuracies.items():
        gain = [a - b for a, b in zip(each, accuracies["local"], strict=True)]
        table[method] = {
            "accuracy": {
                "mean": {"mean": sum(each) / len(each), "std": 0.0},
                "bottom5": {"mean": min(each), "std": 0.0},
            },
            "per_client": dict(zip(names, each, strict=True)),
            "gain": dict(zip(names, gain, strict=True)),
            "better_off": sum(g > 1e-9 for g in gain),
            "worse_off": sum(g < -1e-9 for g in gain),
        }
    return {"seeds": list(range(seeds)), "test_rows": dict.fromkeys(names, rows), "table": table}


def test_helps() -> None:
    lines = verdict(summary(local=[0.5, 0.6, 0.7], ditto=[0.7, 0.8, 0.7], fedavg=[0.6, 0.5, 0.5]))
    assert lines[0].startswith("Federation helps here: ditto")
    assert "73.3 %" in lines[0]
    assert "60.0 % alone" in lines[0]
    assert "13.3 points" in lines[0]
    assert "2 of 3 clients gain" in lines[0]


def test_helps_on_average_only() -> None:
    """One client gains much, most lose a little: the mean alone would mislead."""
    lines = verdict(summary(local=[0.1, 0.8, 0.8], fedavg=[0.9, 0.7, 0.7]))
    assert lines[0].startswith("Federation helps on average, but not most clients: fedavg")
    assert "only 1 of 3 clients" in lines[0]


@pytest.mark.parametrize("fedavg", [[0.4, 0.5], [0.5, 0.6]])
def test_does_not_help(fedavg: list[float]) -> None:
    lines = verdict(summary(local=[0.5, 0.6], fedavg=fedavg))
    assert lines[0].startswith("Federation does not help here")
    assert "−" not in lines[0].split("points")[0], "so many points below, not minus so many"


def test_equal_is_not_below() -> None:
    lines = verdict(summary(local=[0.5, 0.6], fedavg=[0.5, 0.6]))
    assert "0.0 points below" not in lines[0]


def test_only_local() -> None:
    lines = verdict(summary(local=[0.5, 0.6]))
    assert lines[0].startswith("Only training alone was run")
    assert len(lines) == 2


def test_lonely_clients_are_named() -> None:
    """c1 is better off alone with either method, c0 with one of them only."""
    found = summary(local=[0.5, 0.9], fedavg=[0.6, 0.5], ditto=[0.4, 0.8])
    lonely = [line for line in verdict(found) if "whatever the method" in line]
    assert lonely == ["Better off alone whatever the method: c1."]


def test_nobody_is_lonely_where_everybody_gains() -> None:
    lines = verdict(summary(local=[0.5, 0.6], fedavg=[0.6, 0.7]))
    assert not any("alone whatever" in line for line in lines)
    assert not any("better off alone:" in line for line in lines)


def test_every_method_has_its_line_best_first() -> None:
    found = summary(local=[0.5, 0.6], fedavg=[0.4, 0.7], ditto=[0.7, 0.8])
    own = [line for line in verdict(found) if " clients are better off than alone" in line]
    assert [line.partition(":")[0] for line in own] == ["ditto", "fedavg"]
    assert "2 of 2 clients are better off than alone, 0 worse off; mean gain 20.0" in own[0]
    assert "1 of 2 clients are better off than alone, 1 worse off" in own[1]
    assert "better off alone: c0 (by 10.0)" in own[1]


def test_the_worst_off_have_a_line_of_their_own() -> None:
    found = summary(local=[0.5, 0.6], fedavg=[0.3, 0.95], ditto=[0.55, 0.6])
    line = next(line for line in verdict(found) if "worst-off 5 %" in line)
    assert "ditto is best: 55.0 % against 50.0 % alone (+5.0)" in line


@pytest.mark.parametrize(
    "lows, told",
    [
        ({"ditto": 0.4}, "training alone is best: 50.0 % against 40.0 % with ditto (−10.0)."),
        (
            {"ditto": 0.4, "fedala": 0.4, "fedavg": 0.3},
            "training alone is best: 50.0 % against 40.0 % with ditto and fedala (−10.0).",
        ),
        ({"ditto": 0.5, "fedavg": 0.3}, "training alone and ditto are equally good: 50.0 %."),
        (
            {"ditto": 0.6, "fedala": 0.6001, "fedavg": 0.3},
            "ditto and fedala are equally good: 60.0 % against 50.0 % alone (+10.0).",
        ),
    ],
)
def test_training_alone_may_be_best_for_the_worst_off(lows: dict[str, float], told: str) -> None:
    lines = verdict(summary(local=[0.5], **{method: [low] for method, low in lows.items()}))
    assert f"For the worst-off 5 % of clients {told}" in lines


def test_one_seed_is_pointed_out() -> None:
    few = verdict(summary(local=[0.5], fedavg=[0.6]))
    many = verdict(summary(seeds=3, local=[0.5], fedavg=[0.6]))
    assert any("--seeds" in line for line in few)
    assert not any("--seeds" in line for line in many)


def test_one_seed_of_some_methods_is_pointed_out() -> None:
    found = summary(seeds=2, local=[0.5], fedavg=[0.6], ditto=[0.7])
    found["table"]["fedavg"]["seeds"] = [1]
    warnings = [line for line in verdict(found) if "--seeds" in line]
    assert [line.partition(":")[0] for line in warnings] == ["One seed of fedavg"]


def test_a_test_rows_worth_is_said() -> None:
    lines = verdict(summary(rows=20, local=[0.5], fedavg=[0.6]))
    assert "20 test rows" in lines[-1]
    assert "5.0 points" in lines[-1]


def test_many_names_are_cut_short() -> None:
    lines = verdict(summary(local=[0.9] * 30, fedavg=[0.5] * 30))
    assert max(len(line) for line in lines) < 250
    assert any("and 22 more" in line for line in lines)
