"""Gradient inversion: how much of its rows a client's upload shows to the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.analysis.audit.attacks import ATTACKS, AttackPlan, recover
from fedtailor.analysis.audit.exposure import Exposure, attacked, guessed_labels
from fedtailor.analysis.audit.opened import AuditedRun, Protection
from fedtailor.analysis.audit.recovered import (
    judged_images,
    judged_table,
    judged_words,
    picture,
    to_pixels,
)
from fedtailor.core import rng, tree
from fedtailor.core.errors import BadInput, unknown
from fedtailor.core.options import shortened
from fedtailor.core.task import to_input

LABELS = ("known", "guessed")
MOST_OTHERS = 20_000  # training rows among which the nearest is looked for
Tell = Callable[[int], None]


class Inversion(NamedTuple):
    """What is attacked, and how."""

    clients: tuple[str, ...] = ()  # empty: the three with fewest rows
    rows: int = 4  # of each client; 0: all, as in the run
    labels: str = "known"
    plan: AttackPlan = AttackPlan()

    def check(self) -> None:
        """Refuses what cannot be meant.

        Raises:
          BadInput: with what.
        """
        if self.plan.attack not in ATTACKS:
            raise unknown("attack", self.plan.attack, ATTACKS)
        if self.labels not in LABELS:
            raise unknown("value of labels", self.labels, LABELS)
        for name, value, least in (
            ("rows", self.rows, 0),
            ("steps", self.plan.steps, 0),
            ("restarts", self.plan.restarts, 1),
            ("tv", self.plan.tv, 0),
        ):
            if not (isinstance(value, int | float) and value >= least):
                raise BadInput(f"{name} is {shortened(value)}: give {least} or more")


class InversionCase(NamedTuple):
    """One attack: on whom, with which protection, and with the client's state known or guessed."""

    client: str
    protection: Protection
    state: str  # `none`: the client keeps nothing; else `known` or `guessed`


def nothing_to_invert(run: AuditedRun) -> str:
    """Why there is no upload to attack; empty if there is one."""
    method = run.method
    if method.alone:
        return f"{run.config.method} uploads nothing: clients train alone"
    if method.gathered or method.donate:
        return f"{run.config.method} sends rows themselves: nothing has to be rebuilt"
    return ""


def chosen_clients(run: AuditedRun, named: Sequence[str]) -> list[str]:
    """The clients that are attacked: those named, or the three with fewest training rows.

    Few rows share an update: such clients have most to lose.

    Raises:
      BadInput: there is no such client, or it has no training rows.
    """
    chosen = list(dict.fromkeys(named))
    for name in chosen:
        run.number(name)
        if not len(run.rows("train", name)):
            raise BadInput(f"client '{name}' has no training rows: choose another")
    if chosen:
        return chosen
    having = [name for name in run.names if len(run.rows("train", name))]
    return sorted(having, key=lambda name: len(run.rows("train", name)))[:3]


def inversion_cases(
    run: AuditedRun, clients: Sequence[str], protections: Sequence[Protection]
) -> list[InversionCase]:
    """All attacks on some clients."""
    found = []
    for client in clients:
        message, kept, turn = run.received(client)
        state = kept or run.method.start(message, run.initial(client), turn.at_start())
        ways = ("known", "guessed") if tree.leaves(state) else ("none",)
        found += [InversionCase(client, p, way) for p in protections for way in ways]
    return found


def invert(
    run: AuditedRun, cases: Sequence[InversionCase], asked: Inversion, tell: Tell
) -> Iterator[dict[str, Any]]:
    """Attacks uploads, one case after the other; what comes is ready for JSON."""
    for case in cases:
        yield _attack(run, case, asked, tell)


def _attack(run: AuditedRun, case: InversionCase, asked: Inversion, tell: Tell) -> dict[str, Any]:
    fed, form = run.simulation.client_data, run.prepared.data.encoder.form
    own = run.rows("train", case.client)
    rows = own[: asked.rows or len(own)]
    seen = run.seen(case.client, case.protection, rows)
    exposure = seen.exposure
    told: dict[str, Any] = {
        "client": case.client,
        "rows": len(rows),
        "of_rows": len(own),
        "local_steps": exposure.recipe.count(len(rows)),
        "protection": case.protection.words,
        "dp": {**case.protection._asdict(), "epsilon": seen.epsilon},
        "state": case.state,
        "numbers": sum(leaf.numel() for leaf in exposure.seen.values()),
        "head_sent": any(exposure.of(name) is not None for name in exposure.task.head),
        "batch_norm": bool(exposure.task.batch_norm),
    }
    if form.kind == "text":
        tell(asked.plan.work)
        return told | _words(exposure, fed.x[rows], form.vocabulary)
    guess = None
    if case.state == "guessed":
        key = rng.key(asked.plan.seed, rng.INITIAL, 1)
        guess = lambda: exposure.task.init(key)
    exposure = attacked(exposure, guess=guess)
    y, told["labels"] = _labels(exposure, fed.y[rows], form.classes, form.shape, asked.labels)
    found = recover(exposure, y, form.shape, asked.plan, image=form.kind == "image", tell=tell)
    told["misfit"] = found.misfit if found.misfit < 1e300 else None
    x, others = to_input(fed.x[rows], torch.float64), _others(run, rows)
    if form.kind == "image":
        true, made = to_pixels(x), to_pixels(found.x)
        told |= judged_images(made, true, to_pixels(others), asked.plan.seed)
        told["picture"] = picture(made, true)
        return told
    columns = run.prepared.data.encoder.of_client(case.client).columns
    return told | judged_table(found.x.double(), x, others, columns, asked.plan.seed)


def _labels(
    exposure: Exposure, true: Tensor, classes: int, shape: tuple[int, ...], asked: str
) -> tuple[Tensor, dict[str, Any]]:
    """The labels that the attack goes by, and how many of them the upload itself tells."""
    guessed = guessed_labels(exposure, classes, shape) if classes else None
    told: dict[str, Any] = {"used": asked, "right": None}
    if guessed is not None:
        counts = [torch.bincount(part, minlength=classes) for part in (guessed, true)]
        told["right"] = round(float(torch.minimum(*counts).sum() / len(true)), 6)
    if asked == "known":
        return true, told
    if guessed is None:
        why = "labels are no classes" if not classes else "the upload has no head that tells them"
        raise BadInput(f"labels cannot be guessed: {why}: say --labels known")
    return guessed, told


def _others(run: AuditedRun, rows: Tensor) -> Tensor:
    """Training rows of all clients but those attacked, as a network takes them."""
    fed = run.simulation.client_data
    flat = torch.unique(fed.train.flat)
    flat = flat[~torch.isin(flat, rows)]
    order = rng.permutation(rng.key(0, device=flat.device), len(flat))[:MOST_OTHERS]
    return to_input(fed.x[flat[order]], torch.float64)


def _words(exposure: Exposure, x: Tensor, vocabulary: int) -> dict[str, Any]:
    """Words are no numbers to search for, but an embedding's update names them."""
    tables = [g for g in exposure.seen.values() if g.ndim == 2 and len(g) == vocabulary]
    if not tables:
        return {"note": "no embedding was uploaded: words cannot be read off, nor searched for"}
    return judged_words(tables[0], x)
