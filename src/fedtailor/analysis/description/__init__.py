"""Data described before anything learns from them: what `fedtailor inspect` shows."""
