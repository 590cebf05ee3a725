"""Is the verdict of real comparisons calibrated? Answers where there is nothing to find, and power.

    python benchmarks/verdict_runs.py --federations 200 --out benchmarks/results/verdict-runs.json
    python benchmarks/verdict_runs.py --single 100 --out benchmarks/results/verdict-single.json

Everything is as a user would have it: `fedtailor.compare` on tables drawn anew, with networks that
are trained, the method picked on validation rows and judged on test rows.

- `coin`: labels are coin flips; FedAvg and Ditto against training alone.
- `noise`: real digits, the same distribution at every client, and "methods" that are training alone
  with batches drawn anew: they differ by training noise and nothing else.
- `gain ROWS`: sites share a rule and have ROWS rows each: FedAvg and Ditto do help, the more the
  fewer rows a site has. The mean gain over all federations tells what there was to find.
- with `--single`: what is said of single sites, `noise` again, on coin flips, with log loss and few
  sites of many rows: there two trainings of one method differ by more than chance in the rows.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedtailor
from fedtailor import METHODS, Recipe
from fedtailor.core import rng

SITES, COLUMNS, REPEATS, ROUNDS = 10, 8, 3, 5
ROWS = 80
GAINS = (40, 80, 240)  # rows of a site, where federation helps
SINGLE = {"one repeat": 1, "two repeats": 2, "five repeats": 5}
FEW_SITES, MANY_ROWS = 5, 200


def table(kind: str, seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Rows and labels of each site."""
    draw = np.random.default_rng([seed, sum(kind.encode())])
    if kind == "noise":
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        chosen = draw.permutation(len(y))[: SITES * ROWS]
        return {f"s{i}": (x[r] / 16.0, y[r]) for i, r in enumerate(np.split(chosen, SITES))}
    coin, single = kind == "coin" or kind in SINGLE, kind in SINGLE
    rows = (MANY_ROWS if single else ROWS) if coin else int(kind.split()[1])
    rule = draw.normal(size=COLUMNS)
    found = {}
    for site in range(FEW_SITES if single else SITES):
        x = draw.normal(size=(rows, COLUMNS))
        chance = np.full(rows, 0.5) if coin else 1 / (1 + np.exp(-x @ rule))
        found[f"s{site}"] = (x, (draw.random(rows) < chance).astype(np.int64))
    return found


def noisy(number: int) -> Any:
    """Training alone with other batches."""

    def factory(task: Any, *, recipe: Recipe = Recipe()) -> Any:
        """Training alone, drawn anew."""
        alone = METHODS["local"](task, recipe=recipe)

        def client(msg: Any, state: Any, data: Any, turn: Any) -> Any:
            return alone.client(msg, state, data, turn._replace(key=rng.fold(turn.key, number)))

        return alone._replace(client=client)

    factory.__name__ = f"noise{number}"
    return factory


def judged(job: tuple[str, int]) -> dict[str, Any]:
    """One comparison's decision."""
    torch.set_num_threads(1)
    kind, seed = job
    noise = kind == "noise" or kind in SINGLE
    methods = [noisy(i) for i in (1, 2, 3)] if noise else ["fedavg", "ditto"]
    found = fedtailor.compare(
        *methods,
        data=table(kind, seed),
        metric="log-loss" if kind in SINGLE else "accuracy",
        rounds=ROUNDS,
        eval_every=ROUNDS,
        repeats=SINGLE.get(kind, REPEATS),
        seed=10 * seed,
        yardsticks=False,
        device="cpu",
        compile="never",
    )
    decision = found["decision"]
    best = max(
        (m for m in found["table"] if m != "local"),
        key=lambda m: found["table"][m]["score"]["mean"]["mean"],
    )
    old = found["table"][best]
    helped = old["score"]["mean"]["mean"] > found["table"]["local"]["score"]["mean"]["mean"]
    of_clients = Counter(d["answer"] for d in found["clients"].values())
    return {
        "kind": kind,
        "answer": decision["answer"],
        "gain": decision["gain"],
        "interval": decision["interval"],
        "beside": (decision["beside"] or {}).get("answer"),
        "beside_interval": (decision["beside"] or {}).get("interval"),
        "clients": dict(of_clients),
        "any_client": bool(of_clients["helps"] or of_clients["harms"]),
        "rule_of_0_1": bool(helped and old["better_off"] > old["worse_off"]),
    }


def _covers(interval: list[float | None] | None, value: float) -> bool:
    low, high = interval or (None, None)
    return (low is None or low <= value) and (high is None or value <= high)


