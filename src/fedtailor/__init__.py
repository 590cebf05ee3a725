"""FedTailor: personalised federated learning.

Many clients learn together, and each ends with a model tailored to it.

    import fedtailor
    result = fedtailor.run("fedala", data="digits", rounds=30)
    print(result.table())

Names of this package are loaded when they are first used: torch takes seconds to import, and
`fedtailor --help` must not. Editors and type checkers see the imports below.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedtailor.core import __version__

if TYPE_CHECKING:
    from fedtailor.analysis.description.described import DataDescription, describe
    from fedtailor.api import (
        ComparisonResult,
        MetricsResult,
        Prediction,
        RunResult,
        SimulatedRound,
        SweepResult,
        TuningResult,
        audit,
        compare,
        metrics,
        predict,
        resume,
        run,
        simulate,
        sweep,
        tune,
    )
    from fedtailor.core import tree
    from fedtailor.core.data import Data
    from fedtailor.core.errors import BadInput
    from fedtailor.core.method import Method, Outcome, Upload, by_size
    from fedtailor.core.objectives import prox, sam
    from fedtailor.core.rng import Turn
    from fedtailor.core.task import Batch, Task, classification
    from fedtailor.core.training import Recipe, descend, fit
    from fedtailor.engine import ClientData, Simulation
    from fedtailor.methods import METHODS
    from fedtailor.methods.check import check_method
    from fedtailor.models import MODELS
    from fedtailor.partition import Partition
    from fedtailor.results.config import Config
    from fedtailor.results.records import read_records

_WHERE = {
    "BadInput": "core.errors",
    "Batch": "core.task",
    "ClientData": "engine",
    "ComparisonResult": "api",
    "Config": "results.config",
    "Data": "core.data",
    "DataDescription": "analysis.description.described",
    "METHODS": "methods",
    "MetricsResult": "api",
    "MODELS": "models",
    "Method": "core.method",
    "Outcome": "core.method",
    "Partition": "partition",
    "Prediction": "api",
    "Recipe": "core.training",
    "RunResult": "api",
    "SimulatedRound": "api",
    "Simulation": "engine",
    "SweepResult": "api",
    "Task": "core.task",
    "TuningResult": "api",
    "Turn": "core.rng",
    "Upload": "core.method",
    "audit": "api",
    "by_size": "core.method",
    "check_method": "methods.check",
    "classification": "core.task",
    "compare": "api",
    "describe": "analysis.description.described",
    "descend": "core.training",
    "fit": "core.training",
    "metrics": "api",
    "predict": "api",
    "prox": "core.objectives",
    "read_records": "results.records",
    "resume": "api",
    "run": "api",
    "sam": "core.objectives",
    "simulate": "api",
    "sweep": "api",
    "tree": "core.tree",
    "tune": "api",
}

__all__ = [
    "METHODS",
    "MODELS",
    "BadInput",
    "Batch",
    "ClientData",
    "ComparisonResult",
    "Config",
    "Data",
    "DataDescription",
    "Method",
    "MetricsResult",
    "Outcome",
    "Partition",
    "Prediction",
    "Recipe",
    "RunResult",
    "SimulatedRound",
    "Simulation",
    "SweepResult",
    "Task",
    "TuningResult",
    "Turn",
    "Upload",
    "__version__",
    "audit",
    "by_size",
    "check_method",
    "classification",
    "compare",
    "descend",
    "describe",
    "fit",
    "metrics",
    "predict",
    "prox",
    "read_records",
    "resume",
    "run",
    "sam",
    "simulate",
    "sweep",
    "tree",
    "tune",
]

if not TYPE_CHECKING:  # a type checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        if name not in _WHERE:
            raise AttributeError(f"module 'fedtailor' has no attribute '{name}'")
        module = importlib.import_module(f"fedtailor.{_WHERE[name]}")
        return module if name == "tree" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
