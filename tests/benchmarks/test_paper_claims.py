"""Statements of papers: judged by seeds where there are several, else by clients."""

from __future__ import annotations

import pytest

from tests.benchmarks.scripts import load

claims = load("paper_claims")


def cell(*seeds: tuple[float, list[float | None]]) -> dict[str, object]:
    runs = [{"seed": i, "main": main, "per_client": each} for i, (main, each) in enumerate(seeds)]
    return {"seeds": runs}


def test_several_seeds_by_hand() -> None:
    ours, other = cell((12.0, []), (13.0, []), (17.0, [])), cell((10.0, []), (10.0, []), (13.0, []))
    mean, low, high, units = claims.difference(ours, other)  # 2, 3, 4: mean 3, deviation 1
    assert (mean, units) == (3.0, "3 seeds")
    assert (low, high) == pytest.approx((3 - 4.3027 / 3**0.5, 3 + 4.3027 / 3**0.5), abs=1e-4)


def test_one_seed_is_judged_by_its_clients_and_leaves_out_who_has_none() -> None:
    ours, other = cell((0.0, [0.5] * 7 + [None])), cell((0.0, [0.4] * 7 + [0.9]))
    mean, low, high, units = claims.difference(ours, other)
    assert (mean, low, high) == pytest.approx((10.0, 10.0, 10.0))
    assert units == "7 clients, one seed"


def test_better_by_less_than_a_point_does_not_hold_unless_the_paper_says_no_more() -> None:
    assert claims.answer_of(0.1, 0.5, 2.0) == "holds"
    assert claims.answer_of(-0.5, 0.9, 2.0) == "does not hold"
    assert claims.answer_of(-0.5, 1.1, 2.0) == "cannot tell"
    assert claims.answer_of(-0.5, 0.9, 0.3) == "cannot tell"
    assert claims.answer_of(-0.5, 0.2, 0.3) == "does not hold"


def test_runs_without_a_common_seed_say_nothing() -> None:
    assert claims.difference(cell((1.0, [0.5])), cell()) is None


def test_every_statement_has_runs_and_is_the_papers() -> None:
    found = claims.judged()
    assert {row.paper for row in found} == {"FedALA", "FedFomo", "pMixFed", "pFedLA"}
    assert all(row.papers > 0 and row.low <= row.mean <= row.high for row in found)
