"""Benchmarks are scripts, not a package: tests load them from their files."""

import importlib.util
import sys
from pathlib import Path
from typing import Any


def load(name: str) -> Any:
    """A script of the folder `benchmarks`, as a module."""
    folder = Path(__file__).resolve().parents[2] / "benchmarks"
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(folder))  # scripts import each other by their plain names
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
    return module
