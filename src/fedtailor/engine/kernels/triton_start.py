"""Starts kernels, or only makes them; needs Triton."""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from fedtailor.engine.kernels.support import are_only_made, only_make


def start(kernel: Any, grid: tuple[int, ...], *given: Any, **options: Any) -> None:
    """Runs a kernel; where kernels are only made, as `only_make` says, it is made."""
    if are_only_made():
        made = kernel.warmup(*given, grid=grid, **options)
        driver.active.launcher_cls(made.src, made.metadata)  # what starts it is compiled, too
    else:
        kernel[grid](*given, **options)


class _Elsewhere:
    """Stands for the GPU in a process that has none: kernels are made for it all the same."""

    def __init__(self, target: Any, launcher_cls: Any) -> None:
        self._target, self.launcher_cls = target, launcher_cls

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def make_for_this_gpu(device: torch.device) -> Callable[[], None]:
    """What a copy of this process does first, to make kernels for this one's GPU.

    Of an NVIDIA GPU all that is needed is known without Triton's driver, which is compiled when it
    is first asked (`start_driver`).
    """
    if torch.version.hip:
        target, launcher_cls = driver.active.get_current_target(), driver.active.launcher_cls
    else:
        from triton.backends.nvidia.driver import CudaLauncher

        major, minor = torch.cuda.get_device_capability(device)
        target, launcher_cls = GPUTarget("cuda", 10 * major + minor, 32), CudaLauncher

    def begin() -> None:
        driver.set_active(_Elsewhere(target, launcher_cls))
        only_make()

    return begin


def start_driver() -> None:
    """Has Triton set itself up for this process's GPU, if it has not."""
    driver.active.get_current_target()
