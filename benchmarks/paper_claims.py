"""What the papers' tables say of their method, as statements that can fail, judged by our runs.

    python benchmarks/paper_claims.py    # draws docs/img/claims.png; docs/claims.md has the table

Nothing is run: the numbers are those of `results/reproduction`. A statement is "this method is more
accurate than that one, in this column". With several seeds the unit is the seed (both methods have
the same clients in it; Student's interval), with one seed the client (the permutation interval of
`fedtailor compare`).
"""

from __future__ import annotations

import json
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy

from fedtailor.results.statistics.decision import LEVEL, MARGIN
from fedtailor.results.statistics.intervals import flip_interval

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "reproduction"
PICTURE = ROOT / "docs" / "img" / "claims.png"
POINT = 100 * MARGIN
COLUMNS = {
    "Cifar10": "CIFAR-10, Dir(0.1)",
    "Cifar10 pat": "CIFAR-10, two classes each",
    "Cifar100": "CIFAR-100, Dir(0.1)",
    "MNIST pat": "MNIST, two classes each",
    "CIFAR-10, N = 100, C = 10%": "CIFAR-10, ten of 100 clients",
    "CIFAR10 10": "CIFAR-10, ten clients",
}  # where a table's own name says too little
TICKS = (-20, -10, -5, -2, 0, 2, 5, 10, 20, 50)  # of pictures
ACROSS = 3  # panels in a line
Answer = Literal["holds", "does not hold", "cannot tell"]


class Said(NamedTuple):
    """A method that a paper has above others in its table."""

    paper: str
    table: str  # of `results/reproduction`
    ours: str  # the row
    others: tuple[str, ...]  # rows that it is said to be above
    columns: tuple[str, ...]  # in which: no statement where the paper itself has it level or below
    printed: str = ""  # the row that the paper prints, where ours has another setting


BESIDE_FEDALA = (
    "FedAvg", "FedProx", "Per-FedAvg", "FedRep", "Ditto", "FedAMP", "FedPHP", "FedFomo", "APPLE",
    "PartialFed",
)  # fmt: skip
SAID = [
    Said("FedALA", "fedala-table2-long", "FedALA", BESIDE_FEDALA, ("Cifar10",)),
    Said("FedALA", "fedala-table2-long-pat", "FedALA", BESIDE_FEDALA, ("Cifar10 pat",)),
    Said("FedALA", "fedala-table2-long-100", "FedALA", BESIDE_FEDALA, ("Cifar100",)),
    Said("FedALA", "fedala-table2-long-mnist", "FedALA", BESIDE_FEDALA, ("MNIST pat",)),
    Said(
        "FedFomo",
        "fedfomo-table1",
        "FedFomo (n=5)",
        ("Local Training", "FedAvg", "LG-FedAvg", "Per-FedAvg"),
        (
            "MNIST, 15 clients", "MNIST, 100 clients", "CIFAR-10, 15 clients",
            "CIFAR-10, 100 clients",
        ),
    ),
    Said(
        "pMixFed",
        "pmixfed-table2-long",
        "pMixFed",
        ("FedAvg", "FedAlt", "FedSim", "FedBABU", "Ditto", "Per-FedAvg", "LG-FedAvg"),
        ("CIFAR-10, N = 100, C = 10%",),
    ),
    Said(
        "pFedLA",
        "pfedla-table1-long",
        "pFedLA, rate 1",
        ("Local Training", "FedAvg", "FedBN", "FedRep"),
        ("CIFAR10 10",),
        printed="pFedLA",
    ),
]  # fmt: skip


class Judged(NamedTuple):
    """A statement, and what our runs say of it."""

    paper: str
    column: str
    ours: str
    other: str
    papers: float  # the paper's difference, in points
    mean: float
    low: float
    high: float
    units: str  # what the interval is over
    answer: Answer


def answer_of(low: float, high: float, papers: float) -> Answer:
    """Better beyond chance; not better by a point, nor by the paper's own lead; or neither.

    >>> answer_of(0.2, 5.0, 3.0), answer_of(-3.0, 0.4, 3.0), answer_of(-1.0, 4.0, 3.0)
    ('holds', 'does not hold', 'cannot tell')
    >>> answer_of(-0.1, 0.4, 0.3)  # a lead that small is not excluded
    'cannot tell'
    """
    if low > 0:
        return "holds"
    return "does not hold" if high < min(POINT, papers) else "cannot tell"


