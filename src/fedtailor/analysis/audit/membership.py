"""Membership inference: can one tell from a model whether a row was among its training rows?

Members are a client's training rows, non-members its test rows; validation rows are neither, since
methods and the best round are chosen by them. No shadow models are trained: rows are told apart by
their loss (Yeom et al., 2018), or by how much surer the model is of them than models that never
trained on them (after Carlini et al., 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

RATES = (0.05, 0.01, 0.001)  # of false alarms
NEEDED = 10  # non-members × rate: fewer false alarms are no rate
LEAST = 10  # members, and non-members, below which nothing is said
DRAWS, LEVEL = 1000, 0.05  # of the bootstrap
FEW = 8  # with fewer reference models than this, all rows share their spread
TINY = 1e-6
AT_A_TIME = 2_000_000  # weights of rows

Values = NDArray[np.float64]
Flags = NDArray[np.bool_]


class ScoredRows(NamedTuple):
    """Rows of all clients with a score each: the higher, the more like a member."""

    scores: Values
    member: Flags
    client: NDArray[np.int64]
    called: Flags | None = None  # what a fixed threshold calls members

    @classmethod
    def joined(cls, parts: Sequence[ScoredRows]) -> ScoredRows:
        """Several clients' rows, clients numbered in this order."""
        called = [part.called for part in parts if part.called is not None]
        return cls(
            np.concatenate([part.scores for part in parts]),
            np.concatenate([part.member for part in parts]),
            np.concatenate([np.full(len(p.scores), i) for i, p in enumerate(parts)]),
            np.concatenate(called) if len(called) == len(parts) else None,
        )


def confidence(outputs: Tensor, labels: Tensor) -> Tensor:
    """φ = log p_y − log Σ_{c≠y} p_c: how sure a model is of the true class.

    Example:
      >>> confidence(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
      tensor([0.], dtype=torch.float64)
    """
    logits = outputs.double()
    hot = torch.nn.functional.one_hot(labels, logits.shape[-1]).bool()
    rest = logits.masked_fill(hot, -torch.inf).logsumexp(-1)
    return logits[hot] - rest


def calibrated(target: Tensor, references: Tensor) -> Tensor:
    """z = (φ − mean_j φ_j) / (sd_j + 1e-6) over models j that never trained on the rows.

    With few of them, their spread is that of all rows together; with one, only the difference
    counts.

    Args:
      target: [rows] φ of the model in question.
      references: [models, rows].
    """
    count = len(references)
    off = target - references.mean(0)
    if count == 1:
        return off
    spread = references.var(0)
    if count < FEW:
        spread = spread.mean().expand_as(spread)
    return off / (spread.sqrt() + TINY)


def roc(rows: ScoredRows, weight: Values) -> tuple[Values, Values]:
    """(false alarms, members found) as shares, for each draw of row weights, by falling score.

    Args:
      rows: the rows; equal scores are called alike.
      weight: [draws, rows].
    """
    order = np.argsort(-rows.scores, kind="stable")
    sorted_scores = rows.scores[order]
    ends = np.append(np.flatnonzero(np.diff(sorted_scores)), len(order) - 1)
    out = []
    for kind in (~rows.member, rows.member):
        some = np.cumsum((weight * kind)[:, order], axis=1)
        with np.errstate(invalid="ignore"):
            share = some[:, ends] / some[:, -1:]
        out.append(np.hstack([np.zeros((len(weight), 1)), share]))
    return out[0], out[1]


def _measures(rows: ScoredRows, weight: Values, rates: Sequence[float]) -> dict[str, Values]:
    """Each measure, for each draw."""
    false, true = roc(rows, weight)
    found = {"auc": (np.diff(false) * (true[:, 1:] + true[:, :-1]) / 2).sum(1)}
    for rate in rates:
        found[f"tpr@{rate:g}"] = np.where(false <= rate, true, 0).max(1)
    if rows.called is not None:
        found["advantage"] = _share(weight, rows.called, rows.member) - _share(
            weight, rows.called, ~rows.member
        )
    return found


def _share(weight: Values, called: Flags, among: Flags) -> Values:
    with np.errstate(invalid="ignore"):
        share: Values = (weight * (called & among)).sum(1) / (weight * among).sum(1)
    return share


def drawn_weights(rows: ScoredRows, draw: np.random.Generator, draws: int) -> Values:
    """How often each row is in a draw: clients are drawn, and of each its members and others."""
    clients = np.unique(rows.client)
    often = draw.multinomial(len(clients), np.full(len(clients), 1 / len(clients)), size=draws)
    weight = np.zeros((draws, len(rows.scores)))
    for place, client in enumerate(clients):
        for kind in (rows.member, ~rows.member):
            where = np.flatnonzero((rows.client == client) & kind)
            if len(where):
                again = draw.multinomial(len(where), np.full(len(where), 1 / len(where)), draws)
                weight[:, where] = often[:, [place]] * again
    return weight


def judged_membership(rows: ScoredRows, seed: int = 0) -> dict[str, Any]:
    """AUC, members found at few false alarms, advantage; each with a bootstrap interval of 95 %.

    A rate of false alarms is left out where the non-members are too few to show it.

    Args:
      rows: of all clients.
      seed: of the bootstrap.

    Example:
      >>> draw = np.random.default_rng(0)
      >>> member, client = np.arange(400) < 200, np.arange(400) % 4
      >>> found = judged_membership(ScoredRows(draw.normal(size=400) + member, member, client))
      >>> found["auc"]["value"] > 0.7, found["auc"]["interval"][0] > 0.6, "tpr@0.001" in found
      (True, True, False)
    """
    members, others = int(rows.member.sum()), int((~rows.member).sum())
    told: dict[str, Any] = {
        "members": members, "non_members": others, "clients": len(np.unique(rows.client)),
    }  # fmt: skip
    if min(members, others) < LEAST:
        return told | {"refused": f"{members} members and {others} non-members are too few"}
    rates = [rate for rate in RATES if others * rate >= NEEDED]
    point = _measures(rows, np.ones((1, len(rows.scores))), rates)
    draw, some = np.random.default_rng(seed), max(1, AT_A_TIME // len(rows.scores))
    spread = [
        _measures(rows, drawn_weights(rows, draw, min(some, DRAWS - done)), rates)
        for done in range(0, DRAWS, some)
    ]
    for name, value in point.items():
        drawn = np.concatenate([part[name] for part in spread])
        known = drawn[np.isfinite(drawn)]
        ends = np.quantile(known, [LEVEL / 2, 1 - LEVEL / 2])
        told[name] = {
            "value": round(float(value[0]), 6),
            "interval": [round(float(end), 6) for end in ends],
        }
    return told


def by_loss(losses: Tensor, member: Tensor) -> ScoredRows:
    """Rows of one client by their losses; a member is called what has no more than members' mean.

    Args:
      losses: of its rows.
      member: which of them it trained on.
    """
    plain, flags = losses.double().cpu().numpy(), member.cpu().numpy()
    level = plain[flags].mean() if flags.any() else np.nan
    return ScoredRows(-plain, flags, np.zeros(len(plain), np.int64), plain <= level)
