"""What a network draws in its forward pass, from the step's key instead of torch's generators.

So a network drops the same units under every engine, and in every run of one seed, whichever way it
draws: `nn.Dropout`, `F.dropout`, attention's dropout, `torch.rand`, `torch.distributions`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedtailor.core import rng
from fedtailor.core.network.recurrent import (
    Cell,
    gru_cell,
    is_packed,
    layers,
    lstm_cell,
    plain_cell,
)
from fedtailor.core.rng import Key

# torch's own functions in Python, such that what they call is seen instead of they themselves
_SEEN_THROUGH = vars(F) | dict.fromkeys(
    ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"),
    lambda *tensors: False,
)


class KeyedDraws(TorchFunctionMode):
    """While this is active, torch's random functions draw with a key: the i-th call with its i-th.

    Draws from a `generator` that the network brings along are left as they are.
    """

    def __init__(self, key: Key) -> None:
        super().__init__()
        self._key, self._count = key, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if isinstance(func, FunctionType):
            if func.__globals__ is not vars(F):
                return func(*args, **given)
            inner = FunctionType(
                func.__code__, _SEEN_THROUGH, func.__name__, func.__defaults__, func.__closure__
            )
            inner.__kwdefaults__ = func.__kwdefaults__
            with self:
                return inner(*args, **given)
        name = getattr(func, "__name__", "")
        draw = _DRAWS.get(name)
        if draw is None or given.get("generator") is not None or "out" in given:
            return func(*args, **given)
        given.pop("generator", None)
        return draw(self, func, *args, **given)

    def key(self) -> Key:
        """The key of the next draw."""
        self._count += 1
        return rng.fold(self._key, self._count - 1)

    def uniform(self, like: Tensor, shape: Sequence[int] | None = None) -> Tensor:
        """Numbers in [0, 1) of a tensor's kind, in its shape or another."""
        kind = like.dtype if like.is_floating_point() else torch.get_default_dtype()
        return rng.uniform(self.key(), *(like.shape if shape is None else shape), dtype=kind)

    def normal(self, like: Tensor) -> Tensor:
        """Standard normal numbers."""
        return rng.normal(self.key(), *like.shape, dtype=like.dtype)

    def new(self, size: Sequence[Any], made: dict[str, Any], of: Tensor | None = None) -> Tensor:
        """An empty tensor, one per client where the key is one per client."""
        flat = size[0] if size and not isinstance(size[0], int) else size
        kept = {k: made.get(k) for k in ("dtype", "device")}
        if of is not None:
            kept = {k: v if v is not None else getattr(of, k) for k, v in kept.items()}
        kept["dtype"] = kept["dtype"] or torch.get_default_dtype()
        kept["device"] = kept["device"] or torch.get_default_device()
        return self._key.new_empty(tuple(flat), **kept)


_Draw = Callable[..., Any]  # (draws, the function, its arguments)


def _filled(draw: Callable[..., Tensor]) -> _Draw:
    """A method that fills a tensor with what is drawn."""

    def fill(draws: KeyedDraws, func: Any, out: Tensor, *args: Any, **given: Any) -> Tensor:
        return out.copy_(draw(draws, out, *args, **given))

    return fill


def _bernoulli(draws: KeyedDraws, like: Tensor, p: float | Tensor = 0.5) -> Tensor:
    return draws.uniform(like) < p


def _bernoulli_of(
    draws: KeyedDraws, func: Any, input: Tensor, p: float | Tensor | None = None
) -> Tensor:
    """`torch.bernoulli`."""
    return _bernoulli(draws, input, input if p is None else p).to(input.dtype)


def _exponential(draws: KeyedDraws, like: Tensor, lambd: float = 1.0) -> Tensor:
    return -(1 - draws.uniform(like)).log() / lambd


def _uniform(draws: KeyedDraws, like: Tensor, *ends: float, **named: float) -> Tensor:
    low, high = (*ends, *(0.0, 1.0)[len(ends) :])
    low, high = named.get("from", low), named.get("to", high)  # "from" is no name in Python
    return low + draws.uniform(like) * (high - low)


def _normal(draws: KeyedDraws, like: Tensor, mean: Any = 0.0, std: Any = 1.0) -> Tensor:
    found: Tensor = mean + std * draws.normal(like)
    return found


def _whole(draws: KeyedDraws, like: Tensor, low: int, high: int) -> Tensor:
    found = low + rng.bits(draws.key(), like.numel()) % (high - low)
    return found.reshape(like.shape).to(like.dtype)


