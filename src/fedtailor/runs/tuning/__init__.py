"""Hyper-parameters chosen on validation rows."""
