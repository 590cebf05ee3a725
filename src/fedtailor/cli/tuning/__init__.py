"""The command that chooses hyper-parameters, and what it shows."""
