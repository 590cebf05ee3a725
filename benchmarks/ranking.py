"""The leaderboard: methods of a world ranked, and which differences are more than noise.

    python benchmarks/ranking.py    # draws docs/img/leaderboard*.png of what there is

Nothing is run: the numbers are those of `results/leaderboard`. Two methods are compared client by
client, each client's accuracy being the mean over seeds: signs of the differences are flipped, as
in a verdict, p-values are corrected for the number of methods (Holm), and every seed by itself has
to agree, since one lucky training helps all clients of a method at once.
"""

from __future__ import annotations

import json
import shlex
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from leaderboard import RESULTS, is_done, order, rate_of

from fedtailor.results.statistics.decision import LEVEL, holm
from fedtailor.results.statistics.intervals import Interval, flip_interval
from fedtailor.results.statistics.permutation import sign_flip_p
from fedtailor.runs.tuning.play import in_words

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "img"
TENTH = 0.1  # of the clients, the worst-off
YARDSTICKS = {"fedavg": "FedAvg", "local": "training alone"}
DRAWN = "local"  # the yardstick of pictures: whether federation helps at all
CUT = -15.0  # points, left of which the picture of all worlds has only a mark
Answer = Literal["above", "below", "cannot tell"]


class Difference(NamedTuple):
    """A method less another one, in points over clients."""

    mean: float
    low: float
    high: float
    answer: Answer


class Ranked(NamedTuple):
    """A method's row."""

    method: str
    accuracy: np.ndarray  # [seeds, clients]
    interval: Interval  # of the mean over clients like these
    row: dict[str, Any]  # of the results
    to_best: Difference | None  # None: it is the best
    to_yardstick: dict[str, Difference]  # by name, without itself and those that were not played

    @property
    def mean(self) -> float:
        return float(self.accuracy.mean())

    @property
    def spread(self) -> float:
        """The deviation of the mean over seeds."""
        of_seeds = self.accuracy.mean(axis=1)
        return float(of_seeds.std(ddof=1)) if len(of_seeds) > 1 else 0.0

    @property
    def worst_tenth(self) -> float:
        """The mean of the worst-off tenth of clients, in each seed its own."""
        few = max(1, round(TENTH * self.accuracy.shape[1]))
        return float(np.sort(self.accuracy, axis=1)[:, :few].mean())

    @property
    def shares_the_lead(self) -> bool:
        """Whether it cannot be told from the best."""
        return self.to_best is None or self.to_best.answer == "cannot tell"


def differences(
    ours: dict[str, np.ndarray], other: np.ndarray, *, level: float = LEVEL
) -> dict[str, Difference]:
    """Methods less another one, [seeds, clients] each, corrected for the number of methods."""
    apart = {m: (found - other).mean(axis=0) for m, found in ours.items()}
    corrected = holm({m: sign_flip_p(d) for m, d in apart.items()})
    out = {}
    for method, d in apart.items():
        low, high = flip_interval(d, np.ones(len(d)), level)
        answer: Answer = "cannot tell"
        if corrected[method] < level and low * high > 0:
            of_seeds = (ours[method] - other).mean(axis=1)
            if (np.sign(of_seeds) == np.sign(d.mean())).all():
                answer = "above" if low > 0 else "below"
        out[method] = Difference(float(d.mean()), low, high, answer)
    return out


def accuracy_of(row: dict[str, Any], tested: list[int]) -> np.ndarray:
    """[seeds, clients] of a row; clients without test rows are left out."""
    n = np.array(tested)
    right = np.array([[int(v) for v in of_seed.split()] for of_seed in row["run"]["right"]])
    return np.asarray(right[:, n > 0] / n[n > 0])


def ranked(report: dict[str, Any]) -> list[Ranked]:
    """The methods that came to their end, the best first."""
    tested = report["clients"]["test_rows"]
    found = {m: accuracy_of(r, tested) for m, r in report["rows"].items() if "run" in r}
    order = sorted(found, key=lambda m: -found[m].mean())
    if not order:
        return []
    others = {m: found[m] for m in order[1:]}
    to_best = differences(others, found[order[0]])
    to_yardstick = {
        name: differences({m: found[m] for m in order if m != name}, found[name])
        for name in YARDSTICKS
        if name in found
    }
    return [
        Ranked(
            m,
            found[m],
            flip_interval(found[m].mean(axis=0), np.ones(found[m].shape[1]), LEVEL),
            report["rows"][m],
            to_best.get(m),
            {name: of[m] for name, of in to_yardstick.items() if m in of},
        )
        for m in order
    ]


# --- the page ---


def read(world: str) -> dict[str, Any] | None:
    path = RESULTS / f"{world}.json"
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def command(world: str) -> str:
    words = ["python", "benchmarks/leaderboard.py", world, "--folder", "DATA"]
    return shlex.join([*words, "--device", "cuda", "--compile", "fused", "--seconds", "540"])


def left_of(report: dict[str, Any]) -> list[str]:
    """The methods that were not played yet."""
    return [m for m in order() if not is_done(report["rows"].get(m, {}))]


