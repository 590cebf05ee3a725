"""What a run leaves behind, and what it means."""
