"""What a search tries: which methods, with which settings, how often; the same when resumed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

from fedtailor.core import __version__
from fedtailor.core.errors import BadInput, unknown
from fedtailor.core.options import shortened
from fedtailor.methods.describe import page
from fedtailor.results.config import PATHS, TUNABLE, Config, make_config
from fedtailor.results.config.spread import spread_options
from fedtailor.results.objects import Objects
from fedtailor.results.storage import reading_plan
from fedtailor.runs.data import RunData, load_run_data
from fedtailor.runs.tuning.search import SearchRules, Strategy, Target, check_rules
from fedtailor.runs.tuning.space import Setting, Space, grid_of, run_and_options, space_of


class Candidate(NamedTuple):
    """A method to be tuned.

    Attributes:
      config: what it is run with, but for what is tried.
      space: what is tried.
    """

    config: Config
    space: Space

    def with_setting(self, tried: Setting) -> Config:
        """Its configuration with a setting."""
        of_run, options = run_and_options(self.space, tried)
        return replace(self.config, **of_run, options=self.config.options | options)

    def usual(self) -> Setting:
        """What it has if nothing is tuned."""
        defaults = {o.name: o.default for o in page(self.config.factory()).options}
        own = defaults | self.config.options
        return {
            axis.name: getattr(self.config, axis.name.removeprefix("--"))
            if axis.setting
            else own[axis.name]
            for axis in self.space
        }


def candidate_of(
    config: Config,
    given: Sequence[str],
    named: Mapping[str, str] | None = None,
    *,
    may_be_empty: bool = False,
) -> Candidate:
    """A method to be tuned.

    Args:
      config: what it is run with.
      given: the settings of the run that somebody gave: those stay.
      named: what is tried, and nothing else; see `space_of`.
      may_be_empty: whether nothing need be left to try.
    """
    if config.steps and "epochs" in (named or ()):
        raise BadInput(
            f"'epochs' is tuned, but steps is {config.steps}: random batches take the place of "
            "passes, so all values would train alike; leave one of them out"
        )
    options = {o.name for o in page(config.factory()).options}
    kept = [f"--{name}" if name in options else name for name in given if name in TUNABLE]
    space = space_of(
        config.factory(),
        config.method,
        named,
        fixed=[*kept, *config.options],
        optimizer=config.optimizer,
        may_be_empty=may_be_empty,
    )
    return Candidate(config, space)


def check_grids(candidates: Mapping[str, Candidate], rules: SearchRules) -> None:
    """Refuses a grid that has more settings than there are trials, before anything is played."""
    if rules.search == "grid":
        for candidate in candidates.values():
            grid_of(candidate.space, rules.trials)


def check_words(search: str, target: str) -> None:
    """Refuses a search or target that there is not."""
    for kind, word, known in (("search", search, Strategy), ("target", target, Target)):
        if word not in get_args(known):
            raise unknown(kind, word, get_args(known))


class TuningPlan:
    """What is searched: checked, and the same in a resumed search.

    Args:
      methods: names.
      settings: of all runs; what is given here is not tuned.
      options: hyper-parameters that stay: `name` for all methods that have it, `method.name` for
        one.
      over: what is tried, by name in the same way; nothing takes what methods declare.
      rules: how the search goes.
      objects: each method's, where methods or settings are Python objects.
    """

    def __init__(
        self,
        methods: Sequence[str],
        settings: dict[str, Any],
        options: dict[str, Any],
        over: dict[str, str],
        rules: SearchRules = SearchRules(),
        objects: dict[str, Objects] | None = None,
    ) -> None:
        if not methods:
            raise BadInput("no methods to tune: name at least one (fedtailor list shows them)")
        twice = sorted({m for m in methods if list(methods).count(m) > 1})
        if twice:
            raise BadInput(f"method '{twice[0]}' is named twice: name it once")
        check_words(rules.search, rules.target)
        check_rules(rules)
        own = objects or {}
        self.methods, self.options, self.over, self.rules = list(methods), options, over, rules
        spread = spread_options(methods, options, own)
        tried = _spread_over(methods, over)
        made = {m: make_config(m, settings, spread[m], own.get(m, Objects())) for m in methods}
        first = made[methods[0]]
        if first.val == 0 and not first.partition_file:
            raise BadInput("val is 0: without validation rows nothing can be chosen; raise --val")
        self.candidates = {m: candidate_of(made[m], list(settings), tried[m]) for m in methods}
        check_grids(self.candidates, rules)
        # absolute by now, so that the search can be resumed from any folder
        self.settings = settings | {k: getattr(first, k) for k in PATHS if getattr(first, k)}

    def load_data(self) -> RunData:
        """The rows, the same for all methods."""
        return load_run_data(next(iter(self.candidates.values())).config)

    def to_json(self, digest: str) -> str:
        """For the folder, so that an interrupted search can go on; `digest` is of its rows."""
        kept = {
            "made_by": "FedTailor",
            "version": __version__,
            "methods": self.methods,
            "settings": self.settings,
            "options": self.options,
            "over": self.over,
            "rules": self.rules._asdict(),
            "data": digest,
        }
        return json.dumps(kept, indent=1)

    @staticmethod
    def again(
        path: Path, objects: Callable[[Sequence[str]], dict[str, Objects]] | None = None
    ) -> tuple[TuningPlan, RunData]:
        """The plan that a folder was made with, and its rows.

        Raises:
          BadInput: it is broken, of another version, or the rows have changed since.
        """
        with reading_plan(path, "search") as kept:
            plan = TuningPlan(
                kept["methods"],
                kept["settings"],
                kept["options"],
                kept["over"],
                SearchRules(**kept["rules"]),
                objects(kept["methods"]) if objects else None,
            )
            digest = str(kept["data"])
        data = plan.load_data()
        if data.digest() != digest:
            raise BadInput(
                f"the data have changed since the search in '{path.parent}' began: put them back, "
                "or start anew with another --out"
            )
        return plan, data


def _spread_over(
    methods: Sequence[str], over: Mapping[str, Any]
) -> dict[str, dict[str, str] | None]:
    """What is tried of which method: `name` of all, `method.name` of one; None: as declared."""
    if not isinstance(over, Mapping):
        raise BadInput(f"over is {shortened(over)}: give a dict, such as {{'mu': '0.01..1:log'}}")
    found: dict[str, dict[str, str] | None] = dict.fromkeys(methods)
    for name, text in sorted(over.items(), key=lambda item: "." in item[0]):
        if not isinstance(text, str):
            raise BadInput(
                f"over: '{name}' is {shortened(text)}: write it as on the command line, such as "
                "'0.01..1:log' or '0.1,1'"
            )
        method, dot, short = name.rpartition(".")
        if dot and method not in methods:
            raise unknown("method in --over", method, methods)
        for taker in [method] if dot else methods:
            found[taker] = (found[taker] or {}) | {short: text}
    return found
