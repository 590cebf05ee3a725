"""What methods learnt: who learns from whom, mixing degrees, weights and scores per block."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedtailor.core.errors import BadInput
from fedtailor.figures.charts import columns_for, panel_grid
from fedtailor.figures.options import FigureOptions
from fedtailor.figures.style import COLOURS, HEAT, empty_figure, shorten, tidy
from fedtailor.results import mixes
from fedtailor.results.collect import CollectedRuns, Contender
from fedtailor.results.records import MAP_WIDTH, Records, binned, learnt, scale_bounds

MIXED = ("mix_degree",)
SCORED = {"ala_weight": "ALA weight", "score": "score", "personal_block": "share kept personal"}


class WeightMatrix(NamedTuple):
    """One client × client matrix."""

    contender: Contender
    block: str
    round: int
    matrix: Any


def _chosen(recorded: list[int], wanted: tuple[int, ...], label: str) -> list[int]:
    """The rounds to show, by default the last one."""
    missing = [number for number in wanted if number not in recorded]
    if missing:
        near = min(recorded, key=lambda number: abs(number - missing[0]))
        raise BadInput(
            f"round {missing[0]} of {label} was not recorded: the nearest that was is {near}"
        )
    return list(wanted) or recorded[-1:]


def _matrices(contender: Contender, clients: int, options: FigureOptions) -> list[WeightMatrix]:
    """A method's client × client records, by round and block."""
    records = Records(contender.first.folder)
    square = [
        name
        for name, shape in sorted(records.shapes().items())
        if name.startswith("server/") and len(shape) in (2, 3) and shape[-2:] == (clients, clients)
    ]
    named = [str(b) for b in contender.first.result.get("blocks", [])]
    out = []
    for name in square:
        for number in _chosen(records.rounds, options.rounds, contender.label):
            found = records.read(name, number)
            if found is None:
                continue
            stack = found.reshape(-1, clients, clients)
            blocks = named if len(named) == len(stack) > 1 else [""] * len(stack)
            pairs = zip(blocks, stack, strict=True)
            out += [WeightMatrix(contender, block, number, matrix) for block, matrix in pairs]
    return out


def _limits(matrix: Any) -> tuple[float, float]:
    """The scale of a matrix: that of the weights for others, without outliers."""
    clients = len(matrix)
    apart = matrix[~np.eye(clients, dtype=bool)]
    apart = apart[np.isfinite(apart)]
    shares = bool(np.allclose(matrix.sum(axis=-1), 1, atol=1e-3)) and not (apart < 0).any()
    low, high, _ = scale_bounds(apart, 1 / clients if shares else None)
    return low, high


def _name(panel: WeightMatrix, several_rounds: bool) -> str:
    parts = [panel.contender.label, panel.block, f"round {panel.round}" if several_rounds else ""]
    return ", ".join(part for part in parts if part)


def weights_figure(collection: CollectedRuns, options: FigureOptions) -> Any:
    """Who learns from whom: client × client, a panel per block, like clients side by side."""
    clients = len(collection.clients)
    panels = [p for c in collection.contenders for p in _matrices(c, clients, options)]
    if clients < 2 or not panels:
        raise BadInput(
            "no method among these runs recorded weights between clients: fedfomo, pfedla and "
            "others do (fedtailor show METHOD)"
        )
    order = mixes.likeness_order(mixes.client_class_counts(collection), clients)
    width = min(clients, MAP_WIDTH)
    columns = columns_for(len(panels), options.width)
    size = lambda down: (options.width, 0.3 + 0.78 * down * options.width / columns)
    picture, grid = panel_grid(len(panels), columns, size)
    for axes, panel in zip(grid, panels, strict=True):
        low, high = _limits(panel.matrix)
        shown = binned(panel.matrix, order, width)
        image = axes.imshow(shown, cmap=HEAT, vmin=low, vmax=high, interpolation="nearest")
        axes.set(xticks=[], yticks=[])
        axes.set_title(_name(panel, len(options.rounds) > 1), pad=2, fontsize=7)
        bar = picture.colorbar(image, ax=axes, aspect=18, pad=0.02, shrink=0.8, extend="both")
        bar.ax.tick_params(labelsize=6)
        if low < 0 < high:
            bar.ax.axhline(0, color="white", linewidth=1)
    picture.supylabel("client that learns", fontsize=8)
    picture.supxlabel("from which client", fontsize=8)
    return picture


