"""The page of an experiment: ours beside the paper's, what was chosen and why, and the pictures."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from fedtailor.report.page import filled
from fedtailor.reproduce.shown.writing import (
    SIGNS,
    beside_paper,
    by_place,
    ends_of_training,
    is_partial,
    order,
    ours,
    paper_text,
    signed,
    troubles,
)


def experiment_page(
    outcome: dict[str, Any], folder: Path, reports: dict[str, str], going: bool = False
) -> str:
    """The page as HTML that needs nothing else but the links.

    `reports` are pages about the runs by column; with `going` the other files are yet to come.
    """
    pictures = {
        name: "data:image/png;base64," + base64.b64encode((folder / name).read_bytes()).decode()
        for name in outcome["pictures"]
    }
    return filled(
        __package__,
        "index.html.j2",
        o=outcome,
        cells=by_place(outcome),
        pictures=pictures,
        reports=reports,
        going=going,
        partial=any(map(is_partial, outcome["cells"])),
        order=lambda column: order(outcome, column),
        ours=lambda cell: ours(cell, outcome["seeds"]),
        paper_text=paper_text,
        signed=signed,
        ends=ends_of_training(outcome),
        troubles=troubles(outcome),
        beside_paper=lambda cell: (SIGNS[beside_paper(cell)], beside_paper(cell)),
    )
