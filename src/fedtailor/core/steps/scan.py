"""A loop over a client's batches, as one operation with a mapping rule of its own.

Written for one client, `scan` is a plain loop. Mapped over clients (`torch.func.vmap`) it does not
map each operator of each step as it comes: the whole loop arrives, with all clients' tensors
stacked, at whoever runs the round (`RUNNER`). That one may replay a captured step, compile it, or
give clients to a pool of workers, and no method knows. Run plainly, it stays a loop: a mapping of
its own would only take time.

A server's loop is the same with nothing mapped: whoever runs the round may take it for the loop of
one client.

So a step gets every tensor that differs between clients as an argument, and closes over constants
only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from fedtailor.core import tree
from fedtailor.core.steps.run_numbers import RUN_NUMBERS, with_run_numbers
from fedtailor.core.tree import Tree


class Steps(NamedTuple):
    """Which rows a client uses when: one entry per step along the first axis.

    Attributes:
      rows: row numbers of the batch.
      weight: 1 for a real example, 0 for padding.
      active: False where this client has no such step; nothing changes then.
      key: random key of the step.
      number: of the batch within its pass over the rows; the same for all clients.
      known: on the host, for each client that shares the call, which steps it has (clients x
        steps); None if nobody knows. Saves masks, and questions to the device.
    """

    rows: Tensor
    weight: Tensor
    active: Tensor
    key: Tensor
    number: tuple[int, ...]
    known: HostMask | None = None

    @classmethod
    def alone(cls, rows: Tensor, weight: Tensor, key: Tensor) -> Steps:
        """Steps of one who shares them with nobody, as a server: it has all of them."""
        has = torch.ones(len(key), dtype=torch.bool)
        there = torch.ones_like(key, dtype=torch.bool)
        return cls(rows, weight, there, key, tuple(range(len(key))), HostMask(has[None]))

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What differs from client to client."""
        return self.rows, self.weight, self.active, self.key


@dataclass(frozen=True, eq=False)
class HostMask:
    """A host tensor with one row per client, carried through `vmap` as it is."""

    rows: Tensor


def join_steps(parts: Sequence[Steps]) -> Steps:
    """Several passes as one."""
    if len(parts) == 1:
        return parts[0]
    rows, weight, active, key = (
        torch.cat(same) for same in zip(*(part.tensors for part in parts), strict=True)
    )
    numbers = tuple(number for part in parts for number in part.number)
    had = [part.known.rows for part in parts if part.known is not None]
    known = HostMask(torch.cat(had, 1)) if len(had) == len(parts) else None
    return Steps(rows, weight, active, key, numbers, known)


class StepRows(NamedTuple):
    """One step of `Steps`, for one client."""

    rows: Tensor
    weight: Tensor
    active: Tensor
    key: Tensor


