"""Plays a search: trial by trial, on validation rows alone, each written down when it is done."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedtailor.core import __version__
from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.files import write_atomically, write_json
from fedtailor.core.inputs.plain_text import parse_json
from fedtailor.core.options import in_short
from fedtailor.datasets.wording import listed
from fedtailor.engine import Diverged
from fedtailor.results import folder as files
from fedtailor.results.config import Config, write_config
from fedtailor.results.metrics.named import METRICS
from fedtailor.results.status import reason_of
from fedtailor.runs.build import make_players
from fedtailor.runs.data import RunData
from fedtailor.runs.prepared import as_laid_out
from fedtailor.runs.run import Watcher
from fedtailor.runs.several.together import RunEnd, RunToPlay, play_together
from fedtailor.runs.tuning.importance import importances
from fedtailor.runs.tuning.plan import Candidate, TuningPlan
from fedtailor.runs.tuning.search import SearchRules, going_on, proposals, rungs
from fedtailor.runs.tuning.space import RATE, Setting

# (what is tried, its folder, how many more such runs are to come) -> what is told of its rounds
AnnounceTrial = Callable[[str, Path, int], Watcher | None]


def without_test_rows(data: RunData) -> RunData:
    """The same rows, with validation rows where test rows were: so nothing can look at those."""
    return data._replace(
        partition=replace(data.partition, test=data.partition.val),
        client_data=data.client_data._replace(test=data.client_data.val),
    )


class Tried(NamedTuple):
    """One setting, tried for some rounds.

    Attributes:
      method: that was tried.
      number: of the setting.
      rounds: so many.
      setting: what was tried.
      value: on validation rows; None where it failed.
      val: all that is known over clients, of the first seed.
      failed: why it failed; empty if it did not.
      seconds: that it took.
    """

    method: str
    number: int
    rounds: int
    setting: Setting
    value: float | None
    val: dict[str, float]
    failed: str
    seconds: float


class TrialBook:
    """The trials of a folder: what is there already, and what is added line by line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.trials: dict[tuple[str, int, int], Tried] = {}
        rows = path.read_bytes().split(b"\n") if path.exists() else []
        whole, rest = rows[:-1], rows[-1:]
        for row in whole:
            try:
                found = Tried(**parse_json(row))
            except (ValueError, TypeError) as error:
                raise BadInput(f"'{path}' is broken ({error}): start the search anew") from None
            self.trials[found.method, found.number, found.rounds] = found
        if rest and rest[0]:  # cut off in the middle of a write
            write_atomically(path, b"".join(row + b"\n" for row in whole))

    def add(self, trial: Tried) -> None:
        """Writes a trial down."""
        self.trials[trial.method, trial.number, trial.rounds] = trial
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(trial._asdict()) + "\n")


