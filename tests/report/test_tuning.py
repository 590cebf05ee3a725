"""The page of a search."""

from __future__ import annotations

from typing import Any

from fedtailor.report.tuning import HIGH, WIDE, panels, trial_rows, tuning_page


def summary(**more: Any) -> dict[str, Any]:
    trials = [
        {"number": 0, "setting": {"lr": 0.05}, "values": {"1": 0.5, "3": 0.7}, "failed": ""},
        {"number": 1, "setting": {"lr": 0.1}, "values": {"1": 0.6, "3": 0.8}, "failed": ""},
        {"number": 2, "setting": {"lr": 9.0}, "values": {"1": None}, "failed": "<diverged>"},
    ]
    found = {
        "space": {"lr": "0.001 to 0.5, by logarithm"}, "rungs": [1, 3], "tried": 3, "failed": 1,
        "chosen": {"lr": 0.1}, "trial": 1, "value": 0.8, "usual": {"lr": 0.05}, "trials": trials,
        "importance": [{"name": "lr", "share": 0.4, "p": 0.01}], "seconds": 1.0,
        "config": {"settings": {"lr": 0.1}, "options": {"mu": 1.0}},
    }  # fmt: skip
    rules = {"trials": 3, "search": "random", "prune": True, "target": "mean", "seeds": 1}
    settings = {"data": "digits", "clients": 3, "model": "linear", "rounds": 3}
    return {
        "version": "0", "rules": rules, "methods": {"fedprox": found}, "metric": "accuracy",
        "settings": settings, "private": False,
    } | more  # fmt: skip


def test_those_that_came_furthest_stand_first() -> None:
    rows = trial_rows(summary()["methods"]["fedprox"], True)
    assert [row["number"] for row in rows] == [1, 0, 2]
    assert [row["chosen"] for row in rows] == [True, False, False]


def test_the_page_has_what_was_tried_what_matters_and_what_was_chosen() -> None:
    page = tuning_page(summary())
    assert "lr = 0.1\n\n[options]\nmu = 1.0" in page
    assert "matters" in page and "40 %" in page
    assert "&lt;diverged&gt;" in page and "<diverged>" not in page
    assert "http" not in page.split("</style>")[1]


def test_a_private_search_says_what_it_cost() -> None:
    assert "does not count" in tuning_page(summary(private=True))
    assert "does not count" not in tuning_page(summary())


def test_dots_lie_where_their_values_are() -> None:
    (panel,) = panels(summary()["methods"]["fedprox"])
    # 0.05 to 9.0 is looked at by its logarithm; the trial that failed has no dot
    assert [round(dot["x"]) for dot in panel["dots"]] == [0, 0, 35, 35]
    assert [round(dot["y"]) for dot in panel["dots"]] == [HIGH, 50, 100, 0]
    assert [dot["chosen"] for dot in panel["dots"]] == [False, False, False, True]
    assert panel["ticks"] == [(0.0, "0.05"), (float(WIDE), "9")]


def test_words_lie_side_by_side_and_cannot_be_marks() -> None:
    found = summary()["methods"]["fedprox"]
    for trial, word in zip(found["trials"], ("sgd", "<adam>", "sgd"), strict=True):
        trial["setting"] = {"lr": word}
    (panel,) = panels(found)
    assert panel["ticks"] == [(WIDE / 4, "<adam>"), (WIDE * 3 / 4, "sgd")]
    assert "<adam>" not in tuning_page(summary(methods={"fedprox": found}))