Notes = dict[str, int]  # small facts that a step leaves when it is run, the same every time
# (what is carried from step to step, what stays, the step's rows, the store, notes) -> carried
Step = Callable[[Tree, Tree, StepRows, Sequence[Tensor], Notes], Tree]


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop with all that is no tensor of a client's.

    Attributes:
      step: what is done for one client.
      carry: the structure of what is carried.
      given: the structure of what stays.
      store: tensors that all clients share and that never change.
      count: number of steps.
      known: see `Steps`.
      compiles: whether compiling may pay.
      axes: for each mapping, innermost first, which tensors have its axis.
      notes: what steps left.
    """

    step: Step
    carry: Tree
    given: Tree
    store: tuple[Tensor, ...]
    count: int
    known: HostMask | None
    compiles: bool = True
    axes: tuple[tuple[bool, ...], ...] = ()
    notes: Notes = field(default_factory=dict)

    @property
    def carried(self) -> int:
        """How many of the tensors are carried; the last four are the steps'."""
        return len(tree.leaves(self.carry))

    def depth(self, i: int) -> int:
        """How many mapped axes tensor `i` has in front."""
        return sum(flags[i] for flags in self.axes)

    def for_one(self, masked: bool) -> Callable[..., tuple[Tensor, ...]]:
        """A step of one client on flat tensors: carried, given, rows -> carried."""

        def one(*tensors: Tensor) -> tuple[Tensor, ...]:
            flat = list(tensors)
            now = StepRows(*flat[-4:])
            old = rebuild(self.carry, flat[: self.carried])
            given = rebuild(self.given, flat[self.carried : -4])
            new = self.step(old, given, now, self.store, self.notes)
            if masked:
                new = tree.where(now.active, new, old)
            return tuple(tree.leaves(tree.map(lambda _, leaf: leaf, self.carry, new)))

        return one

    def for_all(self, masked: bool, levels: int | None = None) -> Callable[..., tuple[Tensor, ...]]:
        """The step of all clients, or with only the inner mappings."""
        fn = self.for_one(masked)
        for flags in self.axes[:levels]:
            fn = vmap(fn, in_dims=flags_to_dims(flags), randomness="different")
        return fn

    def had(self, tensors: Sequence[Tensor]) -> Tensor:
        """Which steps each client of the outermost mapping has (clients x steps), on the host."""
        if self.known is not None:
            rows = self.known.rows
        else:
            active = tensors[-2]
            while active.ndim > 2:  # inner mappings: a step counts if any has it
                active = active.any(1)
            rows = active.cpu()
        return rows.reshape(-1, self.count).expand(len(tensors[0]), -1)

    def step_rows(self, tensors: Sequence[Tensor], number: int) -> list[Tensor]:
        """The tensors of one step: the last four without their step axis."""
        first = len(tensors) - 4
        return [t.select(self.depth(first + i), number) for i, t in enumerate(tensors[first:])]


def flags_to_dims(flags: Sequence[bool]) -> tuple[int | None, ...]:
    """Axes for `vmap`: the first where a tensor has one."""
    return tuple(0 if flag else None for flag in flags)


def rebuild(structure: Tree, flat: Sequence[Any]) -> Tree:
    """A tree of a known structure from its leaves."""
    left = iter(flat)
    return tree.map(lambda _: next(left), structure)


Runner = Callable[[Loop, Sequence[Tensor]], Sequence[Tensor]]


