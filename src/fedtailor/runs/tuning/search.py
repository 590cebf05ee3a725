"""How a search goes: what is proposed, for how many rounds, and who goes on.

Nothing here plays a run. Proposals depend on the seed and on what was found before, and on nothing
else, so that a search that was stopped goes on as if it never had been.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from fedtailor.core.errors import BadInput
from fedtailor.core.options import how_many
from fedtailor.runs.tuning.space import Axis, Setting, Space, drawn, grid_of

Strategy = Literal["random", "grid", "bayes"]
Target = Literal["mean", "bottom5", "worst"]
KEPT = 3  # one in so many goes on from rung to rung
MOST_RUNGS = 3
AT_ONCE = 4  # settings that are proposed together by `bayes`: it learns from all before them
FIRST = 8  # settings of `bayes` that are drawn at random, to begin with
MOST_TRIALS = 10_000


class SearchRules(NamedTuple):
    """How a search goes.

    Attributes:
      trials: how many settings of each method are tried.
      search: `random`, `grid` or `bayes`.
      prune: whether most settings are given up after a few rounds.
      target: what is made best on validation rows: the mean over clients, the mean of the worst
        twentieth, or the worst client.
      seeds: runs of each setting, whose mean counts.
    """

    trials: int = 20
    search: Strategy = "random"
    prune: bool = True
    target: Target = "mean"
    seeds: int = 1


def check_rules(rules: SearchRules) -> None:
    """Refuses a search that cannot be.

    Raises:
      BadInput: a number is out of range, or what the search needs is not installed.
    """
    for name, most in (("trials", MOST_TRIALS), ("seeds", 1000)):
        how_many(name, getattr(rules, name), most)
    if rules.search == "bayes":
        _optuna()


def rungs(rounds: int, rules: SearchRules) -> list[int]:
    """After how many rounds settings are looked at; the last is the whole run.

    Successive halving: of those that are looked at, the best third goes on.

    Example:
      >>> rungs(30, SearchRules(20)), rungs(30, SearchRules(20, prune=False))
      ([4, 10, 30], [30])
    """
    found = [rounds]
    settings = rules.trials
    while rules.prune and len(found) < MOST_RUNGS and settings >= KEPT and found[0] >= KEPT:
        found.insert(0, math.ceil(found[0] / KEPT))
        settings = math.ceil(settings / KEPT)
    return found


def going_on(
    values: Mapping[int, float | None], higher_is_better: bool, best: int = 0
) -> list[int]:
    """Which settings go on to the next rung, by number: the best third of those that have a value.

    Args:
      values: of each setting; None where it failed. Of equals, the first goes before.
      higher_is_better: the metric's direction.
      best: if not 0, so many.

    Example:
      >>> going_on({0: 0.5, 1: None, 2: 0.9, 3: 0.7, 4: 0.7}, True)
      [2, 3]
    """
    known = {n: v for n, v in values.items() if v is not None}
    order = sorted(known, key=lambda n: (-known[n] if higher_is_better else known[n], n))
    return sorted(order[: best or math.ceil(len(values) / KEPT)])


def proposals(
    space: Space,
    rules: SearchRules,
    usual: Setting,
    seed: int,
    found: Mapping[int, tuple[Setting, float | None]],
) -> list[tuple[int, Setting]]:
    """The next settings to try, with their numbers; none when the search has had its trials.

    Args:
      space: what is tried.
      rules: how.
      usual: what the method has by default: it is tried first, but for a grid.
      seed: of the draws.
      found: all settings so far, with their values (larger is better; None where one failed).
    """
    if rules.search == "grid":
        points = grid_of(space, rules.trials)
        return [(n, point) for n, point in enumerate(points) if n not in found]
    left = [n for n in range(rules.trials) if n not in found]
    if rules.search == "bayes" and left:
        if left[0] >= FIRST:  # a batch that was stopped halfway is proposed again as it was
            begin = left[0] - (left[0] - FIRST) % AT_ONCE
            batch = range(begin, min(begin + AT_ONCE, rules.trials))
            before = {n: one for n, one in found.items() if n < begin}
            told = dict(zip(batch, _suggested(space, before, seed, len(batch)), strict=True))
            return [(n, told[n]) for n in batch if n not in found]
        left = [n for n in left if n < FIRST]
    return [(n, usual if n == 0 else drawn(space, seed, n)) for n in left]


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise BadInput(
            "search is 'bayes', which needs Optuna: pip install 'fedtailor[tune]', or take "
            "--search random"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _suggested(
    space: Space, before: Mapping[int, tuple[Setting, float | None]], seed: int, count: int
) -> list[Setting]:
    """What Optuna's tree-structured Parzen estimator proposes after what was found.

    It is made anew each time: nothing but what is given counts.
    """
    optuna = _optuna()
    import warnings

    ranges = {axis.name: _distribution(optuna, axis) for axis in space}
    states = optuna.trial.TrialState
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that parts of it are experimental
        # what is not told yet is taken to be bad, so that those of a batch differ
        sampler = optuna.samplers.TPESampler(
            seed=(seed * 1_000_003 + len(before)) % 2**32,
            n_startup_trials=0,
            multivariate=True,
            constant_liar=True,
        )
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for setting, value in before.values():
            within = all(_contains(axis, setting[axis.name]) for axis in space)
            if within:  # the usual setting may lie outside
                # Optuna counts as worst what was given up without a value, and ignores what failed
                state = states.PRUNED if value is None else states.COMPLETE
                study.add_trial(
                    optuna.trial.create_trial(
                        params=setting, distributions=ranges, value=value, state=state
                    )
                )
        return [_rounded(space, study.ask(ranges).params) for _ in range(count)]


def _distribution(optuna: Any, axis: Axis) -> Any:
    kinds = optuna.distributions
    if axis.values:
        return kinds.CategoricalDistribution(axis.values)
    if axis.whole:
        return kinds.IntDistribution(int(axis.low), int(axis.high), log=axis.log)
    return kinds.FloatDistribution(axis.low, axis.high, log=axis.log)


def _contains(axis: Axis, value: Any) -> bool:
    return value in axis.values if axis.values else bool(axis.low <= value <= axis.high)


def _rounded(space: Space, setting: Setting) -> Setting:
    """With as many digits as what is drawn at random."""
    out = {}
    for axis in space:
        value = setting[axis.name]
        if isinstance(value, float) and not axis.values:
            value = min(max(float(f"{value:.4g}"), axis.low), axis.high)
        out[axis.name] = value
    return out
