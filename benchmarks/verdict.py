"""Is the verdict calibrated? False answers where there is nothing, coverage, and power.

    python benchmarks/verdict.py --federations 200 --out benchmarks/results/verdict.json

Federations are drawn by the hundred; ridge classifiers stand for networks, so that each is trained
in milliseconds. The candidate is picked on validation rows and judged on test rows by
`fedtailor.results.statistics`, as a comparison does.

Two kinds of nothing: `coin` (labels are coin flips) and `noise` (one distribution everywhere; the
"federated" models are trained on the client's own rows, with other noise). `gain`: sites share a
signal and have few rows. `spread`: each site has a signal of its own beside the shared one.

The true value for *these sites* is the expected gain of the picked candidate, over tables and
training drawn anew at the same sites; for *sites like these* its mean over sites drawn anew, too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from fedtailor.results.statistics import (
    Gains,
    PairedRows,
    Scoring,
    clients_interval,
    clients_test,
    decide,
    measure_gains,
    permutation,
)
from fedtailor.results.statistics.intervals import Interval

CANDIDATES = 3
TRAININGS = 16  # of which the true gain at the same sites is the mean


@dataclass(frozen=True)
class Setting:
    """What a federation is drawn by.

    Attributes:
      kind: `coin`, `noise`, `digits`, `gain` or `spread`.
      sites: how many.
      rows: of each site; a quarter tests, an eighth validates.
      repeats: how often split and training are drawn anew.
      noise: of training, added to every weight.
      signal: length of the shared weights.
      columns: of a table; the more, the more is gained by others' rows.
      metric: that is judged.
    """

    kind: str
    sites: int
    rows: int
    repeats: int
    noise: float = 0.05
    signal: float = 2.8
    columns: int = 8
    metric: str = "accuracy"

    @property
    def test(self) -> int:
        return self.rows // 4

    @property
    def train(self) -> int:
        return self.rows - self.test - max(4, self.rows // 8)


def site_weights(s: Setting, rng: np.random.Generator) -> np.ndarray:
    """[sites, columns + 1] of the label's log odds, the constant last."""
    shared = np.zeros(s.columns + 1)
    shared[0] = 0.0 if s.kind == "coin" else s.signal
    own = rng.normal(size=(s.sites, s.columns + 1)) * (0.5 if s.kind == "spread" else 0.0)
    own[:, -1] = 0
    return shared + own


