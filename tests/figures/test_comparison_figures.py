"""Pictures: both kinds are there, can be opened, and show what the summary says."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image

from fedtailor.figures import comparison_figures, look
from fedtailor.figures.comparison import _clients, _curves

NAMES = ("score", "gain_per_client", "clients")


def summary(methods: int = 3, clients: int = 5, seeds: int = 1) -> dict[str, Any]:
    names = ["local", *(f"method-{i}" for i in range(1, methods))]
    table = {}
    for number, method in enumerate(names):
        each = {f"c{i}": 0.5 + 0.04 * ((i * 7 + number) % 5) for i in range(clients)}
        curve = [{"round": r, "mean": 0.1 * r, "low": 0.09 * r, "high": 0.11 * r} for r in (1, 2)]
        gain = {name: (-1) ** i * 0.01 * number for i, name in enumerate(each)}
        table[method] = {
            "per_client": each, "curve": curve, "gain": gain, "better_off": 3, "worse_off": 2,
        }  # fmt: skip
    settings = {"data": "digits", "clients": clients, "partition": "iid", "model": "mlp"}
    return {"metric": "accuracy", "seeds": list(range(seeds)), "settings": settings, "table": table}


@pytest.mark.parametrize("made", [summary(), summary(2, 1), summary(11, 40, seeds=2)])
def test_pictures_can_be_opened(made: dict[str, Any], tmp_path: Path) -> None:
    comparison_figures(made, tmp_path)
    for name in NAMES:
        with Image.open(tmp_path / f"{name}.png") as picture:
            picture.load()
            assert min(picture.size) > 100
            lightest, darkest = picture.convert("L").getextrema()[::-1]
            assert lightest - darkest > 100, "an empty picture"
        root = ElementTree.parse(tmp_path / f"{name}.svg").getroot()
        assert root.tag.endswith("svg")


def test_sixty_methods_are_all_named() -> None:
    picture = _curves(summary(60))
    picture.draw_without_rendering()
    named = picture.legends[0].get_window_extent()
    assert picture.bbox.y0 <= named.y0
    assert picture.bbox.x0 <= named.x0
    assert picture.axes[0].get_window_extent().width > 4 * picture.dpi


def test_rounds_are_whole_numbers_and_one_alone_is_a_dot() -> None:
    picture = _curves(summary())
    assert all(tick == int(tick) for tick in picture.axes[0].get_xticks())
    once = summary()
    for row in once["table"].values():
        del row["curve"][1:]
    axes = _curves(once).axes[0]
    assert {line.get_marker() for line in axes.lines} == {"o"}
    assert all(tick == int(tick) for tick in axes.get_xticks())


def test_only_local_has_no_gains(tmp_path: Path) -> None:
    comparison_figures(summary(1), tmp_path)
    assert not (tmp_path / "gain_per_client.png").exists()
    assert (tmp_path / "score.png").stat().st_size > 1000


def test_methodslook_different() -> None:
    looks = {str(look(number)) for number in range(30)}
    assert len(looks) == 30


def test_names_with_dollars_are_no_formulae(tmp_path: Path) -> None:
    """A path like `$HOME/data$` must not be typeset as mathematics."""
    made = summary()
    made["settings"]["data"] = r"a$\frac$b"
    comparison_figures(made, tmp_path)


def test_sixty_methods_stand_in_rows_that_a_screen_shows() -> None:
    picture = _clients(summary(60))
    named = [text.get_text() for axes in picture.axes for text in axes.get_xticklabels()]
    assert named == list(summary(60)["table"])
    width, height = picture.get_size_inches()
    assert width < 16 and height < 20
    assert len(_clients(summary(11)).axes) == 1
