"""Pictures of landscapes and trajectories."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedtailor.core.errors import BadInput
from fedtailor.figures import draw_figure
from fedtailor.figures.landscape import told_apart
from tests.analysis.surfacelab import fake_landscape, fake_trajectory, play


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("figures")
    return [play(folder / name, name, rounds=1) for name in ("fedavg", "fedala")]


def look_at(path: Path) -> None:
    with Image.open(path) as picture:
        picture.load()
        darkest, lightest = picture.convert("L").getextrema()
        assert lightest - darkest > 100, "an empty picture"


def test_nothing_was_measured(runs: list[Path]) -> None:
    with pytest.raises(BadInput, match="fedtailor landscape DIR first"):
        draw_figure("landscape", runs, kind="png")
    with pytest.raises(BadInput, match="--keep-path"):
        draw_figure("trajectory", runs, kind="png")


@pytest.mark.slow
def test_pictures(runs: list[Path], tmp_path: Path) -> None:
    fake_landscape(runs[0], ["client-1"], general=False)
    fake_landscape(runs[1], ["client-1", "client-2"])
    fake_trajectory(runs, ["fedavg", "fed$ala"], "client-0")
    try:
        for name in ("landscape", "trajectory"):
            look_at(draw_figure(name, runs, out=tmp_path / f"{name}.png"))
            assert draw_figure(name, runs, out=tmp_path / f"{name}.svg").stat().st_size > 5000
        look_at(draw_figure("landscape", runs[1:], out=tmp_path / "pair.png"))
    finally:
        for folder in runs:
            for name in ("landscape", "trajectory"):
                (folder / f"{name}.json").unlink()


def test_ticks_of_a_flat_surface_can_be_told_apart() -> None:
    assert told_apart(np.array([1.0, 2.26, 5.0])) == ["1", "2.3", "5"]
    assert told_apart(np.array([2.301, 2.352, 2.404])) == ["2.3", "2.35", "2.4"]
