"""Where in the user's own code an error arose."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from traceback import FrameSummary
from types import FrameType, TracebackType

OURS = "fedtailor"
# whose code is not the user's; generated code has no name
LIBRARIES = {
    "", OURS, "PIL", "flwr", "functorch", "joblib", "lifelines", "matplotlib", "numpy", "opacus",
    "optuna", "pandas", "ray", "safetensors", "scipy", "sklearn", "sksurv", "sympy", "timm",
    "torch", "torchmetrics", "torchvision", "transformers", "triton", *sys.stdlib_module_names,
}  # fmt: skip
Place = tuple[FrameType, FrameSummary]


def came_through(trace: TracebackType | None) -> list[Place]:
    """All that an error came through, the innermost place last."""
    frames = (frame for frame, _ in traceback.walk_tb(trace))
    return list(zip(frames, traceback.extract_tb(trace), strict=True))


def package_of(frame: FrameType) -> str:
    """The package whose code it is; nothing for generated code."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def theirs(places: Sequence[Place]) -> list[Place]:
    """Those that are neither ours nor a library's."""
    return [place for place in places if package_of(place[0]) not in LIBRARIES]


def line_of(error: BaseException) -> str:
    """File and line in the user's own code, for messages; nothing if it did not come through it.

    Example:
      >>> code = compile("def loss(outputs): return outputs['logits']", "mine.py", "exec")
      >>> exec(code, own := {"__name__": "mine"})
      >>> try:
      ...     own["loss"]({})
      ... except KeyError as error:
      ...     print(line_of(error))
      mine.py, line 1
    """
    found = theirs(came_through(error.__traceback__))[-1:]
    return "".join(f"{Path(at.filename).name}, line {at.lineno}" for _, at in found)