def _made(fill: Callable[[KeyedDraws, Tensor], Tensor]) -> _Draw:
    """`torch.rand` and the like: a shape in numbers or as one tuple."""

    def make(draws: KeyedDraws, func: Any, *size: Any, **made: Any) -> Tensor:
        like = draws.new(made.pop("size", size), made)
        return fill(draws, like).to(like)

    return make


def _made_like(fill: Callable[[KeyedDraws, Tensor], Tensor]) -> _Draw:
    def make(draws: KeyedDraws, func: Any, input: Tensor, **made: Any) -> Tensor:
        like = draws.new(input.shape, made, input)
        return fill(draws, like).to(like)

    return make


def _randint(draws: KeyedDraws, func: Any, *args: Any, **made: Any) -> Tensor:
    ends = [made.pop(k) for k in ("low", "high") if k in made]
    args = (*ends, *args)
    *ends, size = (*args, made.pop("size")) if "size" in made else args
    like = draws.new([size], {"dtype": torch.int64} | {k: v for k, v in made.items() if v})
    return _whole(draws, like, *(ends if len(ends) == 2 else (0, *ends)))


def _randint_like(draws: KeyedDraws, func: Any, input: Tensor, *ends: int, **made: Any) -> Tensor:
    ends = (*(made.pop(k) for k in ("low", "high") if k in made), *ends)
    like = draws.new(input.shape, made, input)
    return _whole(draws, like, *(ends if len(ends) == 2 else (0, *ends)))


def _randperm(draws: KeyedDraws, func: Any, n: int, **made: Any) -> Tensor:
    like = draws.new([n], {"dtype": torch.int64} | {k: v for k, v in made.items() if v})
    return rng.permutation(draws.key(), n).to(like)


def _normal_of(
    draws: KeyedDraws, func: Any, mean: Any = 0.0, std: Any = 1.0, size: Any = None, **made: Any
) -> Tensor:
    """`torch.normal`."""
    if size is not None:
        return _normal(draws, draws.new([size], made), mean, std)
    whole = mean + 0 * std  # in the shape of both
    return _normal(draws, whole, mean, std)


def _multinomial(
    draws: KeyedDraws, func: Any, input: Tensor, num_samples: int, replacement: bool = False
) -> Tensor:
    if not replacement:  # whoever is first: clocks with these rates
        clocks = -(1 - draws.uniform(input)).log() / input
        return clocks.topk(num_samples, largest=False).indices
    u = draws.uniform(input, (*input.shape[:-1], num_samples))
    steps = input.cumsum(-1)
    u = u * steps[..., -1:]
    return (u[..., :, None] >= steps[..., None, :-1]).sum(-1)


def _dropped(draws: KeyedDraws, x: Tensor, p: float, shape: Sequence[int]) -> Tensor:
    keep = draws.uniform(x, shape) >= p
    return x * keep / max(1 - p, 1e-12)


def _dropout(draws: KeyedDraws, func: Any, input: Tensor, p: float, train: bool) -> Tensor:
    return input if not train or p == 0 else _dropped(draws, input, p, input.shape)


def _channels(x: Tensor) -> tuple[int, ...]:
    return (*x.shape[:2], *[1] * (x.ndim - 2))


def _feature_dropout(draws: KeyedDraws, func: Any, input: Tensor, p: float, train: bool) -> Tensor:
    return input if not train or p == 0 else _dropped(draws, input, p, _channels(input))


def _native_dropout(
    draws: KeyedDraws, func: Any, input: Tensor, p: float, train: bool | None
) -> tuple[Tensor, Tensor]:
    if train is False:
        return input, torch.ones_like(input, dtype=torch.bool)
    keep = draws.uniform(input) >= p
    return input * keep / max(1 - p, 1e-12), keep


def _alpha(whole_channels: bool) -> _Draw:
    """Dropout for SELU: mean and variance stay (Klambauer et al., 2017)."""

    def drop(draws: KeyedDraws, func: Any, input: Tensor, p: float, train: bool) -> Tensor:
        if not train or p == 0:
            return input
        low = -1.0507009873554805 * 1.6732632423543772
        scale = ((1 - p) * (1 + p * low**2)) ** -0.5 if p < 1 else 0.0
        shape = _channels(input) if whole_channels else input.shape
        keep = draws.uniform(input, shape) >= p
        return scale * (torch.where(keep, input, low) - p * low)

    return drop


def _in_place(draw: _Draw) -> _Draw:
    def change(draws: KeyedDraws, func: Any, input: Tensor, *args: Any, **given: Any) -> Tensor:
        return input.copy_(draw(draws, func, input, *args, **given))

    return change


