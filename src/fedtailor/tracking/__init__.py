"""Sends what a run finds to the tool in which people keep their experiments."""

from fedtailor.tracking.session import Tracking, read_tools
from fedtailor.tracking.tools import TOOLS

__all__ = ["TOOLS", "Tracking", "read_tools"]
