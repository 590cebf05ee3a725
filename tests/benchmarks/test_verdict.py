"""The simulation that measures how often verdicts are wrong."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedtailor.results.metrics.named import METRICS
from fedtailor.results.statistics import measure_gains, scoring_of
from tests.benchmarks.scripts import load


@pytest.fixture(scope="module")
def verdict() -> Any:
    return load("verdict")


@pytest.mark.parametrize("kind", ["coin", "noise", "gain", "spread", "digits"])
def test_a_federation_is_the_same_again(verdict: Any, kind: str) -> None:
    s = verdict.Setting(kind, 6, 40, 2)
    one, again = (verdict.federation(s, 3) for _ in range(2))
    assert one == again
    assert one != verdict.federation(s, 4)
    assert set(one["intervals"]) == {"rows", "both", "clients", "t over clients"}


def test_rows_of_a_repeat_are_split_without_overlap(verdict: Any) -> None:
    s = verdict.Setting("gain", 3, 40, 5)
    rng = np.random.default_rng(0)
    played = verdict.play(s, verdict.site_weights(s, rng), rng)
    assert played.rows.shape == (5, 3, s.test) and s.test == 10 and s.train == 25
    assert all(len(set(rows)) == s.test for rows in played.rows.reshape(-1, s.test))


def test_more_columns_gain_more_and_nothing_gains_nothing(verdict: Any) -> None:
    few, many = (
        verdict.shared_truth(verdict.Setting("gain", 4, 80, 1, columns=c)) for c in (2, 24)
    )
    assert 0 < few[0] < many[0] / 3
    s = verdict.Setting("coin", 4, 80, 1)
    rng = np.random.default_rng(0)
    assert np.abs(verdict.true_gains(s, verdict.site_weights(s, rng), rng)).max() < 1e-12


def test_its_metrics_are_the_packages(verdict: Any) -> None:
    s = verdict.Setting("gain", 3, 40, 2)
    rng = np.random.default_rng(1)
    paired = verdict.as_paired(verdict.play(s, verdict.site_weights(s, rng), rng))
    for name, scoring in verdict.SCORINGS.items():
        ours = measure_gains(paired, scoring_of(METRICS[name]))
        np.testing.assert_allclose(measure_gains(paired, scoring).by_repeat, ours.by_repeat)


def test_a_setting_counts_answers_and_coverage(verdict: Any) -> None:
    s = verdict.Setting("coin", 6, 40, 1)
    found = [verdict.federation(s, seed) for seed in range(4)]
    found[0] |= {"answer": "helps", "intervals": dict.fromkeys(found[0]["intervals"], (1.0, 2.0))}
    row = verdict.cell(s, found)
    assert row["answers"]["helps"]["share"] >= 0.25
    assert row["coverage"]["rows"]["these sites"]["share"] <= 0.75
    assert verdict.share([True, False]) == {"share": 0.5, "error": 0.3536}


def test_other_intervals_are_tried(verdict: Any) -> None:
    s = replace(verdict.TRIED[0], sites=3, rows=24)
    found = verdict.federation(s, 0, others=True)["intervals"]
    assert {"bootstrap clients, BCa", "bootstrap rows, basic", "bootstrap all three"} <= set(found)
    assert all(low <= high for low, high in found.values())
