"""What comes from outside: settings files, and modules of the user's own."""
