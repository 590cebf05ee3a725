"""Trees as packets, checked on the way back: names, shapes, types, finite numbers."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from fedtailor.core import tree, wire
from fedtailor.core.errors import BadInput
from fedtailor.core.method import Upload
from fedtailor.core.tree import Tree
from fedtailor.federation.protocol.packet import BFLOAT16, Arrays, Limits, Packet

Spec = list[list[Any]]  # [flat name, type, shape] of each leaf, in order


def spec_of(message: Tree) -> Spec:
    """Names, types and shapes of a whole message, in words that JSON has."""
    flat = tree.flatten(message)
    return [[k, str(v.dtype).removeprefix("torch."), list(v.shape)] for k, v in flat.items()]


def ordered_like(values: Tree, like: Tree) -> Tree:
    """The values with their names in the order of `like`.

    Files sort them, and what a method makes of a tree should not depend on whether it was on disk.

    Raises:
      BadInput: other names, shapes or types.
    """
    if sorted(spec_of(values)) != sorted(spec_of(like)):
        raise BadInput("other names, shapes or types than expected")
    return tree.map(lambda _, value: value, like, values)


def like_of(spec: Spec, limits: Limits = Limits()) -> Tree:
    """A message of zeros as `spec` says, if it is one, and no larger than allowed."""
    flat = {}
    try:
        left = limits.bytes
        if len(spec) > limits.arrays:
            raise ValueError(f"{len(spec):,} arrays, more than {limits.arrays:,}")
        for name, kind, shape in spec:
            dtype = getattr(torch, kind)
            if not isinstance(dtype, torch.dtype):
                raise TypeError(f"{kind} is no type of numbers")
            sizes = [int(s) for s in shape]
            left -= prod(sizes) * dtype.itemsize
            if left < 0 or min(sizes, default=0) < 0:  # before any memory is taken
                raise ValueError(f"{name[:80]} {sizes}, more than {limits.bytes:,} bytes in all")
            flat[name] = torch.zeros(sizes, dtype=dtype)
        return tree.unflatten(flat)
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"plan: what messages look like cannot be read ({error})") from None


def _to_numpy(name: str, leaf: Tensor) -> tuple[str, np.ndarray[Any, Any]]:
    plain = leaf.detach().cpu().contiguous()
    if plain.dtype == torch.bfloat16:
        return name + BFLOAT16, plain.view(torch.int16).numpy()
    try:
        return name, plain.numpy()
    except TypeError:
        raise BadInput(
            f"message: '{name}' is {leaf.dtype}, which does not travel: use float32"
        ) from None


def to_safetensors(values: Tree) -> bytes:
    """A tree for a file of its own, without memory that leaves share."""
    flat = tree.flatten(values).items()
    return save({name: leaf.detach().cpu().contiguous().clone() for name, leaf in flat})


def to_arrays(message: Tree) -> Arrays:
    """What is sent of a message: flat named arrays, without the rows that are not there."""
    flat = tree.flatten(wire.as_sent(message))
    return dict(_to_numpy(name, leaf) for name, leaf in flat.items())


def _to_tensor(name: str, array: np.ndarray[Any, Any]) -> tuple[str, Tensor]:
    # a copy: what comes from outside is read-only memory, and may be laid out in any order
    found = torch.from_numpy(np.array(array, order="C"))
    if not name.endswith(BFLOAT16):
        return name, found
    if found.dtype != torch.int16:
        raise BadInput(f"message: '{name}' is {found.dtype}, expected 16 bits")
    return name.removesuffix(BFLOAT16), found.view(torch.bfloat16)


def from_arrays(arrays: Arrays, like: Tree) -> Tree:
    """The message that `to_arrays` was given, as one like `like`; missing rows are zeros.

    Raises:
      BadInput: other names, shapes or types than expected, or numbers that are not finite.
    """
    flat = dict(_to_tensor(name, array) for name, array in arrays.items())
    for name, leaf in flat.items():
        if leaf.is_floating_point() and not bool(leaf.isfinite().all()):
            raise BadInput(f"message: '{name}' holds numbers that are not finite")
    for name in flat:
        parts = name.split("/")
        if any("/".join(parts[:i]) in flat for i in range(1, len(parts))):
            raise BadInput(f"message: '{name}' lies within numbers")
    return wire.fill(tree.unflatten(flat), like)


def unknown_parts(message: Tree) -> Tree:
    """The message with NaN in place of what was not sent: shows what depends on it."""
    if "here?" not in message:
        return {k: unknown_parts(v) if isinstance(v, dict) else v for k, v in message.items()}
    flag = wire.here(message)

    def hide(leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf
        there = flag.view(-1, *[1] * (leaf.ndim - 1)) if flag.ndim else flag
        return torch.where(there, leaf, torch.nan)

    return wire.maybe(flag, tree.map(hide, wire.value(message)))


def upload_arrays(upload: Upload) -> Arrays:
    """A client's upload as flat named arrays; its weight travels in the header."""
    return to_arrays({"mean": upload.mean, "each": upload.each})


def read_upload(packet: Packet, like: Tree, largest: float, rows: int) -> Upload:
    """The upload in an answer, checked against `like` (a tree of `mean` and `each`).

    It weighs no more than the `rows` that its site announced on joining, or 1 where all sites weigh
    alike: no mean is one site's own.

    Raises:
      BadInput: it is not what this method's clients send.
    """
    found = from_arrays(packet.arrays, like)
    for name, leaf in tree.flatten(found).items():
        if leaf.is_floating_point() and leaf.numel() and float(leaf.abs().max()) > largest:
            raise BadInput(f"message: '{name}' holds numbers above {largest:g}")
    weight = packet.real("weight")
    if not 0 <= weight <= rows:
        why = "the site's rows" if rows > 1 else "as each site weighs"
        raise BadInput(f"header: 'weight' is {weight:g}, expected 0 to {rows}, {why}")
    return Upload(found["mean"], torch.tensor(weight), found["each"])


def message_bytes(message: Tree) -> int:
    """Bytes of a message as the simulation counts them."""
    return int(wire.size(message))
