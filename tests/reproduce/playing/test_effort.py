"""What methods compute beside FedAvg."""

from __future__ import annotations

from typing import Any

import pytest

from fedtailor.reproduce.declared.declare import find_experiments, read_papers
from fedtailor.reproduce.playing import effort as efforts
from fedtailor.reproduce.playing.cells import Scale, make_cells
from fedtailor.reproduce.playing.effort import Effort, effort, effort_name, effort_of
from fedtailor.reproduce.playing.estimate import operations
from fedtailor.results.config import make_config


def counted(method: str, epochs: int = 1, **options: Any) -> Effort:
    config = make_config(method, {"epochs": epochs}, options)
    return effort_of(method, config.options, config.recipe())


def test_by_hand() -> None:
    """Two models; two gradients; F epochs before the round's, and before a test; K gradients."""
    assert counted("fedavg") == (1, 1)
    assert counted("ditto") == (2, 1)
    assert counted("fedsam") == (2, 1)
    assert counted("pfedme", R=0, K=2) == (2, 1)
    three = counted("fedavg-c", F=3)
    assert three.training == pytest.approx(4)
    # tested are 4 rows for testing and 4 for validation, each with one pass; 3 epochs of 16 rows
    # are about three passes each, a little less since nothing is needed of the inputs' gradients
    assert 1 + 3 * 16 * 2.8 / 8 < three.testing < 1 + 3 * 16 * 3 / 8


def test_a_hypernetwork_of_the_server_does_not_count() -> None:
    assert counted("pfedhn").training == 1


def test_what_is_declared_was_counted_before() -> None:
    papers = read_papers(None)
    names = {
        effort_name(config)
        for experiment in find_experiments(list(papers), papers)
        for scale in (Scale(), Scale(small=True))
        if experiment.small or not scale.small
        for cell in make_cells(experiment, scale, {})
        for config in cell.configs
    }
    assert names <= set(efforts._known()), "run python benchmarks/efforts.py"


def test_what_was_counted_before_still_holds() -> None:
    """Of a few: all of them take minutes."""
    for method, options in (
        ("ditto", {"lam": 1.0}),
        ("fedphp", {}),
        ("fedrep", {"head_epochs": 1}),
    ):
        config = make_config(method, {"epochs": 1}, options)
        shipped = efforts._known()[effort_name(config)]
        assert [round(v, 2) for v in effort_of(method, config.options, config.recipe())] == shipped


def test_a_method_that_cannot_be_counted_counts_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Effort:
        raise ZeroDivisionError

    monkeypatch.setattr(efforts, "effort_of", broken)
    seen: dict[str, list[float]] = {}
    monkeypatch.setattr(efforts, "_known", lambda: seen)
    assert effort(make_config("ditto", {}, {})) == (1, 1)


def test_estimates_go_by_it() -> None:
    """All that both have in common is training; the tests are few."""
    given = {"data": "mnist", "model": "cnn", "rounds": 50, "eval_every": 50, "clients": 10}
    plain, double = (operations(make_config(m, given, {})) for m in ("fedavg", "fedsam"))
    assert plain is not None and double is not None
    assert double / plain == pytest.approx(2, rel=0.02)
