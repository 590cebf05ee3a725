"""One line says who is to blame."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedtailor.core.errors import BadInput
from fedtailor.engine.culprit import culprit, may_go_plainer, naming_their_code


class Asks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.item() else -x


def test_module_file_and_line_are_named() -> None:
    with pytest.raises(RuntimeError) as caught:
        nn.Sequential(Asks())(torch.zeros(2))
    said = culprit(caught.value)
    assert said.startswith("module Asks, return x if x.item() else -x (test_culprit.py, line 15): ")
    assert "\n" not in said


def test_an_operator_is_named_however_late_it_is_mentioned() -> None:
    error = RuntimeError("so many words " * 20 + "aten::lstm.input has no rule")
    assert "aten::lstm.input" in culprit(error)


def test_bad_input_and_a_lack_of_memory_are_not_worked_around() -> None:
    assert may_go_plainer(RuntimeError("no rule")) and may_go_plainer(TypeError("dict"))
    assert not may_go_plainer(BadInput("lr is -1"))
    assert not may_go_plainer(RuntimeError("CUDA out of memory"))


class Stops(BadInput):
    """An error that says itself what is wrong."""


def _fails(error: Exception) -> None:
    raise error


@naming_their_code()
def _plays(error: Exception) -> None:
    _fails(error)


def test_an_error_of_the_users_own_code_is_one_line_with_its_place() -> None:
    with pytest.raises(BadInput) as caught:
        _plays(KeyError("a\nb"))
    said = str(caught.value)
    assert said.startswith("_fails of your own (test_culprit.py, line ")
    assert said.endswith(": raise error) raises KeyError: 'a\\nb': mend it there")
    assert isinstance(caught.value.__cause__, KeyError)


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(ValueError, match=r"^ours$"), naming_their_code():
        raise ValueError("ours")  # no code of the user's was called
    with pytest.raises(Stops):
        _plays(Stops("it says so itself"))
    with pytest.raises(RuntimeError, match="CUDA"):
        _plays(RuntimeError("CUDA out of memory"))
    with pytest.raises(KeyboardInterrupt):
        _plays(KeyboardInterrupt())  # type: ignore[arg-type]


def test_a_librarys_function_is_not_of_your_own() -> None:
    code = compile("def metric(a, b): return accuracy_score(a, b)", "mine.py", "exec")
    from sklearn.metrics import accuracy_score

    own = {"__name__": "mine", "accuracy_score": accuracy_score}
    exec(code, own)
    said = r"metric of your own \(mine.py, line 1\) raises ValueError: Found input"
    with pytest.raises(BadInput, match=said), naming_their_code():
        own["metric"]([1, 2], [1])
