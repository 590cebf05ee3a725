"""From raw examples to what a network takes: fitted on training rows only, saved with a model."""
