"""Recipes by name, as on the command line."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedtailor.core.errors import BadInput, unknown
from fedtailor.partition.draws import Array, Rows
from fedtailor.partition.recipes import (
    dirichlet,
    groups,
    iid,
    natural,
    noniid1,
    noniid2,
    pathological,
    shards,
)
from fedtailor.partition.similarity import relatives, ring

TOLD = 12  # names in a message, at most


@dataclass(frozen=True)
class Scheme:
    """A recipe and its parameters; `str()` gives the text that `parse_partition` reads."""

    name: str
    parameters: tuple[float, ...] = ()

    def __str__(self) -> str:
        numbers = ",".join(str(p).removesuffix(".0") for p in self.parameters)
        return f"{self.name}:{numbers}" if numbers else self.name

    @property
    def limit(self) -> int | None:
        """Most rows of a client, where the scheme names a number."""
        kinds = _RECIPES[self.name].parameters
        given = dict(zip(kinds, self.parameters, strict=False))
        return int(given[_ROWS]) if _ROWS in given else None


class _Parameter(NamedTuple):
    """`low` is allowed for whole numbers and excluded, like `high`, for others.

    A parameter with a default is filled in; an optional one without stays away.
    """

    what: str
    kind: type[int] | type[float]
    low: float
    high: float = math.inf
    default: float | None = None
    optional: bool = False


class _Request(NamedTuple):
    labels: Array
    clients: int
    parameters: tuple[Any, ...]
    seed: int
    owner: Array | None
    clusters: Array | None
    min_samples: int


class _Recipe(NamedTuple):
    example: str
    parameters: tuple[_Parameter, ...]
    divide: Callable[[_Request], list[Rows]]


def _divided_by(recipe: Callable[..., list[Rows]]) -> Callable[[_Request], list[Rows]]:
    """By a recipe that needs labels, clients, its parameters and a seed."""
    return lambda t: recipe(t.labels, t.clients, *t.parameters, seed=t.seed)


def _divide_dirichlet(request: _Request) -> list[Rows]:
    recipe = partial(dirichlet, min_samples=request.min_samples)
    return _divided_by(recipe)(request)


def _divide_natural(request: _Request) -> list[Rows]:
    if request.owner is None:
        raise BadInput(
            "partition 'natural': these data do not say who owns which row; "
            "use another partition, e.g. 'dirichlet:0.1'"
        )
    return natural(request.owner, *request.parameters)


def _divide_latent(request: _Request) -> list[Rows]:
    wanted = request.parameters[0]
    found = 0 if request.clusters is None else np.unique(request.clusters).size
    if request.clusters is None or found != wanted:
        raise BadInput(
            f"partition 'latent:{wanted}' was given {found} clusters: "
            f"make {wanted} with latent_clusters first"
        )
    return groups(request.clusters, request.clients, seed=request.seed)


_CLASSES = _Parameter("classes per client", int, 1)
_FOUR_CLASSES = _CLASSES._replace(default=4)
_LEAST_ROWS = _Parameter("rows per client at least", int, 1, optional=True)
_ROWS = _Parameter("rows per client at most", int, 1, optional=True)
_RECIPES: dict[str, _Recipe] = {
    "iid": _Recipe("iid", (), _divided_by(iid)),
    "pathological": _Recipe("pathological:2", (_CLASSES,), _divided_by(pathological)),
    "shards": _Recipe("shards:5", (_CLASSES,), _divided_by(shards)),
    "dirichlet": _Recipe("dirichlet:0.1", (_Parameter("alpha", float, 0),), _divide_dirichlet),
    "noniid1": _Recipe("noniid1:4", (_FOUR_CLASSES, _ROWS), _divided_by(noniid1)),
    "noniid2": _Recipe(
        "noniid2:2,0.8",
        (
            _Parameter("dominant classes", int, 1, default=2),
            _Parameter("ratio", float, 0, 1, default=0.8),
            _ROWS,
        ),
        _divided_by(noniid2),
    ),
    "ring": _Recipe("ring:4", (_FOUR_CLASSES, _ROWS), _divided_by(ring)),
    "relatives": _Recipe("relatives:4", (_FOUR_CLASSES, _ROWS), _divided_by(relatives)),
    "latent": _Recipe("latent:5", (_Parameter("distributions", int, 1),), _divide_latent),
    "natural": _Recipe("natural:100", (_LEAST_ROWS,), _divide_natural),
}


def parse_partition(text: str) -> Scheme:
    """The scheme that a text such as `dirichlet:0.1` means; defaults are filled in.

    Example:
      >>> str(parse_partition("noniid2:3"))
      'noniid2:3,0.8'
    """
    text = " ".join(text.split())  # messages have one line
    name, colon, rest = text.partition(":")
    if name not in _RECIPES:
        raise unknown("partition", name, _RECIPES)
    recipe = _RECIPES[name]
    given = rest.split(",") if colon else []
    missing = any(p.default is None and not p.optional for p in recipe.parameters[len(given) :])
    if len(given) > len(recipe.parameters) or missing:
        needed = [p.what for p in recipe.parameters if not p.optional]
        wanted = " and ".join(needed) or "no number"
        wanted += "".join(f", if you like {p.what}" for p in recipe.parameters if p.optional)
        raise BadInput(f"partition '{text}': it takes {wanted}; write e.g. '{recipe.example}'")
    read = [_number(text, p, word) for p, word in zip(recipe.parameters, given, strict=False)]
    defaults = [p.default for p in recipe.parameters[len(given) :] if p.default is not None]
    return Scheme(name, (*read, *defaults))


def _number(text: str, parameter: _Parameter, word: str) -> float:
    what, kind, low, high = parameter.what, parameter.kind, parameter.low, parameter.high
    try:
        value = kind(word)
    except ValueError:
        value = math.nan  # no comparison holds for it, so it fails below
    if (low <= value if kind is int else low < value < high) and abs(value) < math.inf:
        return value
    if kind is int:
        allowed = f"a whole number, {low:g} or more"
    else:
        allowed = "a positive number" + f" below {high:g}" * (high < math.inf)
    raise BadInput(f"partition '{text}': {what} is '{word}', but must be {allowed}")


def divide(
    scheme: Scheme,
    labels: Array,
    clients: int | None,
    *,
    seed: int,
    owner: Array | None = None,
    clusters: Array | None = None,
    min_samples: int = 20,
) -> list[Rows]:
    """The rows of each client under `scheme`.

    `natural` needs `owner` and finds the number of clients itself (pass None, or the same number);
    `latent` needs `clusters`; only `dirichlet` heeds `min_samples`.

    Example:
      >>> rows = divide(parse_partition("iid"), np.arange(40) % 4, 3, seed=0)
      >>> [len(some) for some in rows]
      [14, 13, 13]
    """
    if scheme.name not in _RECIPES:
        raise unknown("partition", scheme.name, _RECIPES)
    if clients is None and scheme.name != "natural":
        raise BadInput(f"partition '{scheme}' needs a number of clients: set --clients")
    for what, values in (("owners", owner), ("clusters", clusters)):
        if values is not None and len(values) != len(labels):
            raise BadInput(
                f"{len(values)} {what} for {len(labels)} rows of data: give one for every row"
            )
    request = _Request(labels, clients or 0, scheme.parameters, seed, owner, clusters, min_samples)
    shares = _RECIPES[scheme.name].divide(request)
    if clients is not None and len(shares) != clients:
        raise BadInput(
            f"partition '{scheme}' has {len(shares)} owners, not {clients}: "
            f"leave out --clients or set it to {len(shares)}"
        )
    return shares


def natural_names(scheme: Scheme, owner: Array, names: Sequence[str]) -> list[str]:
    """The names of the clients that `natural` makes: those with enough rows.

    Args:
      scheme: `natural`, with or without the least number of rows.
      owner: the number of each row's owner.
      names: of the owners.

    Example:
      >>> natural_names(parse_partition("natural:2"), np.array([0, 1, 0]), ["ann", "bob"])
      ['ann']
    """
    rows = natural(owner, *(int(least) for least in scheme.parameters))
    return [names[int(owner[some[0]])] for some in rows]


def left_out_note(scheme: Scheme, owner: Array, names: Sequence[str]) -> str:
    """One line that says whom `natural:LEAST` leaves out; empty where it is nobody.

    Example:
      >>> left_out_note(parse_partition("natural:2"), np.array([0, 1, 0]), ["ann", "bob"])
      'natural:2 leaves out 1 of 2 clients, with fewer rows: bob'
    """
    if scheme.name != "natural" or not scheme.parameters:
        return ""
    kept = set(natural_names(scheme, owner, names))
    small = [name for name in names if name not in kept]
    told = ", ".join(small[:TOLD]) + f" and {len(small) - TOLD} more" * (len(small) > TOLD)
    counts = f"leaves out {len(small)} of {len(names)} clients"
    return f"{scheme} {counts}, with fewer rows: {told}" if small else ""
