"""Sends what a run finds to the tool in which people keep their experiments."""

from .session import Tracking, read_tools
from .tools import TOOLS

__all__ = ["TOOLS", "Tracking", "read_tools"]
