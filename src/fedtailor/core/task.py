"""What is learnt: a network, a loss and a prediction, as pure functions of flat parameters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import nullcontext
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedtailor.core import rng
from fedtailor.core.blocks import blocks as group_blocks
from fedtailor.core.blocks import with_trained
from fedtailor.core.errors import BadInput
from fedtailor.core.form import Form, TaskKind
from fedtailor.core.losses import (
    BatchLosses,
    RowLosses,
    cox,
    cross_entropy,
    row_by_row,
    squared_error,
)
from fedtailor.core.network.augmentation import Augment
from fedtailor.core.network.features import HeadSplit, head_width, input_of
from fedtailor.core.network.gradients import refuse_without_gradient
from fedtailor.core.network.made import drawing, three_alike
from fedtailor.core.network.randomness import KeyedDraws
from fedtailor.core.network.repeatable import may_draw, refuse_hidden_draws
from fedtailor.core.network.upper import UpperPart, upper_part
from fedtailor.core.rng import Key
from fedtailor.core.tree import Params

BATCH_NORM = nn.modules.batchnorm._BatchNorm  # of any number of dimensions


class Sample(NamedTuple):
    """What is known of a batch that is a Poisson sample (DP-SGD)."""

    expected: Tensor  # how many examples it has on average: the divisor of sums
    lot: Tensor  # a random number of each place, for parts: no example decides on another's


class Batch(NamedTuple):
    """Examples of one client that share a step.

    Attributes:
      x: examples as stored (images are uint8).
      y: labels.
      weight: 1 for a real example, 0 for padding.
      active: False when this client has no such step; nothing may change then.
      key: random key of this step, for augmentation, dropout and noise.
      position: which of the step's examples these are: all, or of a `part` (first, every).
      sample: empty unless it is a Poisson sample.

    Example:
      >>> x, weight = torch.arange(4), torch.tensor([1.0, 1.0, 1.0, 0.0])
      >>> batch = Batch(x, x, weight, torch.tensor(True), rng.key(0))
      >>> weighted_mean(batch.x, batch), batch.part(1, 2).x
      (tensor(1.), tensor([1, 3]))
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    active: Tensor
    key: Key
    position: tuple[int, ...] = ()
    sample: Sample | tuple[()] = ()

    def again(self) -> Batch:
        """The same examples for another pass, with noise and dropout of its own."""
        return self._replace(key=rng.fold(self.key, -1))

    def part(self, i: int, n: int) -> Batch:
        """Every n-th example from the i-th on, so that each part of a short batch has some.

        Of a sample, each example is in one of the parts by lot.
        """
        first, every = self.position or (0, 1)
        position = (first + i * every, every * n)
        if self.sample:
            expected, lot = self.sample
            weight = self.weight * (lot % n == i)
            rest = Sample(expected / n, lot // n)
            return self._replace(weight=weight, position=position, sample=rest)
        x, y, weight = (rows[i::n] for rows in (self.x, self.y, self.weight))
        return self._replace(x=x, y=y, weight=weight, position=position)


def weighted_mean(each: Tensor, batch: Batch) -> Tensor:
    """The mean of one number per example over the real examples."""
    return (each * batch.weight).sum() / batch.weight.sum().clamp(min=1)


Blocks = tuple[tuple[str, ...], ...]  # names per block, from input to output


def blocks_without(blocks: Blocks, names: Collection[str]) -> Blocks:
    """The blocks without some names; a block that has no others is left out."""
    left = (tuple(k for k in block if k not in names) for block in blocks)
    return tuple(block for block in left if block)


def per_name(values: Tensor, blocks: Blocks, names: Iterable[str]) -> Params:
    """Each parameter's value, from its block's."""
    known = set(names)
    return {k: values[i] for i, block in enumerate(blocks) for k in block if k in known}


class Task(NamedTuple):
    """A learning problem in functions of its parameters.

    Attributes:
      init: key -> parameters and buffers in one flat dict.
      loss: (params, batch) -> (mean loss over the real examples, buffers after the pass), in
        training mode.
      predict: (params, x) -> outputs, in evaluation mode: logits of a classification, else one
        number: the (scaled) label, or the logarithm of the risk.
      blocks: names per block from input to output (section "Layer list"); the last is the head.
      buffers: names that are not trained (running statistics).
      batch_norm: names of everything that belongs to BatchNorm modules.
      embeddings: names of tables of embeddings, which have a row for each word.
      augment: (x, key) -> x, applied to training batches only.
      outputs: (params, batch) -> (outputs, buffers after the pass), in training mode.
      losses: (outputs, labels, weight) -> one loss per row, for objectives that are more than the
        loss.
      kind: what is learnt.
      try_out: (params, some rows, their labels) -> None; refuses a network that two runs would not
        call alike, and one that could learn nothing.
      features: (params, x) -> what the head is given, in evaluation mode.
      form: what an example looks like, and how many classes there are; None if nobody said.
      device: where parameters live.
      constants: frozen parameters (`requires_grad` is False): no part of what methods see.
      upper: names -> the network from there on, apart from what is below, if that is possible.
      split: body and head apart, in training mode too; None where the head is no module of its own.
    """

    init: Callable[[Key], Params]
    loss: Callable[[Params, Batch], tuple[Tensor, Params]]
    predict: Callable[[Params, Tensor], Tensor]
    blocks: Blocks
    buffers: tuple[str, ...] = ()
    batch_norm: tuple[str, ...] = ()
    embeddings: tuple[str, ...] = ()
    augment: Augment | None = None
    outputs: Callable[[Params, Batch], tuple[Tensor, Params]] | None = None
    losses: BatchLosses = row_by_row(cross_entropy)
    kind: TaskKind = "classification"
    try_out: Callable[[Params, Tensor, Tensor], None] = lambda params, x, y: None
    features: Callable[[Params, Tensor], Tensor] | None = None
    form: Form | None = None
    device: torch.device | str = "cpu"
    constants: Params = {}  # noqa: RUF012
    upper: Callable[[frozenset[str]], UpperPart | None] = lambda names: None
    split: HeadSplit | None = None

    def top(self, n: int) -> tuple[str, ...]:
        """All names in the `n` blocks next to the output."""
        count = len(self.blocks)
        return tuple(name for block in self.blocks[max(count - n, 0) :] for name in block)

    @property
    def head(self) -> tuple[str, ...]:
        """The names of the last block, which turns features into outputs."""
        return self.blocks[-1]


def _nothing() -> None: ...


def to_input(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Stored examples as a network takes them: images from 0..255 to -1..1, tokens as they are."""
    if x.dtype == torch.uint8:
        return x.to(dtype) / 127.5 - 1
    return x.to(dtype) if x.is_floating_point() else x


def _task(
    build: Callable[[], nn.Module],
    kind: TaskKind,
    losses: BatchLosses,
    *,
    grouping: str | Sequence[Sequence[str]] = "leaf",
    augment: Augment | None = None,
    device: torch.device | str = "cpu",
    compute: torch.dtype | None = None,
    form: Form | None = None,
    key: Key | None = None,
    constants: Params | None = None,
) -> Task:
    """A task around an ordinary `nn.Module`; see `classification`."""

    def drawn(key: Key) -> Params:
        with drawing(key):
            return {k: v.detach().clone().to(device) for k, v in build().state_dict().items()}

    training, evaluating, example = three_alike(build)
    training, evaluating = training.to(device).train(), evaluating.to(device).eval()
    for module in (training, evaluating):
        for name, part in module.named_modules():
            if isinstance(part, BATCH_NORM):
                if part.momentum is None:
                    raise BadInput(f"module '{name}': BatchNorm needs a momentum, e.g. 0.1")
                part.num_batches_tracked = None
            if isinstance(part, nn.RNNBase):  # cuDNN's layout of weights is for one client
                part.flatten_parameters = _nothing  # type: ignore[method-assign]
    # whole numbers are constants of the network; of names that share a tensor the first counts
    state = example.state_dict(keep_vars=True)
    first = {id(v): k for k, v in reversed(state.items())}
    tied = len(first) < len(state)
    real = {k for k, v in state.items() if v.is_floating_point() and first[id(v)] == k}
    trained = {k for k in real if state[k].requires_grad}
    frozen = {k for k in real - trained if isinstance(state[k], nn.Parameter)}
    if not trained:
        what = "all parameters are frozen" if frozen else "it has no parameters"
        raise BadInput(f"model {type(example).__name__}: {what}: there is nothing to train")
    if constants is None:
        constants = drawn(rng.key(0) if key is None else key) if frozen else {}
    constants = {k: constants[k].to(device) for k in sorted(frozen)}
    groups = with_trained(group_blocks(example, grouping), real - frozen, trained)
    names = {name for group in groups for name in group}
    buffers = tuple(k for k, b in training.named_buffers() if k in names and b.is_floating_point())

    def of_kind(kind: type[nn.Module], some: Collection[str]) -> tuple[str, ...]:
        within = {k: training.get_submodule(k.rpartition(".")[0]) for k in sorted(some)}
        return tuple(k for k, part in within.items() if isinstance(part, kind))

    norms, tables = of_kind(BATCH_NORM, names), of_kind(nn.Embedding, names)

    # BatchNorm's statistics and scales keep their type
    full = {*buffers, *norms, *of_kind(BATCH_NORM, frozen)}
    halved = {k: v if k in full or not compute else v.to(compute) for k, v in constants.items()}
    keyed = {module: may_draw(module) for module in (training, evaluating)}

    def call(
        module: nn.Module, params: Params, x: Tensor, key: Key, written: Params | None = None
    ) -> Tensor:
        if lost := sorted(names - params.keys()):  # torch would take the module's own, untrained
            raise BadInput(f"a model lacks {', '.join(lost)}: give all that the network has")
        known = (halved if module is training else constants) | params | (written or {})
        with KeyedDraws(key) if keyed[module] else nullcontext():
            out: Tensor = functional_call(module, known, (x,), tie_weights=tied)
        if written:  # `self.mean = ...` puts another tensor in a buffer's place
            written |= {k: known[k].to(v.dtype) for k, v in written.items()}
        return out

    def init(key: Key) -> Params:
        return {k: v for k, v in drawn(key).items() if k in names}

    def outputs(params: Params, batch: Batch) -> tuple[Tensor, Params]:
        x = to_input(batch.x, next(iter(params.values())).dtype)
        # BatchNorm writes into the buffers it is given: hand it copies that carry the client axis
        axis = torch.zeros_like(batch.active, dtype=batch.weight.dtype)
        written = {k: params[k] + axis for k in buffers}
        if compute is None:
            return call(training, params, x, batch.key, written), written
        used = {k: v if k in full else v.to(compute) for k, v in params.items()}
        x = x.to(compute) if x.is_floating_point() else x
        logits = call(training, used, x, batch.key, written)
        return logits.to(next(iter(params.values())).dtype), written

    def mean_loss(params: Params, batch: Batch) -> tuple[Tensor, Params]:
        logits, written = outputs(params, batch)
        return weighted_mean(losses(logits, batch.y, batch.weight), batch), written

    def predict(params: Params, x: Tensor) -> Tensor:
        # evaluation has no key: what a network still draws there is always the same
        key = x.new_zeros((), dtype=torch.int64)
        return call(evaluating, params, to_input(x, next(iter(params.values())).dtype), key)

    head: str = getattr(example, "head_begins", None) or groups[-1][0].rpartition(".")[0]

    def features(params: Params, x: Tensor) -> Tensor:
        return input_of(evaluating, head, lambda: predict(params, x))

    inside = f"{head}." if head else ""

    def embed(params: Params, batch: Batch) -> tuple[Tensor, Tensor, Params]:
        found: list[tuple[Tensor, Params]] = []
        given = input_of(training, head, lambda: found.append(outputs(params, batch)))
        return given.to(found[0][0].dtype), *found[0]

    def classify(params: Params, features: Tensor, batch: Batch | None = None) -> Tensor:
        module = evaluating if batch is None else training
        known = (constants if batch is None else halved) | params
        own = {k.removeprefix(inside): v for k, v in known.items() if k.startswith(inside)}
        if batch is not None and compute is not None:
            features = features.to(compute)
            own = {k: v if inside + k in full else v.to(compute) for k, v in own.items()}
        key = features.new_zeros((), dtype=torch.int64) if batch is None else batch.key
        with KeyedDraws(key) if keyed[module] else nullcontext():
            out: Tensor = functional_call(module.get_submodule(head), own, (features,))
        return out.to(next(iter(params.values())).dtype)

    split = HeadSplit(embed, classify, head_width(example, head, groups[-1]))

    def try_out(params: Params, x: Tensor, y: Tensor) -> None:
        some, labels = x[[0, -1]], y[[0, -1]]
        one, key = torch.ones(2, device=x.device), rng.key(0, device=x.device)
        batch = Batch(some, labels, one, one[0] > 0, key)
        refuse_without_gradient(
            type(example).__name__,
            params,
            trained,
            lambda leaves: outputs(leaves, batch)[0],
            lambda said: losses(said, labels, one),
            lambda: predict(params, some),
        )
        for module, forward in (
            (training, lambda: outputs(params, batch)),
            (evaluating, lambda: predict(params, some)),
        ):
            if keyed[module]:
                refuse_hidden_draws(module, forward, x.device)

    whole = compute is not None or keyed[training] or buffers  # or no two passes are the same
    # of equal names the same parts, which programs know them by
    upper = cache(partial(upper_part, nn.Identity() if whole else training, constants))

    return Task(
        init, mean_loss, predict, groups, buffers, norms, tables, augment, outputs, losses, kind,
        try_out, features, form, device, constants, upper, split if split.width else None,
    )  # fmt: skip


def classification(
    build: Callable[[], nn.Module], *, loss: RowLosses = cross_entropy, **more: Any
) -> Task:
    """A classification task around an ordinary `nn.Module` that returns logits.

    `num_batches_tracked` is left out: BatchNorm with a fixed momentum never reads it. What the
    module draws (dropout, `torch.rand`) comes from the step's key.

    Args:
      build: makes the module; called once per mode and once per initialisation.
      loss: what training makes small: (outputs, labels) -> one loss per row, since rows that only
        fill a batch up must not count; for a loss of torch's say `reduction="none"`.
      more: `grouping` (how parameters form blocks, see `fedtailor.core.blocks`), `augment` (applied
        to training batches), `device` (where parameters live) and `compute` (the type that
        training computes in, e.g. `torch.bfloat16`; parameters, statistics and losses keep theirs,
        and evaluation is in full precision), `form` (what examples look like, for methods to see).
        Frozen parameters (`requires_grad_(False)`) are `constants`, or what `build` makes with
        `key`.

    Example:
      >>> task = classification(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
      >>> task.blocks
      (('0.weight', '0.bias'), ('2.weight', '2.bias'))
      >>> task.head, task.features(task.init(rng.key(0)), torch.zeros(5, 4)).shape
      (('2.weight', '2.bias'), torch.Size([5, 8]))
      >>> smooth = nn.CrossEntropyLoss(label_smoothing=0.1, reduction="none")
      >>> task = classification(lambda: nn.Linear(4, 3), loss=smooth)
    """
    return _task(build, "classification", row_by_row(loss), **more)


def regression(
    build: Callable[[], nn.Module], *, loss: RowLosses = squared_error, **more: Any
) -> Task:
    """The task of learning a number; the module returns one column.

    Args:
      build: makes the module.
      loss: as for `classification`, e.g. `huber(1.0)`.
      more: as for `classification`.

    Example:
      >>> regression(lambda: nn.Linear(4, 1)).kind
      'regression'
    """
    return _task(build, "regression", row_by_row(loss), **more)


def survival(build: Callable[[], nn.Module], *, loss: RowLosses | None = None, **more: Any) -> Task:
    """The task of learning who meets an event sooner; the module returns one column of log risks.

    Labels have two columns, time and event (0: censored at that time).

    Args:
      build: makes the module.
      loss: of single rows; None is Cox's partial likelihood within the batch.
      more: as for `classification`.

    Example:
      >>> survival(lambda: nn.Linear(39, 1)).kind
      'survival'
    """
    return _task(build, "survival", cox if loss is None else row_by_row(loss), **more)


TASKS: dict[TaskKind, Callable[..., Task]] = {
    "classification": classification,
    "regression": regression,
    "survival": survival,
}
