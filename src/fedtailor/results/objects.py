"""What a run was given as Python objects: a method, rows, a network, functions of the user's own.

A configuration names everything that a run depends on. An object has no name that a file could
keep, so the configuration keeps a mark in its place (`object:Net`), and the object travels beside
it. A run that is resumed asks for the same objects again.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple

from fedtailor.core.errors import BadInput

if TYPE_CHECKING:  # they need torch, and the command line reads this module to show its help
    from fedtailor.core.method import Method
    from fedtailor.datasets import Source
    from fedtailor.methods import Factory

MARK = "object:"
SETTINGS = (
    "method", "data", "model", "weights", "partition", "schedule", "loss", "metrics",
)  # fmt: skip  # may be objects
# what may be given again to a run that was started with it; columns and size say how data are read
AGAIN = (
    *SETTINGS[1:], "label", "client_column", "text_column", "image_size", "task", "time_column",
    "event_column",
)  # fmt: skip


class Objects(NamedTuple):
    """The objects of a run; None where the configuration has a name."""

    method: Factory | Method | None = None  # a factory, or a method that was made already
    data: Source | None = None  # the rows
    model: Any = None  # a network, or what makes one
    weights: Mapping[str, Any] | None = None  # a `state_dict` that the network begins with
    partition: Any = None  # who has which rows, or what decides it
    schedule: Callable[..., Any] | None = None  # (round, rounds) -> factor on the learning rate
    loss: Callable[..., Any] | None = None  # (outputs, labels) -> a loss for each row
    metrics: Mapping[str, Callable[..., Any]] | None = None  # (outputs, labels) -> number, by name

    def factory(self) -> Factory | None:
        """What makes the method; None if that has a name."""
        made = self.method
        if made is None or callable(made):
            return made
        return lambda task, *, recipe=None: made


def mark_of(thing: object) -> str:
    """What a configuration says in an object's place.

    Example:
      >>> mark_of(len)
      'object:len'
    """
    return MARK + str(getattr(thing, "__name__", type(thing).__name__))


def name_of(factory: Factory) -> str:
    """A factory's name where others can find it by that, else a mark.

    Example:
      >>> from fedtailor.methods import fedavg
      >>> name_of(fedavg)
      'fedavg'
    """
    from fedtailor.methods import METHODS

    for name, known in METHODS.items():
        if factory is known:
            return name
    module, name = getattr(factory, "__module__", ""), getattr(factory, "__qualname__", "")
    if module and module != "__main__" and name.isidentifier():
        try:
            if getattr(importlib.import_module(module), name, None) is factory:
                return f"{module}:{name}"
        except ImportError:
            pass
    return mark_of(factory)


def separate(
    method: str | Factory | Method, given: Mapping[str, Any]
) -> tuple[str, dict[str, Any], Objects]:
    """Names and marks for the configuration, and the objects beside it.

    Args:
      method: a name, a factory or a method.
      given: settings, some of which may be objects.

    Raises:
      BadInput: an object is not of a kind that can be used there.

    Example:
      >>> name, settings, objects = separate("fedavg", {"loss": max, "lr": 0.1})
      >>> name, settings
      ('fedavg', {'loss': 'object:max', 'lr': 0.1})
    """
    from fedtailor.core.method import Method
    from fedtailor.datasets import Source

    settings, found = dict(given), dict[str, Any]()
    if not isinstance(method, str):
        if not isinstance(method, Method) and not callable(method):
            raise BadInput(
                f"method is a {type(method).__name__}: give a name, a factory or a Method"
            )
        if isinstance(method, partial):
            name = getattr(method.func, "__name__", "it")
            raise BadInput(
                f"method is a partial: give {name} itself, and options={method.keywords}"
            )
        found["method"] = method
        method = f"{MARK}method" if isinstance(method, Method) else name_of(method)
    for name in SETTINGS[1:]:
        value = settings.get(name)
        if value is None or isinstance(value, str):
            continue
        if name == "data":
            value = value if isinstance(value, Source) else _rows(value, settings)
            settings[name] = MARK + value.name
        elif name == "metrics":
            value = _named(value)
            settings[name] = MARK + ",".join(value)
        elif name == "weights" and isinstance(value, PathLike):
            settings[name] = str(value)
            continue
        else:
            settings[name] = mark_of(value)
        if name in ("schedule", "loss") and not callable(value):
            raise BadInput(f"{name} is a {type(value).__name__}: give a name or a function")
        if name == "loss" and callable(value):
            _demand_two_arguments("loss", value)
        if name == "weights" and not isinstance(value, Mapping):
            raise BadInput(
                f"weights is a {type(value).__name__}: give a safetensors file or a state_dict"
            )
        found[name] = value
    return method, settings, Objects(**found)


def _rows(data: Any, settings: dict[str, Any]) -> Source:
    from fedtailor.datasets import make_choices, source_of

    return source_of(
        data,
        label=settings.get("label") or None,
        client_column=settings.get("client_column") or None,
        text_column=settings.get("text_column") or None,
        image_size=settings.get("image_size") or None,
        task=settings.get("task") or "auto",
        time_column=settings.get("time_column") or None,
        event_column=settings.get("event_column") or None,
        group_column=settings.get("group_column") or None,
        time_column_split=settings.get("time_column_split") or None,
        choices=make_choices(
            settings.get("drop", ""),
            settings.get("only", ""),
            settings.get("types", ""),
            settings.get("strict") in (True, "true"),
            settings.get("missing", ""),
        ),
    )


def _named(metrics: Any) -> dict[str, Callable[..., Any]]:
    """Metrics by name; a function alone goes by its own."""
    if callable(metrics):
        metrics = {getattr(metrics, "__name__", "metric"): metrics}
    if not isinstance(metrics, Mapping) or not all(map(callable, metrics.values())):
        raise BadInput("metrics: give a function (outputs, labels) -> number, or several by name")
    for name, metric in metrics.items():
        _demand_two_arguments(f"metric '{name}'", metric)
    return {str(name): metric for name, metric in metrics.items()}


def _demand_two_arguments(what: str, function: Callable[..., Any]) -> None:
    try:
        takes = inspect.signature(function)
    except (TypeError, ValueError):  # what is written in C need not say
        return
    try:
        takes.bind(None, None)
    except TypeError:
        name = getattr(function, "__name__", type(function).__name__)
        given = ", ".join(takes.parameters)
        raise BadInput(f"{what} is {name}({given}): write it as {name}(outputs, labels)") from None


def require(values: Mapping[str, Any], objects: Objects, using: Sequence[str] = SETTINGS) -> None:
    """Checks that every mark of a configuration has its object.

    Args:
      values: of the configuration.
      objects: that are there.
      using: those that are needed.

    Raises:
      BadInput: one has not.
    """
    for name in using:
        value = values.get(name)
        if isinstance(value, str) and value.startswith(MARK) and getattr(objects, name) is None:
            raise BadInput(
                f"{name} is '{value}', a Python object that no file can keep: give it again from "
                f"Python, e.g. fedtailor.resume(folder, {name}=...)"
            )


def separate_all(
    methods: Sequence[Any], settings: Mapping[str, Any]
) -> tuple[list[str], dict[str, Any], dict[str, Objects]]:
    """Names of all methods, settings by name, and each method's objects."""
    _, named, shared = separate("local", settings)
    names, objects = [], {}
    for method in methods:
        name, _, own = separate(method, {})
        names.append(name)
        objects[name] = shared._replace(method=own.method)
    return names, named, {"local": shared} | objects
