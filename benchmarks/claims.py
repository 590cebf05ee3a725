"""Behaviour that the five papers claim, tried on scikit-learn's digits, with 5 seeds.

    python benchmarks/claims.py --out benchmarks/results/claims.json

Every claim is a function of a seed that returns numbers and whether the claim holds for them. What
does not hold is reported like what does.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

Finding = dict[str, Any]
SETTING = {"data": "digits", "model": "mlp", "clients": 20, "partition": "dirichlet:0.1"}


def play(method: str, seed: int, **settings: Any) -> tuple[dict[str, Any], Path]:
    """A run and its folder."""
    import fedtailor

    folder = Path(tempfile.mkdtemp()) / "run"
    options = settings.pop("options", None)
    return fedtailor.run(method, out=folder, seed=seed, options=options, **settings), folder


def history(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(row) for row in (folder / "history.jsonl").read_text().splitlines()]


def last(records: dict[str, Any], name: str) -> np.ndarray:
    by_round = records[name]
    return np.asarray(by_round[max(by_round)].numpy(), dtype=float)


def save_partition(rows: list[np.ndarray], labels: np.ndarray, seed: int) -> str:
    from fedtailor.partition import save_partition, split_rows

    names = [f"client-{i}" for i in range(len(rows))]
    path = Path(tempfile.mkdtemp()) / "partition.npz"
    save_partition(split_rows(rows, labels, names, seed=seed, scheme="hand-made"), path)
    return str(path)


def eight_clients(seed: int) -> tuple[str, int, int, int]:
    """pFedLA's set-up: a target, one client with its 4 classes, one that shares 3, five others."""
    from sklearn.datasets import load_digits

    labels = load_digits().target
    draw = np.random.default_rng(seed)
    classes = draw.permutation(10)
    target, rest = classes[:4], classes[4:]
    held = [target, target, np.append(target[:3], rest[0])]
    held += [draw.choice(rest, 4, replace=False) for _ in range(5)]
    rows: list[list[np.ndarray]] = [[] for _ in held]
    for c in range(10):
        owners = [i for i, mine in enumerate(held) if c in mine]
        parts = np.array_split(draw.permutation(np.flatnonzero(labels == c)), max(len(owners), 1))
        for i, part in zip(owners, parts, strict=False):
            rows[i].append(part[:40])  # equal amounts
    return save_partition([np.concatenate(r) for r in rows], labels, seed), 0, 1, 2


def pfedla_weights(seed: int) -> Finding:
    """pFedLA weighs itself most, then the client with the same classes, then a similar one."""
    from fedtailor import read_records

    path, target, same, similar = eight_clients(seed)
    settings = {
        "data": "digits",
        "model": "mlp",
        "partition_file": path,
        "rounds": 600,
    }
    _, folder = play("pfedla", seed, eval_every=600, options={"hn_lr": 0.05}, **settings)
    weights = last(read_records(folder), "server/aggregation_weights").mean(0)[target]
    others = float(np.delete(weights, [target, same, similar]).mean())
    own, alike, near = (float(weights[i]) for i in (target, same, similar))
    return {
        "self": own,
        "same classes": alike,
        "similar": near,
        "others (mean)": others,
        "holds": own > alike > near > others,
        "self first": own > max(alike, near, others),
        "same before others": alike > others,
    }


def _latent(seed: int, **more: Any) -> dict[str, Any]:
    return {
        "data": "digits", "model": "mlp", "clients": 15, "partition": "latent:5",
        "partition_seed": seed, "rounds": 20, "epochs": 5, "lr": 0.05,
    } | more  # fmt: skip


def _groups(seed: int, permuted: bool) -> tuple[np.ndarray, np.ndarray]:
    """Each client's own latent group, and the group of the rows that it is validated on."""
    from fedtailor.partition.latent import latent_clusters
    from fedtailor.results.config import make_config
    from fedtailor.runs.data import find_source, make_partition

    config = make_config("local", _latent(seed, permute_targets=permuted), {})
    source = find_source(config)
    cluster = latent_clusters(source.raw, source.labels, 5, seed=seed)
    made = make_partition(config, source)
    own = np.array([np.bincount(cluster[r]).argmax() for r in made.train])
    aim = np.array([np.bincount(cluster[r]).argmax() for r in made.val])
    return own, aim


def _affinity(seed: int, permuted: bool) -> Finding:
    from fedtailor import read_records

    settings = _latent(seed, permute_targets=permuted)
    result, folder = play("fedfomo", seed, options={"M": 10}, **settings)
    affinity = last(read_records(folder), "server/affinity")
    own, aim = _groups(seed, permuted)
    off = ~np.eye(len(own), dtype=bool)
    wanted = (aim[:, None] == own[None, :]) & off
    return {
        "fedfomo": result["accuracy"]["mean"],
        "fedavg": play("fedavg", seed, **settings)[0]["accuracy"]["mean"],
        "local": play("local", seed, **settings)[0]["accuracy"]["mean"],
        "P to the wanted group": float(affinity[wanted].mean()),
        "P to others": float(affinity[~wanted & off].mean()),
    }


def fedfomo_groups(seed: int) -> Finding:
    """FedFomo's P is larger within a latent group than between groups."""
    found = _affinity(seed, permuted=False)
    return found | {"holds": found["P to the wanted group"] > found["P to others"]}


def fedfomo_targets(seed: int) -> Finding:
    """With permuted targets P prefers clients of the target group, and FedFomo beats the others."""
    found = _affinity(seed, permuted=True)
    upweights = found["P to the wanted group"] > found["P to others"]
    beats = found["fedfomo"] > max(found["fedavg"], found["local"])
    return found | {"P prefers the target group": upweights, "holds": upweights and beats}


