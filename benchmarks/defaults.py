"""Which defaults are good everywhere: every declared option of every method, on several data sets.

    python benchmarks/defaults.py --folder DATA --worlds digits wisdm heart --jobs 2 --out FILE
    python benchmarks/defaults.py --show benchmarks/results/defaults-*.json

Around a method's defaults one option at a time takes some values of the range that its file
declares. A setting's value in a world is its mean over clients on validation rows; test rows stand
aside, as in `fedtailor tune`. Its regret is what the method's best setting has there more. A
default is good if its largest regret over all worlds is small; `--seeds 1 2` with the `--cases`
that are left says how much of that is one seed's luck.

`--folder` has wisdm.csv, heart.csv (rows of four hospitals), cifar10.npz and mnist.npz.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from speed import commit

import fedtailor
from fedtailor.core.errors import BadInput
from fedtailor.engine.simulation import Diverged
from fedtailor.methods import METHODS
from fedtailor.results.config import Config, make_config
from fedtailor.runs.data import RunData, load_run_data
from fedtailor.runs.device import hardware
from fedtailor.runs.run import Runner
from fedtailor.runs.tuning.play import without_test_rows
from fedtailor.runs.tuning.space import space_of

Setting = dict[str, Any]

WORLDS: dict[str, dict[str, Any]] = {
    "digits": {"data": "digits", "clients": 10, "partition": "dirichlet:0.1", "rounds": 30},
    "digits-20": {"data": "digits", "clients": 20, "partition": "pathological:2", "rounds": 30},
    # few rows, much alike: here federation helps
    "digits-mild": {"data": "digits", "clients": 30, "partition": "dirichlet:1", "rounds": 30},
    "wisdm": {"data": "{}/wisdm.csv", "client_column": "user", "label": "class", "rounds": 30},
    "heart": {"data": "{}/heart.csv", "client_column": "hospital", "label": "num", "rounds": 30},
    "mnist": {"data": "{}/mnist.npz", "clients": 20, "partition": "dirichlet:0.1", "rounds": 30},
    "cifar10": {"data": "{}/cifar10.npz", "clients": 20, "partition": "dirichlet:0.1",
                "rounds": 60},
    "cifar10-50": {"data": "{}/cifar10.npz", "clients": 50, "partition": "pathological:2",
                   "rounds": 60},
}  # fmt: skip
MODELS = {"mnist": "cnn", "cifar10": "cnn", "cifar10-50": "cnn"}
# beside one at a time: what was found to go together, and values between
TOGETHER: dict[str, tuple[Setting, ...]] = {
    "pfedla": ({"hn_lr": 0.05}, {"hn_lr": 0.5}),
    "pfedme": (
        {"eta_p": 0.03},
        {"eta_p": 0.03, "eta": 0.05},
        {"eta_p": 0.03, "eta": 0.05, "R": 0},
        {"eta_p": 0.03, "eta": 0.03, "lam": 30.0, "R": 0},
        {"eta_p": 0.05, "eta": 0.05, "lam": 10.0, "R": 0},
    ),
    "plgu-lf": ({"rho": 0.01}, {"rho": 0.05}),
}
POINTS = 4  # values of an option that are tried beside its default


class Case(NamedTuple):
    """One run."""

    world: str
    method: str
    setting: Setting
    seed: int


def settings_of(method: str) -> Iterator[Setting]:
    """The defaults, then one option at a time over its range; rates of the run stay."""
    yield {}
    usual = make_config(method, {}, {}).options
    for axis in space_of(METHODS[method], method, may_be_empty=True):
        if not axis.setting:
            for value in axis.points(POINTS):
                if value != usual.get(axis.name):
                    yield {axis.name: value}
    yield from TOGETHER.get(method, ())


def config_of(case: Case, folder: Path, device: str) -> Config:
    world = WORLDS[case.world]
    given = {k: v.format(folder) if isinstance(v, str) else v for k, v in world.items()}
    given |= {"model": MODELS.get(case.world, "mlp"), "device": device, "seed": case.seed}
    given |= {"eval_every": given["rounds"], "val": 0.2}
    return make_config(case.method, given, case.setting)


@cache
def rows_of(world: str, folder: Path, device: str, seed: int) -> RunData:
    return without_test_rows(
        load_run_data(config_of(Case(world, "fedavg", {}, seed), folder, device))
    )


def play(told: tuple[Case, Path, str, float]) -> dict[str, Any] | None:
    """What a case comes to on validation rows; None if it is too late to begin."""
    case, folder, device, until = told
    if time.monotonic() > until:
        return None
    torch.set_num_threads(1)
    begun = time.perf_counter()
    row: dict[str, Any] = case._asdict()
    try:
        config = config_of(case, folder, device)
        data = rows_of(case.world, folder, device, case.seed)
        result = Runner(config, data).play()
    except (BadInput, Diverged) as error:
        return row | {"failed": str(error)}
    except Exception as error:  # a fault of ours: the others are played all the same
        return row | {"failed": f"{type(error).__name__}: {error}"}
    return row | {
        "mean": result["val"].get("mean"),
        "worst": result["val"].get("worst"),
        "general": (result.get("global") or {}).get("mean"),
        "seconds": round(time.perf_counter() - begun, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("data"))
    parser.add_argument("--worlds", nargs="+", choices=list(WORLDS), default=list(WORLDS))
    parser.add_argument("--methods", nargs="+", default=sorted(METHODS))
    parser.add_argument("--cases", type=Path, help="JSON: settings of each method, not all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--minutes", type=float, default=1e9, help="no run begins after these")
    parser.add_argument("--commit", help="where there is no git to ask")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path, nargs="+", help="results: say what came of them")
    said = parser.parse_args()
    if said.show:
        show([row for path in said.show for row in json.loads(path.read_text())["rows"]])
        return
    chosen = json.loads(said.cases.read_text()) if said.cases else None
    cases = [
        Case(world, method, setting, seed)
        for world in said.worlds
        for method in (chosen or said.methods)
        for setting in (chosen[method] if chosen else settings_of(method))
        for seed in said.seeds
    ]
    report: dict[str, Any] = {
        "command": f"python {' '.join(sys.argv)}",
        "commit": said.commit or commit(),
        "version": fedtailor.__version__,
        "device": f"{said.device} ({hardware(torch.device(said.device))})",
        "worlds": {k: WORLDS[k] for k in said.worlds},
        "rows": [],
    }
    until = time.monotonic() + 60 * said.minutes
    told = [(case, said.folder, said.device, until) for case in cases]
    with multiprocessing.get_context("spawn").Pool(said.jobs) as pool:
        for row in pool.imap_unordered(play, told):
            if row is None:
                continue
            report["rows"].append(row)
            print(json.dumps(row), flush=True)
    report["not_played"] = len(cases) - len(report["rows"])
    if said.out:
        said.out.parent.mkdir(parents=True, exist_ok=True)
        said.out.write_text(json.dumps(report, indent=1) + "\n")


def show(rows: list[dict[str, Any]]) -> None:
    """Each method's settings by their largest regret, the defaults first."""
    worlds = [w for w in WORLDS if any(r["world"] == w for r in rows)]
    print("method setting | largest regret | " + " ".join(worlds))
    for method in sorted({r["method"] for r in rows}):
        mine: dict[str, dict[str, list[float]]] = {}
        for row in rows:
            if row["method"] == method:
                of = mine.setdefault(json.dumps(row["setting"]), {}).setdefault(row["world"], [])
                of.append(row.get("mean") or 0.0)  # what diverged is worth nothing
        means = {s: {w: float(np.mean(v)) for w, v in per.items()} for s, per in mine.items()}
        best = {w: max((per[w] for per in means.values() if w in per), default=0.0) for w in worlds}
        for setting, per in means.items():
            regret = {w: best[w] - per[w] for w in per}
            told = " ".join(f"{per[w]:.3f}" if w in per else "-" for w in worlds)
            print(f"{method} {setting} | {max(regret.values()):.3f} | {told}")


if __name__ == "__main__":
    main()
