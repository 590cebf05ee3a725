"""The page of a description: one file that needs nothing else."""

from __future__ import annotations

from typing import Any

from fedtailor.report.page import asset, template


def description_page(found: Any, rows: list[dict[str, Any]]) -> str:
    """The page as HTML.

    Args:
      found: a `DataDescription`.
      rows: its columns in words.
    """
    from markupsafe import Markup

    return template(__package__, "inspect.html.j2").render(
        d=found,
        rows=rows,
        style=Markup(asset("fedtailor.report", "page.css")),
    )
