"""Who is there when, who counts in a round, and which network each has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedtailor.core.errors import BadInput
from fedtailor.core.method import Method
from fedtailor.engine import client_times, draw_cohort, normal_steps, who_answers, who_is_in_time
from fedtailor.partition import draws
from fedtailor.results.config import Config


def _pairs(text: str, setting: str, example: str) -> list[tuple[str, int]]:
    """`a:1,b:2` as pairs."""
    out = []
    for piece in filter(None, (p.strip() for p in text.split(","))):
        name, colon, count = piece.rpartition(":")
        if not colon or not name or not count.isdecimal() or len(count) > 9 or int(count) < 1:
            raise BadInput(f"{setting} '{text}': '{piece}' is not of the form {example}")
        out.append((name, int(count)))
    return out


def arrivals(text: str, trained: Tensor, seed: int, rounds: int) -> list[tuple[int, Tensor]]:
    """(round, ids of the clients that come after that round), from e.g. `10:5`.

    Who comes late is drawn among the clients that train; somebody is there from the start, and
    everybody before the last of the `rounds`.
    """
    waiting = draws(seed, "join").permutation(trained.numpy())
    out, used = [], 0
    for number, count in _pairs(text, "join", "ROUND:COUNT, e.g. 10:5"):
        if not number.isdecimal() or int(number) < 1:
            raise BadInput(f"join '{text}': round '{number}' is not a whole number, at least 1")
        if int(number) >= rounds:
            raise BadInput(
                f"join '{text}': who comes after round {number} of {rounds} never trains: choose "
                "an earlier round, or --held-out for clients that are only tested"
            )
        used += count
        if used >= len(trained):
            raise BadInput(f"join '{text}': {used} of {len(trained)} clients come later: use fewer")
        ids = torch.from_numpy(waiting[used - count : used].copy()).sort().values
        out.append((int(number), ids))
    return out


def clients_present(trained: Tensor, late: Sequence[tuple[int, Tensor]], round: int) -> Tensor:
    """Ids of the clients that are there in a round (counted from 0)."""
    missing = [ids for number, ids in late if round < number]
    return trained[~torch.isin(trained, torch.cat(missing))] if missing else trained


def attending(
    config: Config, method: Method, here: Tensor, times: Tensor, number: int
) -> tuple[Tensor, dict[str, Any]]:
    """Of the clients that are there in a round, those that count; and of the others, for its line.

    Args:
      config: of the run.
      method: what is played.
      here: ids of the clients that are there.
      times: how long each client takes, see `times_of_clients`.
      number: of the round, from 0.
    """
    drawn = draw_cohort(config.seed, number, here, config.participation)
    # rows that lie in one place are waited for by nobody
    answering = drawn
    if not method.gathered:
        answering = who_answers(config.seed, number, drawn, config.dropout)
    # no more are clients that never hear of each other
    waits = 0.0 if method.gathered or method.alone else config.deadline
    cohort, absent = answering, dict[str, Any]()
    if config.dropout:
        absent["dropped"] = drawn[~torch.isin(drawn, answering)].tolist()
    if config.deadline or config.slow:
        cohort, took = who_is_in_time(times, answering, waits)
        if config.deadline:
            absent["stragglers"] = answering[~torch.isin(answering, cohort)].tolist()
        absent["simulated_time"] = round(took, 6)
    return cohort, absent


def times_of_clients(config: Config, method: Method, rows: Tensor, trained: Tensor) -> Tensor:
    """How long each client takes for a round; `rows` says how many each has."""
    count = config.recipe().count
    steps = torch.tensor([count(n) for n in rows.tolist()])
    if method.gathered:  # one machine of normal speed has all rows
        alone = count(int(rows[trained].sum())) / normal_steps(steps, trained)
        return torch.full((len(rows),), alone)
    return client_times(config.seed, steps, trained, config.slow)


def networks(text: str, model: str, clients: int) -> list[tuple[str, Tensor]]:
    """(model, ids that have it), from e.g. `mlp-2:10,mlp:10`; if empty, all have `model`."""
    pairs = _pairs(text, "models", "MODEL:COUNT, e.g. mlp-2:10")
    if not pairs:
        return [(model, torch.arange(clients))]
    total = sum(count for _, count in pairs)
    if total != clients:
        raise BadInput(
            f"models '{text}' is for {total} clients, but there are {clients}: "
            "give counts that add up to them"
        )
    ends = torch.tensor([0, *(count for _, count in pairs)]).cumsum(0)
    everyone = torch.arange(clients)
    return [(name, everyone[ends[i] : ends[i + 1]]) for i, (name, _) in enumerate(pairs)]
