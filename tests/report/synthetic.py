"""Finished runs that nobody ran: folders with the files that a report reads, of any size."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from fedtailor.results.metrics.table import table_of_metrics

METHODS = ("local", "fedavg", "fedala", "fedfomo", "pfedla", "pmixfed")
TOP = {"local": 0.8, "fedavg": 0.7, "fedala": 0.88, "fedfomo": 0.86, "pfedla": 0.84}


def _confusion(rng: np.random.Generator, mix: np.ndarray, accuracy: np.ndarray) -> np.ndarray:
    """Rows (client, true, predicted, count) with about the accuracy asked for."""
    rows = []
    for client, test in enumerate(mix):
        for label in np.flatnonzero(test):
            right = round(test[label] * accuracy[client])
            wrong = int(test[label]) - right
            if right:
                rows.append((client, label, label, right))
            if wrong:
                rows.append(
                    (client, label, (label + rng.integers(1, len(test))) % len(test), wrong)
                )
    return np.array(rows, dtype=np.int32).reshape(-1, 4)


def _summary(each: np.ndarray, loss: float) -> dict[str, float]:
    few = max(1, round(0.05 * len(each)))
    ranked = np.sort(each)
    found = {
        "mean": each.mean(),
        "weighted": each.mean() + 0.001,
        "std": each.std(),
        "median": np.median(each),
        "bottom5": ranked[:few].mean(),
        "top5": ranked[-few:].mean(),
        "worst": ranked[0],
        "loss": loss,
    }
    return {k: round(float(v), 6) for k, v in found.items()}


def _alike(share: np.ndarray) -> np.ndarray:
    """How much of two clients' class mixes is the same, for all pairs."""
    total = np.zeros((len(share), len(share)), dtype=np.float32)
    for part in share.T.astype(np.float32):
        total += np.minimum(part[:, None], part[None, :])
    return total


def _records(
    rng: np.random.Generator, method: str, clients: int, share: np.ndarray, number: int
) -> dict[str, np.ndarray]:
    ids = np.arange(clients)
    if method == "fedfomo":
        noise = rng.normal(0, 0.05, (clients, clients)).astype(np.float32)
        return {"ids": ids, "server/affinity": number * (_alike(share) - 0.4 + noise)}
    if method == "pfedla":
        one = np.exp(number * 0.3 * _alike(share))
        one /= one.sum(-1, keepdims=True)
        return {"ids": ids, "server/aggregation_weights": np.stack([one, one, one])}
    if method == "pmixfed":
        degree = np.linspace(0.2 + 0.5 / number, 0, 3)[None, :] * np.ones((clients, 1))
        return {"ids": ids, "client/mix_degree": degree.astype(np.float32)}
    if method == "fedala":
        return {"ids": ids, "client/ala_weight": rng.uniform(0.8, 1, (clients, 1))}
    return {}


