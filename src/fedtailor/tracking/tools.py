"""The tools that are known, each imported only when somebody asks for it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from fedtailor.core.errors import BadInput, unknown
from fedtailor.tracking.protocol import Subject, Tracker

# (the run, its id from an earlier start or "", the last round that was noted then) -> tracker
Open = Callable[[Subject, str, int], Tracker]


@dataclass(frozen=True)
class Tool:
    """Where an adapter lies and which package it needs."""

    module: str
    package: str


TOOLS = {
    "tensorboard": Tool("on_tensorboard", "tensorboard"),
    "mlflow": Tool("on_mlflow", "mlflow"),
    "wandb": Tool("on_wandb", "wandb"),
}


def parse(text: str) -> tuple[str, ...]:
    """Names of tools, as in "tensorboard,mlflow"."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise BadInput(f"--track is '{text}': name {', '.join(TOOLS)}, several with commas")
    for name in names:
        if name not in TOOLS:
            raise unknown("tool to track with", name, TOOLS)
    return tuple(dict.fromkeys(names))


def opener(name: str) -> Open:
    """What opens a run in a tool.

    Raises:
      BadInput: its package is not installed, or nobody is logged in.
    """
    tool = TOOLS[name]
    try:
        importlib.import_module(tool.package)
    except ImportError:
        raise BadInput(
            f"--track {name} needs the package {tool.package}: pip install {tool.package}, or "
            "pip install 'fedtailor[track]' for all of them"
        ) from None
    adapter: Any = importlib.import_module(f".{tool.module}", __package__)
    adapter.check()
    return cast(Open, adapter.open)
