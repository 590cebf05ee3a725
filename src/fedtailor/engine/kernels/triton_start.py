"""Starts kernels, or only makes them; needs Triton."""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from triton.runtime import driver

from fedtailor.engine.kernels.support import are_only_made, only_make


def start(kernel: Any, grid: tuple[int, ...], *given: Any, **options: Any) -> None:
    """Runs a kernel; where kernels are only made, as `only_make` says, it is made."""
    if are_only_made():
        kernel.warmup(*given, grid=grid, **options)
    else:
        kernel[grid](*given, **options)


class _Elsewhere:
    """Stands for the GPU in a process that has none: kernels are made for it all the same."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def make_for_this_gpu() -> Callable[[], None]:
    """What a copy of this process does first, to make kernels for this one's GPU."""
    target = driver.active.get_current_target()

    def begin() -> None:
        driver.set_active(_Elsewhere(target))
        only_make()

    return begin
