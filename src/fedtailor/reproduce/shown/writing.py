"""An experiment's numbers as text, and all of them as CSV."""

from __future__ import annotations

from collections.abc import Iterable
from math import isinf
from typing import Any

from fedtailor.core.inputs.spreadsheet import csv_text
from fedtailor.reproduce.declared.published import INFINITE

Outcome = dict[str, Any]
Cell = dict[str, Any]

FIELDS = (
    "experiment", "row", "column", "x", "method", "metric", "unit", "status",
    "mean", "std", "low", "high", "seeds", "seeds_wanted",
    "paper", "paper_mean", "paper_std", "paper_low", "paper_high",
    "difference", "outside", "still_rising", "scale", "reason",
)  # fmt: skip
NAMED = 3  # cells with the same trouble; of others the number is enough
RISING = "↗"  # beside a number: more rounds would have helped
SIGNS = {"above": "▲", "below": "▼", "within": "≈", "": ""}  # where colour cannot say it


def two_digits(value: float | None) -> str:
    """Two digits, as papers have it."""
    if value is None:
        return "–"
    return INFINITE if isinf(value) else f"{value:.2f}"


def cell_text(cell: dict[str, Any]) -> str:
    """Mean, standard deviation and groups of a cell: ours or the paper's."""
    if cell["mean"] is None:
        return cell.get("text") or two_digits(None)  # what JSON has no word for
    text = two_digits(cell["mean"])
    if cell.get("std") is not None:
        text += f"±{two_digits(cell['std'])}"
    if cell.get("low") is not None:
        text += f" ({two_digits(cell['low'])}/{two_digits(cell['high'])})"
    return text


def has_number(cell: Cell) -> bool:
    """Whether at least one seed of a cell has come to something."""
    return cell["mean"] is not None or bool(cell.get("text"))


def seeds_in_mean(cell: Cell) -> int:
    """How many seeds are in its mean: a run may lack the number that is asked for."""
    return sum(bool(seed.get("text")) or seed["main"] is not None for seed in cell["seeds"])


def is_partial(cell: Cell) -> bool:
    """Whether its mean is over some of the seeds only."""
    return cell["status"] != "done" and has_number(cell)


def ours(cell: Cell, wanted: int) -> str:
    """What a cell shows of ours: the mean, over how many seeds if not all `wanted`, or why not."""
    if cell["status"] == "done":
        return cell_text(cell) + (f" {RISING}" if cell.get("still_rising") else "")
    if not has_number(cell):
        return str(cell["reason"] if cell["status"] == "running" else cell["status"])
    failed = ", failed" if cell["status"] == "failed" else ""
    return f"{cell_text(cell)} ({seeds_in_mean(cell)} of {wanted} seeds{failed})"


def paper_text(cell: Cell | None) -> str:
    """What the paper prints in a cell."""
    return str(cell["paper"]["text"]) if cell and cell["paper"] else "–"


def ranks_of(outcome: Outcome) -> str:
    """Whose order is compared with the paper's; results of earlier versions do not say: rows."""
    return str(outcome.get("ranks", "rows"))


def comparable_cells(cells: Iterable[Cell], name: str, ranks: str = "rows") -> list[Cell]:
    """Cells of a column (or of a row, where columns are ranked) that Kendall's τ counts.

    They have two numbers, which infinity is not, of one unit, the first one's: an accuracy is
    neither more nor less than a cost.
    """
    side = "column" if ranks == "rows" else "row"
    here = [c for c in cells if c[side] == name and c["paper"]]
    return [
        c
        for c in here
        if c["mean"] is not None and c["paper"]["mean"] is not None and c["unit"] == here[0]["unit"]
    ]


def order(outcome: Outcome, name: str) -> str:
    """Kendall's τ of a column (or row), over how many rows, and how many wait for more seeds."""
    found, ranks = outcome["tau"][name], ranks_of(outcome)
    some = sum(map(is_partial, comparable_cells(outcome["cells"], name, ranks)))
    waiting = f", {some} of them with some seeds only" if some else ""
    return f"{two_digits(found['tau'])} ({found[ranks]} {ranks}{waiting})"


def ends_of_training(outcome: Outcome) -> str:
    """In how many cells training had ended; nothing where no cell was tested often enough.

    Results of earlier versions do not say.
    """
    done = [c.get("still_rising") for c in outcome["cells"] if c["status"] == "done"]
    ended, rising, unknown = (done.count(which) for which in (False, True, None))
    if not ended + rising:
        return ""
    words = [f"training had ended in {ended} of {len(done)} cells"]
    if rising:
        words.append(f"{RISING} more rounds would have helped in {rising}")
    if unknown:
        words.append(f"too few tests to say in {unknown}")
    return "; ".join(words)


def signed(value: float | None) -> str:
    """A difference with its sign."""
    return "–" if value is None else f"{value:+.2f}"


def beside_paper(cell: Cell | None) -> str:
    """How a cell lies to the paper's: `above`, `below`, `within`, or nothing where that is open."""
    if cell is None or cell["outside"] is None or cell["status"] != "done":
        return ""
    if not cell["outside"]:
        return "within"
    return "above" if cell["difference"] > 0 else "below"


def by_place(outcome: Outcome) -> dict[tuple[str, str], Cell]:
    """Cells by row and column."""
    return {(c["row"], c["column"]): c for c in outcome["cells"]}


def _mean(found: dict[str, Any]) -> float | None:
    """With a word for infinity, which CSV leaves to its readers: these take `inf`."""
    return float("inf") if found.get("text") == INFINITE else found.get("mean")


def as_csv(outcome: Outcome) -> str:
    """A line per cell."""
    rows = []
    for cell in outcome["cells"]:
        paper = cell["paper"] or {}
        line = {k: cell[k] for k in FIELDS if k in cell}
        line |= {f"paper_{k}": paper.get(k) for k in ("std", "low", "high")}
        line |= {"mean": _mean(cell), "paper_mean": _mean(paper)}
        line |= {"experiment": outcome["experiment"], "scale": outcome["scale"]}
        line |= {"seeds": seeds_in_mean(cell), "seeds_wanted": outcome["seeds"]}
        line |= {"paper": paper.get("text", "")}
        rows.append([line.get(name) for name in FIELDS])
    return csv_text(FIELDS, rows)


def troubles(outcome: Outcome) -> list[str]:
    """What is not complete and why, those with the same reason together."""
    places: dict[tuple[str, str], list[str]] = {}
    for cell in outcome["cells"]:
        if cell["reason"] and cell["status"] != "running":  # that is no trouble
            place = f"{cell['row']}, {cell['column']}"
            places.setdefault((cell["status"], cell["reason"]), []).append(place)
    found = []
    for (status, reason), those in places.items():
        more = f" and {len(those) - NAMED} more" if len(those) > NAMED else ""
        found.append(f"{'; '.join(those[:NAMED])}{more}: {status}: {reason}")
    return found
