"""Short names for what a page shows: blocks of a network, and runs of the same method."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def block_names(blocks: Sequence[Sequence[str]]) -> list[str]:
    """A block's name is what its parameters' names have in common.

    Example:
      >>> block_names([("body.0.weight", "body.0.bias"), ("head.weight",)])
      ['body.0', 'head']
    """
    found = []
    for number, block in enumerate(blocks):
        common: list[str] = []
        for parts in zip(*(name.split(".")[:-1] for name in block), strict=False):
            if len(set(parts)) > 1:
                break
            common.append(parts[0])
        found.append(".".join(common) or f"block {number}")
    return found


def short(value: Any) -> str:
    """An option's value in few letters."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def variant_labels(variants: Sequence[tuple[str, str, str]]) -> list[str]:
    """A label of its own for each variant of a method.

    Args:
      variants: (method, options as JSON, folder's name), each pair of the first two but once,
        unless the same thing was run twice.

    Example:
      >>> variant_labels([("fedavg", "{}", "a"), ("fedala", '{"p": 1}', "b"),
      ...                 ("fedala", '{"p": 2}', "c")])
      ['fedavg', 'fedala p=1', 'fedala p=2']
    """
    labels = []
    for method, options, folder in variants:
        same = [json.loads(o) for m, o, _ in variants if m == method]
        mine = json.loads(options)
        telling = [k for k in mine if any(other.get(k) != mine[k] for other in same)]
        label = " ".join([method, *(f"{k}={short(mine[k])}" for k in telling)])
        twin = sum((m, o) == (method, options) for m, o, _ in variants) > 1
        labels.append(f"{label} ({folder})" if twin else label)
    seen: dict[str, int] = {}
    for number, label in enumerate(labels):
        seen[label] = seen.get(label, 0) + 1
        if seen[label] > 1:
            labels[number] = f"{label} #{seen[label]}"
    return labels