def body(report: dict[str, Any], by_rank: list[Ranked]) -> list[list[str]]:
    """All lines of a world's table: by rank, then those that failed."""
    tested = report["clients"]["test_rows"]
    found = [cells(i, one, tested) for i, one in enumerate(by_rank, 1)]
    failed = {m: r["failed"] for m, r in report["rows"].items() if "failed" in r}
    empty = ["–"] * (len(HEADER) - 2)
    return [*found, *([m, f"failed: {why}".replace("|", "/"), *empty] for m, why in failed.items())]


def without_answers(row: dict[str, Any], tested: list[int]) -> int:
    """How many last models, over seeds, gave nothing finite: they have nothing right.

    Runs tell, but for older ones, whose mean was over the clients whose model said something: so
    many are in the sum.
    """
    found, means = accuracy_of(row, tested), np.array(row["run"]["mean"])
    known = np.divide(found.sum(axis=1), means, out=np.zeros(len(means)), where=means > 0)
    older = int((found.shape[1] - known.round())[means > 0].sum())
    return older + sum(row["run"].get("without_answers", ()))


def setting_of(row: dict[str, Any], tested: list[int]) -> str:
    """What was played; what is declared of it, whether the rate is an edge, and what diverged."""
    rate = rate_of(row["chosen"])
    tried = [rate_of(trial["setting"]) for trial in row["tuning"]["tried"]]
    rates = [one for one in tried if one is not None]
    marks = [in_words({name: value}) for name, value in row.get("declared", {}).items()]
    marks += ["edge"] if rates and rate in (min(rates), max(rates)) else []
    marks += [f"{shown(one['setting'])} diverged" for one in row["diverged"]]
    if lost := without_answers(row, tested):
        marks.append(f"{lost} model{'s' * (lost > 1)} diverged at the end")
    return shown(row["chosen"]) + (f" ({', '.join(marks)})" if marks else "")


def shown(setting: dict[str, Any]) -> str:
    rate = rate_of(setting)
    return in_words(setting) if rate is None else f"{rate:g}"


def gap(found: Difference | None) -> str:
    """A difference in points; what is more than noise is bold."""
    if found is None:
        return "–"
    mean, low, high = (f"{round(100 * v, 1) + 0.0:+.1f}" for v in found[:3])  # no minus nought
    text = f"{mean} ({low} to {high})"
    return text if found.answer == "cannot tell" else f"**{text}**"


def cells(place: int, one: Ranked, tested: list[int]) -> list[str]:
    """A line of the table."""
    run, search = one.row["run"], one.row["tuning"]
    played = run["seconds"] + sum(lost["seconds"] for lost in one.row["diverged"])
    low, high = (100 * end for end in one.interval)
    rising = {True: "yes", False: "no", None: "–"}[run["still_rising"]]
    return [
        f"{place}. {one.method}{' ≈' if one.shares_the_lead else ''}",
        f"{100 * one.mean:.1f} ± {100 * one.spread:.1f}",
        f"{low:.1f} to {high:.1f}",
        f"{100 * one.worst_tenth:.1f}",
        gap(one.to_best),
        *(gap(one.to_yardstick.get(name)) for name in YARDSTICKS),
        setting_of(one.row, tested),
        rising,
        f"{run['bytes']['up'] / 1e6:.2f} / {run['bytes']['down'] / 1e6:.2f}",
        f"{search['seconds']:.0f} + {played:.0f} ({run['preparing_seconds']:.0f})",
    ]


HEADER = [
    "method", "mean % ± seeds", "95 % over clients", "worst tenth %", "to the best, points",
    *(f"to {shown}, points" for shown in YARDSTICKS.values()),
    "rate", "still rising", "MB up / down", "s tuning + run (preparing)",
]  # fmt: skip


def summary(rows: list[Ranked]) -> str:
    """What may be said of a world in two sentences."""
    level = [one.method for one in rows[1:] if one.shares_the_lead]
    told = f"Of {len(rows)} methods {rows[0].method} has the best mean"
    if level:
        told += f"; {len(level)} cannot be told from it: {', '.join(level)}"
    told += "."
    for name, shown in YARDSTICKS.items():
        answers = [one.to_yardstick[name].answer for one in rows if name in one.to_yardstick]
        if answers:
            above, below, open_ = (answers.count(a) for a in ("above", "below", "cannot tell"))
            told += f" Beyond chance, {above} are above {shown} and {below} below it"
            told += f"; {open_} are neither."
    return told


def spent(report: dict[str, Any]) -> str:
    """Who played it, where, and how long."""
    calls = report["calls"]
    hours = sum(call["seconds"] / call.get("jobs", 1) for call in calls) / 3600
    commits = ", ".join(dict.fromkeys(call["commit"] for call in calls))
    devices = ", ".join(dict.fromkeys(call["device"] for call in calls))
    budget = report["budget"]
    rates = ", ".join(f"{rate:g}" for rate in budget["rates"])
    return (
        f"Rates {rates} for {budget['tune_rounds']} rounds each, then {budget['rounds']} rounds "
        f"with {budget['seeds']} seeds. {len(calls)} calls, {hours:.1f} h in all. "
        f"`{command(report['world'])}`, commit {commits}, {devices}."
    )


