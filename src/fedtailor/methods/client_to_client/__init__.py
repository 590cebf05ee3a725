"""Methods in which clients learn from chosen others."""
