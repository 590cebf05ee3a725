"""The answer, from small records on which it can be said by hand."""

import json

import numpy as np
import pytest

from fedtailor.core.errors import BadInput
from fedtailor.results.statistics import (
    Decision,
    PairedRows,
    decide,
    decide_clients,
    holm,
    holm_corrected,
    pick_method,
    usual_margin,
)
from tests.results.statistics.worlds import ACCURACY, AUC, SQUARED_ERROR, drawn, exchanged, rows_of

NAMES = {"method": "fedavg", "metric": "accuracy"}


def sites(n: int, ours: list[int], alone: list[int]) -> dict[str, list[PairedRows]]:
    return {f"s{k}": [rows_of(ours, alone)] for k in range(n)}


def test_many_sites_that_all_gain_speak_for_sites_like_these() -> None:
    paired = {
        f"s{k}": [rows_of([1] * 20, [1] * (14 - k % 3) + [0] * (6 + k % 3))] for k in range(8)
    }
    found = decide(paired, ACCURACY, **NAMES)
    assert (found.answer, found.speaks_for, found.clients) == ("helps", "sites like these", 8)
    assert found.p == 2 / 2**8  # of both tests the larger
    assert found.interval[0] > 0 and found.needed is None
    assert found.beside is not None and found.beside.speaks_for == "these sites"
    harm = decide(exchanged(paired), ACCURACY, **NAMES)
    assert (harm.answer, harm.p, harm.gain) == ("harms", found.p, -found.gain)


def test_few_sites_speak_for_themselves_alone() -> None:
    found = decide(sites(4, [1] * 20, [1] * 14 + [0] * 6), ACCURACY, **NAMES)
    assert (found.answer, found.speaks_for, found.beside) == ("helps", "these sites", None)
    assert "4 sites cannot speak for others, as their least p is 0.12" in found.reason


def test_six_sites_say_both() -> None:
    found = decide(sites(6, [1] * 20, [1] * 14 + [0] * 6), ACCURACY, **NAMES)
    assert found.speaks_for == "these sites"
    assert found.beside is not None and found.beside.speaks_for == "sites like these"


def test_both_tests_must_agree_for_sites_like_these() -> None:
    """One site gains much and seven a little less than nothing: rows tell, clients do not."""
    much = {"big": [rows_of([1] * 60, [0] * 60)] * 2}
    little = {f"s{k}": [rows_of([1] * 59 + [0], [1] * 60)] * 2 for k in range(7)}
    found = decide(much | little, ACCURACY, **NAMES)
    assert (found.answer, found.speaks_for) == ("cannot tell", "sites like these")
    assert found.beside is not None and found.beside.answer == "helps"


def test_one_row_more_cannot_be_told() -> None:
    for n in (1, 4, 10):
        paired = sites(n, [1] * 20, [1] * 20)
        paired["s0"] = [rows_of([1] * 20, [1] * 19 + [0])]
        found = decide(paired, ACCURACY, **NAMES)
        assert found.gain > 0 and found.p == 1.0
        assert found.answer in ("cannot tell", "no difference")


def test_no_difference_needs_rows_enough_to_exclude_one() -> None:
    few, many = (sites(4, [1] * n, [1] * n) for n in (20, 400))
    cannot = decide(few, ACCURACY, **NAMES)
    assert (cannot.answer, cannot.p, cannot.gain) == ("cannot tell", 1.0, 0)
    assert cannot.needed is not None and cannot.needed.gain == 0.01
    none = decide(many, ACCURACY, **NAMES)
    assert (none.answer, none.p) == ("no difference", 1.0)


def test_a_difference_below_the_margin_is_none_even_beyond_chance() -> None:
    ours, alone = [1] * 4000, [1] * 3980 + [0] * 20
    found = decide(sites(1, ours, alone), ACCURACY, **NAMES)
    assert found.p < 0.001 and found.answer == "no difference"
    assert decide(sites(1, ours, alone), ACCURACY, margin=0.001, **NAMES).answer == "helps"


def test_what_chance_can_do_cannot_be_told_and_says_what_would() -> None:
    found = decide(drawn(10, 40, 1, seed=3, better=0.1), ACCURACY, **NAMES)
    assert found.answer == "cannot tell" and found.needed is not None
    assert found.interval[0] <= 0 <= found.interval[1]


