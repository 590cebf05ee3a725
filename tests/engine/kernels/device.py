"""Where kernels are tried: on a GPU, or anywhere in Triton's interpreter; else they are not."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1", allow_module_level=True)
DEVICE = "cpu" if INTERPRETED else "cuda"


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    assert found.shape == expected.shape
    far = (found.double().cpu() - expected).norm() / expected.norm().clamp(min=1e-30)
    assert float(far) < tolerance