def difference(
    ours: dict[str, Any], other: dict[str, Any]
) -> tuple[float, float, float, str] | None:
    """Mean, interval and unit of one cell less another, in points; None if no seed has both."""
    pairs = [
        (mine, its)
        for mine in ours["seeds"]
        for its in other["seeds"]
        if mine["seed"] == its["seed"]
    ]
    if len(pairs) > 1:
        apart = np.array([mine["main"] - its["main"] for mine, its in pairs])
        half = scipy.stats.t.ppf(1 - LEVEL / 2, len(apart) - 1) * scipy.stats.sem(apart)
        mean = float(apart.mean())
        return mean, mean - half, mean + half, f"{len(apart)} seeds"
    if not pairs:
        return None
    found = [[np.nan if v is None else v for v in run["per_client"]] for run in pairs[0]]
    apart = 100 * np.subtract(*found)
    apart = apart[~np.isnan(apart)]
    low, high = flip_interval(apart, np.ones(len(apart)), LEVEL)
    return float(apart.mean()), low, high, f"{len(apart)} clients, one seed"


def judged() -> list[Judged]:
    """Every statement whose runs are there."""
    found = []
    for said in SAID:
        report = json.loads((RESULTS / f"{said.table}.json").read_text(encoding="utf-8"))
        cells = {(c["row"], c["column"]): c for c in report["cells"]}
        for column in said.columns:
            ours = cells[said.ours, column]
            papers = cells[said.printed or said.ours, column]["paper"]["mean"]
            for other in said.others:
                its = cells[other, column]
                printed = papers - its["paper"]["mean"]
                apart = difference(ours, its)
                if printed <= 0 or apart is None:
                    continue
                mean, low, high, units = apart
                found.append(
                    Judged(
                        said.paper, COLUMNS.get(column, column), said.ours, other, printed,
                        mean, low, high, units, answer_of(low, high, printed),
                    )
                )  # fmt: skip
    return found


def _draw_panel(
    axes: Any, title: str, rows: list[Judged], most: int, colours: dict[Answer, str]
) -> None:
    for place, row in enumerate(reversed(rows)):
        colour = colours[row.answer]
        axes.plot([row.low, row.high], [place, place], color=colour, linewidth=2)
        axes.plot(row.mean, place, "o", color=colour, markersize=6)
        axes.plot(row.papers, place, "s", color="black", markerfacecolor="none", markersize=6)
    axes.set_ylim(len(rows) - most - 0.5, len(rows) - 0.5)  # as far apart as in its neighbours
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_yticks(range(len(rows)), [row.other for row in reversed(rows)], fontsize=8)
    axes.axvline(0, color="black", linewidth=1)
    axes.axvspan(-POINT, POINT, color="0.9", zorder=0)
    axes.set_xscale("symlog", linthresh=5)
    axes.set_xticks(TICKS, labels=[f"{x:d}".replace("-", "\N{MINUS SIGN}") for x in TICKS])
    axes.tick_params(labelbottom=True, labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def draw() -> None:
    """Each statement's difference with its interval, and the paper's as a hollow square."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.lines import Line2D

    colours = {"holds": "#0072B2", "cannot tell": "#7F7F7F", "does not hold": "#D55E00"}
    panels: dict[str, list[Judged]] = {}
    for row in judged():
        panels.setdefault(f"{row.paper}, {row.column}: above", []).append(row)
    lines = [list(panels.items())[i : i + ACROSS] for i in range(0, len(panels), ACROSS)]
    most = [max(len(rows) for _, rows in line) for line in lines]
    heights = [rows + 1.5 for rows in most]
    figure, grid = plt.subplots(
        len(lines), ACROSS, squeeze=False, sharex=True, layout="constrained",
        figsize=(4.2 * ACROSS, 0.27 * sum(heights) + 1.4), height_ratios=heights,
    )  # fmt: skip
    for line, across, rows in zip(lines, grid, most, strict=True):
        for axes, panel in zip_longest(across, line):
            if panel is None:
                axes.set_axis_off()
            else:
                _draw_panel(axes, *panel, rows, colours)
    figure.supxlabel(
        "points of accuracy above the other method (95 % interval; grey: one point)", fontsize=9
    )
    handles = [Line2D([], [], marker="o", color=c, label=name) for name, c in colours.items()]
    square = {"marker": "s", "color": "black", "markerfacecolor": "none", "linestyle": ""}
    handles.append(Line2D([], [], label="in the paper", **square))  # type: ignore[arg-type]
    figure.legend(handles=handles, loc="outside upper center", ncols=4, fontsize=8, frameon=False)
    figure.savefig(PICTURE, dpi=130, metadata={"Software": None})


if __name__ == "__main__":
    draw()
