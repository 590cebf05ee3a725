"""Notes of what ended a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fedtailor.core.errors import BadInput, Interrupted
from fedtailor.engine import Diverged
from fedtailor.results.folder import BEGUN, FAILED
from fedtailor.results.status import failure, noted, reason_of, run_status


def test_reasons_are_one_line() -> None:
    assert reason_of(BadInput("lr is -1:\n lower it")) == "lr is -1: lower it"
    assert reason_of(ValueError("some\nthing")) == "ValueError: some thing"
    assert reason_of(torch.OutOfMemoryError("40 GiB")).startswith("out of memory: use fewer --jobs")


def test_a_failure_is_kept_until_the_run_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / BEGUN).write_text('{"rounds": 5}')
    with pytest.raises(Diverged), noted(tmp_path):
        raise Diverged(["client-3"], 1)
    found = failure(tmp_path)
    assert found["kind"] == "Diverged"
    assert found["reason"].startswith("client-3 diverged (NaN or infinity) in round 1")
    assert run_status(tmp_path).words.startswith("failed in round 1 of 5: client-3 diverged")
    with noted(tmp_path):
        assert failure(tmp_path) == {}
    assert run_status(tmp_path).failed == ""


def test_an_interrupted_run_has_not_failed(tmp_path: Path) -> None:
    with pytest.raises(Interrupted), noted(tmp_path):
        raise Interrupted(tmp_path, 1)
    assert not (tmp_path / FAILED).exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"reason": 3}', "\x00"])
def test_a_broken_note_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / FAILED).write_text(text)
    assert failure(tmp_path) == {}


def test_a_finished_run_has_not_failed(tmp_path: Path) -> None:
    (tmp_path / FAILED).write_text(json.dumps({"reason": "old"}))
    assert failure(tmp_path) == {"reason": "old"}
    (tmp_path / "result.json").write_text("{}")
    assert failure(tmp_path) == {}
