"""Methods that learn a model to be adapted in a few steps."""
