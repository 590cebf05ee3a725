"""Pictures that papers have, from small runs: what they show is what the runs kept."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtailor.analysis import landscape
from fedtailor.reproduce import reproduce
from fedtailor.reproduce.playing.cells import Scale
from fedtailor.reproduce.playing.plan import plan_runs
from fedtailor.reproduce.playing.play import DataCache, play
from fedtailor.reproduce.shown import landscapes, pictures
from fedtailor.reproduce.shown.outcome import ExperimentRuns, outcome
from fedtailor.results.folder import read_history

PAPERS = Path(__file__).parents[1] / "papers"
NAMES = ("sent", "clients", "newcomers", "surface")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, Any]]]:
    out = tmp_path_factory.mktemp("pictures")
    keys = [f"tiny/{name}" for name in NAMES]
    with pytest.MonkeyPatch.context() as patch:
        coarse = partial(landscape.write_landscapes, points=5)
        patch.setattr(landscape, "write_landscapes", coarse)
        # other kinds take long, and are tested elsewhere
        patch.setattr(landscapes, "KINDS", ("png",))
        return out, reproduce(*keys, papers=PAPERS, out=out, device="cpu")


@pytest.fixture
def seen(drawn: Any, experiments: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Draws an experiment and returns its panels."""
    kept: list[Any] = []
    monkeypatch.setattr(
        pictures, "save_figure", lambda picture, folder, name: kept.append(picture) or name
    )

    def draw(name: str, function: Any) -> tuple[ExperimentRuns, list[Any]]:
        (part,) = plan_runs([experiments[name]], Scale(), drawn[0]).parts
        function(part, drawn[0])
        return part, list(kept[0].axes)

    return draw


def test_all_kinds_are_drawn(drawn: Any) -> None:
    out, found = drawn
    for name, picture in zip(NAMES, ("bytes", "spread", "join", "landscape-0"), strict=True):
        outcome = found[f"tiny/{name}"]
        assert (outcome["pictures"], outcome["undrawn"]) == ([f"{picture}.png"], "")
        assert (out / "tiny" / name / f"{picture}.png").stat().st_size > 2000


def test_bytes_are_those_of_all_seeds(seen: Any) -> None:
    part, (panel,) = seen("sent", pictures.sent_picture)
    runs = [read_history(task.folder) for task in part.cells[0][1]]
    sent = np.mean([[line["sent"] for line in run] for run in runs], axis=0) / 1e6
    assert panel.lines[0].get_xdata() == pytest.approx(sent)


def test_every_client_is_a_dot(seen: Any) -> None:
    _, (panel,) = seen("clients", pictures.spread_picture)
    (dots,) = panel.collections
    assert len(dots.get_offsets()) == 4


def test_where_nobody_comes_later_all_are_there(seen: Any) -> None:
    part, (nobody, one) = seen("newcomers", pictures.join_picture)
    histories = [read_history(tasks[0].folder) for _, tasks in part.cells]
    alone = [100 * line["pre"]["mean"] for line in histories[0]]
    present = [100 * line["pre_present"]["mean"] for line in histories[1]]
    assert nobody.lines[0].get_ydata() == pytest.approx(alone)
    assert len(nobody.lines) == 1
    assert one.lines[0].get_ydata() == pytest.approx(present)
    (arrival,) = (line["round"] for line in histories[1] if "joined" in line)
    assert list(one.lines[1].get_xdata()) == [arrival, arrival]


def test_somebody_who_comes_in_a_round_without_a_test_is_marked(
    experiments: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(
        pictures, "save_figure", lambda picture, folder, name: kept.append(picture) or ""
    )
    seldom = replace(experiments["newcomers"], settings={"eval_every": 3})
    (part,) = plan_runs([seldom], Scale(), tmp_path, only=["one"]).parts
    ((_, (task,)),) = part.cells
    play(task, DataCache())
    pictures.join_picture(part, tmp_path)
    (panel,) = kept[0].axes
    assert [list(line.get_xdata()) for line in panel.lines] == [[3], [2, 2]]


def test_error_bars_are_as_wide_as_the_table_says(
    experiments: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(
        pictures, "save_figure", lambda picture, folder, name: kept.append(picture) or ""
    )
    (part,) = plan_runs([experiments["fig2"]], Scale(seeds=3), tmp_path).parts
    for _, tasks in part.cells:
        for task, accuracy in zip(tasks, (0.4, 0.5, 0.9), strict=True):
            task.folder.mkdir(parents=True)
            found = {"accuracy": {"mean": accuracy}, "device": "cpu", "version": "0"}
            found |= {"seconds": 1, "rounds": 2}
            (task.folder / "result.json").write_text(json.dumps(found))
            (task.folder / "history.jsonl").touch()
    pictures.sweep_picture(part, tmp_path)
    (axes,) = kept[0].axes
    (bars,) = axes.containers
    stds = [cell["std"] for cell in outcome(part, {}, "")["cells"]]
    drawn = [(high - low) / 2 for (_, low), (_, high) in bars.lines[2][0].get_segments()]
    assert drawn == pytest.approx(stds)


@pytest.mark.parametrize(
    "draw", [pictures.sent_picture, pictures.join_picture, pictures.spread_picture]
)
def test_what_stands_above_a_narrow_picture_leaves_the_legend_alone(
    drawn: Any, experiments: Any, monkeypatch: pytest.MonkeyPatch, draw: Any
) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(
        pictures, "save_figure", lambda picture, folder, name: kept.append(picture) or ""
    )
    (part,) = plan_runs([experiments["sent"]], Scale(), drawn[0]).parts
    part.mark = "small scale, 3 rounds instead of 20 or 100, 1 of 3 seeds"
    draw(part, drawn[0])
    (picture,) = kept
    picture.draw_without_rendering()
    above = picture._suptitle.get_window_extent()
    assert picture.bbox.x0 <= above.x0
    assert above.x1 <= picture.bbox.x1
    for legend in picture.legends:
        assert not above.overlaps(legend.get_window_extent())


def test_surfaces_say_what_is_not_as_in_the_paper(
    drawn: Any, experiments: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(landscapes, "draw_figure", lambda *a, title, **k: said.append(title))
    (part,) = plan_runs([experiments["surface"]], Scale(), drawn[0]).parts
    part.mark = "2 rounds instead of 500"
    assert landscapes.draw_landscapes(part, drawn[0]) == ["landscape-0.png"]
    assert set(said) == {"tiny/surface: iid [2 rounds instead of 500]"}


def test_surfaces_are_measured_once_where_the_run_was_played(
    drawn: Any, experiments: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        landscape, "write_landscapes", lambda places, **k: asked.append((places, k))
    )
    given = {"device": "cpu"}
    (part,) = plan_runs([experiments["surface"]], Scale(), drawn[0], given=given).parts
    ((_, (task,)),) = part.cells

    def tell(what: str, done: int, every: int) -> None:
        pass

    landscapes.measure_landscapes(part, tell)
    assert asked == []  # it was measured when it was drawn
    (task.folder / "landscape.json").unlink()
    landscapes.measure_landscapes(part, tell)
    assert asked == [([task.folder], {"device": "cpu", "tell": tell})]