def _series(collection: CollectedRuns, names: tuple[str, ...]) -> list[tuple[Contender, Any]]:
    """Records of some names, one number per block, in the order of the names."""
    order, clients = np.arange(len(collection.clients)), len(collection.clients)
    found = [
        (contender, record)
        for contender in collection.contenders
        for record in learnt(contender, clients, order)
        if record["name"] in names and record["kind"] in ("blocks", "series")
    ]
    return sorted(found, key=lambda pair: names.index(pair[1]["name"]))


def mixing_figure(collection: CollectedRuns, options: FigureOptions) -> Any:
    """How much of each global block is taken over: block × round, mean over clients."""
    found = _series(collection, MIXED)
    if not found:
        raise BadInput(
            "no method among these runs recorded mixing degrees: pmixfed does, and methods with "
            "its mixing (e.g. fedalt+mix)"
        )
    most = max(len(record["blocks"]) for _, record in found)
    picture = empty_figure(options.width, len(found) * max(1.3, 0.7 + 0.16 * most))
    panels = picture.subplots(len(found), 1, squeeze=False, sharex=True)[:, 0]
    image = None
    for axes, (contender, record) in zip(panels, found, strict=True):
        degree = np.array(record["mid"], dtype=float)
        rounds = record["rounds"]
        image = axes.imshow(
            degree, cmap=HEAT, vmin=0, vmax=1, aspect="auto", interpolation="nearest",
            extent=(rounds[0] - 0.5, rounds[-1] + 0.5, len(degree) - 0.5, -0.5),
        )  # fmt: skip
        axes.set_yticks(range(len(degree)), [shorten(b) for b in record["blocks"]])
        axes.tick_params(axis="y", length=0)
        if len(found) > 1:
            axes.set_title(contender.label, pad=2)
        axes.locator_params(axis="x", integer=True)
    panels[-1].set_xlabel("round")
    picture.colorbar(image, ax=list(panels), label="degree λ", pad=0.02, aspect=20)
    return picture


def scores_figure(collection: CollectedRuns, options: FigureOptions) -> Any:
    """Weights or scores per block at a round: mean over clients, and the middle 80 % of them."""
    found = _series(collection, tuple(SCORED))
    if not found:
        raise BadInput(
            "no method among these runs recorded weights or scores per block: fedala and plgu-lf do"
        )
    most = max(len(record["blocks"]) for _, record in found)
    size = lambda down: (options.width, down * (0.75 + 0.16 * most))
    picture, panels = panel_grid(len(found), columns_for(len(found), options.width), size)
    for axes, (contender, record) in zip(panels, found, strict=True):
        numbers = _chosen(record["rounds"], options.rounds, contender.label)
        for k, number in enumerate(numbers):
            at = record["rounds"].index(number)
            low, middle, high = (
                np.array([block[at] for block in record[side]], dtype=float)
                for side in ("low", "mid", "high")
            )
            place = np.arange(len(middle)) + 0.25 * (k - (len(numbers) - 1) / 2)
            axes.hlines(place, low, high, color=COLOURS[k + 1], linewidth=1.2)
            axes.plot(
                middle, place, "osD^v"[k % 5], color=COLOURS[k + 1], markersize=4,
                label=f"round {number}",
            )  # fmt: skip
        blocks = record["blocks"] if len(record["blocks"]) > 1 else [""]
        axes.set_yticks(range(len(blocks)), [shorten(b) for b in blocks])
        axes.set_ylim(len(record["blocks"]) - 0.5, -0.5)
        axes.set_title(contender.label, pad=2)
        axes.set_xlabel(SCORED[record["name"]])
        tidy(axes)
        if len(numbers) > 1:
            axes.legend(frameon=False, fontsize=6, handletextpad=0.2)
    return picture
