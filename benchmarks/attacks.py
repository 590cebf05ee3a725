"""Who is protected from one hostile client in five, and at what price, client by client.

    python benchmarks/attacks.py --out benchmarks/results/attacks.json

Attacks stand outside of methods: hostile clients have other labels or rows, or send something else
than what they learnt. Their uploads are as many as ever, and all finite. Honest clients are tested
with the models that they would use.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor.core import rng, tree
from fedtailor.core.data import Data
from fedtailor.core.method import Method, Outcome
from fedtailor.core.rng import Turn
from fedtailor.core.tree import Tree
from fedtailor.core.uploads.moves import averaged, moved, norm_of, with_averaged
from fedtailor.engine import ClientData, Simulation
from fedtailor.engine.client_data import Rows
from fedtailor.results.config import make_config
from fedtailor.runs.build import make_method, make_task
from fedtailor.runs.data import load_run_data

CLIENTS, HOSTILE, TARGET = 20, 4, 0
METHODS = ("fedavg", "ditto", "fedrep", "fedala")
DEFENCES = ("mean", "median", "trimmed", "krum", "multikrum", "geometric", "clip", "max-norm")
ATTACKS = ("nobody", "label flip", "sign flip", "noise", "backdoor")
PARTITION = "dirichlet:0.3"
BOUND = 0.5  # of --max-norm: about the median of honest uploads' norms in these runs
FLIPPED, NOISE, BOOST = -4.0, 50.0, 5.0  # times the own move; N/4 would own a mean of equals


class Case(NamedTuple):
    """One run."""

    method: str
    defence: str
    attack: str
    partition: str
    seed: int
    rounds: int


# ------------------------------------------------------------------------------------ attacks


def patched(x: Tensor) -> Tensor:
    """Images with the trigger: four white pixels in a corner."""
    out = x.clone()
    out[..., -2:, -2:] = x.max()
    return out


def with_hostile_rows(data: ClientData, hostile: Tensor, attack: str, classes: int) -> ClientData:
    """The data as hostile clients learn from them; nobody's test rows change."""
    own = [r.numpy() for r in data.train.each()]
    if attack == "label flip":
        y = data.y.clone()
        rows = torch.cat([part.each()[i] for part in (data.train, data.val) for i in hostile])
        y[rows] = classes - 1 - y[rows]
        return data._replace(y=y)
    if attack == "backdoor":  # half of their rows have the trigger, and the label that it is for
        rows = np.concatenate([own[i] for i in hostile])
        more = patched(data.x[rows])
        at = len(data.x)
        for i in hostile.tolist():
            own[i] = np.concatenate([own[i], np.arange(at, at + len(own[i]))])
            at = int(own[i][-1]) + 1
        x, y = torch.cat([data.x, more]), torch.cat([data.y, torch.full((len(rows),), TARGET)])
        return data._replace(x=x, y=y, train=Rows.of(own))
    return data


def with_hostile_clients(host: Method, hostile: Tensor, attack: str) -> Method:
    """A method some of whose clients send something else than what they learnt."""
    factors = {"sign flip": FLIPPED, "backdoor": BOOST}
    if attack not in (*factors, "noise"):
        return host
    flags = torch.zeros(CLIENTS, dtype=torch.bool)
    flags[hostile] = True

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        sent = tree.drop(msg, ["hostile"])
        out = host.client(sent, state, data, turn)
        values = averaged(out.upload)
        move = moved(sent, values)
        if attack == "noise":
            size = NOISE * norm_of(move) / sum(p.numel() for p in tree.leaves(move)) ** 0.5
            flat = tree.flatten(move)
            keys = rng.split(turn.aside().key, len(flat))
            other = tree.unflatten(
                {
                    k: size.to(p.dtype) * rng.normal(key, *p.shape, dtype=p.dtype)
                    for key, (k, p) in zip(keys, flat.items(), strict=True)
                }
            )
        else:
            other = tree.scale(move, factors[attack])
        # what was sent, and the other move instead of the own one
        false = tree.map(lambda v, m, o: v - m + o, values, move, other)
        chosen = tree.where(msg["hostile"], false, values)
        return out._replace(upload=with_averaged(out.upload, chosen))

    return host._replace(
        send=lambda server, cid, turn: host.send(server, cid, turn) | {"hostile": flags[cid]},
        client=client,
        personal=lambda msg, state, data, turn: host.personal(
            tree.drop(msg, ["hostile"]), state, data, turn
        ),
        start=lambda msg, initial, key: host.start(tree.drop(msg, ["hostile"]), initial, key),
    )


# ------------------------------------------------------------------------------------ runs


