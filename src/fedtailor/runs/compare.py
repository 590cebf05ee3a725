"""Several methods on the same data, from the same start, with the same draws."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.core.errors import BadInput, unknown
from fedtailor.core.version import __version__
from fedtailor.methods import METHODS
from fedtailor.methods.describe import page
from fedtailor.methods.find import find
from fedtailor.results import folder as files
from fedtailor.results.config import Config, make_config
from fedtailor.results.numbers import mean_and_std
from fedtailor.results.objects import Objects
from fedtailor.results.storage import READABLE_VERSIONS
from fedtailor.results.verdict import YARDSTICK, verdict
from fedtailor.runs.build import make_method, make_task
from fedtailor.runs.data import RunData, load_run_data
from fedtailor.runs.prepared import Line
from fedtailor.runs.resume import resume_run
from fedtailor.runs.run import Watcher, run_config

MOST_SEEDS = 1000
PATHS = ("data", "data_dir", "partition_file")
METRICS = ("mean", "weighted", "std", "median", "bottom5", "top5", "worst")
# (method, seed, how many runs are done, how many there are) -> what is told of each round
Announce = Callable[[str, int, int, int], Watcher | None]
Histories = dict[tuple[str, int], list[Line]]  # by method and seed


def spread_options(
    methods: Sequence[str], given: dict[str, Any], objects: dict[str, Objects] | None = None
) -> dict[str, dict[str, Any]]:
    """Which method gets which option.

    `name=value` goes to all that have it, `method.name=value` to one.
    """
    made = {m: own.factory() for m, own in (objects or {}).items()}
    known = {m: {o.name for o in page(made.get(m) or find(m)).options} for m in methods}
    out: dict[str, dict[str, Any]] = {m: {} for m in methods}
    # what is said for one method goes before what is said for all
    for name, value in sorted(given.items(), key=lambda item: "." in item[0]):
        method, dot, short = name.rpartition(".")
        if dot and method not in known:
            raise unknown("method in option", method, methods)
        takers = [method] if dot else [m for m in methods if short in known[m]]
        if not takers or short not in known[takers[0]]:
            raise unknown("option", short, sorted({o for m in takers or methods for o in known[m]}))
        for taker in takers:
            out[taker][short] = value
    return out


class ComparisonPlan:
    """What is compared: checked, and the same in a resumed comparison.

    Args:
      methods: names, or `all`; training alone is added, since everything is measured against it.
      seeds: how many, from the configured one upwards.
      settings: shared by all.
      options: hyper-parameters.
      objects: each method's, where methods or settings are Python objects.
    """

    def __init__(
        self,
        methods: Sequence[str],
        seeds: int,
        settings: dict[str, Any],
        options: dict[str, Any],
        objects: dict[str, Objects] | None = None,
    ) -> None:
        if not methods:
            raise BadInput("no methods to compare: name at least one")
        if list(methods) == ["all"]:
            methods = list(METHODS)
        if not 1 <= seeds <= MOST_SEEDS:
            raise BadInput(f"seeds is {seeds}: give a number from 1 to {MOST_SEEDS:,}")
        twice = sorted({m for m in methods if list(methods).count(m) > 1})
        if twice:
            raise BadInput(f"method '{twice[0]}' is named twice: name it once")
        self.asked = list(methods)
        self.methods = [YARDSTICK, *(m for m in methods if m != YARDSTICK)]
        self.seeds, self.settings, self.options = seeds, settings, options
        self.objects = objects or {}
        spread = spread_options(self.methods, options, self.objects)

        def configure(method: str, **more: int) -> Config:
            own = self.objects.get(method, Objects())
            return make_config(method, settings | more, spread[method], own)

        first = configure(self.methods[0]).seed
        self.configs: dict[tuple[str, int], Config] = {
            (m, s): configure(m, seed=s) for s in range(first, first + seeds) for m in self.methods
        }

        one = next(iter(self.configs.values()))
        # absolute by now, so that the comparison can be resumed from any folder
        self.settings = settings | {k: getattr(one, k) for k in PATHS if getattr(one, k)}
        self._data: RunData | None = None

    def load_data(self) -> RunData:
        """The data, the same for all runs; every method is built once, to see that it can be."""
        if self._data is None:
            data = load_run_data(next(iter(self.configs.values())))
            for method in self.methods:
                config = next(c for (m, _), c in self.configs.items() if m == method)
                config = replace(config, model=data.config.model, device=data.config.device)
                make_method(config, make_task(config, data.encoder.form))
            self._data = data
        return self._data

    def to_json(self) -> str:
        """For the folder, so that an interrupted comparison can go on."""
        kept = {
            "made_by": "FedTailor",
            "version": __version__,
            "methods": self.asked,
            "seeds": self.seeds,
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
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            names = [YARDSTICK, *kept["methods"]]
            plan = ComparisonPlan(
                kept["methods"],
                kept["seeds"],
                kept["settings"],
                kept["options"],
                objects(names) if objects else None,
            )
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise BadInput(f"'{path}' is broken ({error}): start the comparison anew") from None
        if kept.get("version") not in READABLE_VERSIONS:
            raise BadInput(
                f"'{path}' was made by FedTailor {kept.get('version')}: use that version"
            )
        return plan


def _play(
    plan: ComparisonPlan, folder: Path | None, announce: Announce | None
) -> tuple[RunData, dict[tuple[str, int], dict[str, Any]], Histories]:
    """All runs of the plan; those that are finished already are read, half ones resumed.

    Raises:
      BadInput: a finished one is broken, or the data have changed since.
    """
    data = plan.load_data()
    rows = data.rows_digest()
    results, histories = {}, {}
    for done, ((method, seed), config) in enumerate(plan.configs.items()):
        lines: list[Line] = []
        told = announce(method, seed, done, len(plan.configs)) if announce else None

        def watch(
            line: Line, rounds: int, lines: list[Line] = lines, told: Watcher | None = told
        ) -> None:
            lines.append(line)
            if told:
                told(line, rounds)

        place = files.run_folder(folder, method, seed) if folder else None
        if place and files.is_finished(place):
            result = files.read_result(place)
            if result.get("rows_digest", rows) != rows:
                raise BadInput(
                    f"the data have changed since '{place}' was run, so others cannot be compared "
                    "with it: put them back, or compare anew with another --out"
                )
        elif place and files.has_checkpoint(place):
            result = resume_run(place, watch=watch, objects=config.objects)
        else:
            if place:
                files.open_folder(place, overwrite=True)
            result = run_config(config, place, data=data, watch=watch)
        results[method, seed] = result
        histories[method, seed] = files.read_history(place) if place else lines
    return data, results, histories


def _mean_curve(lines: list[list[Line]]) -> list[dict[str, Any]]:
    """Accuracy by round over seeds: mean, least and largest."""
    rounds = [line["round"] for line in lines[0] if "pre" in line]
    curve = []
    for i, number in enumerate(rounds):
        at = [[line for line in run if "pre" in line][i]["pre"]["mean"] for run in lines]
        curve.append({"round": number, "mean": float(np.mean(at)), "low": min(at), "high": max(at)})
    return curve


def summarise_runs(
    plan: ComparisonPlan,
    data: RunData,
    results: dict[tuple[str, int], dict[str, Any]],
    histories: Histories,
) -> dict[str, Any]:
    """What the runs come to, over seeds and against training alone."""
    seeds = sorted({seed for _, seed in results})
    names = list(data.client_data.names)
    table: dict[str, Any] = {}
    clients: dict[str, dict[str, float]] = {}
    for method in plan.methods:
        runs = [results[method, s] for s in seeds]
        clients[method] = {
            name: float(np.mean([run["per_client"][name] for run in runs])) for name in names
        }
        alone = clients[YARDSTICK]
        gains = {name: clients[method][name] - alone[name] for name in names}
        table[method] = {
            "accuracy": {k: mean_and_std([r["accuracy"][k] for r in runs]) for k in METRICS},
            "best": {
                "round": [r["best_round"] for r in runs],
                "mean": mean_and_std([r["best"]["mean"] for r in runs])
                if runs[0]["best"]
                else None,
            },
            "metrics": {
                name: mean_and_std([run["metrics"][name]["mean"] for run in runs])
                for name in runs[0].get("metrics", {})
                if all(run["metrics"][name]["mean"] is not None for run in runs)
            },
            "better_off": sum(g > 1e-9 for g in gains.values()),
            "worse_off": sum(g < -1e-9 for g in gains.values()),
            "gain": {name: round(g, 6) for name, g in gains.items()},
            "per_client": {name: round(v, 6) for name, v in clients[method].items()},
            "bytes": {k: int(np.mean([r["bytes"][k] for r in runs])) for k in ("up", "down")},
            "seconds": round(float(np.mean([r["seconds"] for r in runs])), 3),
            "peak_memory_bytes": max(r["peak_memory_bytes"] or 0 for r in runs) or None,
            "options": runs[0]["options"],
            "curve": _mean_curve([histories[method, s] for s in seeds]),
        }
    first = results[plan.methods[0], seeds[0]]
    shared = {
        k: v
        for k, v in plan.configs[plan.methods[0], seeds[0]].values().items()
        if k not in ("method", "options", "seed")
    }
    facts = ("data", "model", "clients", "partition", "device", "rounds")
    summary = {
        "version": __version__,
        "methods": plan.methods,
        "yardstick_added": YARDSTICK not in plan.asked,
        "seeds": seeds,
        "settings": shared | {k: first[k] for k in facts},
        "engines": {m: results[m, seeds[0]]["engine"] for m in plan.methods},
        "test_rows": {name: int(n) for name, n in zip(names, data.client_data.test.n, strict=True)},
        "table": table,
    }
    return summary | {"verdict": verdict(summary)}


def play_comparison(
    plan: ComparisonPlan, folder: Path | None, announce: Announce | None = None
) -> tuple[dict[str, Any], Histories]:
    """Plays what is left of a comparison and sums it up; whoever calls it holds the folder.

    Returns:
      The summary, and every run's history by method and seed.

    Raises:
      Interrupted: somebody pressed Ctrl-C.
    """
    world, results, histories = _play(plan, folder, announce)
    summary = summarise_runs(plan, world, results, histories)
    if folder:
        files.write_json(folder / files.SUMMARY, summary)
    return summary, histories


def open_comparison(plan: ComparisonPlan, folder: Path, *, overwrite: bool = False) -> Path:
    """The folder of a new comparison."""
    files.open_folder(folder, overwrite=overwrite, marks=(files.COMPARISON, files.CONFIG))
    files.write_atomically(folder / files.COMPARISON, plan.to_json())
    return folder
