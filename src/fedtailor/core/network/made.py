"""A task's networks: one that trains, one that evaluates and one to look at, all made alike."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock

import torch
from torch import Tensor, nn

from fedtailor.core import rng
from fedtailor.core.errors import BadInput
from fedtailor.core.rng import Key

Build = Callable[[], nn.Module]
ONE_DRAWS = RLock()  # threads share torch's generator


@contextmanager
def drawing(key: Key | None = None) -> Iterator[None]:
    """Within, torch draws on the CPU by a key; afterwards it goes on as if nobody had drawn.

    Args:
      key: None draws on from where torch is.

    Example:
      >>> with drawing(rng.key(1)):
      ...     one = torch.randn(2)
      >>> with drawing(rng.key(1)):
      ...     bool((torch.randn(2) == one).all())
      True
    """
    with ONE_DRAWS, torch.random.fork_rng(devices=[]):
        if key is not None:
            # the CPU's generator alone: torch.manual_seed would reseed GPUs too
            torch.default_generator.manual_seed(int(key) & 0x7FFFFFFFFFFFFFFF)
        yield


def made_alike(build: Build) -> nn.Module:
    """A network whose masks, permutations and other fixed numbers are the same every time.

    They are no parameters, so whoever makes the network again must find the same ones.
    """
    with drawing(rng.key(0)):
        return build()


def three_alike(build: Build) -> tuple[nn.Module, nn.Module, nn.Module]:
    """Three networks that differ in nothing.

    Raises:
      BadInput: they do, or are one and the same.
    """
    one, two, three = (made_alike(build) for _ in range(3))
    name = type(one).__name__
    if one is two:
        raise BadInput(
            f"model {name}: it is one and the same module every time: make a new one, or return "
            "copy.deepcopy of it"
        )
    mine, other = one.state_dict(), two.state_dict()
    for entry in mine:
        if entry not in other or not _equal(mine[entry], other[entry]):
            raise BadInput(
                f"model {name}: made twice from one seed, it differs in '{entry}': let torch draw "
                "what is drawn (torch.randn, torch.randperm), which a run's seed reaches"
            )
    for part, module in one.named_modules():
        for kind, cure in _UNFIT.items():
            if isinstance(module, kind):
                raise BadInput(f"module '{part or name}': {cure}")
    for entry, parameter in one.named_parameters():
        if parameter.is_complex() and parameter.requires_grad:
            raise BadInput(
                f"model {name}: parameter '{entry}' is complex and would not be trained: keep two "
                "real numbers in it (torch.view_as_real), and make it complex in forward"
            )
    return one, two, three


_UNFIT: dict[type, str] = {
    nn.SyncBatchNorm: "SyncBatchNorm is for several processes: take BatchNorm2d",
    nn.DataParallel: "DataParallel is for several GPUs: give the network in it (.module)",
    torch.jit.ScriptModule: "ScriptModule has fixed parameters: give the network before torch.jit",
}


def _equal(one: object, other: object) -> bool:
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return True  # `get_extra_state` may be anything
    return one.shape == other.shape and bool(((one == other) | (one != one)).all())


def copied(network: nn.Module) -> nn.Module:
    """A network of its own, with the same numbers.

    What its forward left in it, or a `weight_norm` computes, belongs to no graph there.

    Example:
      >>> net = nn.Linear(2, 2)
      >>> net.last = net(torch.ones(1, 2))  # copy.deepcopy refuses that
      >>> bool(copied(net).last.requires_grad)
      False
    """
    kept = (v for module in network.modules() for v in vars(module).values())
    memo = {id(v): v.detach().clone() for v in kept if isinstance(v, Tensor) and not v.is_leaf}
    return copy.deepcopy(network, memo)
