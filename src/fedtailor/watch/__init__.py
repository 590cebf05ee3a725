"""A run's report in a browser while the run still goes on."""

from fedtailor.watch.server import PORT, Watching, open_browser

__all__ = ["PORT", "Watching", "open_browser"]
