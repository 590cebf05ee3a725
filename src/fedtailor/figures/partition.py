"""A picture of a partition: which client has how many rows of which class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.plain_text import counted
from fedtailor.figures.style import COLOURS, DOTS, empty_figure, file_of, shorten
from fedtailor.partition import Partition, count_classes

_COLOUR = COLOURS[1]  # a single blue: the area tells the count, so no colours need to be told apart
_SPECK = 1.2  # square points: even a single row stays visible
_LETTERS = 14
_MOST = 100  # clients; of more one in so many is drawn, or bubbles would be specks
_LABELS = 40  # more names along an axis than this are thinned out


def draw_partition(
    partition: Partition, labels: npt.NDArray[Any], class_names: Sequence[str], path: Path
) -> None:
    """Saves bubbles, clients across and classes up, as PNG or SVG by the suffix of `path`."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("png", "svg"):
        raise BadInput(f"picture '{path}': the suffix is '{path.suffix}', but must be .png or .svg")

    from matplotlib import rc_context

    every = -(-len(partition.names) // _MOST)
    all_counts = count_classes(partition, labels, len(class_names))
    of_clients, counts = partition.names[::every], all_counts[::every]
    clients, classes = counts.shape
    cell = _cell(max(clients, classes))
    width, height = max(clients * cell, 3.0), max(classes * cell, 1.6)
    picture = empty_figure(width, height, layout=None)
    axes = picture.add_axes((0, 0, 1, 1))  # names and key lie outside; saving makes room for them

    largest = int(counts.max(initial=1))
    area = (72 * cell * 0.94) ** 2 / largest  # square points per row; the largest fills its cell
    client, label = np.nonzero(counts)
    axes.scatter(
        client,
        label,
        s=np.maximum(counts[client, label] * area, _SPECK),
        color=_COLOUR,
        linewidths=0,
        zorder=2,
    )
    for limits, number, length in (
        (axes.set_xlim, clients, width),
        (axes.set_ylim, classes, height),
    ):
        limits((number - 1 - length / cell) / 2, (number - 1 + length / cell) / 2)
    for axis, names, turn in (
        (axes.xaxis, of_clients, 90),
        (axes.yaxis, class_names, 0),
    ):
        shown = range(0, len(names), -(-len(names) // _LABELS))
        # `parse_math`: a dollar sign in a name is a dollar sign
        axis.set_ticks(list(shown), [shorten(names[i], _LETTERS) for i in shown], parse_math=False)
        axis.set_tick_params(rotation=turn, labelsize=8, length=0)
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    told = f": {clients} of {len(partition.names)}, one in {every}" if every > 1 else ""
    axes.set_xlabel(f"client{told}")
    axes.set_ylabel("class")
    axes.set_title(
        f"{counted(len(partition.names), 'client')}, {counted(all_counts.sum(), 'row')}: "
        f"{partition.scheme}, seed {partition.seed}",
        fontsize=10,
        parse_math=False,
    )
    _add_key(axes, largest, area, step=1.1 * max(cell, 0.17) / cell)
    try:
        with rc_context({"svg.hashsalt": "fedtailor"}):  # the same input gives the same file
            how = {"bbox_inches": "tight", "pad_inches": 0.15}
            path.write_bytes(file_of(picture, kind, DOTS, **how))
    except OSError as error:
        raise BadInput(
            f"cannot write the picture '{path}' ({error.strerror}): choose a folder that exists "
            "and may be written to"
        ) from error


def _add_key(axes: Any, largest: int, area: float, *, step: float) -> None:
    """What the sizes mean, to the right of the chart, one bubble per `step` cells."""
    x, y = axes.get_xlim()[1] + step, axes.get_ylim()[1] - step / 2
    axes.text(x - step / 2, y, "rows", fontsize=9, va="center")
    for count in sorted({max(1, round(largest * share)) for share in (0.1, 0.5, 1)}):
        y -= step
        axes.scatter(x, y, s=count * area, color=_COLOUR, linewidths=0, clip_on=False)
        axes.text(x + 0.8 * step, y, str(count), fontsize=9, va="center")


def _cell(longest: int) -> float:
    """Inches per client and class: generous for a few, tight for a hundred, never a huge page."""
    return min(0.42, max(11 / longest, 0.14), 40 / longest)
