"""Losses around models, and the way of a client's model over rounds."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from fedtailor.core.errors import BadInput
from fedtailor.figures.charts import panel_grid
from fedtailor.figures.options import FigureOptions
from fedtailor.figures.style import empty_figure, look
from fedtailor.results.collect import CollectedRuns
from fedtailor.results.measurements import (
    GLOBAL,
    OWN,
    PERSONAL,
    Json,
    models_of,
    read_landscape,
    read_trajectory,
)

LEVELS = 20
NAMED = {GLOBAL: "global", PERSONAL: "personal"}
Array = npt.NDArray[np.float64]


def _numbers(values: Any) -> Array:
    """Nested lists with `None` as an array with nan."""
    return np.array(values, dtype=np.float64)


def _levels(surfaces: list[Array]) -> Array:
    """Contours that are equally far apart on a logarithmic scale, the same for all panels."""
    joined = np.concatenate([s[np.isfinite(s)].ravel() for s in surfaces])
    low = max(float(joined.min()), 1e-4) if joined.size else 1.0
    high = max(float(joined.max()), low * 1.01) if joined.size else 2.0
    return np.geomspace(low, high, LEVELS + 1)


def _filled(axes: Any, x: Any, y: Any, losses: Array, levels: Array, colours: str = "Blues") -> Any:
    from matplotlib.colors import LogNorm

    shown = np.clip(np.ma.masked_invalid(losses), levels[0], levels[-1])
    norm = LogNorm(levels[0], levels[-1])
    made = axes.contourf(x, y, shown, levels=levels, cmap=colours, norm=norm)
    axes.contour(x, y, shown, levels=levels[1:-1], colors="black", linewidths=0.35, alpha=0.6)
    axes.set_aspect("equal")
    axes.tick_params(length=2)
    return made


def told_apart(values: Array) -> list[str]:
    """Numbers with two digits, or as many more as it takes that no two look the same."""
    for digits in range(2, 7):
        words = [f"{v:.{digits}g}" for v in values]
        if len(set(words)) == len(words):
            break
    return words


def _scale(picture: Any, made: Any, panels: Any, levels: Array) -> None:
    bar = picture.colorbar(made, ax=panels, pad=0.02, aspect=28, label="loss")
    at = levels[:: LEVELS // 5]
    bar.set_ticks(at, labels=told_apart(at))
    bar.minorticks_off()


def landscape_figure(collection: CollectedRuns, options: FigureOptions) -> Any:
    """The loss around global and personal models, one row per method, for the first client."""
    measured = [(c.label, read_landscape(c.first.folder)) for c in collection.contenders]
    kept = [(label, found) for label, found in measured if found]
    if not kept:
        raise BadInput("no loss surface was measured: say fedtailor landscape DIR first")
    client = next(iter(kept[0][1]["clients"]))
    kept = [(label, found) for label, found in kept if client in found["clients"]]
    panels = [
        (label, which, found["axis"], found["clients"][client][which][OWN])
        for label, found in kept
        for which in models_of(found["clients"][client])
    ]
    # global beside personal where all have both
    columns = 2 if len(panels) == 2 * len(kept) else min(3, len(panels))
    size = lambda down: (options.width, 0.35 + 0.94 * down * (options.width - 0.6) / columns)
    picture, drawn = panel_grid(len(panels), columns, size, sharex=True, sharey=True)
    levels = _levels([_numbers(one["loss"]) for *_, one in panels])
    for axes, (label, which, axis, one) in zip(drawn, panels, strict=True):
        made = _filled(axes, axis, axis, _numbers(one["loss"]).T, levels)
        axes.plot(0, 0, marker="+", color="#D55E00", markersize=6, markeredgewidth=1.4)
        rise = one["sharpness"]["mean"]
        told = "" if rise is None else f", mean rise {rise:.2g}"
        axes.set_title(f"{label}, {NAMED[which]}{told}", pad=3, fontsize=7, parse_math=False)
        axes.locator_params(nbins=4)
    _scale(picture, made, picture.axes, levels)
    picture.supxlabel(f"first direction ({client}, its own test rows)", fontsize=8)
    picture.supylabel("second direction", fontsize=8)
    return picture


def _arrows(axes: Any, stops: list[Json], colour: str) -> None:
    """Training as arrows, what happens between rounds as dotted lines."""
    for one, other in pairwise(stops):
        ends = {"xy": (other["x"], other["y"]), "xytext": (one["x"], one["y"])}
        training = one["when"] == "before" and other["round"] == one["round"]
        style = {"arrowstyle": "-|>" if training else "-", "linestyle": "-" if training else ":"}
        shape = {"color": colour, "lw": 1.1 if training else 0.8, "shrinkA": 1.5, "shrinkB": 1.5}
        axes.annotate("", **ends, arrowprops=style | shape | {"mutation_scale": 6})


def trajectory_figure(collection: CollectedRuns, options: FigureOptions) -> Any:
    """The ways of a client's model over its training loss, on their principal plane."""
    folders = {run.folder.resolve().name for c in collection.contenders for run in c.runs}
    measured = [read_trajectory(c.first.folder) for c in collection.contenders]
    kept = [found for found in measured if found]
    if not kept:
        raise BadInput(
            "no trajectory was measured: run with --keep-path 1, then say fedtailor trajectory DIR"
        )
    found = max(kept, key=lambda one: len(one["runs"]))
    picture = empty_figure(options.width, 0.86 * options.width)
    axes = picture.add_subplot()
    losses = _numbers(found["loss"])
    levels = _levels([losses])
    # grey: the ways have the colours
    made = _filled(axes, found["x"], found["y"], losses, levels, "Greys")
    made.set_alpha(0.5)
    runs = [run for run in found["runs"] if run["folder"] in folders and run["stops"]]
    for number, run in enumerate(runs):
        colour = look(number)["color"]
        _arrows(axes, run["stops"], colour)
        for when, shape, inside in (("before", "s", colour), ("after", "o", "white")):
            there = [stop for stop in run["stops"] if stop["when"] == when]
            axes.plot(
                [stop["x"] for stop in there],
                [stop["y"] for stop in there],
                linestyle="",
                marker=shape,
                markersize=2.6,
                markerfacecolor=inside,
                markeredgecolor=colour,
                markeredgewidth=0.7,
                label=f"{run['label']}, {when} training",
                zorder=4,
            )
        last = run["stops"][-1]
        axes.annotate(
            f"round {last['round']}",
            (last["x"], last["y"]),
            xytext=(0, -10),
            ha="center",
            textcoords="offset points",
            fontsize=6.5,
            color=colour,
        )
    first, second = (f"{100 * (share or 0):.0f}" for share in found["shares"])
    axes.set_xlabel(f"C1 ({first} % of the variance)")
    axes.set_ylabel(f"C2 ({second} %)")
    _scale(picture, made, axes, levels)
    picture.legend(
        loc="outside lower center", ncols=2, fontsize=6.5, frameon=False, handletextpad=0.2
    )
    return picture
