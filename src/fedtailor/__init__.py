"""FedTailor: personalised federated learning.

Many clients learn together, and each ends with a model tailored to it.

    import fedtailor
    result = fedtailor.run("fedala", data="digits", rounds=30)
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Loaded when first used: torch takes seconds to import, `fedtailor --help` must not.
_WHERE = {
    "BadInput": "errors",
    "Config": "config",
    "METHODS": "methods",
    "MODELS": "models",
    "Data": "data",
    "Federation": "engine",
    "Method": "method",
    "Outcome": "method",
    "Recipe": "train",
    "Simulation": "engine",
    "Task": "task",
    "Turn": "rng",
    "Upload": "method",
    "check_method": "check",
    "classification": "task",
    "compare": "comparison",
    "fit": "train",
    "predict": "prediction",
    "read_records": "records",
    "resume": "resuming",
    "run": "runs",
}

__all__ = ["__version__", *_WHERE]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'fedtailor' has no attribute '{name}'")
    return getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
