"""How far runs are, what is known of those that still go on, and why some could not."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import torch

import fedtailor
from fedtailor.core.errors import BadInput, Interrupted
from fedtailor.engine import Diverged
from fedtailor.report.page import page_data, render_report
from fedtailor.results.collect import collect_so_far, run_so_far
from fedtailor.results.folder import BEGUN, FAILED
from fedtailor.results.status import failure, noted, reason_of, run_status
from tests.report import synthetic
from tests.runs.runlab import held


@pytest.fixture
def half(tmp_path: Path) -> Path:
    return synthetic.unfinish(synthetic.make_run(tmp_path / "run", "fedala", rounds=9), 4)


def lines(folder: Path) -> list[dict]:
    return [json.loads(row) for row in (folder / "history.jsonl").read_text().splitlines()]


def test_a_half_run_is_read_up_to_its_last_round(half: Path) -> None:
    found = run_so_far(half)
    assert found is not None
    history = lines(half)
    assert found.result["reached"] == 4
    assert found.result["accuracy"] == history[-1]["pre"]
    assert list(found.result["per_client"].values()) == history[-1]["pre_per_client"]
    assert found.result["bytes"]["up"] == sum(line["bytes"]["up"] for line in history)
    assert found.result["train_seconds"] == pytest.approx(2.0)


def test_a_line_that_is_half_written_is_left_out(half: Path) -> None:
    with (half / "history.jsonl").open("a") as file:
        file.write('{"round": 5, "coh')
    found = run_so_far(half)
    assert found is not None
    assert found.result["reached"] == 4
    assert run_status(half).words == "round 4 of 9, running"


def test_a_broken_line_in_the_middle_is_told(half: Path) -> None:
    with (half / "history.jsonl").open("a") as file:
        file.write("{\n")
    with pytest.raises(BadInput, match=r"history\.jsonl"):
        run_so_far(half)


def test_before_the_first_evaluated_round_there_is_nothing(half: Path) -> None:
    (half / "history.jsonl").write_text("")
    assert run_so_far(half) is None
    assert collect_so_far([half]) is None
    (half / "history.jsonl").unlink()
    assert run_so_far(half) is None
    assert run_status(half).words == "round 0 of 9, running"
    assert run_status(half.parent / "later").words == "not begun"


def test_a_run_without_news_is_doubted(half: Path) -> None:
    before = (half / "history.jsonl").stat().st_mtime - 3 * 3600
    os.utime(half / "history.jsonl", (before, before))
    assert run_status(half).words == "round 4 of 9, no news for 3 h: was it stopped?"
    with held(half):  # some rounds take hours
        assert run_status(half).words == "round 4 of 9, running"


def test_a_run_that_was_stopped_is_said_to_be_at_once(tmp_path: Path) -> None:
    folder, seen = tmp_path / "run", []

    def stop(line: dict, rounds: int) -> None:
        seen.append(run_status(folder).words)
        signal.raise_signal(signal.SIGINT)

    settings = {"model": "mlp", "clients": 3, "rounds": 2, "batch": 100, "engine": "sequential"}
    with pytest.raises(Interrupted):
        fedtailor.run("fedavg", out=folder, watch=stop, **settings)
    assert seen == ["round 1 of 2, running"]
    goes_on = f"fedtailor resume {folder} goes on with it"
    assert run_status(folder).words == f"round 1 of 2, stopped: {goes_on}"
    with held(folder):
        assert run_status(folder).words == "round 1 of 2, running"
    # that process was killed, which leaves its lock file
    assert run_status(folder).words == f"round 1 of 2, stopped: {goes_on}"


def test_a_killed_run_of_any_version_is_stopped(half: Path) -> None:
    with held(half):
        assert run_status(half).words == "round 4 of 9, running"
    assert "stopped: fedtailor resume" in run_status(half).words


def test_a_finished_run_is_finished(tmp_path: Path) -> None:
    folder = synthetic.make_run(tmp_path / "run", "fedavg")
    assert run_status(folder).words == "finished"
    found = run_so_far(folder)
    assert found is not None
    assert "reached" not in found.result


def test_half_a_seed_is_not_averaged_with_whole_ones(tmp_path: Path) -> None:
    folder = synthetic.make_comparison(tmp_path / "c", ("local", "fedavg", "fedala"), seeds=2)
    synthetic.unfinish(folder / "runs" / "fedavg-seed1", 2)
    for seed in (0, 1):
        synthetic.unfinish(folder / "runs" / f"fedala-seed{seed}", 3)
    found = collect_so_far([folder])
    assert found is not None
    assert {c.label: len(c.runs) for c in found.contenders} == {
        "local": 2,
        "fedavg": 1,
        "fedala": 1,
    }
    assert found.running == ["fedala is at round 3 of 5"]
    assert set(found.unfinished) == {"fedala-seed1", "fedavg-seed1"}


def test_the_page_says_that_numbers_will_change(half: Path) -> None:
    found = collect_so_far([half])
    assert found is not None
    page = render_report(page_data(found))
    assert "Not finished, so its numbers will change: fedala is at round 4 of 9." in page
    assert "after 4 rounds" in page


def test_a_real_run_can_be_read_after_each_round(tmp_path: Path) -> None:
    seen = []

    def look(line: dict, rounds: int) -> None:
        found = collect_so_far([tmp_path / "run"])
        assert found is not None
        data = page_data(found)
        seen.append((run_status(tmp_path / "run").words, data["methods"][0]["rounds"]))
        assert data["class_counts"] is not None
        assert sum(data["rows"]["train"]) > 0
        assert data["methods"][0]["score"]["mean"]["mean"] == line["pre"]["mean"]

    settings = {"model": "mlp", "clients": 3, "rounds": 2, "batch": 100, "engine": "sequential"}
    fedtailor.run("fedavg", out=tmp_path / "run", watch=look, **settings)
    assert seen == [("round 1 of 2, running", 1), ("round 2 of 2, running", 2)]
    assert run_status(tmp_path / "run").finished


# --- why a run could not go on ---


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
