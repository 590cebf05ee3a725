"""From a table's cells to features: what each column is, which are left out, and why."""