def test_errors_in_a_unit_have_a_margin_in_it() -> None:
    labels = np.linspace(0, 100, 200)
    rows = PairedRows(np.arange(200), labels, labels[:, None] + 1, labels[:, None] + 3)
    margin = usual_margin(labels)
    assert margin == pytest.approx(0.01 * labels.std())
    found = decide({"a": [rows]}, SQUARED_ERROR, margin=margin, **NAMES)
    assert (found.answer, round(found.gain, 6)) == ("helps", 8)


def test_a_metric_that_no_client_has_cannot_be_told() -> None:
    one = PairedRows(np.arange(3), np.ones(3, int), np.zeros((3, 2)), np.zeros((3, 2)))
    found = decide({"a": [one]}, AUC, **NAMES)
    assert (found.answer, found.clients, found.p) == ("cannot tell", 0, 1.0)
    assert "undefined" in found.reason
    assert json.loads(json.dumps(found.as_dict()))["gain"] is None


def test_a_decision_is_written_as_json_without_infinities() -> None:
    found = decide(drawn(8, 40, 1, seed=4), ACCURACY, **NAMES).as_dict()
    text = json.dumps(found, allow_nan=False)
    assert json.loads(text)["beside"]["speaks_for"] == "these sites"
    assert {"answer", "method", "metric", "gain", "interval", "p", "level", "margin"} <= set(found)
    assert {"speaks_for", "reason", "needed"} <= set(found)


def test_clients_are_corrected_for_how_many_they_are() -> None:
    lone = {"big": [rows_of([1] * 40, [1] * 32 + [0] * 8)]}  # McNemar: 2/2^8
    alone = decide_clients(lone, ACCURACY, **NAMES)["big"]
    assert (alone.answer, alone.p, alone.speaks_for) == ("helps", 2 / 2**8, "this site")
    crowd = lone | sites(9, [1] * 40, [1] * 40)
    found = decide_clients(crowd, ACCURACY, **NAMES)
    assert list(found) == list(crowd)
    assert found["big"].p == pytest.approx(10 * 2 / 2**8)
    assert found["big"].answer == "cannot tell" and "of 10 such tests" in found["big"].reason
    assert found["s0"].p == 1.0


def test_a_client_without_the_metric_is_named_with_the_reason() -> None:
    one = PairedRows(np.arange(3), np.ones(3, int), np.zeros((3, 2)), np.zeros((3, 2)))
    found = decide_clients({**drawn(1, 40, 1, seed=5), "lone": [one]}, AUC, **NAMES)
    assert found["lone"].answer == "cannot tell" and "undefined" in found["lone"].reason


def test_holm_by_hand() -> None:
    # sorted 0.01, 0.015, 0.03, 0.5: times 4, 3, 2, 1, and never below the one before
    assert holm({"d": 0.5, "a": 0.01, "c": 0.03, "b": 0.015}) == pytest.approx(
        {"d": 0.5, "a": 0.04, "c": 0.06, "b": 0.045}
    )
    assert holm({}) == {}
    assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}


def test_methods_beside_the_recommended_one_are_corrected() -> None:
    def made(p: float) -> Decision:
        return Decision(
            "helps",
            "m",
            "accuracy",
            0.1,
            (0.01, 0.2),
            p,
            0.05,
            0.01,
            "these sites",
            "why",
            None,
            clients=4,
        )

    found = holm_corrected({"a": made(0.01), "b": made(0.03), "c": made(0.04)})
    assert {k: d.answer for k, d in found.items()} == {
        "a": "helps",
        "b": "cannot tell",
        "c": "cannot tell",
    }


def test_the_recommended_method_is_picked_on_validation_values() -> None:
    assert pick_method({"a": 0.5, "b": 0.7, "c": 0.7}) == "b"
    assert pick_method({"a": 0.5, "b": 0.7}, higher_is_better=False) == "a"
    with pytest.raises(BadInput, match="validation"):
        pick_method({"a": float("nan")})


def test_settings_that_mean_nothing_are_refused() -> None:
    paired = sites(1, [1], [1])
    with pytest.raises(BadInput, match="margin is -1"):
        decide(paired, ACCURACY, margin=-1, **NAMES)
    with pytest.raises(BadInput, match="level is 5"):
        decide(paired, ACCURACY, level=5, **NAMES)


def test_a_share_cannot_gain_more_than_all_of_it() -> None:
    paired = {"a": [rows_of([1] * 6, [0] * 6)], "b": [rows_of([1, 0] * 3, [1, 0] * 3)]}
    found = decide(paired, ACCURACY, **NAMES)
    assert found.interval[1] == 1.0 and found.interval[0] >= -1.0
