"""LSTM, GRU and plain recurrent layers, written out: torch's own have no rule to map them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

State = tuple[Tensor, ...]  # (h,) or (h, c)
# (what the input adds to the gates, state, weights after the input's) -> state
Cell = Callable[[Tensor, State, Sequence[Tensor | None]], State]


def lstm_cell(gates: Tensor, state: State, weights: Sequence[Tensor | None]) -> State:
    """One step of an LSTM; a third weight projects h."""
    (h, c), (hidden, bias, *project) = state, weights
    i, f, g, o = (gates + F.linear(h, hidden, bias)).chunk(4, -1)  # type: ignore[arg-type]
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    return (F.linear(h, project[0]) if project else h), c  # type: ignore[arg-type]


def gru_cell(gates: Tensor, state: State, weights: Sequence[Tensor | None]) -> State:
    """One step of a GRU."""
    (h,), (hidden, bias) = state, weights
    r, z, n = gates.chunk(3, -1)
    hr, hz, hn = F.linear(h, hidden, bias).chunk(3, -1)  # type: ignore[arg-type]
    n = (n + (r + hr).sigmoid() * hn).tanh()
    return (n + (z + hz).sigmoid() * (h - n),)


def plain_cell(activation: Callable[[Tensor], Tensor]) -> Cell:
    """One step of a recurrent layer without gates."""

    def cell(gates: Tensor, state: State, weights: Sequence[Tensor | None]) -> State:
        (h,), (hidden, bias) = state, weights
        return (activation(gates + F.linear(h, hidden, bias)),)  # type: ignore[arg-type]

    return cell


def layers(
    cell: Cell,
    x: Tensor,
    first: State,
    flat: Sequence[Tensor],
    has_bias: bool,
    count: int,
    between: Callable[[Tensor], Tensor],
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """Outputs of the last layer at every step, and the last states of all layers.

    Args:
      cell: one step.
      x: steps x examples x features, or examples first (`batch_first`).
      first: the first states, one row per layer and direction.
      flat: all weights, as torch's modules keep them.
      has_bias: whether there are biases.
      count: layers.
      between: dropout, applied to what goes from layer to layer.
      bidirectional: whether each layer also runs backwards.
      batch_first: see `x`.
    """
    x = x.transpose(0, 1) if batch_first else x
    directions = 2 if bidirectional else 1
    each = len(flat) // (count * directions)
    ends: list[State] = []
    for layer in range(count):
        x = between(x) if layer else x
        outputs = []
        for direction in range(directions):
            row = layer * directions + direction
            inputs, hidden, *rest = flat[row * each : (row + 1) * each]
            biases = (rest.pop(0), rest.pop(0)) if has_bias else (None, None)
            gates = F.linear(x, inputs, biases[0]).unbind(0)
            state = tuple(each_first[row] for each_first in first)
            said = []
            for now in reversed(gates) if direction else gates:
                state = cell(now, state, (hidden, biases[1], *rest))
                said.append(state[0])
            outputs.append(torch.stack(said[::-1] if direction else said))
            ends.append(state)
        x = torch.cat(outputs, -1)
    last = tuple(torch.stack(rows) for rows in zip(*ends, strict=True))
    return (x.transpose(0, 1) if batch_first else x), *last


def is_packed(args: Sequence[Any]) -> bool:
    """Whether a call of torch's recurrent functions is that for packed sequences."""
    return not isinstance(args[3], bool)
