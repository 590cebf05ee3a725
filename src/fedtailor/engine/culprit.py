"""Who is to blame when a faster way does not work: operator, module, file and line."""

from __future__ import annotations

import inspect
import re
import sysconfig
import traceback
from pathlib import Path

import torch
from torch import nn

from fedtailor.core.errors import BadInput
from fedtailor.engine.memory import is_out_of_memory

_OURS = str(Path(__file__).parents[1])
_NOT_THEIRS = (_OURS, str(Path(inspect.getfile(torch)).parent), sysconfig.get_paths()["stdlib"])
LENGTH = 160  # letters of a reason


def may_go_plainer(error: Exception) -> bool:
    """Whether the same may work in a plainer way: all but bad input and a lack of memory."""
    lacking = isinstance(error, (RuntimeError, MemoryError)) and is_out_of_memory(error)
    return not isinstance(error, BadInput) and not lacking


def culprit(error: BaseException) -> str:
    """Where in the user's code an error arose, and what it says, in one line.

    Example:
      >>> try:
      ...     torch.zeros(2).item()
      ... except RuntimeError as error:
      ...     print(culprit(error))  # doctest: +ELLIPSIS
      torch.zeros(2).item() (<doctest ...>, line 2): a Tensor with 2 elements...
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    summary = list(traceback.extract_tb(error.__traceback__))
    theirs = [f for f in summary if not f.filename.startswith((*_NOT_THEIRS, "<frozen"))]
    ours = [f for f in summary if f.filename.startswith(_OURS)]
    place = (theirs or ours or summary)[-1:]
    selves = [frame.f_locals.get("self") for frame, _ in frames]
    modules = [type(m).__name__ for m in selves if isinstance(m, nn.Module)]
    said = " ".join(str(error).split()) or type(error).__name__
    named = re.search(r"aten::?[\w.]+", said)
    parts = [f"module {modules[-1]}"] if modules else []
    if named and named.start() >= LENGTH:
        parts.append(named[0])
    parts += [f"{f.line} ({Path(f.filename).name}, line {f.lineno})" for f in place]
    return f"{', '.join(parts)}: {said[:LENGTH]}"
