"""Methods whose server learns to write clients' models."""
