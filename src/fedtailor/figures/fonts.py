"""Letters of every script in pictures: by fonts of this machine, or spelt out where it has none.

The font that comes with matplotlib has Latin, Greek, Cyrillic, Arabic and Hebrew letters. For
others the machine's own fonts are looked through. Nothing is ever drawn as an empty box: where no
font has a letter, its number stands in its place (`\\u6771`), and one line says so. Writing from
right to left is joined and ordered by matplotlib from 3.11 on; with an older one it is spelt out.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

log = logging.getLogger("fedtailor")

# boxes for everything, pictures in colour, and letters by other numbers than Unicode's
_UNFIT = re.compile("lastresort|emoji|color|^stix|^cm[a-z]+10$")
_FIRST = ("notosans", "sourcehansans", "hiragino", "yugothic", "microsoftyahei", "wenquanyi")
_told: set[str] = set()  # letters that were said to be missing


def make_legible(picture: Any) -> None:
    """Gives every text of a figure fonts that have its letters, or letters that its fonts have."""
    from matplotlib.text import Text

    missing: set[str] = set()
    for axes in picture.axes:
        for axis in (axes.xaxis, axes.yaxis):
            _mend_ticks(axis, missing)
    for text in picture.findobj(Text):
        said = text.get_text()
        fonts, lacking = _fonts_for(said, text.get_fontproperties())
        missing |= lacking
        if fonts:
            text.set_fontfamily(fonts)
        if lacking:
            text.set_text(_spelt(said, lacking))
    if new := missing - _told:
        _told.update(new)
        _tell(sorted(new))


def _mend_ticks(axis: Any, missing: set[str]) -> None:
    """The same for the labels of ticks, which are written anew with every drawing."""
    from matplotlib.ticker import FuncFormatter

    labels = axis.get_ticklabels()
    if not labels:
        return
    fonts, lacking = _fonts_for(
        "".join(label.get_text() for label in labels), labels[0].get_fontproperties()
    )
    missing |= lacking
    if fonts:
        axis.set_tick_params(labelfontfamily=fonts)
    if lacking:
        written = axis.get_major_formatter()
        axis.set_major_formatter(FuncFormatter(lambda v, at: _spelt(written(v, at), lacking)))


def _fonts_for(text: str, usual: Any) -> tuple[list[str], set[str]]:
    """The fonts that a text needs instead of its usual one, and letters that none has."""
    if text.isascii():
        return [], set()
    from matplotlib.font_manager import findfont

    needed = {letter for letter in text if unicodedata.category(letter)[0] not in "CZ"}
    turned = set() if _turns_writing() else {c for c in needed if _from_right(c)}
    lacking = needed - turned - _letters(findfont(usual))
    fonts = []
    for path in _other_fonts() if lacking else ():
        if not lacking & _letters(path):
            continue
        lacking -= _letters(path)
        fonts.append(_family(path))
        if not lacking:
            break
    return ([*usual.get_family(), *fonts] if fonts else []), lacking | turned


def _from_right(letter: str) -> bool:
    return unicodedata.bidirectional(letter) in ("R", "AL")


@cache
def _turns_writing() -> bool:
    """Whether matplotlib joins and orders letters of writing from right to left."""
    from matplotlib import ft2font

    return hasattr(ft2font, "__libraqm_version__")


@cache
def _letters(path: str) -> frozenset[str]:
    """All that a font has; none of one that cannot be read."""
    from matplotlib.font_manager import get_font

    try:
        return frozenset(map(chr, get_font(path).get_charmap()))
    except (OSError, RuntimeError, ValueError):
        return frozenset()


@cache
def _family(path: str) -> str:
    """A font's name; from now on matplotlib finds it by that."""
    from matplotlib.font_manager import fontManager

    fontManager.addfont(path)
    return str(fontManager.ttflist[-1].name)


@cache
def _other_fonts() -> Sequence[str]:
    """The files of fonts on this machine, those with many scripts first."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    # also those that were installed after matplotlib had made its list
    known = {entry.fname: entry for entry in fontManager.ttflist}
    found = sorted({*known, *findSystemFonts()})

    def rank(path: str) -> tuple[bool, bool, bool, str]:
        name = known[path].name.lower() if path in known else Path(path).stem.lower()
        plain = not any(word in Path(path).stem.lower() for word in ("bold", "italic", "mono"))
        first = name.replace(" ", "").startswith(_FIRST) or "cjk" in name
        return not first, not plain, "serif" in name, name

    fit = (path for path in found if not _UNFIT.search(Path(path).stem.lower()))
    return sorted(fit, key=rank)


def _spelt(text: str, lacking: set[str]) -> str:
    return "".join(_escapes(text, lacking))


def _escapes(text: str, lacking: set[str]) -> Iterator[str]:
    for letter in text:
        yield letter.encode("unicode_escape").decode() if letter in lacking else letter


def _tell(missing: Sequence[str]) -> None:
    scripts = sorted({unicodedata.name(c, "unknown").split()[0].lower() for c in missing})
    turned = [c for c in missing if _from_right(c) and not _turns_writing()]
    cure = "install fonts that have them, e.g. fonts-noto-cjk or fonts-noto-core"
    if len(turned) == len(missing):
        cure = "matplotlib 3.11 or newer writes from right to left"
    shown = ", ".join(c.encode("unicode_escape").decode() for c in missing[:3])
    log.warning(
        "pictures spell out %d letters that cannot be drawn here (%s: %s%s): %s",
        len(missing),
        ", ".join(scripts),
        shown,
        ", ..." if len(missing) > 3 else "",
        cure,
    )
