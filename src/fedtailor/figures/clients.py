"""Clients: who gains, how the metric is spread over them, who has which classes."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.plain_text import counted
from fedtailor.figures.charts import columns_for, draw_gains, legend, panel_grid
from fedtailor.figures.options import FigureOptions
from fedtailor.figures.style import HEAT, PAGE, empty_figure, look, shorten, tidy
from fedtailor.results import mixes, numbers
from fedtailor.results.collect import CollectedRuns
from fedtailor.results.pack import evenly
from fedtailor.results.verdict import wording_of

BINS = 20
NAMES = 40  # along an axis; more are thinned out


def gain_figure(collection: CollectedRuns, options: FigureOptions) -> Any:
    """Each client's gain over training alone, best first, one panel per method."""
    rows = numbers.rows(collection)
    alone = numbers.yardstick(collection)
    if alone is None:
        raise BadInput(
            "training alone (local) is not among these runs: name a comparison, or its run too"
        )
    others = [row for number, row in enumerate(rows) if number != alone]
    if not others and options.methods:
        raise BadInput("--method names only training alone: name what to compare with it too")
    if not others:
        raise BadInput("only training alone is among these runs: name another method's run too")
    metric = numbers.metric_of(collection)
    each = [metric.times * np.array(row["gain"], dtype=float) for row in others]
    each = [np.sort(found[np.isfinite(found)])[::-1] for found in each]
    if not all(found.size for found in each):
        raise BadInput("no client of these runs has test rows: there is no gain to show")
    columns = columns_for(len(others), options.width)
    size = lambda down: (options.width, 0.25 + down * 0.62 * options.width / columns)
    picture, panels = panel_grid(len(others), columns, size, sharey=True)
    # words go where no bars are: above the losses, or below the gains if these are smaller
    above = max(found[0] for found in each) > -min(found[-1] for found in each)
    at = {"x": 0.98, "y": 0.97, "ha": "right", "va": "top"}
    at = at if above else {"x": 0.03, "y": 0.05, "ha": "left", "va": "bottom"}
    for panel, row, found in zip(panels, others, each, strict=True):
        draw_gains(panel, found, row["label"], pad=2)
        told = f"{row['better_off']} better off\n{row['worse_off']} worse off"
        panel.text(s=told, transform=panel.transAxes, fontsize=7, **at)
    unit = "points" if metric.percent else wording_of(metric).metric
    picture.supylabel(f"gain over training alone\n({unit})", fontsize=8)
    picture.supxlabel(f"{counted(len(collection.clients), 'client')}, best first", fontsize=8)
    return picture


def spread_figure(collection: CollectedRuns, options: FigureOptions) -> Any:
    """How many clients have which value: a histogram per method, all on one scale."""
    metric = numbers.metric_of(collection)
    each = [numbers.final_scores(c, collection.clients) for c in collection.contenders]
    each = [metric.times * found[np.isfinite(found)] for found in each]
    if not all(found.size for found in each):
        word = wording_of(metric).metric
        raise BadInput(f"no client of these runs has a value of {word}: there is nothing to show")
    low, high = min(found.min() for found in each), max(found.max() for found in each)
    if metric.higher_is_better and low >= 0:  # a share: up to all, from a round number below
        step = 0.05 * metric.times
        high = max(high, 20 * step)
        low = step * np.floor(min(low, 19 * step) / step)
    edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    picture = empty_figure(options.width, 0.7 + 0.45 * len(each))
    panels = picture.subplots(len(each), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for number, (panel, contender, found) in enumerate(
        zip(panels, collection.contenders, each, strict=True)
    ):
        colour = look(number)["color"]
        panel.hist(found, bins=edges, color=colour, alpha=0.55, edgecolor="white", linewidth=0.4)
        up = metric.higher_is_better
        tail, mean = np.quantile(found, 0.05 if up else 0.95), found.mean()
        side = "below" if up else "above"
        panel.axvline(mean, color="black", linewidth=1, label="mean")
        panel.axvline(tail, color="black", linewidth=1, linestyle=":", label=f"5 % lie {side}")
        panel.text(0.01, 0.95, contender.label, transform=panel.transAxes, va="top", fontsize=7)
        tidy(panel)
        panel.locator_params(axis="y", nbins=3, integer=True)
    panels[-1].set_xlabel(numbers.axis_of(metric, "client"))
    picture.supylabel("number of clients", fontsize=8)
    legend(picture, panels[0])
    return picture


def partition_figure(collection: CollectedRuns, options: FigureOptions) -> Any:
    """Rows of each class at each client; clients with like mixes stand side by side."""
    counts = mixes.client_class_counts(collection)
    task = numbers.task_of(collection)
    if task != "classification":
        raise BadInput(f"figure partition is for classification: {task} has no classes")
    if counts is None:
        raise BadInput("these runs kept no class counts: run them again with this version")
    names = mixes.class_names(collection.contenders[0].first.folder)
    order = mixes.likeness_order(counts, len(collection.clients))
    shown = np.ma.masked_equal(counts[order].T, 0)  # no rows at all: no colour at all
    height = min(1.2 * options.width, 0.9 + 0.13 * min(len(names), NAMES))
    picture = empty_figure(options.width, max(height, 0.45 * options.width))
    axes = picture.add_subplot()
    image = axes.imshow(shown, cmap=HEAT, aspect="auto", interpolation="nearest", vmin=0)
    at = evenly(len(names), NAMES)
    axes.set_yticks(at, [shorten(names[i]) for i in at])
    few = len(order) <= (NAMES if options.width >= PAGE else NAMES // 2)
    axes.set_xticks(range(len(order)) if few else [], [str(i) for i in order] if few else [])
    axes.set_xlabel("client" + ("" if few else f" ({len(order)} of them)"))
    axes.set_ylabel("class")
    axes.tick_params(length=0)
    picture.colorbar(image, ax=axes, label="rows", pad=0.02, aspect=30)
    return picture
