"""Which networks draw random numbers, and which cannot be told what to draw."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode

from fedtailor.core.errors import BadInput
from fedtailor.core.network.made import ONE_DRAWS

_KNOWN = ("torch.nn.", "fedtailor.models.")  # whose modules draw nothing, but for
_DRAWS = (
    nn.modules.dropout._DropoutNd,
    nn.RReLU,
    nn.FractionalMaxPool2d,
    nn.FractionalMaxPool3d,
)  # in training, and
_HAS_SHORTCUTS = (
    nn.MultiheadAttention,
    nn.TransformerEncoderLayer,
    nn.RNNBase,
    nn.RNNCellBase,
)


def may_draw(network: nn.Module) -> bool:
    """Whether a network, as it is set (training or evaluation), may call what has to be watched.

    Example:
      >>> may_draw(nn.Sequential(nn.Linear(4, 3))), may_draw(nn.Sequential(nn.Dropout(0.5)))
      (False, True)
    """
    return not all(_plain(module) for module in network.modules())


def _plain(module: nn.Module) -> bool:
    if isinstance(module, _HAS_SHORTCUTS) or (module.training and isinstance(module, _DRAWS)):
        return False
    if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
        return False
    return type(module).__module__.startswith(_KNOWN)


def generators(device: torch.device | str = "cpu") -> list[Tensor]:
    """The states of torch's generators that code on a device may draw from."""
    with ONE_DRAWS:  # what another thread draws meanwhile, it undoes
        states = [torch.default_generator.get_state()]
    if torch.device(device).type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states


def unmoved(before: list[Tensor], device: torch.device | str = "cpu") -> bool:
    """Whether nobody drew from torch's generators since."""
    return all(torch.equal(a, b) for a, b in zip(before, generators(device), strict=True))


class _Watch(TorchFunctionMode):
    """Notes the first function that draws from torch's generators."""

    def __init__(self, device: torch.device | str) -> None:
        super().__init__()
        self._device, self._before, self.found = device, generators(device), ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        clean = unmoved(self._before, self._device)
        out = func(*args, **(kwargs or {}))
        if clean and not unmoved(self._before, self._device):
            self.found = f"torch.{getattr(func, '__name__', func)}"
        return out


def refuse_hidden_draws(
    network: nn.Module, forward: Callable[[], Any], device: torch.device | str = "cpu"
) -> None:
    """Calls `forward` twice, and refuses a network that does not do the same both times.

    Args:
      network: whose modules are named.
      forward: calls it, with a key for what it draws.
      device: where it runs.

    Raises:
      BadInput: a module draws from a generator that no key reaches, or has a memory.
    """
    names = {module: name for name, module in network.named_modules()}
    first, again = (_seen(forward, device) for _ in range(2))
    for (module, drew, out), (_, _, other) in zip(first, again, strict=False):
        kind = type(module).__name__
        where = f"module '{names[module]}' ({kind})" if names.get(module) else f"network {kind}"
        if drew:
            raise BadInput(
                f"{where} draws random numbers that the run's seed does not reach ({drew}): draw "
                "with F.dropout, torch.rand, torch.randn, torch.bernoulli and the like"
            )
        if not _alike(out, other, exact=torch.device(device).type == "cpu"):
            raise BadInput(
                f"{where} says something else when it is called again with the same weights, "
                "examples and random key: draw with torch.rand and the like, not from a generator "
                "of its own, and keep nothing from call to call"
            )


def _seen(
    forward: Callable[[], Any], device: torch.device | str
) -> list[tuple[nn.Module, str, Any]]:
    """Each module when it is done: what it drew with, if with none of our keys; its outputs."""
    seen: list[tuple[nn.Module, str, Any]] = []
    watch, before, others = _Watch(device), generators(device), _others()

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        drew = ""
        if not unmoved(before, device):
            drew = watch.found or "inside of a compiled module"
        elif others != _others():
            drew = "Python's random, or numpy"
        seen.append((module, drew, output))

    handle = register_module_forward_hook(note)
    try:
        with torch.no_grad(), watch:
            forward()
    finally:
        handle.remove()
    return seen


def _others() -> tuple[Any, ...]:
    """The states of generators that are not torch's."""
    name, keys, *rest = np.random.get_state()  # noqa: NPY002
    return random.getstate(), name, np.asarray(keys).tobytes(), *rest


def _alike(a: Any, b: Any, exact: bool) -> bool:
    if isinstance(a, Tensor):
        close = {"rtol": 0.0, "atol": 0.0} if exact else {"rtol": 1e-3, "atol": 1e-4}
        real = a.is_floating_point()
        return torch.allclose(a, b, **close, equal_nan=True) if real else torch.equal(a, b)
    if isinstance(a, dict):
        return all(_alike(a[k], b[k], exact) for k in a)
    if isinstance(a, (tuple, list)):
        return all(_alike(x, y, exact) for x, y in zip(a, b, strict=True))
    return True
