"""How models do on rows: what is not a finite number answers nothing, wherever it is counted."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import vmap

from fedtailor.core.data import Data
from fedtailor.core.scoring import are_right, outputs_on, score, score_of_outputs
from fedtailor.core.task import classification
from fedtailor.core.tree import Params

TASK = classification(lambda: nn.Linear(2, 3))
LABELS = torch.tensor([0, 0, 1, 2])


def model(weight: float) -> Params:
    """Finite parameters; class 1 has the highest logit wherever that is a number."""
    return {"weight": torch.tensor([[weight] * 2] * 3), "bias": torch.tensor([0.0, 1.0, 0.0])}


def rows(size: float) -> Data:
    return Data.of(torch.full((4, 2), size), LABELS)


@pytest.mark.parametrize(("weight", "right"), [(0.0, 1), (3e38, 0), (-3e38, 0)])
def test_while_a_run_goes_on_and_at_its_end_the_same_rows_are_right(
    weight: float, right: int
) -> None:
    """Products of 3e38 and 5 are beyond single precision: logits are infinite, their argmax 0."""
    data, made = rows(5.0), model(weight)
    said = outputs_on(TASK.predict, made, data, 3)
    at_the_end = score_of_outputs(TASK, said[None], LABELS[None], torch.ones(1, 4))
    assert float(score(TASK, made, data).correct) == float(at_the_end.correct) == right


def test_models_that_are_mapped_are_counted_like_one_after_another() -> None:
    models = {k: torch.stack([model(w)[k] for w in (0.0, 3e38)]) for k in ("weight", "bias")}
    found = vmap(lambda one: score(TASK, one, rows(5.0)).correct)(models)
    assert found.tolist() == [1, 0]


def test_one_logit_that_is_no_number_is_no_answer() -> None:
    nan, inf = torch.nan, torch.inf
    logits = torch.tensor([[2.0, 1.0], [nan, 1.0], [2.0, nan], [inf, 1.0], [2.0, -inf]])
    assert are_right(logits, torch.zeros(5, dtype=torch.long)).tolist() == [True, *[False] * 4]
