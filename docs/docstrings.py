"""How the API reference reads what stands in the code beside names.

`Example:` is a section of doctests, and the comment of a field is what is said of it.
"""

from __future__ import annotations

import ast
import re
from typing import Any

import griffe

HEADING = re.compile(r"^( *)Example:$", re.MULTILINE)
COMMENT = re.compile(r"# (?!type:|noqa|fmt:)")  # what is said to tools is nothing for readers


class Examples(griffe.Extension):
    """Griffe knows `Examples:` only; under any other heading `>>>` would be a quotation."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = HEADING.sub(r"\1Examples:", obj.docstring.value)


class FieldComments(griffe.Extension):
    """A field of a record is described by the comment behind it, or by the lines above it."""

    def on_attribute_instance(
        self, *, node: ast.AST | griffe.ObjectNode, attr: griffe.Attribute, **_: Any
    ) -> None:
        if not isinstance(node, ast.AnnAssign) or not attr.parent or not attr.parent.is_class:
            return
        lines = attr.lines_collection[attr.filepath]
        last = lines[node.end_lineno - 1].encode()[node.end_col_offset :].decode().strip()
        said = [last] if COMMENT.match(last) else []
        above = node.lineno - 2
        while not last and COMMENT.match(lines[above].strip()):
            said.insert(0, lines[above].strip())
            above -= 1
        if said and attr.docstring is None:
            text = " ".join(line.removeprefix("# ") for line in said)
            attr.docstring = griffe.Docstring(f"{text[0].upper()}{text[1:]}.", parent=attr)
