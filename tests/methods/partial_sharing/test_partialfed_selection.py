"""A binary choice per block: drawn, learnt, and what is trained on top of it."""

from __future__ import annotations

import pytest
import torch
from torch.func import grad, vmap

from fedtailor.core import rng
from fedtailor.core.task import Batch
from fedtailor.core.tree import Tree
from fedtailor.methods.partial_sharing.partialfed import (
    Strategy,
    adaptive,
    changing,
    choosing,
    cooled,
    likelier,
    lower,
    select,
    straight_through,
)
from tests.methods.worlds import task_of, turn_of, two_numbers

# takes what it is told, with the gradient of a straight line
LITERAL = Strategy(likelier, lambda logits, tau, key: logits)


def batch(*rows: float) -> Batch:
    x = torch.tensor(rows)
    return Batch(x, torch.zeros(len(rows)).long(), torch.ones(len(rows)), torch.tensor(True),
                 rng.key(3))  # fmt: skip


def given(**more: torch.Tensor) -> Tree:
    """Received a = 1, b = 2; own a = 5, b = 6."""
    received = {"a": torch.tensor(1.0), "b": torch.tensor(2.0)}
    own = {"a": torch.tensor(5.0), "b": torch.tensor(6.0)}
    return {"received": received, "own": own, "tau": torch.tensor(1.0), **more}


def test_the_likelier_choice() -> None:
    assert likelier(torch.tensor([-0.1, 0.0, 2.0])).tolist() == [0, 1, 1]
    assert adaptive.chosen is likelier


def test_the_lower_blocks() -> None:
    strategy, logits = lower(2), torch.tensor([-9.0, 0.0, 9.0])
    assert strategy.chosen(logits).tolist() == [1, 1, 0]
    assert strategy.drawn(logits, torch.tensor(1.0), rng.key(0)).tolist() == [1, 1, 0]


@pytest.mark.parametrize("tau", [0.1, 5.0])
def test_draws_are_hard_and_as_likely_as_the_logits_say(tau: float) -> None:
    logits = torch.tensor([-1.0, 0.0, 2.0])
    keys = rng.fold(rng.key(0), torch.arange(4000))
    drawn = vmap(lambda key: straight_through(logits, torch.tensor(tau), key))(keys)
    hard = drawn.round()
    torch.testing.assert_close(drawn, hard)
    assert set(hard.unique().tolist()) == {0, 1}
    # three standard errors are 0.024
    torch.testing.assert_close(hard.mean(0), logits.sigmoid(), atol=0.024, rtol=0)


def test_the_gradient_is_the_soft_choice_s() -> None:
    """∂s/∂a = soft (1 - soft)/τ, so it is large near a draw's edge and fades with a low τ."""
    logits, key = torch.tensor([0.3]), rng.key(4)
    u = rng.uniform(key, 2, 1)
    noise = -(-u.log()).log()
    for tau in (0.5, 2.0):
        soft = torch.sigmoid((logits + noise[0] - noise[1]) / tau)
        slope = grad(lambda a, tau=tau: straight_through(a, torch.tensor(tau), key).sum())(logits)
        torch.testing.assert_close(slope, soft * (1 - soft) / tau)


def test_cooling_by_hand() -> None:
    """From 8 to 0.5 over ten rounds: half-way the geometric mean."""
    found = [float(cooled(turn_of(t), 8.0, 0.5)) for t in (0, 5, 10)]
    assert found == pytest.approx([8, 2, 0.5])


def test_select_by_hand() -> None:
    here = given()
    model = select(two_numbers(), torch.tensor([1.0, 0.0]), here["received"], here["own"])
    assert (float(model["a"]), float(model["b"])) == (1, 6)


def test_running_statistics_follow_without_a_gradient() -> None:
    task = task_of("norm")
    own, received = task.init(rng.key(0)), task.init(rng.key(1))
    own = {k: p + 1 for k, p in own.items()}

    def total(s: torch.Tensor, names: tuple[str, ...]) -> torch.Tensor:
        model = select(task, s, received, own)
        return torch.stack([model[k].sum() for k in names]).sum()

    s = torch.ones(len(task.blocks))
    assert not grad(total)(s, task.buffers).any()
    assert grad(total)(s, tuple(k for k in own if k not in task.buffers)).any()
    taken = select(task, s, received, own)
    assert all(torch.equal(taken[k], received[k]) for k in task.buffers)


def test_the_loss_of_a_choice_by_hand() -> None:
    # s = (1, 0): a = 1, b = 6; the row is 3: (4 + 9)/2.  ∂/∂s = (a - x)(G - L) = -2 · -4, 3 · -4
    loss = choosing(two_numbers(), LITERAL)
    logits = torch.tensor([1.0, 0.0])
    value, changed = loss({"logits": logits}, batch(3.0), given(), {})
    assert float(value) == 6.5
    assert changed == {}
    slope = grad(lambda a: loss({"logits": a}, batch(3.0), given(), {})[0])(logits)
    assert slope.tolist() == [8, -12]


def test_the_loss_of_a_change_by_hand() -> None:
    # a = 1 + 0.5, b = 6 - 1; the row is 3: (2.25 + 4)/2;  ∂/∂Δ = -1.5, 2
    loss = changing(two_numbers(), LITERAL)
    here = given(logits=torch.tensor([1.0, 0.0]))
    change = {"a": torch.tensor(0.5), "b": torch.tensor(-1.0)}
    assert float(loss(change, batch(3.0), here, {})[0]) == 3.125
    slope = grad(lambda d: loss(d, batch(3.0), here, {})[0])(change)
    assert (float(slope["a"]), float(slope["b"])) == (-1.5, 2)
    # the choice itself is not learnt here
    logits = grad(lambda a: loss(change, batch(3.0), here | {"logits": a}, {})[0])(here["logits"])
    assert not logits.any()


def test_every_batch_draws_anew() -> None:
    """And not with the key that serves dropout."""
    keys: list[int] = []

    def drawn(logits: torch.Tensor, tau: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        keys.append(int(key))
        return logits

    loss = choosing(two_numbers(), Strategy(likelier, drawn))
    for seed in (3, 4):
        one = batch(3.0)._replace(key=rng.key(seed))
        loss({"logits": torch.zeros(2)}, one, given(), {})
        assert keys[-1] != int(one.key)
    assert len(set(keys)) == 2
