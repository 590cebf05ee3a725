"""What a finished run gives away: rows rebuilt from an upload, and who was in the training set."""
