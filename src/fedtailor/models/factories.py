"""Factories of networks that are not ours: called with the form of the data, or with nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from fedtailor.core.errors import BadInput
from fedtailor.core.form import Form
from fedtailor.core.network.made import copied


def made_by(factory: Callable[..., Any], form: Form, name: str) -> nn.Module:
    """What a factory makes, as a network of its own: it may return one module every time.

    Args:
      factory: takes nothing, or the form (if it has one parameter without a default, or one
        called `form`).
      form: what the examples look like.
      name: what the factory is called in messages.

    Raises:
      BadInput: it takes something else, or makes no network.

    Example:
      >>> made_by(lambda form: nn.Linear(*form.shape, 3), Form("table", (4,), 3), "mine")
      Linear(in_features=4, out_features=3, bias=True)
    """
    try:
        network = factory(form) if _takes_form(factory) else factory()
        if not isinstance(network, nn.Module):
            told = type(network).__name__
            raise BadInput(f"the factory returned {told}: return a torch.nn.Module")
    except BadInput as error:
        raise BadInput(f"model {name}: {error}") from None
    return copied(network)


def _takes_form(factory: Callable[..., Any]) -> bool:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(factory).parameters.values()
    needed = [p for p in parameters if p.kind in positional and p.default is p.empty]
    if len(needed) > 1:
        raise BadInput(
            f"the factory needs {', '.join(p.name for p in needed)}: "
            "write one that takes nothing, or the form of the data"
        )
    first = next((p for p in parameters if p.kind in positional), None)
    return bool(needed) or (first is not None and first.name == "form")
