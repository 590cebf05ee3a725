"""What is tried when a method is tuned: its options' ranges, and the run's learning rate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from fedtailor.core.errors import BadInput, unknown
from fedtailor.core.options import Option, Search
from fedtailor.methods.combine import small_method
from fedtailor.methods.describe import Factory, page
from fedtailor.results.config import TUNABLE, settings

Setting = dict[str, Any]  # values by name: of options, and of settings of the run
Space = tuple["Axis", ...]

RATE = "lr"
ADAM = 0.1  # Adam's rates are tried so much lower: its steps do not shrink with the gradient
DIGITS = 4  # of what is tried: more would say nothing


class Axis(NamedTuple):
    """One thing that is tried.

    Attributes:
      name: of the option or setting; a setting that has an option's name is written as a flag.
      values: all that is tried; empty where it is a range of numbers.
      low: the least number of a range.
      high: the largest.
      log: whether numbers are spread evenly by their logarithm.
      whole: whether they are whole numbers.
      setting: whether it is a setting of the run, not an option of the method.
    """

    name: str
    values: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    setting: bool = False

    def at(self, place: float) -> Any:
        """What lies at a place from 0 (the least) to 1 (the largest).

        Example:
          >>> Axis("mu", low=0.01, high=1, log=True).at(0.5), Axis("k", ("a", "b")).at(0.7)
          (0.1, 'b')
        """
        if self.values:
            return self.values[min(int(place * len(self.values)), len(self.values) - 1)]
        if self.whole and not self.log:  # every number has the same share
            return min(int(self.low + place * (self.high - self.low + 1)), int(self.high))
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        found = low + place * (high - low)
        value = min(max(math.exp(found) if self.log else found, self.low), self.high)
        return round(value) if self.whole else float(f"{value:.{DIGITS}g}")

    def points(self, count: int) -> list[Any]:
        """So many of its values, evenly spread; all that there are if they are fewer."""
        if self.values:
            return list(self.values)
        if count == 1:
            return [self.at(0.5)]
        if self.whole and not self.log:
            step = (self.high - self.low) / (count - 1)
            return list(dict.fromkeys(round(self.low + i * step) for i in range(count)))
        return list(dict.fromkeys(self.at(i / (count - 1)) for i in range(count)))

    @property
    def words(self) -> str:
        """What is tried, in words."""
        if self.values:
            return ", ".join(str(value) for value in self.values)
        log = ", by logarithm" if self.log else ""
        return f"{self.low:g} to {self.high:g}{log}"


def space_of(
    factory: Factory,
    method: str,
    named: Mapping[str, str] | None = None,
    *,
    fixed: Sequence[str] = (),
    optimizer: str = "sgd",
    may_be_empty: bool = False,
) -> Space:
    """What is tried of a method.

    Args:
      factory: of the method.
      method: its name, for messages.
      named: what is tried by name, and nothing else: `0.01..1`, `0.01..1:log`, values with commas,
        or nothing for the range that the method declares. Without it, the learning rate and all
        options with a range.
      fixed: options and settings that stay as they were given.
      optimizer: the clients', by which the learning rate's range goes.
      may_be_empty: whether nothing need be left to try.

    Raises:
      BadInput: a name that nothing has, a range that it does not take, or nothing to try at all.
    """
    options = {o.name: o for o in page(factory).options}
    of_run = {f"--{name}" if name in options else name: settings()[name][0] for name in TUNABLE}
    known = options | of_run
    if named is not None:
        for name in named:
            if name in fixed:
                raise BadInput(f"'{name}' is both given and tuned: leave one of them out")
            if name not in known:
                raise unknown("option to tune", name, sorted(known))
        chosen = dict(named)
    else:
        rate = next(name for name, option in of_run.items() if option.name == RATE)
        chosen = {} if _own_rates(factory) else {rate: ""}
        chosen |= {name: "" for name, option in options.items() if option.search is not None}
        chosen = {name: text for name, text in chosen.items() if name not in fixed}
    if not chosen and not may_be_empty:
        raise BadInput(
            f"nothing of '{method}' is left to tune: name what to try, e.g. --over {RATE}=0.01..0.1"
        )
    return tuple(
        _axis(known[name]._replace(name=name), text, name in of_run, optimizer)
        for name, text in chosen.items()
    )


def _own_rates(factory: Factory) -> bool:
    try:
        return small_method(factory).own_rates
    except Exception:  # a stranger's method may not take so small a network
        return False


def _axis(option: Option, text: str, setting: bool, optimizer: str) -> Axis:
    """What is tried of an option: what was said, or else what it declares."""
    name = option.name
    if not text:
        if option.search is None:
            raise BadInput(
                f"'{name}' declares no range to tune over: give one, e.g. --over {name}=LOW..HIGH "
                f"or --over {name}=A,B,C"
            )
        return _declared(option, option.search, setting, optimizer)
    span, _, how = text.partition(":")
    low, dots, high = span.partition("..")
    if not dots:
        values = tuple(option.parse(part.strip()) for part in text.split(","))
        if len(set(values)) < len(values):
            raise BadInput(f"option '{name}' is to try '{text}': name each value once")
        return Axis(name, values, setting=setting)
    if option.kind not in (int, float):
        raise BadInput(f"option '{name}' takes {option.values}, no range: name values with commas")
    if how not in ("", "log"):
        raise BadInput(f"option '{name}' is to try '{text}': write LOW..HIGH or LOW..HIGH:log")
    first, last = option.parse(low.strip()), option.parse(high.strip())
    if not first < last or not math.isfinite(last) or (how and first <= 0):
        need = "above 0, the second larger" if how else "the second larger"
        raise BadInput(f"option '{name}' is to try '{text}': give two numbers, {need}")
    return Axis(name, (), first, last, bool(how), option.kind is int, setting)


def _declared(option: Option, search: Search, setting: bool, optimizer: str) -> Axis:
    if option.kind is bool:
        return Axis(option.name, (False, True), setting=setting)
    if option.choices:
        return Axis(option.name, option.choices, setting=setting)
    is_rate = setting and option.name.removeprefix("--") == RATE
    times = ADAM if is_rate and optimizer != "sgd" else 1.0
    low, high = search.low * times, search.high * times
    return Axis(option.name, (), low, high, search.log, option.kind is int, setting)


def grid_of(space: Space, most: int) -> list[Setting]:
    """Every combination of evenly spread values, as many of each as the number of trials allows.

    Raises:
      BadInput: even two values of each are more than that.

    Example:
      >>> grid_of((Axis("a", low=1, high=3), Axis("b", ("x",))), 3)
      [{'a': 1.0, 'b': 'x'}, {'a': 2.0, 'b': 'x'}, {'a': 3.0, 'b': 'x'}]
    """
    found: list[Setting] = []
    count = 2
    while True:
        axes = [axis.points(count) for axis in space]
        size = math.prod(len(points) for points in axes)
        if size > most:
            break
        made = [dict(zip([a.name for a in space], v, strict=True)) for v in product(*axes)]
        if len(made) == len(found):
            break  # there are no more values
        found, count = made, count + 1
    if not found:
        raise BadInput(
            f"a grid of {', '.join(axis.name for axis in space)} has at least {size} settings, but "
            f"there are {most} trials: raise them, name fewer with --over, or --search random"
        )
    return found


def run_and_options(space: Space, tried: Setting) -> tuple[Setting, Setting]:
    """A setting's part that is the run's, and the part that is the method's options."""
    of_run = {axis.name for axis in space if axis.setting}
    return (
        {name.removeprefix("--"): value for name, value in tried.items() if name in of_run},
        {name: value for name, value in tried.items() if name not in of_run},
    )


def drawn(space: Space, seed: int, number: int) -> Setting:
    """A setting at random: the same for the same seed and number of the trial."""
    places = np.random.default_rng([seed, number]).random(len(space))
    return {axis.name: axis.at(float(p)) for axis, p in zip(space, places, strict=True)}
