"""What models say of test rows: ROC curves, calibration, residuals, survival by risk."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedtailor.core.inputs.plain_text import counted
from fedtailor.figures.charts import columns_for, legend, panel_grid
from fedtailor.figures.options import FigureOptions
from fedtailor.figures.style import COLOURS, STYLES, empty_figure, look, shorten, tidy
from fedtailor.results import diagnostics
from fedtailor.results.collect import CollectedRuns
from fedtailor.results.metrics.curves import roc_points
from fedtailor.results.pack import evenly

LINE, THIN = 1.3, 0.5  # points
FAINT = 0.3
DOTS = 2000  # rows of a method that are drawn
NAMED = 40
ENOUGH = 150  # rows of a client, on average, for a calibration curve of its own
GROUP_COLOURS = (COLOURS[1], COLOURS[7], COLOURS[2])  # low, middle, high risk


def _square(axes: Any) -> None:
    """Both axes from 0 to 1, with the diagonal."""
    axes.plot([0, 1], [0, 1], color="0.6", lw=0.7, zorder=1)
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    axes.set_aspect("equal")
    tidy(axes)


def roc_figure(collection: CollectedRuns, options: FigureOptions) -> Any:
    """ROC curves of all clients' rows together; of more than two classes, a panel for each."""
    diagnostics.check_task(collection, "roc", "classification")
    found = diagnostics.rows_of_all(collection)
    classes = diagnostics.shown_classes(collection, found[0])
    clients = diagnostics.few_clients(found) and len(classes) == 1
    columns = 1 if len(classes) == 1 else columns_for(len(classes), options.width)
    size = lambda down: (options.width, 0.7 + down * options.width / columns)
    picture, panels = panel_grid(len(classes), columns, size, sharex=True, sharey=True)
    for panel, (number, name) in zip(panels, classes, strict=True):
        _square(panel)
        for place, (contender, rows) in enumerate(zip(collection.contenders, found, strict=True)):
            drawn = look(place) | {"linewidth": LINE}
            each = [own for _, own in rows.each_client()] if clients else []
            for own in each:
                points = roc_points(own.outputs, own.labels, number)
                thin = drawn | {"linewidth": THIN, "alpha": FAINT}
                panel.plot(*points.T, **thin)
            points = roc_points(rows.outputs, rows.labels, number)
            panel.plot(*points.T, label=contender.label, zorder=3, **drawn)
        if len(classes) > 1:
            panel.set_title(f"{shorten(name)} against the rest", pad=2)
    of = f" ({shorten(classes[0][1])})" if len(classes) == 1 else ""
    picture.supxlabel("1 − specificity", fontsize=8)
    picture.supylabel(f"sensitivity{of}", fontsize=8)
    legend(picture, panels[0])
    return picture


def calibration_figure(collection: CollectedRuns, options: FigureOptions) -> Any:
    """Said against true probabilities; the larger a dot, the more rows."""
    diagnostics.check_task(collection, "calibration", "classification")
    found = diagnostics.rows_of_all(collection)
    # a bin with a row or two says nothing: clients have lines where they have rows enough
    each = min(len(rows.labels) / len(np.unique(rows.client)) for rows in found)
    clients = diagnostics.few_clients(found) and each >= ENOUGH
    picture = empty_figure(options.width, options.width)
    axes = picture.add_subplot()
    _square(axes)
    for place, (contender, rows) in enumerate(zip(collection.contenders, found, strict=True)):
        drawn = look(place) | {"linewidth": LINE}
        for _, own in rows.each_client() if clients else ():
            points = diagnostics.calibration_of(own)
            axes.plot(points[:, 0], points[:, 1], **drawn | {"linewidth": THIN, "alpha": FAINT / 2})
        points = diagnostics.calibration_of(rows)
        sizes = 2 + 40 * points[:, 2] / points[:, 2].max()
        axes.plot(points[:, 0], points[:, 1], label=contender.label, zorder=3, **drawn)
        axes.scatter(points[:, 0], points[:, 1], s=sizes, color=drawn["color"], lw=0, zorder=4)
    classes = diagnostics.shown_classes(collection, found[0])
    two = found[0].outputs.shape[1] == 2
    axes.set_xlabel(f"said probability of {shorten(classes[0][1])}" if two else "how sure")
    axes.set_ylabel("share of rows where it is true" if two else "share of right answers")
    legend(picture, axes)
    return picture


