"""The lazy table, the typed imports and `__all__` of the package say the same."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import fedtailor


def test_lazy_names_typed_imports_and_all_agree() -> None:
    text = ast.parse(Path(fedtailor.__file__).read_text(encoding="utf-8"))
    typed = {}
    for node in ast.walk(text):
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            typed |= {a.name: node.module for a in node.names}
    ours = {n: m for n, m in typed.items() if m and m.startswith("fedtailor")}
    lazy = {name: f"fedtailor.{module}" for name, module in fedtailor._WHERE.items()}
    assert ours | {"tree": "fedtailor.core.tree"} == lazy | {"__version__": "fedtailor.core"}
    assert sorted(fedtailor.__all__) == sorted([*lazy, "__version__"])


def test_every_public_function_and_class_explains_itself() -> None:
    for name in fedtailor.__all__:
        found = getattr(fedtailor, name)
        if inspect.isfunction(found) or inspect.isclass(found):
            assert inspect.getdoc(found), name
            assert not inspect.getdoc(found).startswith(("Attributes:", "Args:")), name


def test_a_module_of_the_package_is_no_name_of_it_by_accident() -> None:
    assert inspect.ismodule(fedtailor.tree)
    assert inspect.isfunction(fedtailor.run)
    importlib.import_module("fedtailor.runs.run")
    assert inspect.isfunction(fedtailor.run)
