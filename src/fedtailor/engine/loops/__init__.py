"""Fast steps: traced, captured and compiled, or one client at a time on threads."""
