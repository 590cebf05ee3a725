"""What a run found, in numbers and in a table."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from fedtailor.core import __version__
from fedtailor.core.inputs.spreadsheet import csv_text
from fedtailor.core.steps.privacy import Spent
from fedtailor.engine import Outputs
from fedtailor.engine.client_data import Rows
from fedtailor.engine.clients import Keep
from fedtailor.engine.culprit import naming_their_code
from fedtailor.engine.memory import peak_memory
from fedtailor.methods.describe import page
from fedtailor.results.metrics.over_clients import best_round
from fedtailor.results.metrics.table import diverged_clients, table_of_own
from fedtailor.results.outputs import PartRows, RunOutputs, SaidInRound
from fedtailor.runs.device import hardware
from fedtailor.runs.prepared import PreparedRun

log = logging.getLogger("fedtailor")


def said_in_round(run: PreparedRun, number: int, outputs: Outputs) -> SaidInRound:
    """What models said in a round, of all clients' rows, for a file."""
    test, val = (run.evaluation.rows(getattr(outputs, part), part)[0] for part in ("test", "val"))
    return SaidInRound(number, test, val)


def run_outputs(run: PreparedRun) -> RunOutputs:
    """What models said in the last round, if it was played, and in the best one."""
    fed, judge = run.simulation.client_data, run.evaluation
    parts = []
    for name in ("test", "val"):
        rows: Rows = getattr(fed, name)
        parts.append(PartRows(judge.labels(name), rows.flat.cpu(), rows.n))
    last = None
    if run.final is not None:
        last = said_in_round(run, run.simulation.round, run.final)
    return RunOutputs(parts[0], parts[1], last, run.progress.best)


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
        "task": config.task,
        "metric": config.metric,
        "split_seed": config.split_seed,
        "rows_digest": run.data.rows_digest(),
        "owners_digest": run.data.owners_digest(),
        "participation": config.participation,
        "held_out": [fed.names[int(i)] for i in run.data.held_out],
        "networks": run.networks if config.models else {},
        "leaks_test": run.method.leaks,
        "rounds": config.rounds,
        "engine": config.engine,
        "precision": config.precision,
        "device": config.device if config.engine == "ray" else str(sim.device),
        "hardware": None if config.engine == "ray" else hardware(sim.device),
        "seed": config.seed,
        "version": __version__,
    }


@naming_their_code()
def result_of(run: PreparedRun, keep: Keep | None = None) -> dict[str, Any]:
    """What a run came to; `keep` is given the clients' final models, which are made once."""
    sim, fed, config, judge = run.simulation, run.data.client_data, run.config, run.evaluation
    # the last round was evaluated, unless it was played before a resume
    last = run.latest or sim.outputs()
    tune = config.finetuning()
    # one of both makes the final models
    final = run.final = sim.outputs(finetune=tune, keep=keep) if tune else last
    known = sim.outputs(part="train", keep=None if tune else keep)
    history, metric = run.progress.history, judge.metric
    scored = [line for line in history if "pre" in line]
    best = best_round(
        [line["round"] for line in scored],
        [line["pre_val"].get("mean") for line in scored],
        metric.higher_is_better,
    )
    at_best = next((line for line in scored if line["round"] == best), None)
    posts = [line["post"] for line in scored if "post" in line]
    before, before_each = judge.judged(last.test)
    score, own = (before, before_each) if final is last else judge.judged(final.test)
    metrics = judge.table(final.test)
    each = _numbers(own)
    held, trained = run.data.held_out.numpy(), run.data.trained.numpy()
    better = 1 if metric.higher_is_better else -1
    on_train = _numbers(judge.judged(known.test, "train")[1])
    gap = _mean(on_train[trained]) - _mean(_numbers(before_each)[trained])
    accuracy = score
    if metric.name != "accuracy":
        accuracy = {k: v for k, v in metrics.get("accuracy", {}).items() if isinstance(v, float)}
    return facts_of(run) | {
        "score": score,
        "accuracy": accuracy,
        "points": {
            "pre": before,
            "post": posts[-1] if posts else {},
            "final": score | {"finetune_epochs": config.finetune},
        },
        "stopped_early": sim.round if sim.round < config.rounds else None,
        "best_round": best,
        "best": at_best["pre"] if at_best else {},
        "best_chosen_on": "validation" if best else "nothing: no validation rows",
        "val": judge.summary(final.val, "val"),
        "global": history[-1].get("global", {}) if history else {},
        "epsilon": final_epsilon(run, final.noisy),
        "participation_gap": better * (_mean(each[trained]) - _mean(each[held]))
        if len(held)
        else None,
        "out_of_sample_gap": better * gap,
        "bytes": {"up": run.progress.up, "down": run.progress.down},
        "seconds": round(run.progress.seconds, 3),
        "train_seconds": round(sum(line["train_seconds"] for line in history), 3),
        "peak_memory_bytes": peak_memory(sim.device),
        "per_client": dict(zip(fed.names, own, strict=True)),
        "best_per_client": dict(zip(fed.names, at_best["pre_per_client"], strict=True))
        if at_best
        else {},
        "metrics": metrics | own_metrics(run, final),
        "diverged": diverged_clients(metrics),
        "skipped": {str(line["round"]): line["skipped"] for line in history if "skipped" in line},
        "odd_uploads": Counter(name for line in history for name in line.get("odd_uploads", [])),
        **absent_of(run),
        "way": sim.loop_mode,
        "preparing_seconds": round(sim.preparing_seconds, 3),
        "side_by_side": run.together,
        "chunk": sim.chunk,
        "states": sim.place,
    }


