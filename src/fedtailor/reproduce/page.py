"""The page of an experiment: ours beside the paper's, what was chosen and why, and the pictures."""

from __future__ import annotations

import base64
from importlib import resources
from pathlib import Path
from typing import Any

from .writing import by_place, number, shown, signed


def _asset(package: str, name: str) -> str:
    return resources.files(package).joinpath("assets", name).read_text(encoding="utf-8")


def _verdict(cell: dict[str, Any] | None) -> tuple[str, str]:
    """(sign, class) of a cell: the sign says it where colour cannot."""
    if cell is None or cell["outside"] is None:
        return "", ""
    if not cell["outside"]:
        return "≈", "within"
    return ("▲", "above") if cell["difference"] > 0 else ("▼", "below")


def render(outcome: dict[str, Any], folder: Path, reports: dict[str, str]) -> str:
    """The page as HTML that needs nothing else but the links.

    Args:
      outcome: of the experiment.
      folder: where its pictures lie.
      reports: pages about the runs, by column.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    pictures = {
        name: "data:image/png;base64," + base64.b64encode((folder / name).read_bytes()).decode()
        for name in outcome["pictures"]
    }
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(_asset("fedtailor.reproduce", "index.html.j2")).render(
        o=outcome,
        cells=by_place(outcome),
        style=Markup(_asset("fedtailor.report", "page.css")),
        pictures=pictures,
        reports=reports,
        number=number,
        shown=shown,
        signed=signed,
        verdict=_verdict,
    )
