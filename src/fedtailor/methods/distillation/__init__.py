"""Methods whose networks teach each other by what they say, not by their parameters."""
