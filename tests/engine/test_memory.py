"""How to tell that memory ran out."""

from __future__ import annotations

import gc

import pytest
import torch

from fedtailor.engine.memory import give_back, is_out_of_memory


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (MemoryError(), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_errors(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


def test_what_torch_really_raises_on_a_cpu() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


def test_circles_are_looked_for_before_a_gpu_gets_its_memory_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: done.append("circles"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("memory"))
    give_back(torch.device("cpu"))
    assert not done  # the processor's memory is not kept back
    give_back(torch.device("cuda"))
    assert done == ["circles", "memory"]