def _rrelu(
    draws: KeyedDraws,
    func: Any,
    input: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
) -> Tensor:
    slope = lower + draws.uniform(input) * (upper - lower) if training else (lower + upper) / 2
    return torch.where(input < 0, input * slope, input)


def _attention(
    draws: KeyedDraws,
    func: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`scaled_dot_product_attention`, written out: torch's kernels do not map over clients."""
    if enable_gqa:
        key, value = (t.repeat_interleave(query.size(-3) // t.size(-3), -3) for t in (key, value))
    weights = query @ key.transpose(-2, -1)
    weights = weights * (1 / math.sqrt(query.size(-1)) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(weights.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if attn_mask is None:
        weights = weights.softmax(-1)
    else:
        if attn_mask.dtype == torch.bool:
            weights = weights.masked_fill(~attn_mask, -math.inf)
        else:
            weights = weights + attn_mask
        nothing = (weights == -math.inf).all(-1, keepdim=True)  # is seen there: the sum is zero
        weights = weights.masked_fill(nothing, 0).softmax(-1).masked_fill(nothing, 0)
    return _dropout(draws, func, weights, dropout_p, True) @ value


def _recurrent(cell: Cell) -> _Draw:
    def run(draws: KeyedDraws, func: Any, *args: Any, **given: Any) -> Any:
        if is_packed(args):  # their lengths are numbers on the host, which nothing can map
            return func(*args, **given)
        x, first, flat, has_bias, count, dropout, train, *shape = args
        between = partial(_dropout, draws, func, p=dropout, train=train)
        states = (first,) if isinstance(first, Tensor) else tuple(first)
        return layers(cell, x, states, flat, has_bias, count, between, *shape)

    return run


def _cell(cell: Cell) -> _Draw:
    def run(
        draws: KeyedDraws,
        func: Any,
        input: Tensor,
        hx: Any,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None = None,
        b_hh: Tensor | None = None,
    ) -> Any:
        state = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        found = cell(F.linear(input, w_ih, b_ih), state, (w_hh, b_hh))
        return found[0] if isinstance(hx, Tensor) else found

    return run


def _one_hot(draws: KeyedDraws, func: Any, tensor: Tensor, num_classes: int = -1) -> Tensor:
    """torch's looks at the numbers, which nothing can map, but where the classes are counted."""
    if num_classes < 1:
        found: Tensor = func(tensor, num_classes)
        return found
    return (tensor[..., None] == torch.arange(num_classes, device=tensor.device)).long()


def _empty(draws: KeyedDraws, func: Any, *size: Any, **made: Any) -> Tensor:
    """Empty tensors are there to be filled, with one client's numbers each."""
    return draws.new(made.pop("size", size), made)


_DRAWS: dict[str, _Draw] = {
    "rand": _made(lambda draws, like: draws.uniform(like)),
    "randn": _made(lambda draws, like: draws.normal(like)),
    "rand_like": _made_like(lambda draws, like: draws.uniform(like)),
    "randn_like": _made_like(lambda draws, like: draws.normal(like)),
    "randint": _randint,
    "randint_like": _randint_like,
    "randperm": _randperm,
    "normal": _normal_of,
    "multinomial": _multinomial,
    "bernoulli": _bernoulli_of,
    "bernoulli_": _filled(_bernoulli),
    "uniform_": _filled(_uniform),
    "normal_": _filled(_normal),
    "exponential_": _filled(_exponential),
    "dropout": _dropout,
    "dropout_": _in_place(_dropout),
    "feature_dropout": _feature_dropout,
    "feature_dropout_": _in_place(_feature_dropout),
    "native_dropout": _native_dropout,
    "alpha_dropout": _alpha(False),
    "alpha_dropout_": _in_place(_alpha(False)),
    "feature_alpha_dropout": _alpha(True),
    "feature_alpha_dropout_": _in_place(_alpha(True)),
    "rrelu": _rrelu,
    "rrelu_": _in_place(_rrelu),
    "scaled_dot_product_attention": _attention,
    "lstm": _recurrent(lstm_cell),
    "gru": _recurrent(gru_cell),
    "rnn_tanh": _recurrent(plain_cell(torch.tanh)),
    "rnn_relu": _recurrent(plain_cell(torch.relu)),
    "lstm_cell": _cell(lstm_cell),
    "gru_cell": _cell(gru_cell),
    "rnn_tanh_cell": _cell(plain_cell(torch.tanh)),
    "rnn_relu_cell": _cell(plain_cell(torch.relu)),
    "one_hot": _one_hot,
    "empty": _empty,
    "empty_like": _made_like(lambda draws, like: like),
}
