"""A loop over batches as one operation."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from fedtailor.core.steps.scan import (
    RUNNER,
    HostMask,
    Loop,
    Notes,
    StepRows,
    Steps,
    join_steps,
    plainly,
    scan,
)
from fedtailor.core.tree import Tree

STORE = (torch.arange(10.0), torch.arange(10) % 3)


def steps(rows: list[list[int]], active: list[bool], known: bool = False) -> Steps:
    """One client's steps."""
    count = len(rows)
    return Steps(
        torch.tensor(rows),
        torch.ones(count, len(rows[0])),
        torch.tensor(active),
        torch.arange(count),
        tuple(range(count)),
        HostMask(torch.tensor([active])) if known else None,
    )


def weigh(carry: Tree, given: Tree, now: StepRows, store: Sequence[Tensor], notes: Notes) -> Tree:
    """w <- 2 w + factor * sum of the batch's rows."""
    notes["calls"] = 1
    total = store[0][now.rows].sum()
    return {"w": 2 * carry["w"] + given["factor"] * total, "n": carry["n"] + 1}


def begin() -> Tree:
    return {"w": torch.tensor(1.0), "n": torch.tensor(0)}


def test_steps_follow_each_other_and_inactive_ones_change_nothing() -> None:
    # 2*1 + 3*(0+1) = 5, skipped, 2*5 + 3*(4+5) = 37
    plan = steps([[0, 1], [2, 3], [4, 5]], [True, False, True])
    found, notes = scan(weigh, begin(), {"factor": torch.tensor(3.0)}, plan, STORE)
    assert float(found["w"]) == 37 and int(found["n"]) == 2
    assert notes == {"calls": 1}


def test_without_steps_or_carry_nothing_happens() -> None:
    none = Steps(*(torch.zeros(0, 2),) * 2, torch.zeros(0), torch.zeros(0), ())
    assert scan(weigh, begin(), {}, none, STORE)[0]["w"] == 1
    assert scan(weigh, {}, {}, steps([[0]], [True]), STORE) == ({}, {})


def test_passes_follow_each_other() -> None:
    one, two = steps([[0], [1]], [True, False], known=True), steps([[2]], [True], known=True)
    both = join_steps([one, two])
    assert both.rows[:, 0].tolist() == [0, 1, 2] and both.number == (0, 1, 0)
    assert both.known is not None and both.known.rows.tolist() == [[True, False, True]]
    assert join_steps([one, two._replace(known=None)]).known is None


def test_mapped_it_reaches_the_runner_once_with_all_clients() -> None:
    seen: list[Loop] = []

    def runner(loop: Loop, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        seen.append(loop)
        assert [len(t) for t in tensors[:2]] == [3, 3]
        return plainly(loop, tensors)

    rows = torch.tensor([[[0], [1]], [[2], [3]], [[4], [5]]])
    active = torch.tensor([[True, True], [True, False], [False, False]])

    def one(rows: Tensor, active: Tensor, factor: Tensor) -> Tree:
        plan = steps([[0], [0]], [True, True])._replace(rows=rows, active=active)
        return scan(weigh, begin(), {"factor": factor}, plan, STORE)[0]

    token = RUNNER.set(runner)
    try:
        found = vmap(one)(rows, active, torch.tensor([1.0, 10.0, 100.0]))
    finally:
        RUNNER.reset(token)
    assert len(seen) == 1 and len(seen[0].axes) == 1
    # (2*1 + 0)*2 + 1 = 5; 2*1 + 10*2 = 22; untouched
    assert found["w"].tolist() == [5, 22, 1] and found["n"].tolist() == [2, 1, 0]


def test_plainly_what_a_client_carries_is_its_own_from_the_first_step_on() -> None:
    """Else products of the first step would round by how many clients share it."""
    own: list[bool] = []

    def look(
        carry: Tree, given: Tree, now: StepRows, store: Sequence[Tensor], notes: Notes
    ) -> Tree:
        own.append("BatchedTensor" in repr(carry["w"]))
        return {"w": carry["w"] + store[0][now.rows].sum(), "n": carry["n"]}

    def one(rows: Tensor, active: Tensor) -> Tree:
        plan = steps([[0], [0]], [True, True], known=True)._replace(rows=rows, active=active)
        return scan(look, begin(), {}, plan, STORE)[0]

    rows = torch.tensor([[[0], [1]], [[2], [3]]])
    found = vmap(one)(rows, torch.ones(2, 2, dtype=torch.bool))
    assert found["w"].tolist() == [2, 6] and found["n"].tolist() == [0, 0]
    assert own == [True, True]


def test_mapped_twice_it_is_one_loop_still() -> None:
    factors = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    plan = steps([[1], [2]], [True, True])

    def one(factor: Tensor) -> Tensor:
        return scan(weigh, begin(), {"factor": factor}, plan, STORE)[0]["w"]

    found = vmap(vmap(one))(factors)
    assert torch.equal(found, (2 + factors) * 2 + 2 * factors)


@pytest.mark.parametrize("known", [True, False])
def test_what_the_host_knows_changes_no_result(known: bool) -> None:
    plan = steps([[0, 1], [2, 3]], [True, True], known=known)
    found, _ = scan(weigh, begin(), {"factor": torch.tensor(1.0)}, plan, STORE)
    assert float(found["w"]) == 2 * (2 + 1) + 5