def draw_rows(weights: np.ndarray, n: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """x [..., n, columns + 1] and y = ±1 [..., n]."""
    x = rng.normal(size=(*weights.shape[:-1], n, weights.shape[-1]))
    x[..., -1] = 1
    odds = (x * weights[..., None, :]).sum(-1)
    return x, np.where(rng.random(odds.shape) < 1 / (1 + np.exp(-odds)), 1.0, -1.0)


def ridge(x: np.ndarray, y: np.ndarray, noise: float, rng: np.random.Generator) -> np.ndarray:
    """[..., columns + 1] weights, with the noise of training."""
    a = np.swapaxes(x, -1, -2) @ x + np.eye(x.shape[-1])
    w = np.linalg.solve(a, np.swapaxes(x, -1, -2) @ y[..., None])[..., 0]
    return w + noise * rng.normal(size=w.shape)


def trained(s: Setting, x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """[1 + candidates, ..., sites, columns + 1]: alone first. x is [..., sites, n, columns + 1]."""
    alone = ridge(x, y, s.noise, rng)
    if s.kind == "noise":
        return np.stack([alone, *(ridge(x, y, s.noise, rng) for _ in range(CANDIDATES))])
    flat = (*x.shape[:-3], x.shape[-3] * x.shape[-2])
    shared = ridge(x.reshape(*flat, -1), y.reshape(flat), s.noise / 2.5, rng)[..., None, :]
    return np.stack([alone, *(c * shared + (1 - c) * alone for c in (1.0, 0.5, 0.8))])


def true_gains(s: Setting, weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """[candidates] expected gains at these sites, of models trained on rows drawn anew."""
    x, _ = draw_rows(weights, 500, rng)
    chance = 1 / (1 + np.exp(-(x * weights[:, None, :]).sum(-1)))
    times = TRAININGS
    fresh = draw_rows(np.broadcast_to(weights, (times, *weights.shape)), s.train, rng)
    models = trained(s, *fresh, rng)
    says = x @ models.reshape(-1, *weights.shape).transpose(1, 2, 0) > 0  # [sites, n, models]
    # a model is right with the chance of the class that it names
    right = (1 - chance).mean() + (says * (2 * chance - 1)[..., None]).mean((0, 1))
    right = right.reshape(1 + CANDIDATES, times).mean(1)
    return right[1:] - right[0]


@dataclass(frozen=True)
class Played:
    """One federation: [repeats, sites, ...] of everything.

    Attributes:
      rows: which rows test.
      labels: of them, 0 or 1.
      outputs: [1 + candidates, ...] of them, alone first.
      picked: the candidate that was best on validation rows.
    """

    rows: np.ndarray
    labels: np.ndarray
    outputs: np.ndarray
    picked: int


def play(s: Setting, weights: np.ndarray, rng: np.random.Generator) -> Played:
    """Draws a table for each site, then splits and trains `repeats` times."""
    x, y = draw_rows(weights, s.rows, rng)
    order = rng.permuted(np.broadcast_to(np.arange(s.rows), (s.repeats, s.sites, s.rows)), axis=-1)
    site = np.arange(s.sites)[:, None]
    test, val, train = np.split(order, [s.test, s.rows - s.train], axis=-1)
    models = trained(s, x[site, train], y[site, train], rng)
    on_val, on_test = (np.einsum("rsng,mrsg->mrsn", x[site, of], models) for of in (val, test))
    right = ((on_val > 0) == (y[site, val] > 0)).mean((1, 2, 3))
    picked = int(np.argmax(right[1:]))
    return Played(test, (y[site, test] > 0).astype(int), on_test, picked)


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return np.hstack([x / 16, np.ones((len(x), 1))]), y


def play_digits(s: Setting, rng: np.random.Generator) -> Played:
    """Real rows, dealt to sites at random; all models are a site's own, on rows drawn again."""
    x, y = digits()
    dealt = rng.permutation(len(x))[: s.sites * s.rows].reshape(s.sites, s.rows)
    x, y = x[dealt], y[dealt]
    order = rng.permuted(np.broadcast_to(np.arange(s.rows), (s.repeats, s.sites, s.rows)), axis=-1)
    test, val, train = np.split(order, [s.test, s.rows - s.train], axis=-1)
    site = np.arange(s.sites)[:, None]
    models = []
    for _ in range(1 + CANDIDATES):
        again = rng.integers(0, s.train, train.shape)
        rows = np.take_along_axis(train, again, axis=-1)
        a = np.swapaxes(x[site, rows], -1, -2)
        inner = a @ x[site, rows] + np.eye(x.shape[-1])
        models.append(np.linalg.solve(inner, a @ np.eye(10)[y[site, rows]]))
    on_val, on_test = (
        np.stack([x[site, of] @ w for w in models]) for of in (val, test)
    )  # [models, repeats, sites, rows, classes]
    right = (on_val.argmax(-1) == y[site, val]).mean((1, 2, 3))
    return Played(test, y[site, test], on_test, int(np.argmax(right[1:])))


def as_paired(played: Played) -> dict[str, list[PairedRows]]:
    """What the picked candidate and training alone say of the test rows."""
    repeats, sites = played.rows.shape[:2]
    outputs = played.outputs
    if outputs.ndim == 4:  # one number for two classes
        outputs = np.stack([np.zeros_like(outputs), outputs], axis=-1)
    return {
        f"site-{k}": [
            PairedRows(
                played.rows[r, k],
                played.labels[r, k],
                ours=outputs[1 + played.picked, r, k],
                alone=outputs[0, r, k],
            )
            for r in range(repeats)
        ]
        for k in range(sites)
    }


# ---- intervals that were tried ----


def t_interval(gains: Gains) -> Interval:
    each = gains.by_client
    half = stats.t.ppf(0.975, len(each) - 1) * each.std(ddof=1) / np.sqrt(len(each))
    return gains.mean - half, gains.mean + half


def of_draws(draws: np.ndarray) -> Interval:
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


def tried(
    gains: Gains, played: Played, s: Setting, rng: np.random.Generator
) -> dict[str, Interval]:
    """Bootstraps over clients, rows and repeats (percentiles, and basic), and t over clients."""
    right = [played.outputs[m] > 0 for m in (1 + played.picked, 0)]
    each = (right[0] == played.labels) * 1.0 - (right[1] == played.labels)
    at = (*np.indices(played.rows.shape)[:2], played.rows)
    gain, there = np.zeros((2, s.repeats, s.sites, s.rows))
    gain[at], there[at] = each, 1
    draws: dict[str, list[float]] = {"rows": [], "rows, repeats": [], "all three": []}
    for _ in range(199):
        often = rng.poisson(1.0, (s.sites, s.rows))
        drawn = (gain * often).sum(-1) / np.maximum(1, (there * often).sum(-1))
        again = drawn[rng.integers(0, s.repeats, s.repeats)]
        draws["rows"].append(drawn.mean())
        draws["rows, repeats"].append(again.mean())
        draws["all three"].append(again[:, rng.integers(0, s.sites, s.sites)].mean())
    sites = rng.integers(0, s.sites, (999, s.sites))
    found = {k: np.array(v) for k, v in draws.items()}
    found["clients"] = gains.by_client[sites].mean(1)
    out: dict[str, Interval] = {}
    for name, values in found.items():
        low, high = out[f"bootstrap {name}"] = of_draws(values)
        out[f"bootstrap {name}, basic"] = (2 * gains.mean - high, 2 * gains.mean - low)
    bca = stats.bootstrap(
        (gains.by_client,), np.mean, n_resamples=999, method="BCa", rng=rng
    ).confidence_interval
    out["bootstrap clients, BCa"] = (float(bca.low), float(bca.high))
    return out


# ---- one federation, and many ----


def right_rows(outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return (outputs.argmax(-1) == labels).astype(float)


def in_order(outputs: np.ndarray, labels: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The AUC of few rows: the share of pairs in order, ties counting half."""
    score = outputs[..., 1] - outputs[..., 0]
    one, other = labels == 1, labels == 0
    ahead = np.sign(score[..., one, None] - score[..., None, other]) / 2 + 0.5
    counted = weight[..., one, None] * weight[..., None, other]
    with np.errstate(invalid="ignore"):
        return np.asarray((ahead * counted).sum((-1, -2)) / counted.sum((-1, -2)))


# The package's own metrics give the same; these are quick for a few rows at a time.
SCORINGS = {
    "accuracy": Scoring(lambda o, y, w: (right_rows(o, y) * w).sum(-1) / w.sum(-1), right_rows),
    "roc-auc": Scoring(in_order, ranking=True),
}


@cache
def shared_truth(s: Setting) -> tuple[float, ...]:
    """True gains where all sites have one distribution: the same in every federation."""
    rng = np.random.default_rng(0)
    found = [true_gains(s, site_weights(s, rng), rng) for _ in range(10)]
    return tuple(np.mean(found, axis=0).tolist())


def truth_of(s: Setting, weights: np.ndarray, rng: np.random.Generator) -> tuple[float, ...] | None:
    if s.kind in ("coin", "noise", "digits"):
        return (0.0,) * CANDIDATES
    if s.metric != "accuracy":
        return None
    return tuple(true_gains(s, weights, rng)) if s.kind == "spread" else shared_truth(s)


def federation(s: Setting, seed: int, others: bool = False) -> dict[str, Any]:
    """All that is kept of one."""
    rng = np.random.default_rng((seed, s.sites, s.rows, s.repeats))
    weights = site_weights(s, rng)
    truth = truth_of(s, weights, rng)
    played = play_digits(s, rng) if s.kind == "digits" else play(s, weights, rng)
    paired, scoring = as_paired(played), SCORINGS[s.metric]
    gains = measure_gains(paired, scoring)
    decision = decide(paired, scoring, method="picked", metric=s.metric)
    readings = {d.speaks_for: d for d in (decision, decision.beside) if d is not None}
    intervals = {"rows": readings["these sites"].interval}
    if "sites like these" in readings:
        intervals["both"] = readings["sites like these"].interval
    intervals |= {"clients": clients_interval(gains), "t over clients": t_interval(gains)}
    if others:
        intervals |= tried(gains, played, s, rng)
    return {
        "truth": truth,
        "picked": played.picked,
        "gain": gains.mean,
        "answer": decision.answer,
        "answers": {who: d.answer for who, d in readings.items()},
        "p_rows": readings["these sites"].p,
        "p_clients": clients_test(gains),
        "intervals": intervals,
    }


def share(hits: Iterable[bool]) -> dict[str, float]:
    """A share, and its binomial error."""
    each = np.array(list(hits), float)
    mean = float(each.mean())
    return {
        "share": round(mean, 4),
        "error": round(float(np.sqrt(mean * (1 - mean) / len(each))), 4),
    }


def cell(s: Setting, found: list[dict[str, Any]]) -> dict[str, Any]:
    """What the federations of one setting come to."""
    answers = [f["answer"] for f in found]
    row: dict[str, Any] = {
        "setting": asdict(s),
        "federations": len(found),
        "speaks_for": "sites like these" if s.sites >= 8 else "these sites",
        "answers": {a: share(x == a for x in answers) for a in ANSWERS},
        "mean_gain": round(float(np.mean([f["gain"] for f in found])), 5),
        "p_rows_below_level": share(f["p_rows"] < 0.05 for f in found),
        "p_clients_below_level": share(f["p_clients"] < 0.05 for f in found),
    }
    for who in ("these sites", "sites like these"):
        told = [f["answers"][who] for f in found if who in f["answers"]]
        if told:
            row[f"told: {who}"] = share(a in ("helps", "harms") for a in told)
    if found[0]["truth"] is not None:
        each = np.array([f["truth"] for f in found])
        these = np.array([f["truth"][f["picked"]] for f in found])
        like = each.mean(0)[[f["picked"] for f in found]]
        row["true_gain"] = round(float(these.mean()), 5)
        row["coverage"] = {
            name: covered([f["intervals"][name] for f in found], these, like)
            for name in found[0]["intervals"]
        }
    return row


def covered(intervals: list[Interval], these: np.ndarray, like: np.ndarray) -> dict[str, Any]:
    low, high = np.array(intervals).T
    width = float(np.median(high - low))
    return {
        "these sites": share((low <= these) & (these <= high)),
        "sites like these": share((low <= like) & (like <= high)),
        "median_width": round(width, 4) if np.isfinite(width) else None,
    }


ANSWERS = ("helps", "harms", "no difference", "cannot tell")
SIZES = (4, 6, 10, 20)
SHAPES = ((80, 1), (160, 3), (320, 3), (80, 10))
SMALL = ((4, 80, 1), (4, 160, 3), (4, 80, 10), (4, 320, 3), (6, 160, 3))
SMALL += ((10, 80, 1), (10, 80, 3), (10, 80, 10), (20, 320, 3))
LUCK = ((4, 1600, 1), (4, 1600, 3), (10, 1600, 3))  # trainings differ more than test rows do
REAL = ((4, 160, 1), (4, 160, 5), (10, 160, 1), (10, 160, 5))
NOTHING = [
    *(Setting(kind, *shape) for kind in ("coin", "noise") for shape in SMALL),
    *(Setting("noise", *shape, noise=0.2) for shape in LUCK),
    *(Setting("digits", *shape) for shape in REAL),
]
COVERED = [
    Setting(kind, k, *shape) for kind in ("gain", "spread") for k in SIZES for shape in SHAPES
]
TRIED = [Setting("gain", k, 80, 3) for k in SIZES] + [Setting("spread", 10, 160, r) for r in (1, 3)]
POWER = [  # true gains of about 2, 5 and 10 points
    Setting("gain", k, n, r, columns=c)
    for k, n, c in ((4, 160, 6), (4, 160, 19), (4, 80, 28), (10, 320, 8), (10, 80, 9), (10, 80, 22))
    for r in (1, 3, 10)
]
RANKED = [
    Setting(kind, k, 160, r, metric="roc-auc")
    for kind in ("coin", "noise")
    for k, r in ((4, 3), (10, 1), (10, 3))
]
PARTS: dict[str, list[Setting]] = {
    "nothing": NOTHING,
    "covered": COVERED,
    "tried": TRIED,
    "power": POWER,
    "ranked": RANKED,
}


def quick(draws: int) -> None:
    """Fewer draws than a comparison takes, for there are many to judge."""
    permutation.DRAWS = draws
    permutation.rows_test.__defaults__ = (min(draws, 199),)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--federations", type=int, default=200, help="of each null setting; half of others"
    )
    parser.add_argument("--draws", type=int, default=999, help="of signs, for each test")
    parser.add_argument("--only", choices=PARTS, action="append", help="a part; else all")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    parts = args.only or list(PARTS)
    report: dict[str, Any] = {
        "command": shlex.join(["python", *sys.argv]),
        "commit": commit,
        "device": f"cpu ({platform.machine()}, {args.processes} processes of one thread)",
        "draws": args.draws,
        "rows": [],
    }
    with ProcessPoolExecutor(args.processes, initializer=quick, initargs=(args.draws,)) as pool:
        for part in parts:
            for s in PARTS[part]:
                work = partial(federation, s, others=part == "tried")
                # false answers are rare: they are counted in twice as many
                times = args.federations // (1 if part == "nothing" else 2)
                found = list(pool.map(work, range(times), chunksize=10))
                row = {"part": part, **cell(s, found)}
                report["rows"].append(row)
                print(json.dumps(row, ensure_ascii=False), flush=True)
                if args.out:
                    args.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
