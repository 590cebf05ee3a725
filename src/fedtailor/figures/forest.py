"""Gains over training alone with their intervals: the mean on top, then every client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.plain_text import counted
from fedtailor.figures.options import FigureOptions
from fedtailor.figures.style import COLOURS, empty_figure, shorten
from fedtailor.results import numbers
from fedtailor.results.collect import CollectedRuns
from fedtailor.results.metrics.named import Metric
from fedtailor.results.verdict import wording_of

# colour, marker, and whether it is filled: told apart in grey too
LOOKS: dict[str, tuple[str, str, bool]] = {
    "helps": (COLOURS[1], "o", True),
    "harms": (COLOURS[2], "s", True),
    "no difference": (COLOURS[0], "d", False),
    "cannot tell": (COLOURS[7], "o", False),
}
NAMED = 60  # clients; more are drawn as dots with a band
MANY = 4.5  # inches that these have, however many
LETTERS = 16


def sorted_clients(clients: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The clients that have a gain, the largest first."""
    known = [(name, d) for name, d in clients.items() if d["gain"] is not None]
    return sorted(known, key=lambda pair: -float(pair[1]["gain"]))


def _edges(shown: list[dict[str, Any]], times: float, margin: float) -> tuple[float, float]:
    """Between which values everything finite lies, with some room."""
    ends = [end for d in shown for end in (d["gain"], *d["interval"]) if end is not None]
    low, high = min(0, *ends, -margin) * times, max(0, *ends, margin) * times
    room = 0.04 * (high - low)
    return low - room, high + room


def _draw_one(axes: Any, at: float, d: Mapping[str, Any], times: float, **look: Any) -> None:
    """An interval with its gain; an end that nothing bounds runs out of the picture."""
    colour, marker, filled = LOOKS[d["answer"]]
    low, high = (
        side if end is None else times * end
        for end, side in zip(d["interval"], axes.get_xlim(), strict=True)
    )
    axes.plot([low, high], [at, at], color=colour, lw=look["line"], solid_capstyle="butt", zorder=2)
    axes.plot(
        [times * d["gain"]],
        [at],
        linestyle="none",
        marker=look.get("marker", marker),
        markersize=look["size"],
        color=colour,
        markerfacecolor=colour if filled else "white",
        markeredgewidth=0.8,
        zorder=3,
    )


def forest_figure(collection: CollectedRuns, options: FigureOptions) -> Any:
    """Gains with intervals of the method that is recommended, or of the one that is asked for."""
    found = numbers.decisions(collection)
    decision = found.decision
    if decision is None:
        raise BadInput(f"there are no gains to show. {found.sentences[0]}")
    clients = sorted_clients(found.clients)
    if decision["gain"] is None or not clients:
        raise BadInput(f"there are no gains to show: {decision['reason']}")
    metric = numbers.metric_of(collection)
    times, margin = metric.times, float(decision["margin"])
    named, shown = len(clients) <= NAMED, [d for _, d in clients]
    rise = 0.155 if named else MANY / len(shown)
    picture = empty_figure(options.width, 1.2 + rise * len(shown) + 2 * 0.155)
    axes = picture.add_subplot()
    axes.set_xlim(*_edges([decision, *shown], times, margin))
    axes.axvspan(-times * margin, times * margin, color="0.9", lw=0, zorder=0)
    axes.axvline(0, color="black", lw=0.8, zorder=1)
    _draw_one(axes, 0, decision, times, line=2.2, size=7, marker="D")
    gap = 1.6 if named else 0.06 * len(shown) + 1
    if named:
        for number, d in enumerate(shown):
            _draw_one(axes, gap + number, d, times, line=1.0, size=4)
    else:
        _draw_many(axes, gap, shown, times)
    axes.set_ylim(gap + len(shown) - 0.3, -0.9 if named else -gap)
    names = [shorten(name, LETTERS) for name, _ in clients] if named else []
    mean = f"mean of {decision['clients']}"
    axes.set_yticks([0, *(gap + np.arange(len(names)))], [mean, *names])
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    if not named:
        axes.set_ylabel(f"{counted(len(clients), 'client')}, best first")
    axes.set_xlabel(_gain_of(metric, str(decision["method"]), named))
    _key(picture, [decision, *shown])
    return picture


def _draw_many(axes: Any, first: float, shown: Sequence[Mapping[str, Any]], times: float) -> None:
    """Every client's gain as a dot, and their intervals as a band: lines would be one grey."""
    at = first + np.arange(len(shown))
    ends = [
        [side if d["interval"][k] is None else times * d["interval"][k] for d in shown]
        for k, side in enumerate(axes.get_xlim())
    ]
    axes.fill_betweenx(at, *ends, step="mid", color=COLOURS[1], alpha=0.15, lw=0, zorder=0.5)
    for answer, (colour, marker, _) in LOOKS.items():
        here = [i for i, d in enumerate(shown) if d["answer"] == answer]
        gains = [times * shown[i]["gain"] for i in here]
        axes.plot(gains, at[here], linestyle="none", marker=marker, markersize=2, color=colour)


def _gain_of(metric: Metric, method: str, named: bool) -> str:
    unit = f"points of {wording_of(metric).metric}" if metric.percent else wording_of(metric).metric
    band = "" if named else "band: each client's; "
    return f"gain of {method} over training alone\n({unit}, 95 % interval;\n{band}grey: the margin)"


def _key(picture: Any, shown: list[dict[str, Any]]) -> None:
    """What marks mean, of those that are there."""
    from matplotlib.lines import Line2D

    answers = [answer for answer in LOOKS if any(d["answer"] == answer for d in shown)]
    marks = []
    for answer in answers:
        colour, marker, filled = LOOKS[answer]
        face = colour if filled else "white"
        marks.append(
            Line2D([], [], color=colour, marker=marker, markersize=4, markerfacecolor=face, lw=1)
        )
    columns = len(answers) if picture.get_figwidth() >= 3 else 2
    picture.legend(
        marks, answers, loc="outside upper center", ncols=columns, frameon=False, columnspacing=1
    )
