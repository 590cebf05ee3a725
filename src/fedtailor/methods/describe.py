"""What a method says of itself: paper, maths, hyper-parameters, read from its one definition."""

from __future__ import annotations

import importlib
import inspect
import re
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

from fedtailor.core.errors import BadInput, unknown
from fedtailor.core.method import Method
from fedtailor.core.options import Option, option_of

Factory = Callable[..., Method]


class Page(NamedTuple):
    """What `fedtailor show` has to say.

    Attributes:
      title: one line.
      text: idea and maths.
      deviations: from the paper, and why.
      reference: the paper.
      options: the hyper-parameters.
    """

    title: str
    text: str
    deviations: str
    reference: str
    options: tuple[Option, ...]


def find(name: str) -> Factory:
    """A method's factory: by its name, or `package.module:factory`.

    Raises:
      BadInput: there is no such method.
    """
    from fedtailor.methods import METHODS
    from fedtailor.methods.combine import combined

    if name in METHODS:
        return METHODS[name]
    host, plus, part = name.rpartition("+")
    if plus:
        return combined(find(host), host, part)
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise unknown("method", name, METHODS)
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
        takes = inspect.signature(factory).parameters if callable(factory) else {}
    except Exception as error:  # a stranger's module may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise BadInput(
            f"method '{name}': {reason}: write package.module:factory, of a package installed or "
            "on PYTHONPATH"
        ) from error
    if "task" not in takes:
        raise BadInput(f"method '{name}': not a factory: its first parameter must be 'task'")
    found: Factory = factory
    return found


_SECTION = re.compile(
    r"^(Args|Attributes|Deviations|Reference|Returns|Raises|Example)s?:[ \n]", re.MULTILINE
)


def _sections(doc: str) -> dict[str, str]:
    """The docstring's parts by heading; what stands before the first is called ``."""
    pieces = _SECTION.split(doc)
    return {"": pieces[0]} | dict(zip(pieces[1::2], pieces[2::2], strict=True))


def _meanings(args: str) -> dict[str, str]:
    """Each argument's text from an `Args:` section."""
    out: dict[str, str] = {}
    name = ""
    for line in args.splitlines():
        begin = re.match(r"^  (\w+): (.*)$", line)
        if begin:
            name = begin.group(1)
            out[name] = begin.group(2)
        elif name and line.startswith("    "):
            out[name] += " " + line.strip()
    return out


def options_of(maker: Callable[..., Any]) -> tuple[Option, ...]:
    """The hyper-parameters of a function or record, from its signature and docstring."""
    parts = _sections(inspect.cleandoc(maker.__doc__ or ""))
    meanings = _meanings(parts.get("Args", parts.get("Attributes", "")))
    hints = typing.get_type_hints(maker, include_extras=True)
    options = [
        option_of(name, hints.get(name), parameter.default, meanings.get(name, ""))
        for name, parameter in inspect.signature(maker).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    ]
    return tuple(o for o in options if o is not None)


def page(factory: Factory) -> Page:
    """A method's page, from its docstring and signature."""
    parts = _sections(inspect.cleandoc(factory.__doc__ or ""))
    title, _, text = parts[""].partition("\n")
    return Page(
        title.strip(),
        text.strip("\n"),
        " ".join(parts.get("Deviations", "").split()),
        " ".join(parts.get("Reference", "").split()),
        options_of(factory),
    )


def parse_options(factory: Factory, given: dict[str, Any]) -> dict[str, Any]:
    """Checked values for the options a person set.

    Raises:
      BadInput: an unknown name or a value that the option does not take.
    """
    known = {option.name: option for option in page(factory).options}
    for name in given:
        if name not in known:
            raise unknown("option", name, list(known) or ["(this method has none)"])
    return {name: known[name].parse(value) for name, value in given.items()}


class Footprint(NamedTuple):
    """Sizes in units of one model, measured on a small federation with full participation.

    Attributes:
      down: received by a client per round.
      up: sent by a client per round.
      client: kept by a client between rounds.
      server: kept by the server.
      clients: how many clients there were.
      parameters: numbers in one model.
    """

    down: float
    up: float
    client: float
    server: float
    clients: int
    parameters: int


def footprint(factory: Factory) -> Footprint:
    """What a method keeps and sends, counted in a round that is not the first."""
    import torch

    from fedtailor.core import tree
    from fedtailor.methods.check import Lab

    lab = Lab(factory, {}, "dense")
    sim = lab.play(rounds=2)
    report = sim.step(torch.arange(lab.client_data.clients))
    report = sim.step(torch.arange(lab.client_data.clients))  # everyone has uploaded by now
    one = sum(p.numel() for p in sim.initial.values())
    width = next(iter(sim.initial.values())).element_size()

    def models(values: tree.Tree) -> float:
        return sum(leaf.numel() for leaf in tree.leaves(values)) / one

    return Footprint(
        float(report.down.double().mean()) / (one * width),
        float(report.up.double().mean()) / (one * width),
        models(sim.states.rows) / lab.client_data.clients,
        models(sim.server),
        lab.client_data.clients,
        one,
    )
