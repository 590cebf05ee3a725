"""Weights that a network begins with, and parameters that stay as they are."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.files import sha256_of

Weights: TypeAlias = str | Path | Mapping[str, Tensor]  # a safetensors file, or a `state_dict`


def globs_of(text: str) -> tuple[str, ...]:
    """Patterns that were written with commas between them."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def matching(globs: Sequence[str], names: Sequence[str], setting: str) -> set[str]:
    """The names that any of the patterns fits.

    Raises:
      BadInput: a pattern fits none.

    Example:
      >>> sorted(matching(["conv*"], ["conv.weight", "conv.bias", "fc.bias"], "freeze"))
      ['conv.bias', 'conv.weight']
    """
    found: set[str] = set()
    for glob in globs:
        some = {name for name in names if fnmatchcase(name, glob)}
        if not some:
            raise BadInput(f"{setting} '{glob}' fits no name: known: {', '.join(names)}")
        found |= some
    return found


def freeze(network: nn.Module, globs: Sequence[str]) -> nn.Module:
    """The network, with the parameters that a pattern fits marked as frozen.

    Example:
      >>> freeze(nn.Linear(4, 3), ["bias"]).bias.requires_grad
      False
    """
    named = dict(network.named_parameters())
    for name in matching(globs, list(named), "freeze"):
        named[name].requires_grad_(False)
    return network


def digest_of(weights: Weights) -> str:
    """Tells whether two sets of weights are the same."""
    if not isinstance(weights, Mapping):
        return sha256_of(_there(weights))
    made = hashlib.sha256()
    for name in sorted(weights):
        value = weights[name].detach().cpu().contiguous()
        made.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        made.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return made.hexdigest()


def _there(path: str | Path) -> Path:
    if not Path(path).is_file():
        raise BadInput(f"weights '{path}' is no file: give a safetensors file")
    return Path(path)


def _read(weights: Weights) -> dict[str, Tensor]:
    if isinstance(weights, Mapping):
        return dict(weights)
    try:
        return load_file(_there(weights))
    except (SafetensorError, OSError) as error:
        raise BadInput(
            f"weights '{weights}' cannot be read ({error}): save them with safetensors.torch."
            "save_file(model.state_dict(), FILE)"
        ) from None


def load_weights(network: nn.Module, weights: Weights, leave_out: Sequence[str] = ()) -> nn.Module:
    """The network, with other weights.

    Args:
      network: gets them.
      weights: a safetensors file, or a `state_dict`. Names and shapes must be the network's.
      leave_out: patterns of names that keep the network's own, e.g. `fc.*` for another number of
        classes; what the weights have under such names is not used.

    Raises:
      BadInput: names or shapes do not fit; all of them are listed.

    Example:
      >>> pretrained = nn.Linear(4, 3)
      >>> made = load_weights(nn.Linear(4, 3), pretrained.state_dict())
      >>> torch.equal(made.weight, pretrained.weight)
      True
    """
    found, own = _read(weights), network.state_dict()
    left = matching(leave_out, sorted({*own, *found}), "weights-except") if leave_out else set()
    counters = {k for k in own if k.rpartition(".")[2] == "num_batches_tracked"}
    given = {k: v for k, v in found.items() if k not in left}
    wrong = [f"{k} is missing" for k in own if k not in given.keys() | left | counters]
    wrong += [f"{k} is not in the network" for k in given if k not in own]
    wrong += [
        f"{k} is {tuple(v.shape)} and should be {tuple(own[k].shape)}"
        for k, v in given.items()
        if k in own and v.shape != own[k].shape
    ]
    if wrong:
        raise BadInput(
            f"the weights do not fit model {type(network).__name__}: {'; '.join(wrong)}: give "
            "others, or leave names out with --weights-except GLOB"
        )
    network.load_state_dict(given, strict=False)
    return network
