"""Several runs at once: side by side in one program, and sweeps of seeds and learning rates."""
