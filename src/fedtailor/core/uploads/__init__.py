"""What a server makes of single uploads, before any mean."""
