"""A network in two parts: what of it stays fixed while its upper layers train, and those layers.

What the lower part makes of an example is then the same in every epoch, and need be computed once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import NamedTuple

from torch import Tensor, nn
from torch.func import functional_call

from fedtailor.core.tree import Params

# what treats every example by itself, in the same way in training as in evaluation
ROW_WISE = (
    nn.AdaptiveAvgPool2d,
    nn.AvgPool2d,
    nn.Conv1d,
    nn.Conv2d,
    nn.ELU,
    nn.Flatten,
    nn.GELU,
    nn.GroupNorm,
    nn.Identity,
    nn.LayerNorm,
    nn.LeakyReLU,
    nn.Linear,
    nn.MaxPool2d,
    nn.ReLU,
    nn.Sequential,
    nn.SiLU,
    nn.Sigmoid,
    nn.Tanh,
)


class UpperPart(NamedTuple):
    """The upper layers of a network, apart from those below."""

    below: Callable[[Params, Tensor], Tensor]  # (params, inputs) -> what the upper part is given
    above: Callable[[Params, Tensor], Tensor]  # (params, what it is given) -> outputs
    names: frozenset[str]  # the parameters of the upper part


def upper_part(network: nn.Module, constants: Params, names: Collection[str]) -> UpperPart | None:
    """The network from the first module on that has one of `names`.

    None where there is nothing below it, or where the network is no chain of modules that treat
    every example by itself up to there: then it cannot be taken apart, or it would not do the same.

    Args:
      network: whose parameters are arguments.
      constants: parameters of the network that are always the same.
      names: of parameters.

    Example:
      >>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
      >>> part = upper_part(net, {}, ["2.bias"])
      >>> part is not None and sorted(part.names), upper_part(net, {}, ["0.weight"])
      (['2.bias', '2.weight'], None)
    """
    if type(network) is not nn.Sequential:
        return None
    modules = list(network._modules.items())  # also those that stand there twice
    with_names = [any(k.startswith(f"{name}.") for k in names) for name, _ in modules]
    cut = with_names.index(True) if any(with_names) else 0
    parts = [nn.Sequential(OrderedDict(part)) for part in (modules[:cut], modules[cut:])]
    below, above = parts
    shared = {id(p) for p in below.parameters()} & {id(p) for p in above.parameters()}
    if not cut or shared or not all(map(_row_wise, (network, *below.modules()))):
        return None

    def call(part: nn.Module) -> Callable[[Params, Tensor], Tensor]:
        own = frozenset(part.state_dict())

        def forward(params: Params, x: Tensor) -> Tensor:
            mine = {k: v for k, v in (constants | params).items() if k in own}
            out: Tensor = functional_call(part, mine, (x,))
            return out

        return forward

    return UpperPart(call(below), call(above), frozenset(above.state_dict()))


def _row_wise(module: nn.Module) -> bool:
    if isinstance(module, nn.Flatten) and module.start_dim < 1:
        return False
    return type(module) in ROW_WISE and not (module._forward_hooks or module._forward_pre_hooks)