def plainly(loop: Loop, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Step after step, each operator as it comes: what every faster way must equal."""
    everyone = [False] * loop.count if loop.known is None else loop.known.rows.all(0).tolist()
    steps = {masked: loop.for_all(masked) for masked in (False, True)}
    carry, given = list(tensors[: loop.carried]), tensors[loop.carried : -4]
    for number in range(loop.count):
        step = steps[not everyone[number]]
        carry = list(step(*carry, *given, *loop.step_rows(tensors, number)))
    return carry


RUNNER: ContextVar[Runner] = ContextVar("runner", default=plainly)


class _Scan(torch.autograd.Function):
    generate_vmap_rule = False

    @staticmethod
    def forward(loop: Loop, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(RUNNER.get()(loop, tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(info: Any, in_dims: Any, loop: Loop, *tensors: Tensor) -> tuple[Any, Any]:
        outer, moved = with_mapping(loop, tensors, in_dims[1:], info.batch_size)
        found = _Scan.apply(outer, *moved)  # type: ignore[no-untyped-call]
        return found, (0,) * len(found)


def with_mapping(
    loop: Loop, tensors: Sequence[Tensor], axes: Sequence[int | None], size: int
) -> tuple[Loop, list[Tensor]]:
    """The loop of all that a mapping maps over, and its tensors with their mapped axis first.

    Args:
      loop: of one of them.
      tensors: of all of them.
      axes: which of each is the mapped one.
      size: how many there are.
    """
    flags, moved = [], []
    for i, (tensor, axis) in enumerate(zip(tensors, axes, strict=True)):
        here = tensor if axis is None else tensor.movedim(axis, 0)
        if axis is None and i < loop.carried:  # what one client changes is its own
            here = here.expand(size, *here.shape)
        flags.append(axis is not None or i < loop.carried)
        moved.append(here)
    return replace(loop, axes=(*loop.axes, tuple(flags))), moved


def left_by_torch(loop: Loop, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """What the loop gives, out of all mappings and gradients around it, as torch leaves them."""
    found: tuple[Tensor, ...] = _Scan.apply(loop, *tensors)  # type: ignore[no-untyped-call]
    return found


LEAVER: ContextVar[Runner] = ContextVar("leaver", default=left_by_torch)


def scan(
    step: Step,
    carry: Tree,
    given: Tree,
    steps: Steps,
    store: Sequence[Tensor],
    *,
    compiles: bool = True,
) -> tuple[Tree, Notes]:
    """What is carried after all steps, and the step's notes.

    Args:
      step: one client's step. Under a fast engine it is called once and replayed: it must not
        depend on anything but its arguments and constants.
      carry: what the first step begins with. Structure and types stay.
      given: tensors that stay as they are.
      steps: the rows of each step.
      store: tensors shared by all clients (the examples).
      compiles: whether compiling the step may ever pay; evaluation has few steps.
    """
    if numbers := RUN_NUMBERS.get():
        step, given = _with_given_numbers(step), {"given": given, "numbers": dict(numbers)}
    carried, kept = tree.leaves(carry), tree.leaves(given)
    if not carried or not steps.number:
        return carry, {}
    count = len(steps.number)
    loop = Loop(step, _bare(carry), _bare(given), tuple(store), count, steps.known, compiles)
    # who asks how the result depends on the examples (an audit) needs every operator's own slope
    if RUNNER.get() is plainly or any(part.requires_grad for part in store):
        none = torch.zeros_like(steps.active[0])
        own = (leaf + none.to(leaf.dtype) for leaf in carried)  # what one client changes is its own
        return rebuild(loop.carry, plainly(loop, (*own, *kept, *steps.tensors))), loop.notes
    flat = LEAVER.get()(loop, (*carried, *kept, *steps.tensors))
    return rebuild(loop.carry, flat), loop.notes


def _with_given_numbers(step: Step) -> Step:
    """A step that finds the values of `RunNumber`s among what it is given."""

    def own(carry: Tree, given: Tree, now: StepRows, store: Sequence[Tensor], notes: Notes) -> Tree:
        with with_run_numbers(given["numbers"]):
            return step(carry, given["given"], now, store, notes)

    return own


def _bare(values: Tree) -> Tree:
    """The structure of a tree without its tensors."""
    return tree.map(lambda _: None, values)


def each(fn: Callable[..., Any], *rows: Any) -> Any:
    """`fn` of every row of tensors and trees: mapped, or one by one where it cannot be mapped.

    Example:
      >>> each(lambda a, b: {"sum": a + b["c"]}, torch.arange(3), {"c": torch.ones(3)})
      {'sum': tensor([1., 2., 3.])}
    """
    try:
        return vmap(fn)(*rows)
    except RuntimeError as error:
        some = rows[0] if isinstance(rows[0], Tensor) else tree.leaves(rows[0])[0]
        try:
            return _stacked([fn(*(_row(part, i) for part in rows)) for i in range(len(some))])
        except RuntimeError:
            raise error from None


def _row(part: Any, i: int) -> Any:
    return part[i] if isinstance(part, Tensor) else tree.index(part, i)


def _stacked(found: list[Any]) -> Any:
    if isinstance(found[0], Tensor):
        return torch.stack(found)
    if isinstance(found[0], dict):
        return tree.stack(found)
    return tuple(_stacked(list(part)) for part in zip(*found, strict=True))


class _Any(torch.autograd.Function):
    """True if true for any client: under vmap the flag leaves the batch."""

    generate_vmap_rule = False

    @staticmethod
    def forward(flag: Tensor) -> Tensor:
        return flag.any()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(info: Any, in_dims: Any, flag: Tensor) -> tuple[Tensor, None]:
        return flag.any(), None


def repeat(
    body: Callable[[Tree], Tree],
    carry: Tree,
    *,
    until: Callable[[Tree], Tensor],
    limit: int,
) -> Tree:
    """Applies `body` until `until(carry)` holds, for each client on its own, at most `limit` times.

    Clients that are done stay as they are while others go on. `until` is asked before each turn,
    so a client may need none.
    """
    for _ in range(limit):
        done = until(carry)
        if not bool(_Any.apply(~done)):  # type: ignore[no-untyped-call]
            break
        carry = tree.where(done, carry, body(carry))
    return carry