def make_run(
    folder: Path,
    method: str,
    *,
    clients: int = 8,
    rounds: int = 5,
    seed: int = 0,
    classes: int = 10,
    names: Sequence[str] | None = None,
    data: str = "digits",
    options: dict[str, Any] | None = None,
) -> Path:
    """Writes the folder of one run."""
    layout = np.random.default_rng(7)  # the same clients for all methods and seeds
    share = layout.dirichlet(np.full(classes, 0.2), clients)
    rows = layout.integers(40, 200, clients)
    mix = np.stack([layout.multinomial(n, p) for n, p in zip(rows, share, strict=True)])
    test = mix // 4
    for client in np.flatnonzero(test.sum(1) == 0):
        test[client, 0] = 1
    rng = np.random.default_rng(seed + 100 * sum(map(ord, method)))
    names = list(names or [f"client-{i:04d}" for i in range(clients)])
    folder.mkdir(parents=True)
    hardness = layout.normal(0, 0.06, clients)
    total = test.sum(1)
    sent = 0 if method == "local" else 1_000_000 * clients
    each = np.zeros(clients)
    with (folder / "history.jsonl").open("w") as history:
        for number in range(1, rounds + 1):
            level = TOP.get(method, 0.83) - 0.6 * np.exp(-4 * number / rounds)
            goal = np.clip(level + hardness + rng.normal(0, 0.03, clients), 0, 1)
            each = np.round(np.round(goal * total) / total, 6)
            line = {
                "round": number,
                "cohort": list(range(clients)),
                "bytes": {"up": sent, "down": sent},
                "train_seconds": 0.5,
                "pre": _summary(each, 2.3 * float(np.exp(-number / rounds))),
                "pre_per_client": each.tolist(),
                "seconds": 0.7 * number,
            }
            history.write(json.dumps(line) + "\n")
            noted = _records(rng, method, clients, share, number)
            if noted:
                (folder / "records").mkdir(exist_ok=True)
                noted = {k: np.ascontiguousarray(v) for k, v in noted.items()}
                save_file(noted, folder / "records" / f"{number:06d}.safetensors")
    result = {
        "method": method,
        "options": options or {},
        "data": data,
        "model": "mlp",
        "parameters": 15010,
        "blocks": ["fc1", "fc2", "fc"],
        "clients": clients,
        "partition": "dirichlet:0.2",
        "participation": 1.0,
        "accuracy": _summary(each, 0.8),
        "best_round": rounds,
        "rounds": rounds,
        "bytes": {"up": sent * rounds, "down": sent * rounds},
        "seconds": 0.7 * rounds,
        "train_seconds": 0.5 * rounds,
        "per_client": dict(zip(names, each.tolist(), strict=True)),
        "seed": seed,
        "device": "cpu",
    }
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "preprocessing.json").write_text(
        json.dumps({"classes": [str(c) for c in range(classes)]})
    )
    (folder / "config.toml").write_text(f'# FedTailor\nmethod = "{method}"\nseed = {seed}\n')
    with (folder / "clients.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["client", "train", "val", "test", "rounds", "held_out"])
        for i, name in enumerate(names):
            writer.writerow([name, int(rows[i] - total[i]), 0, int(total[i]), rounds, 0])
    at = np.argwhere(mix)
    counted = np.column_stack([at, mix[at[:, 0], at[:, 1]]]).astype(np.int32)
    kept = {"confusion": _confusion(rng, test, each), "class_counts": counted}
    plain = {k: np.ascontiguousarray(v) for k, v in kept.items()}
    save_file(plain, folder / "confusion.safetensors")
    return folder


def make_comparison(
    folder: Path, methods: Sequence[str] = METHODS, *, seeds: int = 1, **settings: Any
) -> Path:
    """Writes the folder of a comparison."""
    for method in methods:
        for seed in range(seeds):
            make_run(folder / "runs" / f"{method}-seed{seed}", method, seed=seed, **settings)
    kept = {"made_by": "FedTailor", "methods": list(methods), "seeds": seeds}
    (folder / "comparison.json").write_text(json.dumps(kept))
    return folder


METRIC = {"classification": "roc-auc", "regression": "rmse", "survival": "concordance"}


def _said(
    rng: np.random.Generator, task: str, rows: int, off: float
) -> tuple[np.ndarray, np.ndarray]:
    """Labels, and what a model says of them that errs the more, the larger `off` is."""
    hidden = np.linspace(-2, 2, rows)
    noisy = hidden + rng.normal(0, off, rows)
    if task == "classification":
        return (hidden > 0).astype(np.int64), np.stack([-noisy, noisy], 1)
    if task == "regression":
        return 50 + 10 * hidden, (50 + 10 * noisy)[:, None]
    return np.stack([np.exp(1 - hidden), np.arange(rows) % 4 > 0], 1), noisy[:, None]


def give_outputs(folder: Path, task: str, *, off: float = 0.5) -> Path:
    """Turns a run's folder into one of another task, with outputs and all of its metrics."""
    result = json.loads((folder / "result.json").read_text())
    with (folder / "clients.csv").open() as file:
        tested = {row["client"]: int(row["test"]) for row in csv.DictReader(file)}
    rng = np.random.default_rng(result["seed"] + 10 * sum(map(ord, result["method"])))
    each = [_said(rng, task, n, off) for n in tested.values()]
    labels, said = (np.concatenate(part) for part in zip(*each, strict=True))
    sizes = np.array(list(tested.values()), dtype=np.int64)
    kept = {"last/round": np.array(result["rounds"])}
    for part, keep in (("test", slice(None)), ("val", slice(0, 0))):
        kept[f"labels/{part}"] = labels[keep]
        kept[f"row/{part}"] = np.arange(len(labels))[keep]
        kept[f"n/{part}"] = sizes if part == "test" else 0 * sizes
        kept[f"last/{part}"] = said[keep]
    save_file({k: np.ascontiguousarray(v) for k, v in kept.items()}, folder / "outputs.safetensors")
    table = table_of_metrics(said, labels, tested, task)  # type: ignore[arg-type]
    own = table[METRIC[task]]
    score = {k: v for k, v in own.items() if k not in ("per_client", "undefined")}
    told = {"task": task, "metric": METRIC[task], "metrics": table, "score": score}
    told |= {"accuracy": {}, "per_client": own["per_client"]}
    (folder / "result.json").write_text(json.dumps(result | told))
    lines = []
    for text in (folder / "history.jsonl").read_text().splitlines():
        line = json.loads(text)
        line |= {"pre": score | {"loss": 1.0}, "pre_per_client": list(own["per_client"].values())}
        lines.append(json.dumps(line) + "\n")
    (folder / "history.jsonl").write_text("".join(lines))
    classes = ["well", "ill"] if task == "classification" else []
    (folder / "preprocessing.json").write_text(json.dumps({"classes": classes}))
    (folder / "confusion.safetensors").unlink()
    return folder


def make_tested(
    folder: Path, task: str, off: dict[str, float], *, seeds: int = 1, **settings: Any
) -> Path:
    """Writes the folder of a comparison of some task; `off` says how far each method errs."""
    make_comparison(folder, list(off), seeds=seeds, **settings)
    for method, far in off.items():
        for seed in range(seeds):
            give_outputs(folder / "runs" / f"{method}-seed{seed}", task, off=far)
    return folder


def unfinish(folder: Path, rounds: int) -> Path:
    """Turns a run's folder into what it was after so many rounds: no result yet."""
    result = json.loads((folder / "result.json").read_text())
    ending = ("accuracy", "best_round", "bytes", "seconds", "train_seconds", "per_client")
    begun = {k: v for k, v in result.items() if k not in ending}
    (folder / "begun.json").write_text(json.dumps(begun))
    (folder / "result.json").unlink()
    lines = (folder / "history.jsonl").read_text().splitlines(keepends=True)
    (folder / "history.jsonl").write_text("".join(lines[:rounds]))
    for file in (folder / "records").glob("*.safetensors"):
        if int(file.stem) > rounds:
            file.unlink()
    return folder
