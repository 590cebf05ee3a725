"""A run's report in a browser while the run still goes on."""

from fedtailor.watch.server import Watching, open_browser

__all__ = ["Watching", "open_browser"]