class MethodSearch:
    """The search for one method's settings.

    Args:
      label: what the method is called.
      candidate: the method and what is tried of it.
      rules: how.
      data: rows; test rows are taken away first.
      folder: of the search; whoever calls it holds the folder.
      book: the folder's trials.
      announce: called before each run.
      side_by_side: whether runs share one program where they can.
    """

    def __init__(
        self,
        label: str,
        candidate: Candidate,
        rules: SearchRules,
        data: RunData,
        folder: Path,
        book: TrialBook,
        announce: AnnounceTrial | None = None,
        *,
        side_by_side: bool = True,
    ) -> None:
        self.label, self.candidate, self.rules, self.data = label, candidate, rules, data
        self.folder, self.book, self.announce = folder, book, announce
        self.side_by_side = side_by_side
        self.rungs = rungs(candidate.config.rounds, rules)
        self.higher = METRICS[data.config.metric].higher_is_better

    def play(self) -> dict[str, Any]:
        """Plays what is left of it and says what came of it.

        Raises:
          BadInput: every setting failed.
          Interrupted: somebody pressed Ctrl-C.
        """
        seed = self.candidate.config.seed
        alive: dict[int, Tried] = {}
        while new := proposals(
            self.candidate.space,
            self.rules,
            self.candidate.usual(),
            seed,
            {n: (t.setting, self._upwards(t.value)) for n, t in alive.items()},
        ):
            alive |= self._rung(new, self.rungs[0])
        tried = dict(sorted(alive.items()))
        for rounds in self.rungs[1:]:
            numbers = going_on({n: t.value for n, t in alive.items()}, self.higher)
            self._drop(n for n in alive if n not in numbers)
            alive = self._rung([(n, tried[n].setting) for n in numbers], rounds)
        best = going_on({n: t.value for n, t in alive.items()}, self.higher, best=1)
        self._drop(alive)
        if not best:
            failed = {t.rounds: t.failed for t in self._trials() if t.failed}
            told = failed[max(failed)] if failed else "no client has a value on its validation rows"
            raise BadInput(f"no setting of '{self.label}' could be tried to the end: {told}")
        chosen = alive[best[0]]
        return self._summary(tried, chosen)

    def _trials(self) -> list[Tried]:  # that are written down, whatever the number of rounds
        return [t for t in self.book.trials.values() if t.method == self.label]

    def _upwards(self, value: float | None) -> float | None:
        return value if value is None or self.higher else -value

    def _place(self, number: int, seed: int) -> Path:
        name = f"{self.label.replace(':', '.')}-{number}-seed{seed}"
        return self.folder / files.RUNS / name

    def _drop(self, numbers: Iterable[int]) -> None:
        """Removes what runs had kept to go on with."""
        first = self.candidate.config.seed
        for number in numbers:
            for seed in range(first, first + self.rules.seeds):
                shutil.rmtree(self._place(number, seed), ignore_errors=True)

    # --- trials ---

    def _rung(self, settings: Sequence[tuple[int, Setting]], rounds: int) -> dict[int, Tried]:
        """Tries settings for so many rounds; those that can share a program do."""
        found: dict[int, Tried] = {}
        groups: dict[str, list[tuple[int, Setting]]] = {}
        for number, setting in settings:
            known = self.book.trials.get((self.label, number, rounds))
            if known is not None:
                found[number] = known
            elif reason := self._cannot(setting):
                found[number] = Tried(self.label, number, rounds, setting, None, {}, reason, 0.0)
                self.book.add(found[number])
            else:
                groups.setdefault(self._apart(setting), []).append((number, setting))
        left = sum(len(group) for group in groups.values()) * self.rules.seeds
        for group in groups.values():
            left -= len(group) * self.rules.seeds
            for trial in self._tried(group, rounds, left):
                found[trial.number] = trial
                self.book.add(trial)
        return {number: found[number] for number, _ in settings}

    def _apart(self, setting: Setting) -> str:
        """What settings that share a program have in common: all but rates and such options."""
        numbers = {a.name for a in self.candidate.space if not a.setting}
        others = {
            name: value
            for name, value in setting.items()
            if name.removeprefix("--") != RATE
            and not (name in numbers and isinstance(value, float))
        }
        return json.dumps(others)

    def _cannot(self, setting: Setting) -> str:
        """Why a setting cannot be played at all; empty if it can."""
        config = as_laid_out(self.candidate.with_setting(setting), self.data.config)
        largest = int(self.data.client_data.train.n.max())
        if config.batch > largest:
            return f"batch is {config.batch}, but the largest client has {largest} training rows"
        try:
            make_players(config, self.data.encoder.form, self.data.client_data.clients)
        except BadInput as error:
            return str(error)
        return ""

    def _tried(self, group: list[tuple[int, Setting]], rounds: int, left: int) -> list[Tried]:
        """Plays settings that may share a program, with every seed."""
        first, begun = self.candidate.config.seed, time.monotonic()
        runs: list[RunToPlay] = []
        total = len(group) * self.rules.seeds
        for number, setting in group:
            config = self.candidate.with_setting(setting)
            for seed in range(first, first + self.rules.seeds):
                after = left + total - len(runs) - 1
                told = self._telling(number, setting, self._place(number, seed), rounds, after)
                runs.append(
                    RunToPlay(
                        replace(config, seed=seed),
                        self._place(number, seed),
                        self.data,
                        told,
                        rounds,
                    )
                )
        ends = play_together(runs, side_by_side=self.side_by_side, keep_going=True)
        seconds = round((time.monotonic() - begun) / len(group), 3)
        trials = []
        for place, (number, setting) in enumerate(group):
            mine = ends[place * self.rules.seeds : (place + 1) * self.rules.seeds]
            errors = [end.error for end in mine if end.error is not None]
            for error in errors:
                if not isinstance(error, Diverged | BadInput):
                    raise error
            failed = reason_of(errors[0]) if errors else self._without_a_value(mine)
            values = [end.result.get("val", {}).get(self.rules.target) for end in mine]
            known = [v for v in values if v is not None]
            whole = len(known) == len(mine) and not failed
            value = round(float(np.mean(known)), 6) if whole else None
            val = {} if errors else mine[0].result["val"]
            trials.append(Tried(self.label, number, rounds, setting, value, val, failed, seconds))
        return trials

    def _without_a_value(self, ends: Sequence[RunEnd]) -> str:
        """Why a mean would flatter: it lacks those whose final model says nothing that counts."""
        lost = sorted({c for end in ends for c in end.result["lost"]})
        metric = self.data.config.metric
        told = f"the final models of {listed(lost)} diverged (no finite {metric}): lower --lr"
        return told if lost else ""

    def _telling(
        self, number: int, setting: Setting, place: Path, rounds: int, after: int
    ) -> Callable[[], Watcher | None]:
        def announced() -> Watcher | None:
            if self.announce is None:
                return None
            tell = self.announce(f"{self.label} #{number} {in_words(setting)}", place, after)
            if tell is None:
                return None

            def of_rung(line: files.Line, whole: int) -> None:
                tell(line, rounds)

            return of_rung

        return announced

    # --- what came of it ---

    def _summary(self, tried: Mapping[int, Tried], chosen: Tried) -> dict[str, Any]:
        config = self.candidate.with_setting(chosen.setting)
        own = self._trials()
        failed = {t.number: t.failed for t in own if t.failed}  # also after rounds that went well
        matter = importances(
            self.candidate.space,
            [t.setting for t in tried.values()],
            [self._upwards(t.value) for t in tried.values()],
        )
        return {
            "space": {axis.name: axis.words for axis in self.candidate.space},
            "rungs": self.rungs,
            "tried": len(tried),
            "failed": len(failed),
            "chosen": chosen.setting,
            "trial": chosen.number,
            "value": chosen.value,
            "usual": self.candidate.usual(),
            "importance": [one._asdict() for one in matter],
            "trials": [
                {
                    "number": number,
                    "setting": trial.setting,
                    "values": {
                        str(t.rounds): t.value
                        for t in sorted(own, key=lambda t: t.rounds)
                        if t.number == number
                    },
                    "failed": failed.get(number, ""),
                }
                for number, trial in tried.items()
            ],
            "seconds": round(sum(t.seconds for t in own), 3),
            "config": _changed(config, self.candidate.config),
        }


