"""Every method on CIFAR-10 and CIFAR-100, each tuned in the same way, for docs/leaderboard.md.

    python benchmarks/leaderboard.py cifar10-dir --folder DATA --device cuda --compile fused \\
        --seconds 540 --commit COMMIT
    python benchmarks/ranking.py      # the page's pictures
    python benchmarks/tables.py       # the page

DATA has cifar10.npz and cifar100.npz (x_train, y_train, x_test, y_test). One call plays the methods
that `results/leaderboard/WORLD.json` does not have yet, the best known first, for as long as
`--seconds` says, and can be repeated until nothing is left. Written after every search and every
run: one that is cut off loses no more than what it was at; where the search tells that there is not
time for all seeds, they are played one after another. `--jobs N` plays N methods at a time,
each in a process of its own, which ends with the call's seconds whatever it is at: one prepares its
steps while others train. `--results FOLDER` keeps them elsewhere; copy what there is to it first
(before the first call there is nothing), so that nothing is played twice:

    cp -r benchmarks/results/leaderboard OUT/; python benchmarks/leaderboard.py cifar10-dir \\
        --folder DATA --device cuda --compile fused --seconds 540 --results OUT/leaderboard

A method's learning rate is chosen among `--rates` on validation rows after `--tune-rounds` (as
`fedtailor tune` does, no test row is read), the runs side by side; where the best one lies at an
edge, the next of `LADDER` is tried, until it lies within or the ladder ends; where all diverge, the
next smaller one. Then it is played for `--rounds` with `--seeds` side by side, and judged on test
rows with its last models. Where a seed diverges, the next best rate is taken. What cannot be played
is a row with the reason.
"""

from __future__ import annotations

import argparse
import fcntl
import gc
import json
import logging
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from speed import commit

from fedtailor.core.errors import BadInput, Interrupted
from fedtailor.core.inputs.files import write_json
from fedtailor.engine import Diverged
from fedtailor.engine.memory import is_out_of_memory
from fedtailor.methods import METHODS
from fedtailor.methods.combine import small_method
from fedtailor.methods.describe import page
from fedtailor.reproduce.playing.jobs import FOR_JOBS
from fedtailor.results.config import Config, make_config
from fedtailor.results.folder import TRIALS
from fedtailor.results.statistics import training_end
from fedtailor.results.status import reason_of
from fedtailor.runs.data import RunData, load_run_data
from fedtailor.runs.device import hardware
from fedtailor.runs.prepared import Line
from fedtailor.runs.several.together import RunEnd, RunToPlay, play_together
from fedtailor.runs.tuning.plan import Candidate, TuningPlan
from fedtailor.runs.tuning.play import TrialBook, Tried, in_words, play_tuning
from fedtailor.runs.tuning.search import SearchRules

RESULTS = Path(__file__).resolve().parent / "results" / "leaderboard"
WORLDS: dict[str, dict[str, Any]] = {
    "cifar10-dir": {"data": "cifar10.npz", "partition": "dirichlet:0.1"},
    "cifar10-pat": {"data": "cifar10.npz", "partition": "pathological:2"},
    "cifar100-dir": {"data": "cifar100.npz", "partition": "dirichlet:0.1"},
    "cifar100-pat": {"data": "cifar100.npz", "partition": "pathological:10"},
}
SHARED: dict[str, Any] = {
    "clients": 100, "model": "cnn", "batch": 10, "epochs": 1, "val": 0.2, "metric": "accuracy",
}  # fmt: skip


class Declared(NamedTuple):
    """A contender that is not a method as it comes; its row and the page say so.

    Attributes:
      method: its name.
      settings: of the run.
      options: of the method.
      worlds: where; everywhere if there are none.
    """

    method: str
    settings: dict[str, Any]
    options: dict[str, Any]
    worlds: Sequence[str] = ()

    @property
    def told(self) -> dict[str, Any]:
        """What is not as it comes."""
        return self.settings | self.options


