"""One word, one thing: no public name of the package is defined twice."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

SRC = Path(__file__).resolve().parent.parent / "src" / "fedtailor"

# Function names that stand in several modules because they mean the same thing there.
COMMAND = "a command, and the function that it calls"
SAME_MEANING = {
    "audit": COMMAND,
    "accuracy": "the share of right answers: of a site's score, of rows",
    "add_to": "puts a family of commands into the command line",
    "check": "a command; and the protocol of tracking tools",
    "compare": COMMAND,
    "describe": "what something holds: an experiment of a paper, data",
    "from_arrays": "named arrays as a tree again: from Ray's workers, from messages",
    "inspect": "a command: of data, of a federation's plan",
    "main": "where a process starts",
    "metrics": COMMAND,
    "predict": COMMAND,
    "report": COMMAND,
    "reproduce": COMMAND,
    "resume": COMMAND,
    "run": COMMAND,
    "tune": COMMAND,
    "to_arrays": "a tree as named arrays: for Ray's workers, for messages",
}


def defined(kind: type[ast.AST] | tuple[type[ast.AST], ...]) -> dict[str, list[str]]:
    """Public names at the top of modules, and the modules that define them."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SRC.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, kind) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(SRC)))
    return found


def twice(found: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: sorted(set(at)) for name, at in found.items() if len(set(at)) > 1}


def test_no_public_class_name_is_defined_twice() -> None:
    assert twice(defined(ast.ClassDef)) == {}


def test_no_public_function_name_is_defined_twice() -> None:
    found = twice(defined((ast.FunctionDef, ast.AsyncFunctionDef)))
    assert {name: at for name, at in found.items() if name not in SAME_MEANING} == {}
