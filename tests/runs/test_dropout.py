"""Clients that were drawn for a round and do not answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedtailor
from fedtailor.core.errors import BadInput

SMALL: dict[str, Any] = {"model": "linear", "clients": 6, "rounds": 6, "dropout": 0.4, "batch": 50}


def test_a_round_goes_on_with_those_who_answer() -> None:
    run = fedtailor.run("ditto", **SMALL)
    for line in run.history:
        assert sorted(line["cohort"] + line["dropped"]) == list(range(6))
    assert len({len(line["cohort"]) for line in run.history}) > 1
    usual = fedtailor.run("ditto", **SMALL | {"dropout": 0.0})
    assert all("dropped" not in line and len(line["cohort"]) == 6 for line in usual.history)
    assert run["bytes"]["up"] < usual["bytes"]["up"]


def test_a_resumed_run_ends_as_the_whole_one(tmp_path: Path) -> None:
    whole = fedtailor.run("fedavg", **SMALL)

    def kill(line: dict[str, Any], rounds: int) -> None:
        if line["round"] == 3:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        fedtailor.run("fedavg", **SMALL, out=tmp_path / "r", checkpoint_every=1, watch=kill)
    again = fedtailor.resume(tmp_path / "r")
    assert again["score"] == whole["score"]
    assert [line["dropped"] for line in again.history] == [
        line["dropped"] for line in whole.history
    ]


def test_a_chance_of_one_is_refused() -> None:
    with pytest.raises(BadInput, match="dropout is 1: nobody would answer"):
        fedtailor.run("fedavg", **SMALL | {"dropout": 1.0})
