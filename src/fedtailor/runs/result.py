"""What a run found, in numbers and in a table."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from fedtailor.core.steps.privacy import Spent
from fedtailor.core.training import Score
from fedtailor.core.version import __version__
from fedtailor.engine.memory import peak_memory
from fedtailor.methods.describe import page
from fedtailor.results.confusion import TestOutputs
from fedtailor.results.metrics import accuracies, best_round, summarise
from fedtailor.runs.device import hardware
from fedtailor.runs.prepared import PreparedRun


def per_client(score: Score, n: Tensor) -> list[float | None]:
    """Each client's accuracy; None where it has no rows."""
    found = accuracies(score.correct.double().numpy(), n.numpy())
    return [None if math.isnan(a) else round(float(a), 6) for a in found]


def summary(score: Score, n: Tensor) -> dict[str, float]:
    """Accuracy over clients, and the mean loss over rows."""
    found = summarise(score.correct.double().numpy(), n.double().numpy())
    if found:
        found["loss"] = float(score.loss.double().sum() / n.sum())
    # a diverged model's loss may be infinite, for which JSON has no word
    return {k: round(v, 6) for k, v in found.items() if math.isfinite(v)}


def block_names(blocks: Sequence[Sequence[str]]) -> list[str]:
    """A block's name is what its parameters' names have in common.

    Example:
      >>> block_names([("body.0.weight", "body.0.bias"), ("head.weight",)])
      ['body.0', 'head']
    """
    found = []
    for number, block in enumerate(blocks):
        common: list[str] = []
        for parts in zip(*(name.split(".")[:-1] for name in block), strict=False):
            if len(set(parts)) > 1:
                break
            common.append(parts[0])
        found.append(".".join(common) or f"block {number}")
    return found


def facts_of(run: PreparedRun) -> dict[str, Any]:
    """What is known of a run before its first round."""
    sim, fed, config = run.simulation, run.data.client_data, run.config
    options = {o.name: o.default for o in page(config.factory()).options}
    return {
        "method": config.method,
        "options": options | config.options,
        "data": config.data,
        "model": config.model,
        "parameters": sum(p.numel() for p in sim.initial.values()),
        "blocks": block_names(run.task.blocks),
        "clients": fed.clients,
        "partition": config.partition,
        "rows_digest": run.data.rows_digest(),
        "participation": config.participation,
        "networks": run.networks if config.depths else {},
        "leaks_test": run.method.leaks,
        "rounds": config.rounds,
        "engine": config.engine,
        "precision": config.precision,
        "device": config.device if config.engine == "ray" else str(sim.device),
        "hardware": None if config.engine == "ray" else hardware(sim.device),
        "seed": config.seed,
        "version": __version__,
    }


