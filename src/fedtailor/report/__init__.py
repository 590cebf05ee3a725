"""One self-contained page that shows what finished runs came to."""

from fedtailor.report.page import render_report, write_report

__all__ = ["render_report", "write_report"]