# --- all worlds ---


def drawn_of(world: str) -> dict[str, Ranked]:
    """The methods of a world that stand beside the yardstick of pictures, the best first."""
    report = read(world)
    return (
        {one.method: one for one in ranked(report) if DRAWN in one.to_yardstick} if report else {}
    )


def everywhere(worlds: Sequence[dict[str, Ranked]]) -> list[str]:
    """The methods of any world: above the yardstick in most worlds first, then by their mean."""
    found: dict[str, list[Difference]] = {}
    for rows in worlds:
        for method, one in rows.items():
            found.setdefault(method, []).append(one.to_yardstick[DRAWN])
    above = {m: sum(d.answer == "above" for d in found[m]) for m in found}
    return sorted(found, key=lambda m: (-above[m], -statistics.mean(d.mean for d in found[m])))


def overview(worlds: Sequence[dict[str, Ranked]]) -> str:
    """Which methods are above training alone in every world, and which nowhere."""
    common = [m for m in everywhere(worlds) if all(m in rows for rows in worlds)]
    answers = {m: [rows[m].to_yardstick[DRAWN].answer for rows in worlds] for m in common}
    always = [m for m in common if set(answers[m]) == {"above"}]
    never = [m for m in common if "above" not in answers[m]]
    counted = lambda names: f"{len(names)} ({', '.join(names)})" if names else "0"
    return (
        f"{len(common)} methods were played in all {len(worlds)} divisions so far. Above "
        f"{YARDSTICKS[DRAWN]} beyond chance in each of them: {counted(always)}; in some: "
        f"{len(common) - len(always) - len(never)}; in none: {counted(never)}."
    )


# --- pictures ---


def draw(path: Path, worlds: dict[str, dict[str, Ranked]], methods: Sequence[str]) -> None:
    """Each method's difference to the yardstick, and interval; who shares the lead is filled.

    Args:
      path: of the picture.
      worlds: what is drawn, a panel for each.
      methods: its lines, from the top.
    """
    from fedtailor.figures.style import COLOURS, DOTS, PAPER, empty_figure, file_of

    looks = {"above": COLOURS[1], "below": COLOURS[2], "cannot tell": COLOURS[7]}
    import matplotlib

    several = len(worlds) > 1
    left = CUT if several else -np.inf
    with matplotlib.rc_context(PAPER):
        wide = 7.0 if not several else 1.3 + 2.0 * len(worlds)
        figure = empty_figure(wide, 0.17 * len(methods) + 1.1)
        panels = figure.subplots(1, len(worlds), sharey=True, squeeze=False)[0]
        for axes, (world, rows) in zip(panels, worlds.items(), strict=True):
            for place, one in ((methods.index(m), rows[m]) for m in rows):
                found = one.to_yardstick[DRAWN]
                colour = looks[found.answer]
                if 100 * found.mean < left:
                    axes.plot(left, place, "<", color=colour, markersize=4.0)
                    continue
                ends = [max(left, 100 * found.low), 100 * found.high]
                axes.plot(ends, [place] * 2, color=colour, lw=1.4)
                face = colour if one.shares_the_lead else "white"
                axes.plot(100 * found.mean, place, "o", color=colour, markersize=4.5, mfc=face)
            axes.axvline(0, color="black", lw=0.8, zorder=0)
            axes.grid(axis="y", color="0.92", lw=0.5)
            axes.tick_params(axis="y", length=0)
            axes.spines[["top", "right", "left"]].set_visible(False)
            if several:
                axes.set_title(world)
        panels[0].set_yticks(range(len(methods)), methods)
        panels[0].set_ylim(len(methods) - 0.4, -0.6)
        marks = "grey: not beyond chance; filled: not told from the best"
        what = f"points of accuracy above {YARDSTICKS[DRAWN]}, 95 % interval over clients"
        if several:
            figure.supxlabel(f"{what}\n({marks}; ◂: further left)", fontsize="medium")
        else:
            panels[0].set_xlabel(f"{next(iter(worlds))}: {what}\n({marks})")
        path.write_bytes(file_of(figure, "png", DOTS))


def all_worlds() -> dict[str, dict[str, Ranked]]:
    """What is drawn of each world that has something to draw."""
    found = {path.stem: drawn_of(path.stem) for path in sorted(RESULTS.glob("*.json"))}
    return {world: rows for world, rows in found.items() if rows}


def main() -> None:
    found = all_worlds()
    drawn = {f"leaderboard-{world}": ({world: rows}, list(rows)) for world, rows in found.items()}
    if found:
        drawn["leaderboard"] = (found, everywhere(list(found.values())))
    for name, (worlds, methods) in drawn.items():
        draw(PICTURES / f"{name}.png", worlds, methods)
        print(PICTURES / f"{name}.png")


if __name__ == "__main__":
    main()