def result_of(run: PreparedRun) -> dict[str, Any]:
    """What a run came to."""
    sim, fed, config = run.simulation, run.data.client_data, run.config
    n = fed.test.n
    # the last round was evaluated, unless it was played before a resume
    last = run.latest or sim.score()
    final = sim.score(finetune=run.finetune) if run.finetune else last
    on_train = sim.score(part="train").test
    history = run.progress.history
    scored = [line for line in history if "pre" in line]
    best = best_round(
        [line["round"] for line in scored], [line["pre_val"].get("mean") for line in scored]
    )
    at_best = next((line for line in scored if line["round"] == best), None)
    posts = [line["post"] for line in scored if "post" in line]
    seen = accuracies(final.test.correct.double().numpy(), n.numpy())
    held, trained = run.data.held_out.numpy(), run.data.trained.numpy()
    # a method may train on other rows than the partition gave (a pool)
    rows = sim.client_data.train.n.numpy()
    train_mean = np.nanmean(accuracies(on_train.correct.double().numpy(), rows)[trained])
    test_mean = np.nanmean(accuracies(last.test.correct.double().numpy(), n.numpy())[trained])
    return facts_of(run) | {
        "accuracy": summary(final.test, n),
        "points": {
            "pre": summary(last.test, n),
            "post": posts[-1] if posts else {},
            "final": summary(final.test, n) | {"finetune_epochs": config.finetune},
        },
        "best_round": best,
        "best": at_best["pre"] if at_best else {},
        "best_chosen_on": "validation" if best else "nothing: no validation rows",
        "global": history[-1].get("global", {}) if history else {},
        "epsilon": final_epsilon(run, final.noisy),
        "participation_gap": float(np.nanmean(seen[trained]) - np.nanmean(seen[held]))
        if len(held)
        else None,
        "out_of_sample_gap": float(train_mean - test_mean),
        "bytes": {"up": run.progress.up, "down": run.progress.down},
        "seconds": round(run.progress.seconds, 3),
        "train_seconds": round(sum(line["train_seconds"] for line in history), 3),
        "peak_memory_bytes": peak_memory(sim.device),
        "per_client": dict(zip(fed.names, per_client(final.test, n), strict=True)),
        "best_per_client": dict(zip(fed.names, at_best["pre_per_client"], strict=True))
        if at_best
        else {},
        "metrics": own_metrics(run),
        "skipped": {str(line["round"]): line["skipped"] for line in history if "skipped" in line},
        "way": sim.loop_mode,
        "preparing_seconds": round(sim.preparing_seconds, 3),
        "chunk": sim.chunk,
        "states": sim.place,
    }


def own_metrics(run: PreparedRun) -> dict[str, Any]:
    """The user's own metrics of each client's final model on its test rows.

    A metric that cannot be had at a client (one class only, say) is None there, with the reason;
    the mean is over the clients that have it.
    """
    metrics = run.config.objects.metrics or {}
    found: dict[str, Any] = {name: {"per_client": {}, "undefined": {}} for name in metrics}
    fed = run.data.client_data
    models = run.simulation.models(run.finetune) if metrics else ()
    outputs = TestOutputs(fed, run.simulation.groups)
    for cid, model in models:
        said, labels = outputs.of(cid, model)
        for name, metric in metrics.items():
            kept, client = found[name], fed.names[cid]
            try:
                kept["per_client"][client] = float(metric(said.cpu(), labels.cpu()))
            except Exception as error:  # a stranger's function may raise anything
                kept["per_client"][client] = None
                kept["undefined"][client] = " ".join(f"{type(error).__name__}: {error}".split())
    for kept in found.values():
        there = [value for value in kept["per_client"].values() if value is not None]
        kept["mean"] = float(np.mean(there)) if there else None
    return found


def final_epsilon(run: PreparedRun, noisy: Tensor) -> dict[str, Any] | None:
    """ε of all rounds and of making the final models, for which some methods train once more."""
    if not run.config.dp_clip:
        return None
    made = (Spent(*more) for more in noisy.tolist())
    return run.epsilon(
        [spent.and_then(more) for spent, more in zip(run.progress.noisy, made, strict=True)]
    )


def client_table(run: PreparedRun, result: dict[str, Any] | None = None) -> str:
    """A row per client, as csv; without a result, who they are and how many rows they have."""
    fed, out = run.data.client_data, io.StringIO()
    found = result or {"per_client": {}, "best_per_client": {}}
    posts: dict[int, Any] = {}
    rounds = [0] * fed.clients
    for line in run.progress.history:
        for cid in line["cohort"]:
            rounds[cid] += 1
        posts.update(zip(line["cohort"], line.get("post_per_client", []), strict=False))
    held = set(run.data.held_out.tolist())
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["client", "train", "val", "test", "rounds", "held_out", "post", "final", "best"]
    )
    for cid, name in enumerate(fed.names):
        counts = [int(part.n[cid]) for part in (fed.train, fed.val, fed.test)]
        scores = [
            posts.get(cid),
            found["per_client"].get(name),
            found["best_per_client"].get(name),
        ]
        writer.writerow([name, *counts, rounds[cid], int(cid in held), *scores])
    return out.getvalue()
