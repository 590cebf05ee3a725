"""A step for any number of clients, from what was traced for two numbers of them.

Tracing takes seconds, and most of what it writes down does not depend on how many clients there
are. What does are sizes, and these are so many per client. Two traces tell which.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from fedtailor.engine.loops.in_place import Update
from fedtailor.engine.loops.tracing import Program


class NotAlike(ValueError):
    """Two traces of a step differ in more than sizes that grow with the number of clients."""


class PerClient(NamedTuple):
    """A size."""

    each: int


class Before(NamedTuple):
    """What an earlier operator gave."""

    number: int


@dataclass(frozen=True)
class Line:
    """One operator of a step."""

    op: str
    name: str
    target: Any
    args: Any
    kwargs: Any


@dataclass(frozen=True)
class Template:
    """A traced step in which sizes are left open.

    Example:
      >>> from fedtailor.engine.loops.tracing import trace
      >>> step = lambda x: (x + x.new_ones(len(x) * 3).view(-1, 3),)
      >>> two, five = (trace(step, [torch.zeros(n, 3)], 1) for n in (2, 5))
      >>> x = torch.zeros(4, 3)
      >>> Template.of(two, 2, five, 5).program(4)(x)
      >>> float(x.sum())
      12.0
    """

    constants: dict[str, Tensor]
    lines: tuple[Line, ...]
    updates: tuple[Update, ...]

    @classmethod
    def of(cls, one: Program, few: int, other: Program, many: int) -> Template:
        """What both programs have in common, traced for so many clients each.

        Raises:
          NotAlike: there is no telling what the step is for other numbers.
        """
        first, second = one.body, other.body
        if not isinstance(first, fx.GraphModule) or not isinstance(second, fx.GraphModule):
            raise NotAlike("compiled code cannot be compared")
        if one.updates != other.updates:
            raise NotAlike("other tensors are updated by products")
        nodes = list(first.graph.nodes), list(second.graph.nodes)
        if len(nodes[0]) != len(nodes[1]):
            raise NotAlike(f"{len(nodes[0])} operators, and {len(nodes[1])}")
        places = [{node: i for i, node in enumerate(part)} for part in nodes]
        lines = []
        for a, b in zip(*nodes, strict=True):
            if a.op != b.op or not _same_target(a, b, first, second):
                raise NotAlike(f"{a.op} {a.target}, and {b.op} {b.target}")
            parts = [
                _common(x, y, few, many, *places)
                for x, y in ((a.args, b.args), (a.kwargs, b.kwargs))
            ]
            lines.append(Line(b.op, b.name, b.target, *parts))
        return cls(_constants(second), tuple(lines), other.updates)

    @classmethod
    def fixed(cls, program: Program) -> Template:
        """A program as it is: the same for any number."""
        return cls.of(program, 1, program, 1)

    def program(self, clients: int) -> Program:
        """The step of so many clients, line by line: for few calls, as capturing it takes."""
        return Program(partial(self._play, clients), self.updates, 0.0)

    def _play(self, clients: int, *tensors: Tensor) -> Any:
        given, made = iter(tensors), []
        for line in self.lines:
            if line.op == "placeholder":
                made.append(next(given))
            elif line.op == "get_attr":
                made.append(self.constants[line.target])
            else:
                args, kwargs = (_filled(part, clients, made) for part in (line.args, line.kwargs))
                if line.op == "output":
                    return args[0]
                made.append(line.target(*args, **kwargs))
        raise ValueError("a step without a result")

    def written(self) -> Program:
        """The step of one client as Python code, which takes a while to make: for many calls."""
        graph = fx.Graph()
        made: list[fx.Node] = []
        for line in self.lines:
            args, kwargs = (_filled(part, 1, made) for part in (line.args, line.kwargs))
            made.append(graph.create_node(line.op, line.target, args, kwargs, line.name))
        return Program(fx.GraphModule(self.constants, graph), self.updates, 0.0)


def _constants(graph: fx.GraphModule) -> dict[str, Tensor]:
    names = [str(node.target) for node in graph.graph.nodes if node.op == "get_attr"]
    found = {name: getattr(graph, name, None) for name in names}
    for name, value in found.items():
        if not isinstance(value, Tensor):
            raise NotAlike(f"{name} is no tensor")
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def _same_target(a: fx.Node, b: fx.Node, first: fx.GraphModule, second: fx.GraphModule) -> bool:
    if a.op != "get_attr":
        return a.op == "placeholder" or a.target == b.target
    one, other = getattr(first, str(a.target)), getattr(second, str(b.target))
    if one is other:
        return True
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return False
    alike = one.shape == other.shape and one.dtype == other.dtype and one.device == other.device
    return alike and torch.equal(one, other)


def _common(a: Any, b: Any, few: int, many: int, at_a: Any, at_b: Any) -> Any:
    """An argument of both, with what grows with the number of clients left open."""
    inner = (few, many, at_a, at_b)
    if isinstance(a, fx.Node) and isinstance(b, fx.Node):
        if at_a[a] != at_b[b]:
            raise NotAlike(f"{a} is used, and {b}")
        return Before(at_a[a])
    if type(a) is not type(b):
        raise NotAlike(f"{a!r}, and {b!r}")
    if isinstance(a, (tuple, list)):
        if len(a) != len(b):
            raise NotAlike(f"{a!r}, and {b!r}")
        return [_common(x, y, *inner) for x, y in zip(a, b, strict=True)]
    if isinstance(a, dict):
        if a.keys() != b.keys():
            raise NotAlike(f"{a!r}, and {b!r}")
        return {k: _common(a[k], b[k], *inner) for k in a}
    if a == b:
        return a
    if type(a) is int and a % few == 0 and a // few * many == b:
        return PerClient(a // few)
    raise NotAlike(f"{a!r} for {few} clients, and {b!r} for {many}")


def _filled(part: Any, clients: int, made: list[Any]) -> Any:
    if isinstance(part, Before):
        return made[part.number]
    if isinstance(part, PerClient):
        return part.each * clients
    if isinstance(part, list):
        return tuple(_filled(value, clients, made) for value in part)
    if isinstance(part, dict):
        return {k: _filled(value, clients, made) for k, value in part.items()}
    return part
