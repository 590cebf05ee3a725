"""Networks as objects: a module with its weights, or a factory that makes new ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import nn

from fedtailor.core.errors import BadInput
from fedtailor.core.form import Form
from fedtailor.core.inputs.their_code import line_of
from fedtailor.core.network.made import copied, drawing
from fedtailor.core.task import to_input
from fedtailor.models.factories import made_by
from fedtailor.models.named import MODELS, build

Model: TypeAlias = str | nn.Module | Callable[[Form], nn.Module] | Callable[[], nn.Module]


def network_of(model: Model, form: Form) -> nn.Module:
    """A network for data of this form, from a name, a module or a factory.

    Args:
      model: a name as `build` takes it; a module, which is copied with its weights: they are what
        all clients start from, whatever the seed; or a factory, called without arguments or with
        the form (if it has one parameter without a default, or one called `form`). A factory draws
        new weights from the run's seed.
      form: what the examples look like.

    Raises:
      BadInput: no network, or it does not give one logit per class for such examples.

    Example:
      >>> form = Form("table", (4,), 3)
      >>> network_of(lambda form: nn.Linear(form.shape[0], form.outputs), form)
      Linear(in_features=4, out_features=3, bias=True)
      >>> network_of(nn.Linear(4, 2), form)  # doctest: +ELLIPSIS
      Traceback (most recent call last):
      fedtailor.core.errors.BadInput: model Linear gives (2,) for an example: return 3 logits...
    """
    if isinstance(model, str):
        network = build(model, form)
        if model in MODELS:  # fits whatever `build` takes
            return network
    elif isinstance(model, nn.Module):
        network = copied(model)
    elif callable(model):
        network = made_by(model, form, getattr(model, "__name__", type(model).__name__))
    else:
        raise BadInput(
            f"model is of type {type(model).__name__}: give a name, an nn.Module or a factory"
        )
    network = network.cpu()
    _check(network, form)
    return network


def _check(network: nn.Module, form: Form) -> None:
    """Two examples of zeros go through, in evaluation: statistics stay as they are."""
    name = type(network).__name__
    kinds = {"image": torch.uint8, "table": torch.float32, "text": torch.int64}
    x = torch.zeros(2, *form.shape, dtype=kinds[form.kind])
    was_training = network.training
    try:
        with torch.no_grad(), drawing():
            dtype = next((p.dtype for p in network.parameters()), None)
            if dtype is None:
                raise BadInput(f"model {name} has no parameters: there is nothing to train")
            logits = network.eval()(to_input(x, dtype))
    except BadInput:
        raise
    except Exception as error:  # whatever a stranger's forward raises
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        place = line_of(error)
        at = f"{place}: " * bool(place)
        raise BadInput(
            f"model {name} does not take {form.kind} examples of shape {form.shape} "
            f"({at}{reason[:160]}): mend forward, or make its first layer fit"
        ) from error
    finally:
        network.train(was_training)
    shape = tuple(getattr(logits, "shape", ()))
    if shape != (2, form.outputs):
        found = f"{shape[1:]} for an example" if shape[:1] == (2,) else f"{type(logits).__name__}"
        raise BadInput(f"model {name} gives {found}: return {_wanted(form)}")


def _wanted(form: Form) -> str:
    if form.task == "classification":
        return f"{form.classes} logits, one per class"
    return f"1 number, for {form.task}"
