"""What methods are written in."""
