"""Where there are kernels, and what they may do."""

from __future__ import annotations

import functools
import importlib.util

import torch

CAPABILITY = (8, 0)  # products of TF32 and bf16


@functools.cache
def has_kernels(device: torch.device) -> bool:
    """Whether kernels can be made for a device here: that needs Triton and an NVIDIA GPU.

    Example:
      >>> has_kernels(torch.device("cpu"))
      False
    """
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    if not torch.cuda.is_available():  # the workers' device, not this machine's
        return True
    return torch.cuda.get_device_capability(device) >= CAPABILITY


def may_round() -> bool:
    """Whether products may round float32 to TF32, as torch's own are set to."""
    try:
        return bool(torch.backends.cuda.matmul.allow_tf32)
    except RuntimeError:  # set in the newer way, which the older one does not read
        return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")
