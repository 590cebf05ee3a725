"""What a person is told."""

from __future__ import annotations

import pytest

from fedtailor.core.errors import BadInput, nearest, unknown

KNOWN = ["fedavg", "fedprox", "FedALA", "ditto"]


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("fedavgg", "fedavg"),
        ("FEDAVG", "fedavg"),
        ("fedala", "FedALA"),
        ("fedalla", "FedALA"),
        ("dito", "ditto"),
        ("fed-prox", "fedprox"),
        ("zzzzzz", None),
        ("", None),
    ],
)
def test_the_nearest_name(slip: str, meant: str | None) -> None:
    assert nearest(slip, KNOWN) == meant


def test_nothing_is_near_nothing() -> None:
    assert nearest("fedavg", []) is None


def test_an_unknown_name_is_one_line_with_culprit_and_cure() -> None:
    error = unknown("method", "fedavgg", KNOWN)
    assert isinstance(error, BadInput) and isinstance(error, ValueError)
    text = str(error)
    assert "\n" not in text
    assert text == (
        "unknown method 'fedavgg': did you mean 'fedavg'? known: fedavg, fedprox, FedALA, ditto"
    )


def test_without_a_near_name_all_names_are_told() -> None:
    assert str(unknown("client", 0, ["a"])) == "unknown client '0': known: a"  # from Python
    assert str(unknown("model", "zzzz", iter(["a", "b"]))) == "unknown model 'zzzz': known: a, b"
