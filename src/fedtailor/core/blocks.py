"""The ordered list of blocks, from input to output, that layer-wise methods work on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from torch import nn

from fedtailor.core.errors import BadInput, nearest, unknown

Blocks = tuple[tuple[str, ...], ...]

NORMALISATIONS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
)


def blocks(model: nn.Module, grouping: str | Sequence[Sequence[str]] = "leaf") -> Blocks:
    """The names of `state_dict`, without `num_batches_tracked`, block by block.

    Args:
      model: its modules are registered in the order of their use.
      grouping: `leaf`: a module with parameters of its own makes a block, together with the
        normalisations registered between it and the next such module. `coarse`: a top-level
        child with parameters makes a block. The head is the last block, or, where the model names
        the module that its head begins with (`head_begins = "classifier"`), all from there on. Or
        the blocks themselves, each a list of prefixes such as `conv1` or `layer1.block2`.

    Returns:
      Every name exactly once. Buffers stand with their module; those of a module without
      parameters, with the block before it, or with the first block where there is none before.

    Raises:
      BadInput: a grouping that is unknown, leaves names out, claims one twice or names nothing.

    Example:
      >>> from fedtailor.models.parts import chain
      >>> net = chain(conv=nn.Conv2d(1, 4, 3), norm=nn.GroupNorm(2, 4), fc=nn.Linear(4, 2))
      >>> [len(block) for block in blocks(net)]
      [4, 2]
    """
    names = [n for n in model.state_dict() if n.rpartition(".")[2] != "num_batches_tracked"]
    if not isinstance(grouping, str):
        return _custom(names, grouping)
    if grouping not in ("leaf", "coarse"):
        raise unknown("grouping", grouping, ["leaf", "coarse"])

    def owner(name: str) -> str:
        module = name.rpartition(".")[0]
        return module if grouping == "leaf" else module.partition(".")[0]

    modules = dict(model.named_modules(remove_duplicate=False))
    parametrised = {owner(n) for n, _ in model.named_parameters(remove_duplicate=False)}
    found: list[list[str]] = []
    opened = False  # whether the block at hand has parameters yet
    for module, run in groupby(names, owner):
        bare = module not in parametrised
        follows = grouping == "leaf" and isinstance(modules[module], NORMALISATIONS)
        if found and (bare or follows or not opened):
            found[-1].extend(run)
        else:
            found.append(list(run))
        opened = opened or not bare
    return _with_head(tuple(map(tuple, found)), getattr(model, "head_begins", None))


def with_trained(groups: Blocks, names: set[str], trained: set[str]) -> Blocks:
    """The blocks with these names alone; one without a trained name joins the one before it.

    Example:
      >>> with_trained((("a",), ("b", "c"), ("d",)), {"a", "b", "d"}, {"a", "d"})
      (('a', 'b'), ('d',))
    """
    found: list[tuple[str, ...]] = []
    for group in groups:
        left = tuple(k for k in group if k in names)
        if found and not (trained.intersection(left) and trained.intersection(found[-1])):
            found[-1] += left
        elif left:
            found.append(left)
    return tuple(found)


def _with_head(found: Blocks, begins: str | None) -> Blocks:
    """The blocks, with all from the module called `begins` on as one: the head."""
    if begins is None:
        return found
    first = [i for i, block in enumerate(found) if any(k.startswith(f"{begins}.") for k in block)]
    if not first:
        raise BadInput(f"head_begins is '{begins}': the network has no such part with parameters")
    return (*found[: first[0]], tuple(k for block in found[first[0] :] for k in block))


def _custom(names: Sequence[str], grouping: Sequence[Sequence[str]]) -> Blocks:
    number_of: dict[str, int] = {}
    for number, prefixes in enumerate(grouping, 1):
        if isinstance(prefixes, str):
            raise BadInput(
                f"block {number} of the grouping is '{prefixes}': write a list, ['{prefixes}']"
            )
        if not prefixes:
            raise BadInput(f"block {number} of the grouping is empty: leave it out")
        for prefix in prefixes:
            claimed = [n for n in names if n == prefix or n.startswith(f"{prefix}.")]
            if not claimed:
                raise _names_nothing(prefix, number, names)
            for name in claimed:
                if number_of.setdefault(name, number) != number:
                    raise BadInput(
                        f"'{name}' is in blocks {number_of[name]} and {number} of the grouping: "
                        "name it in one of them"
                    )
    left = [n for n in names if n not in number_of]
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise BadInput(f"the grouping leaves out '{left[0]}'{more}: put every name into a block")
    return tuple(
        tuple(n for n in names if number_of[n] == number) for number in range(1, len(grouping) + 1)
    )


def _names_nothing(prefix: str, number: int, names: Sequence[str]) -> BadInput:
    tops = list(dict.fromkeys(name.partition(".")[0] for name in names))
    guess = nearest(prefix, [*tops, *names])
    hint = f"did you mean '{guess}'? " if guess else ""
    return BadInput(
        f"'{prefix}' in block {number} of the grouping names nothing in the model: {hint}"
        f"its parts: {', '.join(tops)}"
    )
