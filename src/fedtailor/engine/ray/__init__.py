"""Clients spread over the workers of a Ray cluster."""
