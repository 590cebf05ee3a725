"""What a network makes of its input before its head sees it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from fedtailor.core.errors import BadInput


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
