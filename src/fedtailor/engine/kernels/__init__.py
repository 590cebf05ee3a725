"""Operators of many clients at once: GPU kernels, and a plain form where there are none."""
