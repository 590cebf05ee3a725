"""A site: its data, its state, its settings, and the turns it plays."""