def counted_rounds(run: PreparedRun) -> list[int]:
    """The rounds of each client that count: that it was in, and that did not leave it out."""
    names = run.data.client_data.names
    rounds = [0] * len(names)
    for line in run.progress.history:
        for i in line["cohort"]:
            rounds[i] += names[i] not in line.get("skipped", ())
    return rounds


def absent_of(run: PreparedRun) -> dict[str, Any]:
    """In how many rounds clients dropped out or were too late, and the time that rounds took.

    Also who was in no round, or diverged in all, and was not held out: its model is as it began.
    """
    history, names, found = run.progress.history, run.data.client_data.names, dict[str, Any]()
    for kind in ("dropped", "stragglers"):
        if any(kind in line for line in history):
            found[kind] = Counter(names[i] for line in history for i in line.get(kind, []))
    there = {i for line in history for i in line["cohort"]}
    if never := sorted({i for line in history for i in line.get("stragglers", [])} - there):
        found["never_in_time"] = [names[i] for i in never]
    # rows that lie in one place are trained on whoever is drawn
    here = [] if run.method.gathered else run.data.trained.tolist()
    rounds = counted_rounds(run)
    if untrained := [names[i] for i in here if not rounds[i]]:
        found["never_trained"] = untrained
    if any("simulated_time" in line for line in history):
        found["simulated_time"] = round(sum(line["simulated_time"] for line in history), 6)
    return found


def _numbers(values: Sequence[float | None]) -> np.ndarray:
    return np.array([np.nan if v is None else v for v in values])


def _mean(values: np.ndarray) -> float:
    """The mean of those that are there; nan if none is."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def own_metrics(run: PreparedRun, final: Outputs) -> dict[str, Any]:
    """The user's own metrics of each client's final model on its test rows.

    A metric that cannot be had at a client (one class only, say) is None there, with the reason;
    the mean is over the clients that have it.
    """
    said, labels = run.evaluation.rows(final.test)
    n = dict(zip(run.data.client_data.names, run.data.client_data.test.n.tolist(), strict=True))
    found = {}
    for name, metric in (run.config.objects.metrics or {}).items():
        found[name] = table = table_of_own(metric, said, labels, n)
        if table["undefined"] and table["mean"] is None:
            why = next(iter(table["undefined"].values()))
            again = f" of '{run.folder}' with fedtailor.metrics(folder, own=...)"
            log.warning(
                "metric '%s' of your own gives no number at any client: %s: mend it%s",
                name,
                why,
                f", and have it{again}" if run.folder else "",
            )
    return found


def final_epsilon(run: PreparedRun, noisy: Tensor) -> dict[str, Any] | None:
    """ε of all rounds and of making the final models, for which some methods train once more."""
    if not run.config.dp_clip:
        return None
    made = (Spent.of(more) for more in noisy.tolist())
    return run.epsilon(
        [spent.and_then(more) for spent, more in zip(run.progress.noisy, made, strict=True)]
    )


def client_table(run: PreparedRun, result: dict[str, Any] | None = None) -> str:
    """A row per client, as csv; without a result, who they are and how many rows they have."""
    fed = run.data.client_data
    found = result or {"per_client": {}, "best_per_client": {}}
    posts: dict[int, Any] = {}
    rounds = counted_rounds(run)
    for line in run.progress.history:
        posts.update(zip(line["cohort"], line.get("post_per_client", []), strict=False))
    held = set(run.data.held_out.tolist())
    head = ["client", "train", "val", "test", "rounds", "held_out", "post", "final", "best"]
    head += ["network"] if run.config.models else []
    rows = []
    for cid, name in enumerate(fed.names):
        counts = [int(part.n[cid]) for part in (fed.train, fed.val, fed.test)]
        scores = [
            posts.get(cid),
            found["per_client"].get(name),
            found["best_per_client"].get(name),
        ]
        network = [run.networks[name]] if run.config.models else []
        rows.append([name, *counts, rounds[cid], int(cid in held), *scores, *network])
    return csv_text(head, rows)
