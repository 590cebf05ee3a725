"""Benchmarks are scripts, not a package: tests load them from their files."""

import importlib.util
import sys
from pathlib import Path
from typing import Any


def load(name: str) -> Any:
    """A script of the folder `benchmarks`, as a module."""
    path = Path(__file__).resolve().parents[2] / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
