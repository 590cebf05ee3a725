"""Numbers in little room: arrays as base64, for a page that must open quickly."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Packed = dict[str, Any]


def _packed(values: Array, kind: str, **more: Any) -> Packed:
    little = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"))
    text = base64.b64encode(little.tobytes()).decode()
    return {"kind": kind, "shape": list(values.shape), "data": text, **more}


def pack_counts(counts: Array) -> Packed:
    """Whole numbers from 0, in two bytes each where that is enough."""
    small = counts.size == 0 or int(counts.max()) < 1 << 16
    return _packed(counts.astype(np.uint16 if small else np.uint32), "u16" if small else "u32")


def pack_scaled(values: Array, low: float, high: float, *, fine: bool = False) -> Packed:
    """Real numbers between two bounds, in 254 steps (65,534 if `fine`); the last code is "none".

    Args:
      values: nan means that there is none; what lies outside is clipped.
      low: the value of code 0.
      high: the value of the largest code but one.
      fine: two bytes each.
    """
    steps = 65534 if fine else 254
    span = high - low if high > low else 1.0
    with np.errstate(invalid="ignore"):
        code = np.rint((np.clip(values, low, high) - low) / span * steps)
    code = np.where(np.isnan(values), steps + 1, code)
    kind = np.uint16 if fine else np.uint8
    return _packed(code.astype(kind), "s16" if fine else "s8", low=low, high=low + span)


def rounded(values: Sequence[float] | Array, digits: int = 6) -> list[float | None]:
    """A list for JSON, which has no word for nan and infinity."""
    return [round(float(v), digits) if np.isfinite(v) else None for v in values]


def evenly(count: int, most: int) -> list[int]:
    """At most `most` of `count` places, evenly spread, the first and the last among them.

    Example:
      >>> evenly(10, 4)
      [0, 3, 6, 9]
    """
    if count <= most:
        return list(range(count))
    return sorted({round(i) for i in np.linspace(0, count - 1, max(most, 2)).tolist()})
