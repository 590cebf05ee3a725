"""The examples in docstrings."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import fedtailor

MODULES = [
    "fedtailor",
    *sorted(
        m.name
        for m in pkgutil.walk_packages(fedtailor.__path__, "fedtailor.")
        if not m.name.endswith("__main__")  # importing it would start the command line
        and m.name != "fedtailor.methods.check"  # its example is slow: test_laws.py covers it
    ),
]

OPTIONAL = {"flwr", "ray", "datasets", "pyarrow", "dp_accounting", "tensorboard", "triton"}


def test_modules_are_found() -> None:
    assert {
        "fedtailor.core.rng",
        "fedtailor.engine.fold",
        "fedtailor.methods.one_model.fedavg",
    } <= set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in OPTIONAL:
            raise
        pytest.skip(f"{error.name} is not installed")
    assert doctest.testmod(module).failed == 0
