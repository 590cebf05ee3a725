"""Whether there is anything to learn by: a loss without numbers or a gradient changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from fedtailor.core.errors import BadInput
from fedtailor.core.tree import Params


def refuse_without_gradient(
    name: str,
    params: Params,
    trained: Collection[str],
    outputs: Callable[[Params], Tensor],
    loss: Callable[[Tensor], Tensor],
    predict: Callable[[], Tensor],
) -> None:
    """Sees that the loss leads back to parameters by functions that have a derivative.

    Whether that derivative is zero is another question, and may be so at one place alone.

    Args:
      name: of the network.
      params: some.
      trained: names of those that training changes.
      outputs: params -> the network's outputs of some rows.
      loss: outputs -> a loss of each row.
      predict: the network's outputs of the same rows in evaluation mode.

    Raises:
      BadInput: it does not, it gives no numbers, or the outputs in training have another shape than
        in evaluation.

    Example:
      >>> given = {"weight": torch.ones(2)}
      >>> right = lambda said: (said > 0).float()
      >>> refuse_without_gradient("Net", given, given, lambda p: 2 * p["weight"], right,
      ...     lambda: given["weight"])
      Traceback (most recent call last):
          ...
      fedtailor.core.errors.BadInput: loss has no gradient, so nothing would be learnt: make it of \
the outputs by functions that have one (no argmax, ==, round, detach, numpy)
    """
    leaves = {k: v.detach().requires_grad_(k in trained) for k, v in params.items()}
    with torch.enable_grad():
        try:
            said, evaluated = outputs(leaves), predict()
            _refuse_other_shape(name, said, evaluated)
            losses = loss(said)
            _refuse_no_numbers(said.detach(), losses.detach())
            of_outputs, of_loss = said.requires_grad, losses.requires_grad
        except BadInput:
            raise
        except Exception:  # of a stranger's network or loss: training tells
            return
    cure = "by functions that have one (no argmax, ==, round, detach, numpy)"
    if not of_outputs:
        raise BadInput(
            f"model {name}: its outputs have no gradient in its parameters, so nothing would be "
            f"learnt: make them {cure.replace('numpy', 'no_grad, numpy')}"
        )
    if not of_loss:
        raise BadInput(
            f"loss has no gradient, so nothing would be learnt: make it of the outputs {cure}"
        )


def _refuse_other_shape(name: str, said: object, evaluated: Tensor) -> None:
    shape = tuple(said.shape) if isinstance(said, Tensor) else None
    if shape != tuple(evaluated.shape):
        told = type(said).__name__ if shape is None else f"outputs of shape {shape}"
        raise BadInput(
            f"model {name} gives {told} in training, and {tuple(evaluated.shape)} in evaluation: "
            "give the same in both"
        )


def _refuse_no_numbers(said: Tensor, losses: Tensor) -> None:
    if said.isfinite().all() and not losses.isfinite().any():
        raise BadInput(
            f"loss gives {float(losses.flatten()[0]):g} for outputs that are finite numbers, so "
            "nothing would be learnt: make it give a finite one (no log of 0, no 0/0)"
        )
