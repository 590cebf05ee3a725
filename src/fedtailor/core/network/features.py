"""A network in two parts: what it makes of its input, and the head that sees that."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from fedtailor.core.errors import BadInput
from fedtailor.core.tree import Params


class Classify(Protocol):
    """(params, features, batch) -> outputs; in training mode if there is a batch."""

    def __call__(self, params: Params, features: Tensor, batch: Any = None) -> Tensor: ...


class HeadSplit(NamedTuple):
    """A network in two parts, for methods that look at features or change them.

    Attributes:
      embed: (params, batch) -> (features, outputs, buffers after the pass), in training mode: what
        the head is given and what it makes of that, in one pass.
      classify: the head alone: (params, features) -> outputs. With a batch as a third argument in
        training mode, where its key serves what a head draws (dropout).
      width: how many features there are.
    """

    embed: Callable[[Params, Any], tuple[Tensor, Tensor, Params]]
    classify: Classify
    width: int


def head_width(network: nn.Module, part: str, names: tuple[str, ...]) -> int:
    """How many features the head `part` of a network takes; 0 where it cannot be called alone.

    Args:
      network: the whole network.
      part: name of the module that the head begins with; empty is the network itself.
      names: of all parameters and buffers of the head.

    Example:
      >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
      >>> head_width(net, "2", ("2.weight", "2.bias"))
      8
    """
    head = network.get_submodule(part)
    inside = f"{part}." if part else ""
    layers = [m for m in head.modules() if isinstance(m, nn.Linear)]
    if not layers or any(True for _ in head.buffers()):
        return 0
    return layers[0].in_features if all(name.startswith(inside) for name in names) else 0


def input_of(network: nn.Module, part: str, forward: Callable[[], Any]) -> Tensor:
    """What a part of a network is given when `forward` calls the network.

    Args:
      network: it is called by `forward`.
      part: name of one of its modules; empty is the network itself.
      forward: calls it once.

    Raises:
      BadInput: the network's forward does not call that module.
    """
    given: list[Tensor] = []
    here = threading.get_ident()  # other threads may call the same network at the same time

    def note(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        if threading.get_ident() == here:
            given.append(arguments[0])

    hook = network.get_submodule(part).register_forward_pre_hook(note)
    try:
        forward()
    finally:
        hook.remove()
    if not given:
        raise BadInput(
            f"features: the network's forward does not call '{part}', where its head begins: name "
            "a module that it calls as the network's head_begins"
        )
    return given[0]
