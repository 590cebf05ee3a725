"""What a run's models say of members and non-members: personal ones, uploads, the global one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor.analysis.audit.exposure import numbers_of
from fedtailor.analysis.audit.membership import (
    ScoredRows,
    by_loss,
    calibrated,
    confidence,
    judged_membership,
)
from fedtailor.analysis.audit.opened import AuditedRun, Protection
from fedtailor.core import tree
from fedtailor.core.tree import Tree
from fedtailor.core.turn import is_network, predict_general

MOST_CLIENTS = 50  # whose rows are asked about
MOST_REFERENCES = 16
ROWS = 512  # at a time
PERSONAL, UPLOADED, GLOBAL = "personal", "upload", "global"


class AskedModel(NamedTuple):
    """A client's model of one kind."""

    client: str
    model: Any
    network: bool  # whether it is the network's parameters and nothing else


def refused_membership(run: AuditedRun) -> str:
    """Why membership cannot be asked about; empty if it can."""
    if run.method.leaks:
        return "test rows were looked at while training: there are no non-members"
    if run.prepared.task.kind == "survival" and run.config.loss == "cox":
        return "Cox's loss has no loss of single rows: rows cannot be told apart by it"
    return ""


def asked_clients(run: AuditedRun) -> list[str]:
    """The clients that have members and non-members, evenly spread if they are many."""
    having = [n for n in run.names if len(run.rows("train", n)) and len(run.rows("test", n))]
    if len(having) <= MOST_CLIENTS:
        return having
    return [having[i * len(having) // MOST_CLIENTS] for i in range(MOST_CLIENTS)]


def membership_work(run: AuditedRun, protections: Sequence[Protection]) -> int:
    """How many models are asked."""
    if refused_membership(run):
        return 0
    return len(asked_clients(run)) * (2 + len(protections))


def measure_membership(
    run: AuditedRun, protections: Sequence[Protection], seed: int, tell: Callable[[int], None]
) -> Iterator[dict[str, Any]]:
    """What can be told of each kind of model; ready for JSON, one after the other."""
    clients = asked_clients(run)
    if not clients:
        return
    kinds: list[tuple[str, Protection]] = [(PERSONAL, run.own), (GLOBAL, run.own)]
    kinds += [(UPLOADED, protection) for protection in protections]
    for kind, protection in kinds:
        models = []
        for client in clients:
            found = _model(run, kind, client, protection)
            models += [] if found is None else [found]
            tell(1)
        told = {"model": kind, "protection": protection.words}
        if models:
            yield told | _judged(run, models, seed)
        elif kind == UPLOADED and _uploads(run):
            yield told | {"refused": "what is uploaded is no whole network that could be asked"}


def _uploads(run: AuditedRun) -> bool:
    return not (run.method.alone or run.method.gathered or run.method.donate)


def _model(run: AuditedRun, kind: str, client: str, protection: Protection) -> AskedModel | None:
    """A client's model; None where there is none of the kind."""
    task = run.player(client, run.own)[1]
    model: Any
    if kind == UPLOADED:
        if not _uploads(run):
            return None
        with torch.no_grad():
            sent = run.seen(client, protection, run.rows("train", client))
        moved = sent.exposure.bases  # what has none is an update, no model
        flat = {k: v for k, v in numbers_of(sent.upload).items() if k in moved}
        parts = _trees(tree.unflatten(flat))
        model = next((part for part in parts if is_network(task, part)), None)
    else:
        model = run.personal(client) if kind == PERSONAL else run.general(client)
    return None if model is None else AskedModel(client, model, is_network(task, model))


def _trees(values: Tree) -> Iterator[Tree]:
    """A tree and all trees in it."""
    yield values
    for part in values.values():
        if isinstance(part, dict):
            yield from _trees(part)


def _judged(run: AuditedRun, models: Sequence[AskedModel], seed: int) -> dict[str, Any]:
    losses, calibrations, counts, lost = [], [], [], []
    for asked in models:
        train, test = (run.rows(part, asked.client) for part in ("train", "test"))
        rows = torch.cat([train, test])
        member = torch.arange(len(rows), device=rows.device) < len(train)
        loss, sure = _told(run, asked.client, asked, rows)
        if not sure.isfinite().all():  # no order of its rows, so nothing to tell them apart by
            lost.append(asked.client)
            continue
        losses.append(by_loss(loss, member))
        others = [_told(run, asked.client, o, rows)[1] for o in _references(run, asked, models)]
        sures = torch.stack([other for other in others if other.isfinite().all()])
        z = calibrated(sure, sures).cpu().numpy()
        none = np.zeros(len(z), np.int64)
        calibrations.append(ScoredRows(z, member.cpu().numpy(), none))
        counts.append(len(sures))
    told: dict[str, Any] = {"diverged": lost} if lost else {}
    if not losses:
        return told | {"refused": "their outputs are not finite numbers"}
    return told | {
        "references": {"fewest": min(counts), "most": max(counts)},
        "loss": judged_membership(ScoredRows.joined(losses), seed),
        "calibrated": judged_membership(ScoredRows.joined(calibrations), seed),
    }


def _references(
    run: AuditedRun, asked: AskedModel, models: Sequence[AskedModel]
) -> list[AskedModel]:
    """The untrained network, and others' models as far as they are not the same one.

    Others' models share what the rows have taught all: that understates the leak.
    """
    shape = tree.shapes(asked.model)
    untrained = AskedModel(asked.client, run.initial(asked.client), True)
    found = []
    for other in models:
        if other.client == asked.client or tree.shapes(other.model) != shape:
            continue
        one, two = tree.leaves(other.model), tree.leaves(asked.model)
        if not all(torch.equal(a, b) for a, b in zip(one, two, strict=True)):
            found.append(other)
    return [untrained, *found[:MOST_REFERENCES]]


def _told(run: AuditedRun, client: str, asked: AskedModel, rows: Tensor) -> tuple[Tensor, Tensor]:
    """(loss, how sure the model is) of each row; of a number, sure is what has a small loss."""
    fed = run.simulation.client_data
    method, task = run.player(client, run.own)
    predict = predict_general(method, task) if asked.network else method.predict
    with torch.no_grad():
        said = torch.cat(
            [predict(asked.model, fed.x[part]) for part in torch.split(rows, ROWS)]
        ).double()
    labels = fed.y[rows]
    if task.kind != "classification":
        loss = task.losses(said, labels, torch.ones(len(rows), device=said.device))
        return loss, -loss
    loss = torch.nn.functional.cross_entropy(said, labels, reduction="none")
    return loss, confidence(said, labels)
