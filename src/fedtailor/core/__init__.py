"""What methods are written in."""

__version__ = "0.3.0"
