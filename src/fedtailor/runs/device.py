"""Where a run computes."""

from __future__ import annotations

import platform

import torch

from fedtailor.core.errors import BadInput
from fedtailor.results.config import Config


def choose_device(name: str) -> torch.device:
    """The device that `name` means.

    Raises:
      BadInput: there is no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda"):
            raise RuntimeError("only cpu and cuda are known to work")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"device '{name}' cannot be used ({reason}): try --device cpu") from None
    return device


def hardware(device: torch.device) -> str:
    """What a device is, for whoever reads the results elsewhere."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.processor() or platform.machine()


def workers_device(config: Config) -> str | None:
    """What the workers compute on, where there are any: here there may be no such device."""
    if config.engine != "ray":
        return None
    if config.device == "auto":
        return str(choose_device("auto"))
    if config.device not in ("cpu", "cuda"):
        raise BadInput(f"device '{config.device}' with --engine ray: give cpu or cuda")
    return config.device
