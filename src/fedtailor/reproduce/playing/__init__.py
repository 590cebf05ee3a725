"""Plays a table's runs: which, in which order, in how many processes."""