def summed(kind: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    """What the federations of a kind come to; the true gain of `gain` is the mean over all."""
    count = len(found)
    true = 0.0 if kind in ("coin", "noise", *SINGLE) else float(np.mean([f["gain"] for f in found]))
    answers = Counter(f["answer"] for f in found)
    told = sum(answers[a] for a in ("helps", "harms"))
    of_clients: Counter[str] = Counter()
    for one in found:
        of_clients.update(one["clients"])
    share = told / count
    old = {"rule_of_0_1_says_helps": round(float(np.mean([f["rule_of_0_1"] for f in found])), 4)}
    return {
        "kind": kind,
        "federations": count,
        "answers": dict(answers),
        "helps_or_harms": round(share, 4),
        "standard_error": round(float(np.sqrt(share * (1 - share) / count)), 4),
        "mean_gain": round(float(np.mean([f["gain"] for f in found])), 4),
        "intervals_that_cover": round(
            float(np.mean([_covers(f["interval"], true) for f in found])), 4
        ),
        "these_sites": dict(Counter(str(f["beside"]) for f in found)),
        "clients": dict(of_clients),
        "any_client": round(float(np.mean([f["any_client"] for f in found])), 4),
    } | ({} if kind in SINGLE else old)  # which knew accuracy alone


def draw(results: Path, out: Path) -> None:
    """A picture of the answers, by what there was to find."""
    from fedtailor.figures.style import empty_figure, save_figure, tidy

    kinds = json.loads(results.read_text())["kinds"]
    picture = empty_figure(7.0, 2.6)
    axes = picture.add_subplot()
    colours = {"helps": "#1b7837", "no difference": "#9ecae1", "cannot tell": "#d9d9d9"}
    colours["harms"] = "#b2182b"
    names = []
    for at, kind in enumerate(reversed(kinds)):
        left = 0.0
        for answer, colour in colours.items():
            share = 100 * kind["answers"].get(answer, 0) / kind["federations"]
            named = answer if at == 0 else None
            axes.barh(at, share, left=left, color=colour, label=named, edgecolor="white")
            left += share
        what = {"coin": "coin flips", "noise": "training noise"}.get(kind["kind"])
        gain = f"true gain {100 * kind['mean_gain']:.1f} points"
        names.append(f"{what}: nothing to find" if what else gain)
        old = 100 * kind["rule_of_0_1_says_helps"]
        named = "version 0.1 said helps" if at == 0 else None
        axes.plot([old, old], [at - 0.4, at + 0.4], color="black", lw=1.6, label=named)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("% of federations")
    axes.set_xlim(0, 100.5)
    tidy(axes)
    picture.legend(loc="outside upper center", ncols=5, frameon=False, fontsize=7.5)
    save_figure(picture, out.parent, out.stem, (out.suffix[1:],))


def _commit() -> str:
    asked = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--federations", type=int, default=200, help="of each kind of nothing")
    parser.add_argument("--power", type=int, default=100, help="of each kind of gain")
    parser.add_argument("--single", type=int, help="instead: of each kind about single sites")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--commit", help="of the code, where git is not there to be asked")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--draw", type=Path, help="only draw the results in --out, as this file")
    given = parser.parse_args()
    if given.draw:
        draw(given.out, given.draw)
        return
    kinds = {"coin": given.federations, "noise": given.federations}
    kinds |= {f"gain {rows}": given.power for rows in GAINS}
    if given.single:
        kinds = dict.fromkeys(SINGLE, given.single)
    jobs = [(kind, seed) for kind, count in kinds.items() for seed in range(count)]
    begun = time.monotonic()
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.jobs, mp_context=context) as pool:
        for number, one in enumerate(pool.map(judged, jobs, chunksize=2), start=1):
            found[one["kind"]].append(one)
            if number % 20 == 0:
                print(f"{number}/{len(jobs)}", file=sys.stderr, flush=True)
    commit = given.commit or _commit()
    asked = f"--federations {given.federations} --power {given.power}"
    result = {
        "command": "python benchmarks/verdict_runs.py "
        + (f"--single {given.single}" if given.single else asked),
        "commit": commit,
        "device": f"{platform.machine()}, {given.jobs} processes",
        "seconds": round(time.monotonic() - begun, 1),
        "sites": FEW_SITES if given.single else SITES,
        "rows": MANY_ROWS if given.single else ROWS,
        "columns": COLUMNS,
        "repeats": SINGLE if given.single else REPEATS,
        "rounds": ROUNDS,
        "kinds": [summed(kind, each) for kind, each in found.items() if each],
    }
    text = json.dumps(result, indent=1) + "\n"
    if given.out:
        given.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
