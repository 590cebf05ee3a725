"""One self-contained page that shows what finished runs came to."""

from fedtailor.report.page import write_report

__all__ = ["write_report"]
