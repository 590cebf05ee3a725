"""Figures of test rows and of gains with intervals: they hold the numbers, and fit their task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import rc_context
from PIL import Image

from fedtailor.core.errors import BadInput
from fedtailor.figures import FIGURES, FigureOptions, draw, draw_figure
from fedtailor.figures.style import PAPER
from fedtailor.results.collect import CollectedRuns, collect
from fedtailor.results.numbers import decisions
from tests.report import synthetic

OFF = {"local": 2.0, "fedavg": 0.5, "ditto": 2.0}
NAMES = {
    "classification": ("score", "forest", "spread", "gain", "roc", "calibration"),
    "regression": ("score", "forest", "spread", "gain", "communication", "residuals"),
    "survival": ("score", "forest", "spread", "gain", "survival"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = tmp_path_factory.mktemp("tested")
    return {task: synthetic.make_tested(made / task, task, OFF, clients=5) for task in NAMES}


@pytest.fixture(scope="module")
def collections(folders: dict[str, Path]) -> dict[str, CollectedRuns]:
    return {task: collect([folder]) for task, folder in folders.items()}


@pytest.mark.parametrize(("task", "name"), [(t, n) for t, names in NAMES.items() for n in names])
def test_every_figure_of_a_task_fits_its_column(
    task: str, name: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    path = draw_figure(name, [folders[task]], out=tmp_path / "it.png")
    with Image.open(path) as picture:
        assert picture.width == pytest.approx(300 * FIGURES[name].width, abs=2)
        darkest, lightest = picture.convert("L").getextrema()
        assert lightest - darkest > 100, "an empty picture"


@pytest.mark.parametrize(
    ("name", "task", "instead"),
    [
        ("roc", "regression", "residuals"),
        ("calibration", "survival", "survival"),
        ("residuals", "classification", "roc or calibration"),
        ("survival", "regression", "residuals"),
    ],
)
def test_another_tasks_figure_is_refused(
    name: str, task: str, instead: str, collections: Any
) -> None:
    with pytest.raises(BadInput, match=f"but these runs learnt {task}: try {instead}") as error:
        draw(name, collections[task])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["roc", "calibration", "forest"])
def test_older_runs_kept_no_outputs(name: str, tmp_path: Path) -> None:
    folder = synthetic.make_comparison(tmp_path / "c", ("local", "fedavg"))
    with pytest.raises(BadInput, match="outputs on test rows"):
        draw(name, collect([folder]))


def test_numbers_have_no_classes_to_draw(collections: Any) -> None:
    with pytest.raises(BadInput, match="regression has no classes"):
        draw("partition", collections["regression"])


def test_axes_are_named_after_the_metric(collections: Any) -> None:
    assert draw("score", collections["regression"]).axes[0].get_ylabel() == "mean test RMSE"
    assert draw("score", collections["survival"]).axes[0].get_ylabel() == "mean test concordance"
    accurate = draw("spread", collections["classification"])
    assert accurate.axes[-1].get_xlabel() == "client ROC AUC"


def test_less_error_is_a_gain(collections: Any) -> None:
    """fedavg errs far less than training alone: its bars go up although its values are lower."""
    picture = draw("gain", collections["regression"], FigureOptions(methods=("fedavg",)))
    assert all(bar.get_height() > 0 for bar in picture.axes[0].patches)


def test_the_forest_shows_the_decisions(collections: Any) -> None:
    chosen = FigureOptions(methods=("fedavg",))
    axes = draw("forest", collections["regression"], chosen).axes[0]
    found = decisions(collections["regression"])
    assert found.decision is not None and found.decision["method"] == "fedavg"
    names = [label.get_text() for label in axes.get_yticklabels()]
    by_gain = sorted(found.clients, key=lambda name: -found.clients[name]["gain"])
    assert names == ["mean of 5", *by_gain]
    # after the line at 0: an interval and its mark for the mean and for each client
    drawn = axes.lines[1:]
    for number, d in enumerate([found.decision, *(found.clients[name] for name in by_gain)]):
        interval, mark = drawn[2 * number], drawn[2 * number + 1]
        assert np.allclose(interval.get_xdata(), d["interval"])
        assert np.allclose(mark.get_xdata(), d["gain"])


def test_an_interval_that_nothing_bounds_runs_out_of_the_picture() -> None:
    from fedtailor.figures.forest import _draw_one
    from fedtailor.figures.style import empty_figure

    axes = empty_figure(3, 2).add_subplot()
    axes.set_xlim(-5, 7)
    found = {"gain": 0.01, "interval": [None, 0.02], "answer": "cannot tell"}
    _draw_one(axes, 0, found, 100, line=1, size=3)
    assert axes.lines[0].get_xdata().tolist() == [-5, 2]


def test_accuracy_is_another_name_of_score(folders: dict[str, Path], tmp_path: Path) -> None:
    made = [
        draw_figure(name, [folders["survival"]], out=tmp_path / f"{name}.svg").read_bytes()
        for name in ("score", "accuracy")
    ]
    assert made[0] == made[1]


def test_runs_of_two_metrics_do_not_go_together(tmp_path: Path) -> None:
    folder = synthetic.make_tested(tmp_path / "c", "regression", {"local": 2.0, "fedavg": 0.5})
    path = folder / "runs" / "fedavg-seed0" / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"metric": "mae"}))
    with pytest.raises(BadInput, match=r"is judged by mae, but .* by rmse"):
        draw("score", collect([folder]))


def test_every_client_of_many_is_in_the_forest_and_its_words_fit(tmp_path: Path) -> None:
    many = synthetic.make_tested(tmp_path / "c", "regression", OFF, clients=420)
    with rc_context(PAPER):
        picture = draw("forest", collect([many]))
        picture.draw_without_rendering()
    (axes,) = picture.axes
    assert sum(len(line.get_xdata()) for line in axes.lines if line.get_markersize() == 2) == 420
    assert axes.get_ylabel() == "420 clients, best first"
    words = axes.xaxis.label.get_window_extent()
    assert picture.bbox.x0 <= words.x0 and words.x1 <= picture.bbox.x1
    assert picture.get_figheight() < 7
