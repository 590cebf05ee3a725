"""Names in any script: drawn with a font that has them, spelt out where there is none."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen

from fedtailor.figures import fonts
from fedtailor.figures.style import empty_figure, file_of

CITY = "東京"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """What was found and said before is forgotten, before and after."""
    for known in (fonts._other_fonts, fonts._letters, fonts._family, fonts._turns_writing):
        known.cache_clear()
    fonts._told.clear()
    yield
    for known in (fonts._other_fonts, fonts._letters, fonts._family, fonts._turns_writing):
        known.cache_clear()


def make_font(path: Path, letters: str) -> str:
    """A font in which every letter is a square."""
    pen = TTGlyphPen(None)
    pen.moveTo((100, 0))
    for corner in ((100, 700), (800, 700), (800, 0)):
        pen.lineTo(corner)
    pen.closePath()
    square = pen.glyph()
    names = [".notdef", *(f"u{ord(c):04X}" for c in letters)]
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap({ord(c): f"u{ord(c):04X}" for c in letters})
    builder.setupGlyf(dict.fromkeys(names, square))
    builder.setupHorizontalMetrics(dict.fromkeys(names, (900, 100)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "Squares", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)
    return str(path)


def only(monkeypatch: pytest.MonkeyPatch, *paths: str) -> None:
    """The machine has these fonts beside matplotlib's own."""
    from matplotlib import font_manager

    own = [e for e in font_manager.fontManager.ttflist if "mpl-data" in e.fname]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", own)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda *_, **__: list(paths))


def picture(name: str) -> Any:
    made = empty_figure(3, 2)
    axes = made.add_subplot()
    axes.plot([1, 2], label=name)
    axes.set_xticks([0, 1], [name, "b"])
    axes.set_title(name)
    axes.legend()
    return made


def texts(made: Any) -> set[str]:
    from matplotlib.text import Text

    return {text.get_text() for text in made.findobj(Text)}


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_a_font_of_the_machine_draws_what_matplotlibs_own_cannot(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    only(monkeypatch, make_font(tmp_path / "squares.ttf", CITY))
    made = picture(CITY)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns of every empty box
        file_of(made, kind, 100)
    assert CITY in texts(made) and not caplog.records
    ticks = made.axes[0].xaxis.get_ticklabels()
    assert ticks[0].get_text() == CITY and "Squares" in ticks[0].get_fontfamily()


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_without_a_font_letters_are_spelt_out_and_one_line_says_so(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    only(monkeypatch)
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        for _ in range(2):
            made = picture(f"a {CITY}")
            file_of(made, kind, 100)
    assert "a \\u6771\\u4eac" in texts(made)
    assert made.axes[0].xaxis.get_ticklabels()[0].get_text() == "a \\u6771\\u4eac"
    assert not any(CITY[0] in text for text in texts(made))
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("pictures spell out 2 letters that cannot be drawn here (cjk: \\u4eac, ")
    assert "fonts-noto-cjk" in line


def test_writing_from_right_to_left_is_drawn_or_spelt_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name = "مستشفى שלום"
    if fonts._turns_writing():
        made = picture(name)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            file_of(made, "png", 100)
        assert name in texts(made) and not caplog.records
    monkeypatch.setattr(fonts, "_turns_writing", lambda: False)  # an older matplotlib
    made = picture("بت")
    with caplog.at_level(logging.WARNING):
        file_of(made, "png", 100)
    assert "\\u0628\\u062a" in texts(made)
    assert "matplotlib 3.11 or newer writes from right to left" in caplog.text


def test_fonts_of_boxes_and_colours_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "/fonts/NotoColorEmoji.ttf", "/fonts/NotoSansCJK-Regular.ttc", "/f/Aaa.ttf")
    found = fonts._other_fonts()
    assert found[0] == "/fonts/NotoSansCJK-Regular.ttc" and "/f/Aaa.ttf" in found
    assert not any("Emoji" in path or "LastResort" in path for path in found)
