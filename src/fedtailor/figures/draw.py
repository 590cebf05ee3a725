"""Draws one of the known figures into a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedtailor.core.errors import BadInput, unknown
from fedtailor.core.inputs.files import write_atomically
from fedtailor.figures.options import FigureOptions
from fedtailor.figures.registry import figure_named
from fedtailor.figures.style import PAPER, file_of
from fedtailor.results.collect import CollectedRuns, collect_so_far
from fedtailor.results.numbers import yardstick

KINDS = ("pdf", "svg", "png")
DOTS = 300  # per inch, of a PNG
LEAST, MOST = 1.0, 40.0  # inches


def _chosen(collection: CollectedRuns, methods: tuple[str, ...], *, against: bool) -> CollectedRuns:
    """Only the methods that somebody wants, in the order of the folders.

    Training alone stays if the others are measured against it.
    """
    labels = [contender.label for contender in collection.contenders]
    for label in methods:
        if label not in labels:
            raise unknown("method of these runs", label, labels)
    alone = yardstick(collection) if against else None
    kept = [
        contender
        for number, contender in enumerate(collection.contenders)
        if not methods or contender.label in methods or number == alone
    ]
    return replace(collection, contenders=kept)


def draw(
    name: str, collection: CollectedRuns, options: FigureOptions = FigureOptions(), title: str = ""
) -> Any:
    """A figure, as matplotlib has it.

    Args:
      name: one of `FIGURES`, or accuracy for score.
      collection: from `fedtailor.results.collect.collect_so_far`.
      options: what is to be other than usual.
      title: above the figure; a caption below it usually says the same.

    Raises:
      BadInput: the runs do not hold what the figure needs.
    """
    kind = figure_named(name)
    if options.width and not LEAST <= options.width <= MOST:
        raise BadInput(f"width is {options.width:g}: give inches from {LEAST:g} to {MOST:g}")
    options = replace(options, width=options.width or kind.width)
    chosen = _chosen(collection, options.methods, against=kind.against)
    picture = kind.draw(chosen, options)
    if title and picture.legends:  # the legend has the top: a title there would lie upon it
        picture.axes[0].set_title(title, fontsize=9)
    elif title:
        picture.suptitle(title, fontsize=9)
    return picture


def _target(name: str, first: Path, kind: str | None, out: Path | None) -> tuple[Path, str]:
    """Where the file goes, and which kind it is."""
    suffix = out.suffix.lower().removeprefix(".") if out else ""
    kind = kind or (suffix if suffix in KINDS else None) or KINDS[0]
    if kind not in KINDS:
        raise unknown("format", kind, KINDS)
    if out is None:
        return first / "figures" / f"{name}.{kind}", kind
    if out.is_dir():
        raise BadInput(f"'{out}' is a folder: name a file with --out")
    if suffix and suffix not in KINDS:
        raise BadInput(
            f"'{out}' ends with .{suffix}: name a file that ends with .pdf, .svg or .png"
        )
    if suffix and suffix != kind:
        raise BadInput(f"'{out}' ends with .{suffix}, but --format is {kind}: say one of them")
    return out, kind


def draw_figure(
    name: str,
    folders: Sequence[str | Path],
    *,
    out: str | Path | None = None,
    kind: str | None = None,
    options: FigureOptions = FigureOptions(),
    title: str = "",
) -> Path:
    """Draws a figure of some runs, finished or not, and returns where it lies.

    Args:
      name: one of `FIGURES`, or accuracy for score.
      folders: of runs or comparisons; several go into one figure, if their clients are the same.
      out: the file; by default `figures/NAME.pdf` in the first folder.
      kind: pdf, svg or png; by default as the file's name ends.
      options: width, rounds and methods.
      title: above the figure.

    Raises:
      BadInput: the folders do not hold what the figure needs, or the file cannot be written.
    """
    from matplotlib import rc_context

    places = [Path(folder) for folder in folders]
    figure_named(name)
    if not places:
        raise BadInput("no folders: name at least one run or comparison")
    path, kind = _target(name, places[0], kind, None if out is None else Path(out))
    collection = collect_so_far(places)
    if collection is None:
        raise BadInput(f"'{places[0]}' has no evaluated round yet: wait for one")
    with rc_context(PAPER):
        made = file_of(draw(name, collection, options, title), kind, DOTS)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, made)
    except OSError as error:
        raise BadInput(
            f"'{path}' cannot be written ({error.strerror}): choose another --out"
        ) from None
    return path