VARIANTS = {
    "fedavg-finetuned": Declared("fedavg", {"finetune": 5}, {}),
    # all rows in one place are 3,600 steps of ten in a round, none beside another
    "centralised": Declared("centralised", {"batch": 100}, {}),
    # where cores are alike, a step of the sum of p_i is eta2 · clients · ⟨g, c⟩: with 100 clients
    # the default diverged at every rate, and its authors' goes as far as that does with ten
    "apple": Declared("apple", {}, {"eta2": 0.001}),
    # its server takes 100 passes over all class means of a round: with 100 classes and batches of
    # ten the search alone, 45 rounds, had not ended after 1,600 seconds
    "fedtgp": Declared("fedtgp", {}, {"server_batch": 100}, ("cifar100-dir", "cifar100-pat")),
}
FIRST = (
    "fedavg", "local", "fedavg-finetuned", "fedala", "fedfomo", "pmixfed", "plgu-lf", "plgu-grep",
    "plgu-ghn", "pfedla", "ditto", "fedrep", "fedper", "fedbn", "apfl", "pfedme", "fedproto",
    "fedrod", "fedpac", "fedcp", "feddbe", "gpfl", "moon", "fedas", "fedprox", "fedamp",
    "lg-fedavg", "fedbabu", "perfedavg-fo", "fedphp", "heurpfedla", "pfedhn", "knn-per", "scaffold",
)  # fmt: skip
# one round of these takes many epochs
LAST = ("apple", "fedtgp", "centralised", "fedavg-c", "fedprox-c")
NEIGHBOURS = 3.0  # methods that begin beside one slow it down so much
LADDER = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)  # of rates
GRACE = 15.0  # seconds for a round that began in time, where several processes play
POINTS = 12  # of a curve: as many as `training_end` needs

log = logging.getLogger("fedtailor")


class OutOfTime(Exception):
    """The call's seconds are over; what was at work is not recorded."""


class SeedsDiverged(BadInput):
    """Some runs of a method did not come to their end: their rate is too large."""


class Budget(NamedTuple):
    """What every method of a world has.

    Attributes:
      rates: learning rates that are tried.
      tune_rounds: rounds of each of them.
      rounds: of the run that counts.
      seeds: how many such runs.
    """

    rates: list[float]
    tune_rounds: int
    rounds: int
    seeds: int


class Clock:
    """Says when to stop: nothing begins for which there is hardly time, and rounds look at it.

    Args:
      until: when the call's seconds are over, by the clock that all processes share.
    """

    def __init__(self, until: float) -> None:
        self.until = until
        self._took: list[float] = []  # by searches

    @property
    def may_begin(self) -> bool:
        """Whether another method should begin: its search may end, as long as others' took."""
        usual = statistics.median(self._took) if self._took else 0.0
        return self.has(usual)

    def has(self, seconds: float) -> bool:
        """Whether there is so much time left."""
        return time.monotonic() + seconds < self.until

    def took(self, seconds: float) -> None:
        """Notes how long a search took, which is kept though the run after it is cut off."""
        self._took.append(seconds)

    def watch(self, line: Line, rounds: int) -> None:
        """Ends a run between its rounds."""
        if time.monotonic() > self.until:
            raise OutOfTime


class World(NamedTuple):
    """Where methods are compared.

    Attributes:
      name: of the world.
      settings: of all its runs.
      data: its rows at its clients.
      budget: what every method has.
    """

    name: str
    settings: dict[str, Any]
    data: RunData
    budget: Budget


def order() -> list[str]:
    """All contenders, those that most papers compare with first."""
    others = [m for m in METHODS if m not in (*FIRST, *LAST)]
    return [*FIRST, *others, *LAST]


def tried_of(method: str, rates: Sequence[float]) -> tuple[dict[str, str], SearchRules]:
    """What is tried of a method, in as many settings for each.

    The run's learning rate; a method that has no use for it tries its defaults, and then random
    settings of what it declares.
    """
    rules = SearchRules(len(rates), "grid", prune=False)
    if small_method(METHODS[method]).own_rates:
        return {}, rules._replace(search="random")
    own = {option.name for option in page(METHODS[method]).options}
    return {"--lr" if "lr" in own else "lr": ",".join(map(str, rates))}, rules