def _changed(config: Config, base: Config) -> dict[str, Any]:
    """The chosen settings of the run, and the method's options."""
    values = {k: v for k, v in config.values().items() if v != getattr(base, k) and k != "options"}
    return {"settings": values, "options": config.options}


def in_words(setting: Setting) -> str:
    """A setting in one line.

    Example:
      >>> in_words({"lr": 0.05, "mu": 1.0, "adaptive": True})
      'lr=0.05 mu=1 adaptive=True'
    """
    return " ".join(f"{name}={in_short(value)}" for name, value in setting.items())


def open_tuning(plan: TuningPlan, data: RunData, folder: Path, *, overwrite: bool = False) -> Path:
    """The folder of a new search."""
    marks = (files.TUNING, files.CONFIG, files.COMPARISON, files.SWEEP)
    files.open_folder(folder, overwrite=overwrite, marks=marks)
    write_atomically(folder / files.TUNING, plan.to_json(data.digest()))
    return folder


def play_tuning(
    candidates: Mapping[str, Candidate],
    rules: SearchRules,
    data: RunData,
    folder: Path,
    announce: AnnounceTrial | None = None,
    *,
    side_by_side: bool = True,
) -> dict[str, Any]:
    """Plays what is left of a search and sums it up; whoever calls it holds the folder.

    Args:
      candidates: the methods by what they are called, each with what is tried.
      rules: how the search goes.
      data: rows of all; test rows are taken away first.
      folder: where trials are written, and the chosen settings.
      announce: called before each run.
      side_by_side: whether runs share one program where they can.

    Raises:
      BadInput: every setting of a method failed, or the trials there are broken.
      Interrupted: somebody pressed Ctrl-C.
    """
    blind = without_test_rows(data)
    book = TrialBook(folder / files.TRIALS)
    found: dict[str, Any] = {}
    for label, candidate in candidates.items():
        search = MethodSearch(
            label, candidate, rules, blind, folder, book, announce, side_by_side=side_by_side
        )
        found[label] = search.play()
        (folder / files.CHOSEN).mkdir(exist_ok=True)
        config = candidate.with_setting(found[label]["chosen"])
        place = chosen_file(folder, label)
        write_atomically(place, write_config(config, __version__, place.name))
    shutil.rmtree(folder / files.RUNS, ignore_errors=True)
    some = next(iter(candidates.values())).config
    laid = as_laid_out(some, data.config)
    facts = ("data", "model", "clients", "partition", "rounds", "task", "metric", "seed")
    summary = {
        "version": __version__,
        "rules": rules._asdict(),
        "methods": found,
        "metric": laid.metric,
        "settings": {name: getattr(laid, name) for name in facts},
        "private": bool(some.dp_clip),
    }
    write_json(folder / files.SUMMARY, summary)
    return summary


def chosen_file(folder: Path, label: str) -> Path:
    """Where the chosen settings of a method lie."""
    return folder / files.CHOSEN / f"{label.replace(':', '.')}.toml"
