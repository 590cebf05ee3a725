"""Methods with a part added, by name: `ditto+ala`, `fedalt+mix`."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

from fedtailor.core.errors import BadInput, unknown
from fedtailor.core.method import Method
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.methods.describe import options_of
from fedtailor.methods.parts.ala import ala
from fedtailor.methods.parts.mixing import Mixer, with_mixup

Factory = Callable[..., Method]


class Part(NamedTuple):
    """Attributes:
    maker: makes the part; its options become the method's.
    hosts: what a factory must take to be a host, and in words which those are.
    add: (host's factory, task, recipe, host's options, what `maker` made) -> method.
    title: what the part does.
    reference: the paper.
    """

    maker: Callable[..., Any]
    hosts: tuple[str, str]
    add: Callable[[Factory, Task, Recipe, dict[str, Any], Any], Method]
    title: str
    reference: str


def _add_ala(host: Factory, task: Task, recipe: Recipe, given: dict[str, Any], part: Any) -> Method:
    return host(task, recipe=recipe, begin=part, **given)


def _add_mix(host: Factory, task: Task, recipe: Recipe, given: dict[str, Any], part: Any) -> Method:
    return with_mixup(host(task, recipe=recipe, **given), task, part)


PARTS: dict[str, Part] = {
    "ala": Part(
        ala,
        ("begin", "methods whose clients download one model"),
        _add_ala,
        "local training begins with an adaptive local aggregation of own and received model",
        'Zhang et al., "FedALA", AAAI 2023, https://arxiv.org/abs/2212.01197',
    ),
    "mix": Part(
        Mixer,
        ("shared_blocks", "fedalt and fedsim"),
        _add_mix,
        "shared blocks are mixed with the client's own copy at download, and at aggregation",
        'Saadati et al., "pMixFed", https://arxiv.org/abs/2501.11002',
    ),
}


def combined(host: Factory, host_name: str, part_name: str) -> Factory:
    """The factory of `host+part`.

    Raises:
      BadInput: there is no such part, or the host cannot take it.
    """
    if part_name not in PARTS:
        raise unknown(f"part of '{host_name}+{part_name}':", part_name, PARTS)
    part = PARTS[part_name]
    parameters = inspect.signature(host).parameters
    needed, words = part.hosts
    if needed not in parameters:
        raise BadInput(f"'{host_name}' cannot take '+{part_name}': it is for {words}")
    theirs = options_of(host)
    # an option that both have gets the part's name in front
    names = {
        o.name: f"{part_name}_{o.name}" if o.name in parameters else o.name
        for o in options_of(part.maker)
    }

    def factory(task: Task, *, recipe: Recipe = Recipe(), **given: Any) -> Method:
        own = {name: given.pop(there) for name, there in names.items() if there in given}
        return part.add(host, task, recipe, given, part.maker(**own))

    hints = typing.get_type_hints(host, include_extras=True)
    part_hints = typing.get_type_hints(part.maker, include_extras=True)
    mine = [o._replace(name=names[o.name]) for o in options_of(part.maker)]
    kinds = {o.name: hints[o.name] for o in theirs}
    kinds |= {there: part_hints[name] for name, there in names.items()}
    keyword = inspect.Parameter.KEYWORD_ONLY
    factory.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [parameters["task"]]
        + [
            inspect.Parameter(o.name, keyword, default=o.default, annotation=kinds[o.name])
            for o in [*theirs, *mine]
        ]
        + [parameters["recipe"].replace(kind=keyword)]
    )
    factory.__annotations__ = kinds
    arguments = "\n".join(f"  {o.name}: {o.meaning}" for o in [*theirs, *mine])
    about = inspect.getdoc(host) or ""
    deviations = f"those of {host_name} and of the part (fedtailor show fedala, pmixfed)."
    factory.__doc__ = (
        f"{host_name} with +{part_name}: {part.title}.\n\n{about.split('Args:')[0].strip()}\n\n"
        f"Args:\n{arguments}\n\nDeviations: {deviations}\n\nReference: {part.reference}\n"
    )
    return factory