def candidate_of(
    contender: str, world: World, rates: Sequence[float] = ()
) -> tuple[Candidate, SearchRules]:
    method, more, options, _ = declared(contender, world.name)
    over, rules = tried_of(method, rates or world.budget.rates)
    rounds = world.budget.tune_rounds
    settings = world.settings | more | {"rounds": rounds, "eval_every": rounds}
    settings["checkpoint_every"] = rounds  # at the end alone
    return TuningPlan([method], settings, options, over, rules).candidates[method], rules


def declared(contender: str, world: str) -> Declared:
    """What is not as it comes of a contender in a world: mostly nothing."""
    found = VARIANTS.get(contender)
    return found if found and world in (found.worlds or WORLDS) else Declared(contender, {}, {})


# --- playing ---


@contextmanager
def memory_given_back() -> Iterator[None]:
    """What was held on the device is free for what comes next, whatever happened."""
    try:
        yield
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def side_by_side_if_it_fits(play: Callable[[bool], Any]) -> Any:
    """Plays runs side by side; one after another where the device has too little memory."""
    try:
        with memory_given_back():
            return play(True)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        log.info("out of memory: runs are played one after another")
    with memory_given_back():
        return play(False)


def tuned(
    contender: str, world: World, clock: Clock, rates: Sequence[float] = ()
) -> dict[str, Any]:
    """The settings that were tried of a contender, on validation rows; all of them may have failed.

    `rates` are tried instead of those of the world.
    """
    candidate, rules = candidate_of(contender, world, rates)
    begun = time.monotonic()

    def play(together: bool) -> list[Tried]:
        announce = lambda name, place, left: clock.watch
        with TemporaryDirectory() as folder:
            try:
                play_tuning(
                    {contender: candidate}, rules, world.data, Path(folder), announce,
                    side_by_side=together,
                )  # fmt: skip
            except BadInput:
                if not (Path(folder) / TRIALS).exists():
                    raise  # nothing was tried at all
            return list(TrialBook(Path(folder) / TRIALS).trials.values())

    trials = sorted(side_by_side_if_it_fits(play), key=lambda trial: trial.number)
    return {
        "tried": [{"setting": t.setting, "val": t.value, "failed": t.failed} for t in trials],
        "seconds": round(time.monotonic() - begun, 2),
    }


