"""Clients with few rows, many ties, and rubbish in the padding."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from fedtailor.core.form import TaskKind


class DrawnClients(NamedTuple):
    """Padded tensors, as a metric takes them, and the plain arrays of each client."""

    outputs: Tensor
    labels: Tensor
    weight: Tensor
    each: list[tuple[np.ndarray, np.ndarray]]


@st.composite
def clients(
    draw: st.DrawFn, task: TaskKind = "classification", classes: int = 2, dtype: str = "float64"
) -> DrawnClients:
    """One to four clients with 0 to 12 rows; numbers from a coarse grid, so that many are equal."""
    sizes = draw(st.lists(st.integers(0, 12), min_size=1, max_size=4))
    width, total = (classes if task == "classification" else 1), sum(sizes)
    outputs = draw(arrays("int8", (total, width), elements=st.integers(-6, 6))) / np.float64(3)
    if task == "classification":
        labels = draw(arrays("int64", total, elements=st.integers(0, classes - 1)))
    elif task == "regression":
        labels = draw(arrays("int8", total, elements=st.integers(-9, 9))) / np.float64(10)
    else:
        times = draw(arrays("int8", total, elements=st.integers(1, 6))) / np.float64(2)
        events = draw(arrays("int8", total, elements=st.integers(0, 1)))
        labels = np.stack([times, events], 1)
    cuts = np.cumsum(sizes)[:-1]
    outputs = outputs.astype(dtype)
    each = list(zip(np.split(outputs, cuts), np.split(labels, cuts), strict=True))
    return padded(each, max(sizes) + draw(st.integers(0, 2)), draw(st.booleans()))


def padded(
    each: list[tuple[np.ndarray, np.ndarray]], rows: int, at_front: bool = False
) -> DrawnClients:
    """Clients side by side; what stands in the padding must not matter."""
    first_outputs, first_labels = each[0]
    rubbish = np.nan if first_labels.dtype.kind == "f" else -7
    outputs = np.full((len(each), rows, first_outputs.shape[1]), np.nan, first_outputs.dtype)
    labels = np.full((len(each), rows, *first_labels.shape[1:]), rubbish, first_labels.dtype)
    weight = np.zeros((len(each), rows))
    for client, (said, truth) in enumerate(each):
        at = slice(rows - len(said), rows) if at_front else slice(0, len(said))
        outputs[client, at], labels[client, at], weight[client, at] = said, truth, 1
    return DrawnClients(*(torch.from_numpy(a) for a in (outputs, labels, weight)), each)
