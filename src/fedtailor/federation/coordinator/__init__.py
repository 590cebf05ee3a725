"""The coordinator: rounds, members, and what it keeps on disk."""
