"""What a method says of itself: paper, maths, hyper-parameters, read from its one definition.

A factory's options are its keywords, or the fields of a record (a named tuple) that several
factories share: each is explained once, and has a name of its own on the command line.
"""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, ParamSpec

from fedtailor.core.errors import BadInput, unknown
from fedtailor.core.method import Method
from fedtailor.core.options import Option, option_of, shortened
from fedtailor.core.task import Task

Factory = Callable[..., Method]
Arguments = ParamSpec("Arguments")

OF_RUN = ("recipe", "participation", "networks")  # what a run gives a factory by itself


class Page(NamedTuple):
    """What `fedtailor show` has to say of a method.

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


class Record(NamedTuple):
    """A parameter of a factory that is a record of options.

    Attributes:
      default: the record by default.
      names: the record's fields by their names as options of the factory.
    """

    default: Any
    names: dict[str, str]


def records_of(factory: Callable[..., Any]) -> dict[str, Record]:
    """A factory's parameters that are records; a field that is already taken gets a prefix."""
    parameters = inspect.signature(factory).parameters
    taken, found = set(parameters), {}
    for name, parameter in parameters.items():
        if isinstance(parameter.default, tuple) and hasattr(parameter.default, "_fields"):
            fields = parameter.default._fields
            names = {f"{name}_{field}" if field in taken else field: field for field in fields}
            found[name] = Record(parameter.default, names)
            taken |= set(names)
    return found


def flat_options(factory: Callable[Arguments, Method]) -> Callable[Arguments, Method]:
    """A factory that also takes each option of its records by name.

    Example:
      >>> class Shape(NamedTuple):
      ...     width: int = 1
      ...     depth: int = 2
      >>> @flat_options
      ... def factory(task, *, shape=Shape()):
      ...     return shape
      >>> factory(None, depth=5), factory(None, shape=Shape(width=3))
      (Shape(width=1, depth=5), Shape(width=3, depth=2))
    """
    records = records_of(factory)
    if not records:
        return factory

    @functools.wraps(factory)
    def flat(*arguments: Any, **options: Any) -> Method:
        for name, record in records.items():
            own = {field: options.pop(o) for o, field in record.names.items() if o in options}
            if own:
                options[name] = options.get(name, record.default)._replace(**own)
        return factory(*arguments, **options)

    return flat


def options_of(maker: Callable[..., Any]) -> tuple[Option, ...]:
    """The hyper-parameters of a function or record, from its signature and docstring."""
    parts = _sections(inspect.cleandoc(maker.__doc__ or ""))
    meanings = _meanings(parts.get("Args", parts.get("Attributes", "")))
    try:
        hints, records = typing.get_type_hints(maker, include_extras=True), records_of(maker)
    except NameError as error:
        raise BadInput(
            f"'{maker.__name__}' has an annotation that its module does not know ({error}): import "
            "that name at the top of the module"
        ) from None
    options: list[Option | None] = []
    for name, parameter in inspect.signature(maker).parameters.items():
        if name in records:
            default, names = records[name]
            known = {option.name: option for option in options_of(type(default))}
            options += [
                known[field]._replace(name=there, default=getattr(default, field))
                for there, field in names.items()
                if field in known
            ]
        elif parameter.default is not inspect.Parameter.empty:
            meaning = meanings.get(name, "")
            options.append(option_of(name, hints.get(name), parameter.default, meaning))
    return tuple(o for o in options if o is not None)


def page(factory: Callable[..., Any]) -> Page:
    """A method's page, or that of a record of options, from docstring and signature."""
    parts = _sections(inspect.cleandoc(factory.__doc__ or ""))
    title, _, text = parts[""].partition("\n")
    return Page(
        title.strip(),
        text.strip("\n"),
        " ".join(parts.get("Deviations", "").split()),
        " ".join(parts.get("Reference", "").split()),
        options_of(factory),
    )


def _arguments(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """What a factory of somebody's own takes beside the task and what a run gives it."""
    _, *others = inspect.signature(factory).parameters.values() or [None]
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {p.name: p for p in others if p and p.kind in named and p.name not in OF_RUN}


def _needed(factory: Callable[..., Any]) -> list[str]:
    """Arguments that nobody gives, since they are without a default."""
    found = _arguments(factory).values()
    return [p.name for p in found if p.default is inspect.Parameter.empty]


def parse_options(factory: Factory, given: dict[str, Any]) -> dict[str, Any]:
    """Checked values for the options a person set.

    Raises:
      BadInput: an unknown name, a value that the option does not take, or an argument of the
        factory that nobody can give.
    """
    needed = _needed(factory)
    if needed:
        raise BadInput(
            f"option '{needed[0]}' of '{factory.__name__}' has no default: give it one in its "
            f"factory, such as {needed[0]}: float = 0.5"
        )
    if not isinstance(given, Mapping):
        raise BadInput(f"options is {shortened(given)}: give a dict, such as {{'lam': 0.5}}")
    known = {option.name: option for option in page(factory).options}
    for name in given:
        if name not in known:
            if name in _arguments(factory) and name not in records_of(factory):
                raise BadInput(
                    f"option '{name}' of '{factory.__name__}' cannot be set, since its type is not "
                    "one that options have: write it as float, int, bool, str or Literal, such as "
                    f"{name}: float = 0.5"
                )
            raise unknown("option", name, list(known) or ["(this method has none)"])
    return {name: known[name].parse(value) for name, value in given.items()}


def among(factory: Factory, networks: Sequence[Task]) -> dict[str, Sequence[Task]]:
    """What else a factory is given where clients have different networks, the server's first."""
    return {"networks": networks} if "networks" in inspect.signature(factory).parameters else {}


def raised(error: Exception) -> str:
    """What a stranger's code raised, for a message of one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
