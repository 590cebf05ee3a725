"""One self-contained page that shows what finished runs came to."""

from .confusion import Confusion
from .names import block_names
from .page import render, write_report

__all__ = ["Confusion", "block_names", "render", "write_report"]
