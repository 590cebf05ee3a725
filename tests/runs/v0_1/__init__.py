"""Folders that FedTailor 0.1.0 left: runs and comparisons of a very small network."""