def residuals_figure(collection: CollectedRuns, options: FigureOptions) -> Any:
    """Above, predicted against true, a panel per method; below, each client's errors."""
    diagnostics.check_task(collection, "residuals", "regression")
    found = diagnostics.rows_of_all(collection)
    count = len(found)
    wide = options.width / max(count, 2)
    picture = empty_figure(options.width, 0.5 + wide + max(1.3, 0.75 * wide))
    panels = picture.subplots(2, count, squeeze=False, sharex="row", sharey="row")
    every = np.concatenate([np.append(rows.labels, rows.outputs) for rows in found])
    low, high = every.min(), every.max()
    for place, (contender, rows) in enumerate(zip(collection.contenders, found, strict=True)):
        above, below = panels[0][place], panels[1][place]
        colour = look(place)["color"]
        kept = evenly(len(rows.labels), DOTS)
        above.scatter(rows.labels[kept], rows.outputs[kept, 0], s=4, color=colour, alpha=0.45, lw=0)
        above.plot([low, high], [low, high], color="0.5", lw=0.7)
        above.set_title(contender.label, pad=2)
        above.set_xlabel("true")
        tidy(above)
        each = [(c, diagnostics.residual_quantiles(own)) for c, own in rows.each_client()]
        _spreads(below, each, collection.clients, colour)
    panels[0][0].set_ylabel("predicted")
    panels[1][0].set_ylabel("predicted − true")
    return picture


def _spreads(axes: Any, each: list[tuple[int, Any]], clients: list[str], colour: str) -> None:
    """A bar over the middle half of each client's errors, whiskers over 90 %, a dot in between."""
    at = np.arange(len(each))
    low, first, middle, third, high = np.array([q for _, q in each]).T
    axes.axhline(0, color="0.5", lw=0.7)
    axes.vlines(at, low, high, color=colour, lw=0.7)
    axes.vlines(at, first, third, color=colour, lw=3 if len(at) <= NAMED else 1)
    axes.plot(at, middle, "o", markersize=2.5, color="white", markeredgecolor=colour, mew=0.7)
    few = len(at) <= NAMED
    names = [shorten(clients[c], 10) for c, _ in each] if few else []
    axes.set_xticks(at if few else [], names, rotation=90)
    if not few:
        axes.set_xlabel(counted(len(at), "client"))
    tidy(axes)


def survival_figure(collection: CollectedRuns, options: FigureOptions) -> Any:
    """Kaplan–Meier curves of thirds by predicted risk, rows at risk below; a panel per method."""
    diagnostics.check_task(collection, "survival", "survival")
    found = diagnostics.rows_of_all(collection, runs=1)
    columns = 1 if len(found) == 1 else columns_for(len(found), options.width)
    size = lambda down: (options.width, 0.35 + down * (0.75 * options.width / columns + 0.6))
    picture, panels = panel_grid(len(found), columns, size)
    for panel, contender, rows in zip(panels, collection.contenders, found, strict=True):
        moments, groups = diagnostics.risk_groups(rows)
        for group in groups:
            place = diagnostics.GROUPS.index(group.name)
            drawn = {"color": GROUP_COLOURS[place], "linestyle": STYLES[place], "lw": LINE}
            panel.step(*group.steps.T, where="post", label=group.name, **drawn)
        panel.set_ylim(-0.02, 1.02)
        panel.set_xlim(0, None)
        panel.set_xticks(moments)
        panel.set_title(contender.label, pad=2)
        tidy(panel)
        told = [[str(n) for n in group.at_risk] for group in groups]
        _below(panel, moments, [group.name for group in groups], told)
    picture.supylabel("share without the event", fontsize=8)
    legend(picture, panels[0])
    return picture


def _below(axes: Any, moments: Any, names: list[str], told: list[list[str]]) -> None:
    """Rows at risk under the axis, a line per group in its colour."""
    from matplotlib.transforms import blended_transform_factory

    where = blended_transform_factory(axes.transData, axes.transAxes)
    for line, (name, counts) in enumerate(zip(names, told, strict=True)):
        colour = GROUP_COLOURS[diagnostics.GROUPS.index(name)]
        for moment, count in zip(moments, counts, strict=True):
            axes.annotate(
                count,
                (moment, 0),
                xycoords=where,
                xytext=(0, -16 - 7.5 * line),
                textcoords="offset points",
                ha="center",
                va="top",
                fontsize=6,
                color=colour,
            )
    axes.annotate(
        "time; below: rows at risk",
        (0.5, 0),
        xycoords="axes fraction",
        xytext=(0, -18 - 7.5 * len(names)),
        textcoords="offset points",
        ha="center",
        va="top",
        fontsize=7,
    )
