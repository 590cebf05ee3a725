"""How the API reference reads docstrings: `Example:` is a section of doctests."""

from __future__ import annotations

import re
from typing import Any

import griffe

HEADING = re.compile(r"^( *)Example:$", re.MULTILINE)


class Examples(griffe.Extension):
    """Griffe knows `Examples:` only; under any other heading `>>>` would be a quotation."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = HEADING.sub(r"\1Examples:", obj.docstring.value)
