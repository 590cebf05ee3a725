"""Several methods on the same data, and what may be said of them."""