def heurpfedla_bytes(seed: int) -> Finding:
    """HeurpFedLA's bytes fall with the number of retained blocks."""
    down = {}
    accuracy = {}
    for k in range(5):
        result, _ = play(
            "heurpfedla",
            seed,
            **SETTING | {"model": "cnn"},
            rounds=10,
            eval_every=10,
            options={"k": k},
        )
        down[str(k)] = result["bytes"]["down"]
        accuracy[str(k)] = result["accuracy"]["mean"]
    values = list(down.values())
    falls = all(a >= b for a, b in itertools.pairwise(values))
    return {"down": down, "accuracy": accuracy, "holds": falls and values[-1] == 0}


def plgu_bottom(seed: int) -> Finding:
    """PLGU-LF lifts the worst 5 % of clients above FedAvg's and Ditto's."""
    settings = SETTING | {"rounds": 60, "epochs": 2, "eval_every": 60}
    ours, _ = play("plgu-lf", seed, options={"D": 1}, **settings)
    avg, _ = play("fedavg", seed, **settings)
    ditto, _ = play("ditto", seed, **settings)
    low = lambda r: r["accuracy"]["bottom5"]
    return {
        "plgu-lf": low(ours),
        "fedavg": low(avg),
        "ditto": low(ditto),
        "mean plgu-lf": ours["accuracy"]["mean"],
        "mean fedavg": avg["accuracy"]["mean"],
        "mean ditto": ditto["accuracy"]["mean"],
        "global plgu-lf": ours["global"]["mean"],
        "holds": low(ours) > max(low(avg), low(ditto)),
    }


def pmixfed_factor(seed: int) -> Finding:
    """pMixFed's mix factor departs from 0.5 as rounds pass, downwards where a client is ahead."""
    from fedtailor import read_records

    _, folder = play("pmixfed", seed, **SETTING, rounds=40, eval_every=1)
    records = read_records(folder)["client/mix_factor"]
    first, end = (np.asarray(records[r].numpy(), dtype=float) for r in (1, 40))
    by_round = {str(r): float(records[r].mean()) for r in (1, 10, 20, 30, 40)}
    return {
        "mean by round": by_round,
        "spread at the end": float(end.std()),
        "holds": bool(np.allclose(first, 0.5) and end.mean() < 0.5),
    }


def joining_drop(seed: int) -> Finding:
    """Mixup softens the fall of FedAlt and FedSim when five clients join at round 10."""
    found: Finding = {}
    settings = SETTING | {"rounds": 14, "join": "10:5", "epochs": 2}
    for host in ("fedalt", "fedsim"):
        for method in (host, f"{host}+mix"):
            result, folder = play(method, seed, **settings)
            lines = history(folder)
            before, after = lines[9]["pre_present"]["mean"], lines[10]["pre_present"]["mean"]
            found[f"{method} drop"] = before - after
            found[f"{method} end"] = result["accuracy"]["mean"]
    found["holds"] = all(found[f"{h}+mix drop"] < found[f"{h} drop"] for h in ("fedalt", "fedsim"))
    return found


def fedala_gain(seed: int) -> Finding:
    """FedALA beats FedAvg, and FedAvg with fine-tuning."""
    settings = SETTING | {"model": "cnn", "rounds": 30, "eval_every": 30}
    ala, _ = play("fedala", seed, **settings)
    avg, _ = play("fedavg", seed, **settings)
    tuned, _ = play("fedavg", seed, **settings, finetune=15)
    mean = lambda r: r["accuracy"]["mean"]
    return {
        "fedala": mean(ala),
        "fedavg": mean(avg),
        "fedavg fine-tuned 15 epochs": mean(tuned),
        "beats fedavg": mean(ala) > mean(avg),
        "holds": mean(ala) > max(mean(avg), mean(tuned)),
    }


CLAIMS: dict[str, Callable[[int], Finding]] = {
    "pfedla-weights": pfedla_weights,
    "fedfomo-groups": fedfomo_groups,
    "fedfomo-targets": fedfomo_targets,
    "heurpfedla-bytes": heurpfedla_bytes,
    "plgu-bottom5": plgu_bottom,
    "pmixfed-factor": pmixfed_factor,
    "joining-drop": joining_drop,
    "fedala-gain": fedala_gain,
}


def one(job: tuple[str, int]) -> tuple[str, int, Finding]:
    import torch

    torch.set_num_threads(1)
    name, seed = job
    begun = time.monotonic()
    found = CLAIMS[name](seed)
    return name, seed, found | {"seconds": round(time.monotonic() - begun, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("claims", nargs="*", default=list(CLAIMS), help=f"of {', '.join(CLAIMS)}")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--commit", help="where there is no git to ask")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # one process per core
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # these networks are too small for a GPU to pay
    jobs = [(name, seed) for seed in range(arguments.seeds) for name in arguments.claims]
    found: dict[str, dict[str, Finding]] = {name: {} for name in arguments.claims}
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for name, seed, finding in pool.map(one, jobs):
            print(name, seed, json.dumps(finding), flush=True)
            found[name][str(seed)] = finding
    describe = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip()
    report = {
        "command": f"python {' '.join(sys.argv)}",
        "commit": arguments.commit or commit or "unknown",
        "device": f"cpu ({platform.processor() or platform.machine()}, {arguments.jobs} processes)",
        "claims": {
            name: {
                "claim": CLAIMS[name].__doc__,
                "holds": sum(bool(f["holds"]) for f in seeds.values()),
                "of": len(seeds),
                "seeds": seeds,
            }
            for name, seeds in found.items()
        },
    }
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
