"""What a comparison will play: methods, yardsticks, repeats and seeds, checked beforehand."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedtailor.core import __version__
from fedtailor.core.errors import BadInput
from fedtailor.core.options import how_many, shortened
from fedtailor.methods import METHODS
from fedtailor.results.config import MOST_SEEDS, PATHS, Config, make_config
from fedtailor.results.config.spread import spread_options
from fedtailor.results.folder import ALONE, CENTRALISED, LINEAR, YARDSTICKS
from fedtailor.results.objects import Objects
from fedtailor.results.storage import reading_plan
from fedtailor.runs.build import make_players, without_validation
from fedtailor.runs.data import RunData, load_run_data
from fedtailor.runs.prepared import as_laid_out
from fedtailor.runs.tuning.search import SearchRules, Strategy, check_rules


class ComparisonPlan:
    """What is compared: checked, and the same in a resumed comparison.

    Args:
      methods: names, or `all`; yardsticks are added, since everything is measured against them.
      seeds: how many runs of a method share a split into train, val and test, from the configured
        seed upwards.
      settings: shared by all.
      options: hyper-parameters.
      objects: each method's, where methods or settings are Python objects.
      repeats: how often the split is drawn anew.
      yardsticks: whether to add more than training alone.
      margin: differences up to here do not matter; None takes what is usual for the metric.
      tune: if not 0, every method's settings are chosen among so many on validation rows.
      search: how those are found, see `fedtailor.runs.tuning.search`.
    """

    def __init__(
        self,
        methods: Sequence[str],
        seeds: int,
        settings: dict[str, Any],
        options: dict[str, Any],
        objects: dict[str, Objects] | None = None,
        *,
        repeats: int = 1,
        yardsticks: bool = True,
        margin: float | None = None,
        tune: int = 0,
        search: Strategy = "random",
    ) -> None:
        if not methods:
            raise BadInput("no methods to compare: name at least one")
        if list(methods) == ["all"]:
            methods = [m for m in METHODS if m not in YARDSTICKS]
        seeds, repeats = (
            how_many("seeds", seeds, MOST_SEEDS),
            how_many("repeats", repeats, MOST_SEEDS),
        )
        if tune:
            check_rules(SearchRules(tune, search))
        if not (margin is None or (isinstance(margin, float | int) and 0 <= margin < math.inf)):
            raise BadInput(f"margin is {shortened(margin)}: give 0 or more, e.g. 0.01 for a point")
        twice = sorted({m for m in methods if list(methods).count(m) > 1})
        if twice:
            raise BadInput(f"method '{twice[0]}' is named twice: name it once")
        self.asked, self.margin, self.repeats = list(methods), margin, repeats
        self.seeds, self.settings, self.options = seeds, settings, options
        self.yardsticks, self.tune, self.search = yardsticks, tune, search
        self.given = tuple(settings)
        self.tuned: dict[str, dict[str, Any]] = {}  # by method, and by split: what was chosen
        self.objects = objects or {}
        self.left_out: dict[str, str] = {}  # yardsticks that cannot be had, with reasons
        self._options = spread_options(
            [ALONE, *(m for m in methods if m != ALONE)], options, self.objects
        )
        one = self._configure(ALONE, 0)
        added = self._added(one) if yardsticks else []
        self.methods = list(dict.fromkeys([ALONE, *added, *methods]))
        self.configs: dict[tuple[str, int], Config] = {
            (m, one.seed + i): self._configure(m, i)
            for i in range(repeats * seeds)
            for m in self.methods
        }
        # absolute by now, so that the comparison can be resumed from any folder
        self.settings = settings | {k: getattr(one, k) for k in PATHS if getattr(one, k)}
        self._data: dict[int, RunData] = {}

    def _configure(self, method: str, number: int) -> Config:
        """The configuration of a method's run; runs are numbered through repeats and seeds."""
        own = self.objects.get(method, self.objects.get(ALONE, Objects()))
        settings, name = dict(self.settings), method
        if method == LINEAR and LINEAR not in self.objects:
            others = dict.fromkeys(("weights", "weights_except", "freeze"), "")  # another network's
            settings, name = settings | others | {"model": "linear"}, ALONE
            own = own._replace(model=None, weights=None)
        made = make_config(name, settings, self._options.get(method, {}), own)
        split = made.split_seed + number // self.seeds
        return replace(made, seed=made.seed + number, split_seed=split)

    def _added(self, one: Config) -> list[str]:
        """The yardsticks that this comparison can have; why it cannot have others is kept."""
        reasons = {CENTRALISED: "", LINEAR: ""}
        if one.models:
            reasons = dict.fromkeys(reasons, "clients have different networks")
        if one.model == "linear":
            reasons[LINEAR] = "all models are linear"
        if one.dp_clip:
            reasons[CENTRALISED] = "rows in one place would not be private"
        self.left_out = {name: why for name, why in reasons.items() if why}
        return [name for name, why in reasons.items() if not why]

    def load_data(self, split_seed: int | None = None) -> RunData:
        """The data, the same for all runs of a split.

        Every method is built once, to see that it can be.
        """
        first = next(iter(self.configs.values()))
        split = first.split_seed if split_seed is None else split_seed
        if split not in self._data:
            data = load_run_data(replace(first, split_seed=split))
            if not self._data:
                self._try(data)
            self._data[split] = data
        return self._data[split]

    def _try(self, data: RunData) -> None:
        for method in list(self.methods):
            config = next(c for (m, _), c in self.configs.items() if m == method)
            config = as_laid_out(config, data.config)
            try:
                fed = data.client_data
                made = make_players(config, data.encoder.form, fed.clients)
                without_validation(config, made[0][0], fed)
            except BadInput as error:
                if method not in (CENTRALISED, LINEAR) or method in self.asked:
                    raise
                self.left_out[method] = str(error)
                self.methods.remove(method)
        self.configs = {k: c for k, c in self.configs.items() if k[0] in self.methods}

    def choose(self, method: str, split: int, config: Config, found: dict[str, Any]) -> None:
        """Takes the settings that a search chose for a method on a split of the rows."""
        self.configs = {
            (m, seed): replace(config, seed=own.seed)
            if (m, own.split_seed) == (method, split)
            else own
            for (m, seed), own in self.configs.items()
        }
        kept = ("chosen", "value", "trial", "tried", "failed", "space", "rungs")
        self.tuned.setdefault(method, {})[str(split)] = {k: found[k] for k in kept}

    def to_json(self) -> str:
        """For the folder, so that an interrupted comparison can go on."""
        kept = {
            "made_by": "FedTailor",
            "version": __version__,
            "methods": self.asked,
            "played": self.methods,
            "seeds": self.seeds,
            "repeats": self.repeats,
            "yardsticks": self.yardsticks,
            "margin": self.margin,
            "tune": self.tune,
            "search": self.search,
            "given": list(self.given),
            "settings": self.settings,
            "options": self.options,
        }
        return json.dumps(kept, indent=1)

    @staticmethod
    def from_json(
        path: Path, objects: Callable[[Sequence[str]], dict[str, Objects]] | None = None
    ) -> ComparisonPlan:
        """The plan that a folder was made with.

        Args:
          path: of the plan.
          objects: gives those that it was made with, by the methods' names.
        """
        with reading_plan(path, "comparison") as kept:
            names = [ALONE, *kept["methods"]]
            plan = ComparisonPlan(
                kept["methods"],
                kept["seeds"],
                kept["settings"],
                kept["options"],
                objects(names) if objects else None,
                repeats=kept.get("repeats", 1),
                yardsticks=kept.get("yardsticks", False),  # before 0.3 there were none
                margin=kept.get("margin"),
                tune=kept.get("tune", 0),
                search=kept.get("search", "random"),
            )
            plan.given = tuple(kept.get("given", ()))
        return plan
