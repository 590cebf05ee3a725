"""Whether a loss has a gradient at all: without one, training would change nothing, in silence."""

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
) -> None:
    """Sees that the loss leads back to parameters by functions that have a derivative.

    Whether that derivative is zero is another question, and may be so at one place alone.

    Args:
      name: of the network.
      params: some.
      trained: names of those that training changes.
      outputs: params -> the network's outputs of some rows.
      loss: outputs -> a loss of each row.

    Raises:
      BadInput: it does not.

    Example:
      >>> given = {"weight": torch.ones(2)}
      >>> right = lambda said: (said > 0).float()
      >>> refuse_without_gradient("Net", given, given, lambda p: 2 * p["weight"], right)
      Traceback (most recent call last):
          ...
      fedtailor.core.errors.BadInput: loss has no gradient, so nothing would be learnt: make it of \
the outputs by functions that have one (no argmax, ==, round, detach, numpy)
    """
    leaves = {k: v.detach().requires_grad_(k in trained) for k, v in params.items()}
    with torch.enable_grad():
        try:
            said = outputs(leaves)
            of_outputs, of_loss = said.requires_grad, loss(said).requires_grad
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
