"""FedTailor: personalised federated learning.

Many clients learn together, and each ends with a model tailored to it.

    import fedtailor
    result = fedtailor.run("fedala", data="digits", rounds=30)
"""

from __future__ import annotations

import importlib
from typing import Any

from fedtailor.core.version import __version__

# Loaded when first used: torch takes seconds to import, `fedtailor --help` must not.
_WHERE = {
    "BadInput": "core.errors",
    "ClientData": "engine",
    "Config": "results.config",
    "METHODS": "methods",
    "MODELS": "models",
    "Data": "core.data",
    "Method": "core.method",
    "Outcome": "core.method",
    "Recipe": "core.training",
    "Simulation": "engine",
    "Task": "core.task",
    "Turn": "core.rng",
    "Upload": "core.method",
    "check_method": "methods.check",
    "classification": "core.task",
    "compare": "api",
    "fit": "core.training",
    "predict": "api",
    "read_records": "results.records",
    "resume": "api",
    "run": "api",
}

__all__ = ["__version__", *_WHERE]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'fedtailor' has no attribute '{name}'")
    return getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
