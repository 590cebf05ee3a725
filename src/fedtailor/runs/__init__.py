"""Plays runs: from a configuration to a folder."""