def play(case: Case) -> dict[str, Any]:
    """Honest clients' accuracies after a run, the trigger's success, and how uploads looked."""
    begun = time.perf_counter()
    torch.set_num_threads(1)
    name = case.method if case.defence in ("mean", "max-norm") else f"{case.method}+{case.defence}"
    settings = {
        "data": "digits",
        "model": "mlp",
        "clients": CLIENTS,
        "partition": case.partition,
        "partition_seed": case.seed,
        "split_seed": case.seed,
        "seed": case.seed,
        "rounds": case.rounds,
        "batch": 20,
        "lr": 0.1,
        "device": "cpu",
        "max_norm": BOUND if case.defence == "max-norm" else 0.0,
    }
    options = {"head_epochs": 2} if case.method == "fedrep" else {}
    loaded = load_run_data(make_config(name, settings, options))
    config, form = loaded.config, loaded.encoder.form
    hostile = rng.permutation(rng.key(case.seed, rng.COHORT), CLIENTS)[:HOSTILE].sort().values
    honest = torch.tensor([i for i in range(CLIENTS) if i not in hostile.tolist()])
    world = with_hostile_rows(loaded.client_data, hostile, case.attack, form.classes)
    task = make_task(config, form)
    method = with_hostile_clients(make_method(config, task), hostile, case.attack)
    sim = Simulation(
        method, world, task, seed=case.seed, rounds=case.rounds, recipe=config.recipe()
    )
    odd = torch.zeros(CLIENTS)
    looks = []
    for _ in range(case.rounds):
        report = sim.step(torch.arange(CLIENTS), on_nan="skip")
        assert report.uploads is not None
        odd[report.taken] += report.uploads.odd.double()
        looks.append(torch.stack([report.uploads.norm, report.uploads.distance]))
    scores = sim.score(honest).test.correct / world.test.n[honest]
    return {
        **case._asdict(),
        "accuracy": [round(v, 4) for v in scores.tolist()],
        "rows": world.train.n[honest].tolist(),
        "triggered": round(success(sim, world, honest), 4) if case.attack == "backdoor" else None,
        "odd": {"hostile": share(odd[hostile], case), "honest": share(odd[honest], case)},
        "hostile": hostile.tolist(),
        "looks": [[[float(f"{v:.4g}") for v in row] for row in one.tolist()] for one in looks],
        "seconds": round(time.perf_counter() - begun, 2),
    }


def share(odd: Tensor, case: Case) -> float:
    return round(float(odd.sum()) / (len(odd) * case.rounds), 5)


def success(sim: Simulation, world: ClientData, honest: Tensor) -> float:
    """The share of honest clients' other test rows that the trigger gives its label."""
    rows, hit, seen = world.test.each(), 0, 0
    for cid, model in sim.models(ids=honest):
        own = rows[cid][world.y[rows[cid]] != TARGET]
        if len(own):
            said = sim.method.predict(model, patched(world.x)[own]).argmax(-1)
            hit, seen = hit + int((said == TARGET).sum()), seen + len(own)
    return hit / max(seen, 1)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    for seed in range(arguments.seeds):
        for partition in arguments.partitions:
            for method in arguments.methods:
                for attack in arguments.attacks:
                    for defence in arguments.defences:
                        yield Case(method, defence, attack, partition, seed, arguments.rounds)


# ------------------------------------------------------------------------------------ summary


def interval(values: list[float]) -> list[float | None]:
    """Mean over seeds, and half the width of its 95 % interval (Student's t); None of one seed."""
    from scipy.stats import t

    x = np.array(values)
    if len(x) < 2:
        return [round(float(x.mean()), 4), None]
    half = t.ppf(0.975, len(x) - 1) * x.std(ddof=1) / len(x) ** 0.5
    return [round(float(x.mean()), 4), round(float(half), 4)]


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each partition, method, attack and defence: what honest clients got."""
    keys = ("partition", "method", "attack", "defence")
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault(tuple(run[k] for k in keys), []).append(run)
    plain = {
        key: np.concatenate([r["accuracy"] for r in found])
        for key, found in groups.items()
        if key[2:] == ("nobody", "mean")
    }
    out = []
    for key, found in groups.items():
        all_ = np.concatenate([r["accuracy"] for r in found])
        before = plain.get((*key[:2], "nobody", "mean"))
        out.append(
            dict(zip(keys, key, strict=True))
            | {
                "mean": interval([float(np.mean(r["accuracy"])) for r in found]),
                "worst": interval([float(np.min(r["accuracy"])) for r in found]),
                "bottom5": round(float(np.sort(all_)[: max(1, len(all_) // 20)].mean()), 4),
                # of honest clients, against the plain mean with nobody hostile
                "hurt": None if before is None else round(float((all_ < before - 0.1).mean()), 4),
                "triggered": interval([r["triggered"] for r in found])
                if found[0]["triggered"] is not None
                else None,
                "odd": {
                    who: round(float(np.mean([r["odd"][who] for r in found])), 5)
                    for who in ("hostile", "honest")
                },
            }
        )
    return out


def main() -> None:
    from speed import commit

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--defences", nargs="+", default=DEFENCES, choices=DEFENCES)
    parser.add_argument("--attacks", nargs="+", default=ATTACKS, choices=ATTACKS)
    parser.add_argument("--partitions", nargs="+", default=[PARTITION])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--commit", help="where there is no git to ask")
    parser.add_argument("--looks", type=Path, help="also keep every upload's norm and distance")
    parser.add_argument("--out", type=Path, required=True, help="JSON to write")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    begun, runs, looks = time.perf_counter(), [], []
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, mp_context=spawned) as pool:
        for run in pool.map(play, cases(arguments), chunksize=2):
            looks.append({k: run.pop(k) for k in ("looks", "hostile")} | dict(run))
            runs.append(run)
            if len(runs) % 50 == 0:
                print(len(runs), round(time.perf_counter() - begun), file=sys.stderr, flush=True)
    report = {
        "command": f"python {' '.join(sys.argv)}",
        "commit": arguments.commit or commit(),
        "device": f"cpu ({platform.machine()}, {arguments.jobs} processes of one thread)",
        "torch": torch.__version__,
        "seconds": round(time.perf_counter() - begun),
        "clients": CLIENTS,
        "hostile": HOSTILE,
        "seeds": arguments.seeds,
        "rounds": arguments.rounds,
        "max_norm": BOUND,
        "factors": {"sign flip": FLIPPED, "noise": NOISE, "backdoor": BOOST},
        "runs": len(runs),
        "rows": summary(runs),
    }
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    if arguments.looks:
        arguments.looks.write_text(json.dumps(looks) + "\n")


if __name__ == "__main__":
    main()
