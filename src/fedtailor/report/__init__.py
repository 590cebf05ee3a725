"""One self-contained page that shows what finished runs came to."""

from fedtailor.report.page import render, write_report

__all__ = ["render", "write_report"]
