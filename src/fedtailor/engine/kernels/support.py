"""Where there are kernels, and what they may do."""

from __future__ import annotations

import functools
import importlib.util

import torch

CAPABILITY = (8, 0)  # products of TF32 and bf16
_only_made = False


def only_make() -> None:
    """From now on kernels are made, and not run: for a process that makes them for another one."""
    global _only_made
    _only_made = True


def are_only_made() -> bool:
    """Whether kernels are made here, and not run."""
    return _only_made


def has_kernels(device: torch.device) -> bool:
    """Whether kernels can be made for a device here: that needs Triton and an NVIDIA GPU.

    Example:
      >>> has_kernels(torch.device("cpu"))
      False
    """
    return _only_made or _has_kernels(device)


@functools.cache
def _has_kernels(device: torch.device) -> bool:
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
