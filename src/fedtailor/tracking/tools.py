"""The tools that are known, each imported only when somebody asks for it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, cast

from fedtailor.core.errors import BadInput, unknown
from fedtailor.tracking.protocol import TrackedRun, Tracker

# (the run, its id from an earlier start or "", the last round that was noted then) -> tracker
Open = Callable[[TrackedRun, str, int], Tracker]


# The package that a tool needs has its name; its adapter is this class in the module on_NAME.
TOOLS = {"tensorboard": "OnTensorBoard", "mlflow": "OnMLflow", "wandb": "OnWandb"}


def parse_tools(text: str) -> tuple[str, ...]:
    """Names of tools.

    Example:
      >>> parse_tools("tensorboard, mlflow")
      ('tensorboard', 'mlflow')
    """
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise BadInput(f"--track is '{text}': name {', '.join(TOOLS)}, several with commas")
    for name in names:
        if name not in TOOLS:
            raise unknown("tool to track with", name, TOOLS)
    return tuple(dict.fromkeys(names))


def opener(name: str) -> Open:
    """What opens a run in a tool, which must be installed and, for some, logged in to."""
    try:
        importlib.import_module(name)
    except ImportError:
        raise BadInput(
            f"--track {name} needs the package {name}: pip install {name}, or "
            "pip install 'fedtailor[track]' for all of them"
        ) from None
    adapter: Any = importlib.import_module(f"fedtailor.tracking.on_{name}")
    adapter.check()
    return cast(Open, getattr(adapter, TOOLS[name]))
