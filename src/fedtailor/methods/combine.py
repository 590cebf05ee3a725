"""Methods with a part added, by name: `ditto+ala`, `fedavg+adam`, `fedavg+trimmed:0.1`."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from fedtailor.core import rng, tree
from fedtailor.core.data import Data
from fedtailor.core.errors import BadInput, unknown
from fedtailor.core.method import ClientCount, Method, Upload, download_of
from fedtailor.core.rng import Turn
from fedtailor.core.task import Task, classification
from fedtailor.core.training import Recipe
from fedtailor.core.turn import ClientTurn
from fedtailor.methods import METHODS
from fedtailor.methods.describe import (
    Factory,
    flat_options,
    options_of,
    page,
    raised,
    records_of,
)
from fedtailor.methods.mixture.fedala import Ala, with_ala
from fedtailor.methods.mixture.pmixfed import Mixer, with_mixup
from fedtailor.methods.parts.robust import (
    CoordinateMedian,
    GeometricMedian,
    Krum,
    NormClip,
    RobustRule,
    TrimmedMean,
    with_robust_mean,
)
from fedtailor.methods.parts.server_optimiser import (
    ServerAdagrad,
    ServerAdam,
    ServerMomentum,
    ServerOptimiser,
    ServerYogi,
    with_server_optimiser,
)


class Wrapper(NamedTuple):
    """A part that can be added to other methods.

    Attributes:
      options: its options by default; they become the method's.
      suits: whether it can be added to the methods of a factory.
      hosts: which those are, in words.
      wrap: (host, task, options, recipe) -> method.
      title: what the part does.
      reference: the paper.
    """

    options: Any
    suits: Callable[[Factory], bool]
    hosts: str
    wrap: Callable[[Method, Task, Any, Recipe], Method]
    title: str
    reference: str


def _small_task() -> Task:
    return classification(lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))


def small_method(factory: Factory) -> Method:
    """A method for a tiny network, to read what it says of itself."""
    return factory(_small_task())


def small_upload(factory: Factory) -> Upload:
    """What a client of a method uploads, seen in one turn of a tiny one.

    Example:
      >>> [bool(small_upload(METHODS[name]).mean) for name in ("fedavg", "fedamp")]
      [True, False]
    """
    task = _small_task()
    method, initial = factory(task), task.init(rng.key(0))
    data = Data.of(torch.zeros(4, 2), torch.arange(4) % 2, val=2)
    first, turn = torch.tensor(0), Turn(rng.key(0), torch.tensor(0), torch.tensor(1))
    with torch.no_grad():
        server = method.init(ClientCount.of(torch.tensor([2, 2])), initial, rng.key(0))
        message = method.send(server, first, turn.of(first))
        outcome, _ = ClientTurn(method, initial, message, data, turn.of(first)).play()
    return outcome.upload if not method.gathered else Upload()


def with_own_networks() -> list[str]:
    """The methods whose clients may have different networks.

    Example:
      >>> "fedproto" in with_own_networks(), "fedavg" in with_own_networks()
      (True, False)
    """
    return [name for name, factory in METHODS.items() if small_method(factory).own_networks]


@functools.lru_cache(maxsize=64)
def _takes_a_mean(factory: Factory) -> bool:
    if small_method(factory).mean_only:
        return False
    return bool(tree.leaves(small_upload(factory).mean))


def _downloads_one_model(factory: Factory) -> bool:
    return download_of(small_method(factory)) is not None


def _at_the_server(optimiser: ServerOptimiser) -> Wrapper:
    about = page(type(optimiser))
    name, _, what = about.title.rstrip(".").partition(": ")
    return Wrapper(
        optimiser,
        lambda factory: bool(small_method(factory).common),
        "methods whose server keeps one point that all clients move, and no optimiser yet",
        lambda host, task, rule, recipe: with_server_optimiser(host, task, rule),
        f"{what} ({name})",
        about.reference,
    )


def _in_place_of_the_mean(rule: RobustRule) -> Wrapper:
    about = page(type(rule))
    name, _, what = about.title.rstrip(".").partition(": ")
    return Wrapper(
        rule,
        _takes_a_mean,
        "methods whose server takes a mean that another rule may replace, and no other rule yet",
        lambda host, task, rule, recipe: with_robust_mean(host, task, rule),
        f"{what} ({name})",
        about.reference,
    )


WRAPPERS: dict[str, Wrapper] = {
    "ala": Wrapper(
        Ala(),
        _downloads_one_model,
        "methods whose clients download one model",
        with_ala,
        "local training begins with an adaptive local aggregation of own and received model",
        'Zhang et al., "FedALA", AAAI 2023, https://arxiv.org/abs/2212.01197',
    ),
    "mix": Wrapper(
        Mixer(),
        lambda factory: (
            "shared_blocks" in inspect.signature(factory).parameters and _takes_a_mean(factory)
        ),
        "fedalt and fedsim, before a rule in place of the mean",
        lambda host, task, mix, recipe: with_mixup(host, task, mix),
        "shared blocks are mixed with the client's own copy at download, and at aggregation",
        'Saadati et al., "pMixFed", https://arxiv.org/abs/2501.11002',
    ),
    "avgm": _at_the_server(ServerMomentum()),
    "adam": _at_the_server(ServerAdam()),
    "yogi": _at_the_server(ServerYogi()),
    "adagrad": _at_the_server(ServerAdagrad()),
    "median": _in_place_of_the_mean(CoordinateMedian()),
    "trimmed": _in_place_of_the_mean(TrimmedMean()),
    "krum": _in_place_of_the_mean(Krum()),
    "multikrum": _in_place_of_the_mean(Krum(take=0)),
    "geometric": _in_place_of_the_mean(GeometricMedian()),
    "clip": _in_place_of_the_mean(NormClip()),
}


def built_in(name: str) -> bool:
    """Whether a method and all its parts are FedTailor's own.

    Example:
      >>> built_in("fedavg+ala"), built_in("my_module:my_method")
      (True, False)
    """
    host, *parts = name.split("+")
    return host in METHODS and all(part.partition(":")[0] in WRAPPERS for part in parts)


def with_part(host: Factory, host_name: str, part_name: str) -> Factory:
    """The factory of `host+part`; an option that both have gets the part's name in front.

    `host+part:VALUE` gives the part's first option.

    Raises:
      BadInput: there is no such part, or the host cannot take it.
    """
    whole = f"{host_name}+{part_name}"
    part_name, colon, value = part_name.partition(":")
    if part_name not in WRAPPERS:
        raise unknown(f"part of '{whole}':", part_name, WRAPPERS)
    part = WRAPPERS[part_name]
    first = options_of(type(part.options))[:1]
    if colon and not first:
        raise BadInput(f"method '{whole}': +{part_name} takes no value: leave ':{value}' out")
    named = {option.name: option.parse(value) for option in first if colon}
    part = part._replace(options=part.options._replace(**named))
    try:
        suits = part.suits(host)
    except Exception as error:  # a stranger's factory may raise anything
        raise BadInput(f"method '{host_name}': {raised(error)}") from error
    if not suits:
        raise BadInput(f"'{host_name}' cannot take '+{part_name}': it is for {part.hosts}")

    def factory(task: Task, *, recipe: Recipe = Recipe(), **options: Any) -> Method:
        own = options.pop(part_name, part.options)
        for name, said in named.items():
            if getattr(own, name) != said:
                raise BadInput(
                    f"method '{whole}': {name} is {getattr(own, name)} among the options, but "
                    f"{said} in the name: leave one out"
                )
        made = part.wrap(host(task, recipe=recipe, **options), task, own, recipe)
        return made._replace(own_networks="")  # parts are made for one network

    # only options and records of options: not what is for methods built on the host
    parameters, theirs = inspect.signature(host).parameters, options_of(host)
    hints = typing.get_type_hints(host, include_extras=True)
    shown = [n for n in parameters if n in {o.name for o in theirs} | set(records_of(host))]
    keyword = inspect.Parameter.KEYWORD_ONLY
    factory.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [parameters["task"]]
        + [parameters[name].replace(kind=keyword) for name in shown]
        + [inspect.Parameter(part_name, keyword, default=part.options)]
        + [parameters["recipe"].replace(kind=keyword)]
    )
    factory.__annotations__ = {n: hints[n] for n in shown} | {part_name: type(part.options)}
    factory.__name__ = f"{host_name}_{part_name}"
    arguments = "\n".join(f"  {o.name}: {o.meaning}" for o in theirs)
    about, added = inspect.getdoc(host) or "", page(type(part.options))
    deviations = added.deviations or "those of the part (fedtailor show fedala, pmixfed)."
    factory.__doc__ = (
        f"{host_name} with +{part_name}: {part.title}.\n\n{about.split('Args:')[0].strip()}\n\n"
        f"{added.text}\n\nArgs:\n{arguments}\n\n"
        f"Deviations: those of {host_name}, and: {deviations}\n\nReference: {part.reference}\n"
    )
    return flat_options(factory)
