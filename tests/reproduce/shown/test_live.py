"""An experiment's page while its runs go on, and what it is made from."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from fedtailor.core.errors import BadInput
from fedtailor.reproduce import reproduce
from fedtailor.reproduce.playing.cells import Scale
from fedtailor.reproduce.playing.queue import RunEvent
from fedtailor.reproduce.playing.request import REQUEST, ReproductionRequest, part_of, read_request
from fedtailor.reproduce.shown.live import LiveExperiment
from fedtailor.results.folder import FAILED
from fedtailor.results.lock import lock_folder
from fedtailor.results.status import run_status
from fedtailor.watch.snapshot import PageCache

PAPERS = Path(__file__).parents[1] / "papers"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run is finished, one was stopped after its first round."""
    out = tmp_path_factory.mktemp("reproduction")
    seen = set()

    def press(news: RunEvent) -> None:
        seen.add(news.task.key)
        if news.kind == "round" and len(seen) == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        reproduce("tiny/fig1", papers=PAPERS, out=out, device="cpu", tell=press)
    return out / "tiny" / "fig1"


def test_how_far_runs_are(stopped: Path) -> None:
    done, half = LiveExperiment(stopped).standings()
    assert done.finished and not half.finished
    assert (half.round, half.rounds) == (1, 2)
    assert half.name == "FedAvg again, iid, seed 1"  # for people, not a folder's


def test_a_page_shows_how_far_its_cells_are(stopped: Path) -> None:
    page = LiveExperiment(stopped).page()
    assert "round 1 of 2, stopped: fedtailor reproduce goes on with it" in page
    assert "the same command goes on" not in page  # it does go on
    assert "(1 of 2 seeds)" in page and "are means over some of the seeds only" in page
    assert "table.csv" not in page  # it is still to be written


def test_a_run_that_is_taken_up_again_is_running(stopped: Path) -> None:
    snapshots = PageCache(stopped)
    snapshots.state()
    half = next(
        place for place in LiveExperiment(stopped).places() if not run_status(place).finished
    )
    with lock_folder(half):
        snapshots._rest_until = 0.0  # as if the time that it rests were over
        assert snapshots.state()["page"] == 2
        assert "round 1 of 2, running" in (snapshots.page() or "")


def test_a_browser_is_told(stopped: Path) -> None:
    snapshots = PageCache(stopped)
    state = snapshots.state()
    assert state["words"].startswith("1 of 2 runs finished; ")
    assert not state["finished"]
    assert state["page"] == 1
    assert snapshots.page() == LiveExperiment(stopped).page()


def test_a_run_that_fails_is_said_to_have_failed(stopped: Path) -> None:
    snapshots = PageCache(stopped)
    snapshots.state()
    assert "round 1 of 2, stopped" in (snapshots.page() or "")
    half = next(
        place for place in LiveExperiment(stopped).places() if not run_status(place).finished
    )
    note = half / FAILED
    note.write_text('{"reason": "diverged in round 2", "kind": "Diverged"}')
    try:
        snapshots._rest_until = 0.0  # as if the time that it rests were over
        assert snapshots.state()["page"] == 2
        assert "round 1 of 2, stopped" not in (snapshots.page() or "")
        assert "diverged in round 2" in (snapshots.page() or "")
    finally:
        note.unlink()


def test_cells_that_wait_say_so(stopped: Path, tmp_path: Path) -> None:
    """Of the same experiment, but no run has begun in this place."""
    folder = tmp_path / "tiny" / "fig1"
    folder.mkdir(parents=True)
    (folder / REQUEST).write_text((stopped / REQUEST).read_text())
    live = LiveExperiment(folder)
    assert [one.words for one in live.standings()] == ["not begun"] * 2
    assert ">waiting<" in live.page()


def test_what_was_asked_for_is_kept(tmp_path: Path) -> None:
    asked = ReproductionRequest(
        Scale(rounds=1, seeds=1), ["*"], {"device": "cpu"}, PAPERS, "the command"
    )
    plan = asked.plan(["tiny/fig1"], tmp_path)
    asked.keep(plan)
    folder = plan.folder(plan.parts[0])
    assert read_request(folder) == ReproductionRequest(
        Scale(rounds=1, seeds=1), ["*"], {"device": "cpu"}, PAPERS.resolve(), "the command"
    )
    part, command = part_of(folder)
    assert command == "the command"
    found = [task.folder.resolve() for _, tasks in part.cells for task in tasks]
    assert found == [t.folder.resolve() for _, tasks in plan.parts[0].cells for t in tasks]


def test_what_was_asked_for_may_name_rows_of_several_experiments(tmp_path: Path) -> None:
    asked = ReproductionRequest(
        Scale(), ["Ditto,Local", "iid,3 clients"], {"device": "cpu"}, PAPERS, ""
    )
    plan = asked.plan(["tiny/table1", "tiny/fig2"], tmp_path)
    asked.keep(plan)
    assert len(plan.parts) == 2
    for part in plan.parts:
        found, _ = part_of(plan.folder(part))
        assert [cell for cell, _ in found.cells] == [cell for cell, _ in part.cells]
        assert len(LiveExperiment(plan.folder(part)).standings()) == len(part.cells[0][1])


@pytest.mark.parametrize(
    "broken",
    [
        "no JSON",
        "[]",
        "{}",
        '{"scale": 3}',
        '{"scale": {}, "only": 1, "given": {}, "papers": null}',
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, broken: str) -> None:
    (tmp_path / REQUEST).write_text(broken)
    with pytest.raises(BadInput, match=r"asked\.json' is broken .*: reproduce it anew"):
        LiveExperiment(tmp_path)


def test_an_experiment_that_is_not_there_any_more(stopped: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tiny" / "table99"
    folder.mkdir(parents=True)
    (folder / REQUEST).write_text((stopped / REQUEST).read_text())
    with pytest.raises(BadInput, match="table99"):
        LiveExperiment(folder)


def test_settings_of_strangers_are_refused(stopped: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tiny" / "fig1"
    folder.mkdir(parents=True)
    kept = json.loads((stopped / REQUEST).read_text()) | {"given": {"nonsense": 1}}
    (folder / REQUEST).write_text(json.dumps(kept))
    with pytest.raises(BadInput, match="nonsense"):
        LiveExperiment(folder)