def configs(
    contender: str, chosen: dict[str, Any], world: World, seeds: Sequence[int]
) -> list[Config]:
    """The runs that count, one for each seed."""
    candidate, _ = candidate_of(contender, world)
    rounds = world.budget.rounds
    config = replace(
        candidate.with_setting(chosen), rounds=rounds, eval_every=max(1, rounds // POINTS)
    )
    return [replace(config, seed=seed) for seed in seeds]


def played(
    contender: str, chosen: dict[str, Any], world: World, clock: Clock, seeds: Sequence[int]
) -> dict[str, Any]:
    """What a contender comes to with the chosen setting and some seeds: a part of its run.

    Raises:
      SeedsDiverged: not all of its runs came to their end.
    """
    begun = time.monotonic()
    runs = [
        RunToPlay(config, None, world.data, lambda: clock.watch)
        for config in configs(contender, chosen, world, seeds)
    ]

    def play(together: bool) -> list[RunEnd]:
        ends = play_together(runs, side_by_side=together, keep_going=True)
        errors = [end.error for end in ends if end.error is not None]
        for error in errors:
            if not isinstance(error, Diverged):
                raise error
        if errors:
            raise SeedsDiverged(f"{len(errors)} of {len(ends)} seeds: {reason_of(errors[0])}")
        return ends

    ends: list[RunEnd] = side_by_side_if_it_fits(play)
    results = [end.result for end in ends]
    tested = world.data.client_data.test.n.tolist()
    per_round = len(tested) * world.budget.rounds
    return {
        "setting": chosen,
        "seeds": list(seeds),
        "right": [right_answers(result, tested) for result in results],
        "mean": [round(result["score"]["mean"], 6) for result in results],
        "without_answers": [len(result["diverged"]) for result in results],
        "curves": [
            [[line["round"], line["pre_val"]["mean"]] for line in end.history if "pre_val" in line]
            for end in ends
        ],
        # of a client in a round, as docs/methods.md counts them
        "bytes": {k: round(results[0]["bytes"][k] / per_round) for k in ("up", "down")},
        "seconds": round(time.monotonic() - begun, 2),
        # shared by runs side by side
        "preparing_seconds": round(max(r["preparing_seconds"] for r in results), 2),
        "side_by_side": results[0]["side_by_side"],
        "peak_memory_bytes": max(r["peak_memory_bytes"] or 0 for r in results) or None,
        "way": results[0]["way"],
        "precision": results[0]["precision"],
        "options": results[0]["options"],
    }


def joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A contender's run over all seeds, of parts with some of them each."""
    parts = sorted(parts, key=lambda part: part["seeds"])
    each = lambda name: [one for part in parts for one in part[name]]
    of_seeds = np.array(each("curves"))  # [seeds, points, round and value]
    rounds, val = of_seeds[0, :, 0].astype(int).tolist(), of_seeds[:, :, 1].mean(axis=0).tolist()
    peaks = [part["peak_memory_bytes"] or 0 for part in parts]
    return parts[0] | {
        "right": each("right"),
        "mean": each("mean"),
        "without_answers": [n for part in parts for n in part.get("without_answers", ())],
        "val_by_round": [[r, round(v, 4)] for r, v in zip(rounds, val, strict=True)],
        "still_rising": training_end(rounds, val).still_rising,
        "seconds": round(sum(part["seconds"] for part in parts), 2),
        "preparing_seconds": round(sum(part["preparing_seconds"] for part in parts), 2),
        "peak_memory_bytes": max(peaks) or None,
    }


def all_seeds(
    contender: str,
    row: dict[str, Any],
    chosen: dict[str, Any],
    world: World,
    clock: Clock,
    save: Callable[[], None],
) -> dict[str, Any]:
    """The runs that count: side by side, or, where time may be short, one seed after another.

    Each is saved when it ends, so that another call plays those that are left.
    """
    parts = row.setdefault("parts", [])
    if any(part["setting"] != chosen for part in parts):
        parts.clear()
    known = [seed for part in parts for seed in part["seeds"]]
    left = [seed for seed in range(world.budget.seeds) if seed not in known]
    together = clock.has(NEIGHBOURS * expected(row, world, len(left)))
    for some in [left] if together else [[seed] for seed in left]:
        if some:
            parts.append(played(contender, chosen, world, clock, some))
            save()
    run = joined(parts)
    for name in ("setting", "seeds", "curves"):
        del run[name]
    del row["parts"]
    return run


def expected(row: dict[str, Any], world: World, seeds: int) -> float:
    """How many seconds so many seeds take, one after another, going by the search."""
    budget, search = world.budget, row["tuning"]
    tried = sum(trial["val"] is not None for trial in search["tried"]) * budget.tune_rounds
    return float(search["seconds"] / max(1, tried) * seeds * budget.rounds)


def beyond(tried: Sequence[dict[str, Any]]) -> float | None:
    """The rate to try next: beside the best one, if that lies at the edge of those tried.

    Where all of them failed, the next smaller one.
    """
    rates = {
        rate: trial["val"] for trial in tried if (rate := rate_of(trial["setting"])) is not None
    }
    known = {rate: val for rate, val in rates.items() if val is not None}
    if not known:
        smaller = [rate for rate in LADDER if rates and rate < min(rates)]
        return smaller[-1] if smaller else None
    best = max(known, key=lambda rate: known[rate])
    up = [rate for rate in LADDER if rate > max(known)]  # what failed is not tried again
    down = [rate for rate in LADDER if rate < min(known)]
    if best == max(known) and up and up[0] not in rates:
        return up[0]
    return down[-1] if best == min(known) and down and down[-1] not in rates else None


def rate_of(setting: dict[str, Any]) -> float | None:
    """The learning rate, where that is all that was tried."""
    (name, value), *more = setting.items() or [("", None)]
    return value if not more and name.removeprefix("--") == "lr" else None


def search(
    contender: str, row: dict[str, Any], world: World, clock: Clock, save: Callable[[], None]
) -> None:
    """Tries settings until the best one lies within; its row is saved after each."""
    if "tuning" not in row:
        row["tuning"] = tuned(contender, world, clock)
        save()
    found = row["tuning"]
    while not found.get("ended"):
        rate = beyond(found["tried"])
        if rate is None:
            found["ended"] = True
        else:
            more = tuned(contender, world, clock, [rate])
            found["tried"] += more["tried"]
            found["seconds"] = round(found["seconds"] + more["seconds"], 2)
        save()
    if "run" in row and best_first(row)[0]["setting"] != row["chosen"]:
        del row["run"], row["chosen"]  # of a search that had not ended


def best_first(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The settings that may be played: tried to the end, and not diverged in a longer run."""
    lost = [one["setting"] for one in row.get("diverged", [])]
    known = [
        trial
        for trial in row["tuning"]["tried"]
        if trial["val"] is not None and trial["setting"] not in lost
    ]
    return sorted(known, key=lambda trial: -trial["val"])


def right_answers(result: dict[str, Any], tested: Sequence[int]) -> str:
    """How many test rows of each client its final model has right: in one line of the file."""
    each = zip(result["per_client"].values(), tested, strict=True)
    return " ".join(str(0 if share is None else round(share * n)) for share, n in each)


def play_until_one_ends(
    contender: str, row: dict[str, Any], world: World, clock: Clock, save: Callable[[], None]
) -> None:
    """Plays the setting that is best on validation rows; where it diverges, the next best.

    Raises:
      SeedsDiverged: every setting does.
      BadInput: none could be tried to the end.
    """
    diverged = row.setdefault("diverged", [])
    if not diverged and not best_first(row):
        tried = row["tuning"]["tried"]
        told = ", ".join(in_words(trial["setting"]) for trial in tried)
        why = tried[-1]["failed"] or "no client has a value on its validation rows"
        raise BadInput(f"none could be tried to the end ({told}): {why}")
    for trial in best_first(row):
        begun = time.monotonic()
        try:
            row["run"] = all_seeds(contender, row, trial["setting"], world, clock, save)
        except SeedsDiverged as error:
            row.pop("parts")
            took = round(time.monotonic() - begun, 2)
            diverged.append({"setting": trial["setting"], "why": str(error), "seconds": took})
            save()
            continue
        row["chosen"] = trial["setting"]
        return
    raise SeedsDiverged(f"with every rate: {diverged[0]['why']}")


def play_contender(
    contender: str, row: dict[str, Any], world: World, clock: Clock, save: Callable[[], None]
) -> None:
    """Plays what is left of a contender; its row is saved after the search and after the run.

    Raises:
      OutOfTime: there was no time to end it.
      Interrupted: somebody pressed Ctrl-C.
    """
    told = declared(contender, world.name).told
    if told != row.get("declared", {}):  # what there is was played otherwise
        for name in ("tuning", "diverged", "parts", "run", "chosen"):
            row.pop(name, None)
        row["declared"] = told
    try:
        search(contender, row, world, clock, save)
        if "run" not in row:
            play_until_one_ends(contender, row, world, clock, save)
    except (OutOfTime, Interrupted):
        raise
    except Exception as error:  # theirs or ours: the others are played all the same
        row["failed"] = reason_of(error)
        save()
        if world.data.client_data.x.is_cuda:
            torch.cuda.synchronize()  # raises where nothing can be played on it any more
    save()


# --- the file of a world ---


class Board:
    """A world's results so far, in a file that several processes write, row by row.

    Args:
      path: of the file.
      name: of the world.
      settings: of its runs.
      budget: what every method has.
    """

    def __init__(self, path: Path, name: str, settings: dict[str, Any], budget: Budget) -> None:
        self.path = path
        kept = {k: v for k, v in settings.items() if k not in ("device", "compile")}
        kept["data"] = Path(kept["data"]).name
        self._asked = {"world": name, "settings": kept, "budget": budget._asdict()}

    def read(self) -> dict[str, Any]:
        """What there is.

        Raises:
          BadInput: it was played with another budget.
        """
        if not self.path.exists():
            return self._asked | {"clients": {}, "calls": [], "rows": {}}
        found: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
        for part, value in self._asked.items():
            if found[part] != value:
                raise BadInput(
                    f"{part} is {value}, but '{self.path}' was played with {found[part]}: give the "
                    "same, or another --results"
                )
        return found

    @contextmanager
    def changing(self) -> Iterator[dict[str, Any]]:
        """What there is, to be changed: written at the end, by one process at a time."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            found = self.read()
            yield found
            if not found.get("at_work"):
                found.pop("at_work", None)
            write_json(self.path, found)

    def clean(self, again: Sequence[str] = ()) -> None:
        """Forgets who was at work when a call was cut off, and the rows of `again`."""
        if self.path.exists():
            with self.changing() as found:
                found.pop("at_work", None)
                found["rows"] = {k: v for k, v in found["rows"].items() if k not in again}

    def left(self, contenders: Sequence[str]) -> list[str]:
        """Those that have not come to an end."""
        rows = self.read()["rows"]
        return [c for c in contenders if not is_done(rows.get(c, {}))]


def is_done(row: dict[str, Any]) -> bool:
    return "failed" in row or ("run" in row and row["tuning"].get("ended", False))


class Call:
    """What one process plays of a world.

    Args:
      board: the world's results.
      world: where it is played.
      told: of the call, for the file.
    """

    def __init__(self, board: Board, world: World, told: dict[str, Any]) -> None:
        self._board, self._told, self._begun = board, told, time.monotonic()
        rows = {
            "digest": world.data.rows_digest(),
            "test_rows": world.data.client_data.test.n.tolist(),
            "train_rows": world.data.client_data.train.n.tolist(),
        }
        with board.changing() as found:
            if found["clients"] not in ({}, rows):
                raise BadInput(
                    f"the rows are not those that '{board.path}' was played with: "
                    "give the same data"
                )
            found["clients"] = rows
            self._number = len(found["calls"])
            found["calls"].append(told | {"played": [], "seconds": 0.0})

    def take(self, contenders: Sequence[str]) -> tuple[str, dict[str, Any]] | None:
        """The next contender that nobody has played or is at, and its row so far."""
        with self._board.changing() as found:
            at_work = found.setdefault("at_work", [])
            for contender in contenders:
                row = found["rows"].get(contender, {})
                if not is_done(row) and contender not in at_work:
                    at_work.append(contender)
                    return contender, row | {k: self._told[k] for k in ("commit", "device")}
            return None

    def save(self, contender: str, row: dict[str, Any], *, ended: bool = False) -> None:
        """Writes a row; where it `ended`, nobody is at it any more."""
        with self._board.changing() as found:
            found["rows"][contender] = row
            call = found["calls"][self._number]
            call["seconds"] = round(time.monotonic() - self._begun, 1)
            if ended:
                found["at_work"].remove(contender)
            if ended and is_done(row):
                call["played"].append(contender)


def play_world(
    board: Board, world: World, contenders: Sequence[str], clock: Clock, told: dict[str, Any]
) -> None:
    """Plays what a world's results do not have yet, as far as there is time."""
    call = Call(board, world, told)
    while clock.may_begin:
        taken = call.take(contenders)
        if taken is None:
            return
        contender, row = taken
        save = partial(call.save, contender, row)
        with suppress(OutOfTime):
            play_contender(contender, row, world, clock, save)
        save(ended=True)
        clock.took(row.get("tuning", {}).get("seconds", 0.0))
        if is_done(row):
            print(in_a_line(world.name, contender, row), flush=True)


def in_a_line(world: str, contender: str, row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"{world} {contender}: failed: {row['failed']}"
    run, search = row["run"], row["tuning"]
    return (
        f"{world} {contender}: {100 * np.mean(run['mean']):.1f} %, {row['chosen']}, "
        f"{search['seconds']:.0f} s tuning, {run['seconds']:.0f} s run "
        f"({run['preparing_seconds']:.0f} s of it preparing), {run['side_by_side']} side by side"
    )


def parsed(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("worlds", nargs="+", choices=list(WORLDS))
    parser.add_argument("--folder", type=Path, default=Path("data"), help="of the npz files")
    parser.add_argument("--methods", nargs="+", choices=order(), default=order(), metavar="METHOD")
    parser.add_argument("--again", action="store_true", help="play --methods though they are there")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.01, 0.03, 0.1])
    parser.add_argument("--tune-rounds", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=SHARED["clients"], help="to try it out")
    parser.add_argument("--model", default=SHARED["model"], help="to try it out")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", default="auto", help="as of fedtailor run; fused on a GPU")
    parser.add_argument("--seconds", type=float, default=1e9, help="no round begins after these")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the files")
    parser.add_argument("--jobs", type=int, default=1, help="methods at a time")
    parser.add_argument("--lane", type=int, help=argparse.SUPPRESS)  # which of these processes
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)  # its clock's last second
    parser.add_argument("--commit", help="where there is no git to ask")
    return parser.parse_args(words)


def command_of(said: argparse.Namespace, words: Sequence[str]) -> str:
    """What was typed, without where somebody keeps files."""
    places = {str(said.folder): "DATA", str(said.results): "OUT"}
    kept = [places.get(word, word) for word in words]
    return shlex.join(["python", "benchmarks/leaderboard.py", *kept])


def main(words: Sequence[str] | None = None) -> None:
    said = parsed(words)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        until = said.until or time.monotonic() + said.seconds
        play_worlds(said, list(words or sys.argv[1:]), Clock(until))
    except BadInput as error:
        print(f"leaderboard: {error}", file=sys.stderr)
        sys.exit(2)
    except (Interrupted, KeyboardInterrupt):
        if said.lane is None:
            print("leaderboard: stopped; the same call goes on with what is left", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


def play_worlds(said: argparse.Namespace, words: list[str], clock: Clock) -> None:
    """Plays what was asked for, here or in processes of their own."""
    told = {
        "command": command_of(said, words),
        "commit": said.commit or commit(),
        "device": f"{said.device} ({hardware(torch.device(said.device))})",
        "torch": torch.__version__,
        "jobs": said.jobs,
    }
    budget = Budget(said.rates, said.tune_rounds, said.rounds, said.seeds)
    own = {"clients": said.clients, "model": said.model}
    own |= {"device": said.device, "compile": said.compile}
    for name in said.worlds:
        settings = SHARED | WORLDS[name] | own
        settings["data"] = str(said.folder / settings["data"])
        board = Board(said.results / f"{name}.json", name, settings, budget)
        if said.lane is None:
            board.clean(said.methods if said.again else ())
        left = board.left(said.methods)
        if left and clock.may_begin:
            if said.lane is None and said.jobs > 1:
                play_in_lanes(said.jobs, name, words, clock)
                board.clean()
            else:
                if said.lane is not None:
                    prepare_lane(said, clock)
                data = load_run_data(make_config("fedavg", settings, {}))
                play_world(board, World(name, settings, data, budget), left, clock, told)
        if said.lane is None:
            left = board.left(said.methods)
            print(f"{name}: {len(left)} of {len(said.methods)} methods are left", flush=True)


def play_in_lanes(jobs: int, world: str, words: list[str], clock: Clock) -> None:
    """So many processes play a world; they end in time by themselves, and with this one."""
    others = [word for word in words if word not in WORLDS and word != "--again"]
    started = []
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # they inherit it: Ctrl-C is told once
    try:
        for lane in range(jobs):
            which = ["--lane", str(lane), "--until", str(clock.until)]
            started.append(subprocess.Popen([sys.executable, __file__, world, *others, *which]))
        signal.signal(signal.SIGINT, before)
        for process in started:
            process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
        for process in started:
            process.kill()  # rows are saved, and one that has ended does not mind
            process.wait()


def prepare_lane(said: argparse.Namespace, clock: Clock) -> None:
    """One of several processes takes its share of cores, of a GPU's memory, and of the time.

    With all cores for each they stand in each other's way. A round may take minutes, and while one
    operator is at work nothing of Python is heard: so the system ends the process. What was played
    is in the file.
    """
    signal.setitimer(signal.ITIMER_REAL, max(0.0, clock.until - time.monotonic()) + GRACE)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // said.jobs))
    if said.device.startswith("cuda"):  # else the first leaves nothing for others
        torch.cuda.set_per_process_memory_fraction(FOR_JOBS / said.jobs)


if __name__ == "__main__":
    main()
