"""Numbers as text: means over some seeds say so, infinity has its sign, CSV has all of it."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from fedtailor.reproduce.shown.writing import (
    as_csv,
    beside_paper,
    comparable_cells,
    ends_of_training,
    is_partial,
    order,
    ours,
    troubles,
)
from tests.reproduce.shown.outcomelab import a_cell, an_outcome, half

ENDLESS = {"mean": None, "std": None, "text": "∞", "difference": None, "outside": None}


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (a_cell(), "93.20±0.05"),
        (a_cell(still_rising=True), "93.20±0.05 ↗"),
        (a_cell(still_rising=False), "93.20±0.05"),
        (a_cell(low=60.0, high=99.0), "93.20±0.05 (60.00/99.00)"),
        (half(), "93.20 (1 of 3 seeds)"),
        (half(status="failed"), "93.20 (1 of 3 seeds, failed)"),
        (half(mean=None, text="", seeds=[]), "not finished"),
        (half(mean=None, text="", seeds=[], status="missing data"), "missing data"),
        (a_cell(**ENDLESS), "∞"),
        (half(mean=None, text="∞", seeds=[{"main": None, "text": "∞"}]), "∞ (1 of 3 seeds)"),
        (half(seeds=[{"main": 93.2}, {"main": None}]), "93.20 (1 of 3 seeds)"),
    ],
)
def test_what_a_cell_shows_of_ours(cell: dict[str, Any], text: str) -> None:
    assert ours(cell, 3) == text


def test_a_verdict_waits_for_all_seeds() -> None:
    assert beside_paper(a_cell()) == "above"
    assert beside_paper(half(outside=True)) == ""


def test_an_order_says_how_many_of_its_rows_are_not_complete() -> None:
    cells = [a_cell("A", mean=90.0), half("B", mean=95.0), half("C", mean=None, text="")]
    assert order(an_outcome(cells), "MNIST") == "– (2 rows, 1 of them with some seeds only)"
    assert order(an_outcome(cells[:1]), "MNIST") == "– (1 rows)"
    assert is_partial(cells[1])
    assert not is_partial(cells[2])


def test_infinity_has_no_place_in_an_order() -> None:
    paper = {"text": "∞", "mean": None, "std": None, "low": None, "high": None}
    cells = [a_cell("A"), a_cell("B", **ENDLESS), a_cell("C", paper=paper)]
    assert order(an_outcome(cells), "MNIST") == "– (1 rows)"


def test_csv_has_the_seeds_and_infinity() -> None:
    paper = {"text": "∞", "mean": None, "std": None, "low": None, "high": None}
    text = as_csv(an_outcome([half(), a_cell("B", paper=paper, **ENDLESS)]))
    some, endless = csv.DictReader(io.StringIO(text))
    assert (some["mean"], some["seeds"], some["seeds_wanted"]) == ("93.2", "1", "3")
    assert some["status"] == "not finished"
    assert float(endless["mean"]) == float(endless["paper_mean"]) == float("inf")
    assert (endless["paper"], endless["difference"]) == ("∞", "")


def test_cells_with_the_same_trouble_stand_together() -> None:
    stopped = [half(row) for row in "ABCDE"]
    lost = half("F", status="missing data", reason="there is no 'mnist'")
    assert troubles(an_outcome([a_cell("G"), *stopped, lost])) == [
        "A, MNIST; B, MNIST; C, MNIST and 2 more: not finished: stopped",
        "F, MNIST: missing data: there is no 'mnist'",
    ]
    assert not troubles(an_outcome([a_cell()]))


def paper_of(mean: float) -> dict[str, Any]:
    return {"text": f"{mean}", "mean": mean, "std": None, "low": None, "high": None}


def test_the_order_of_columns_is_that_of_each_row() -> None:
    # by hand: of the three pairs of columns two are in the paper's order, one is not: τ = 1/3
    means, papers = (60.0, 70.0, 65.0), (1.0, 2.0, 3.0)
    row = [
        a_cell("A", f"k={i}", mean=m, paper=paper_of(p))
        for i, (m, p) in enumerate(zip(means, papers, strict=True))
    ]
    found = an_outcome([*row, a_cell("cost", "k=0", unit="MB", mean=9.0)], ranks="columns")
    assert list(found["tau"]) == ["A", "cost"]
    assert found["tau"]["A"] == {"tau": pytest.approx(1 / 3, abs=1e-6), "columns": 3}
    assert order(found, "A") == "0.33 (3 columns)"
    assert order(found, "cost") == "– (1 columns)"


def test_the_order_is_of_rows_with_one_unit() -> None:
    rows = [a_cell("A"), a_cell("B", mean=90.0), a_cell("cost", unit="MB", mean=9.0)]
    assert [c["row"] for c in comparable_cells(rows, "MNIST")] == ["A", "B"]
    mixed = an_outcome([rows[0], rows[2]])
    assert mixed["tau"]["MNIST"] == {"tau": None, "rows": 1}


def test_a_table_says_in_which_cells_training_had_ended() -> None:
    ends = [True, False, False, None]
    cells = [a_cell(f"row {number}", still_rising=end) for number, end in enumerate(ends)]
    assert ends_of_training(an_outcome([*cells, half()])) == (
        "training had ended in 2 of 4 cells; ↗ more rounds would have helped in 1; "
        "too few tests to say in 1"
    )
    assert ends_of_training(an_outcome([a_cell()])) == ""  # of an earlier version
