"""Files that grow by a line of JSON at a time, and may be cut off in the middle of one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from fedtailor.core.inputs.plain_text import parse_json

Line = dict[str, Any]


def append_line(path: Path, line: Line) -> None:
    """Adds a line to a file."""
    row = json.dumps(line) + "\n"
    with path.open("a+b") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # the last write was cut off: this one must not be lost
                row = "\n" + row
        file.write(row.encode())


def read_lines(path: Path) -> list[Line]:
    """The whole lines of a file; none if there is no such file."""
    if not path.exists():
        return []
    found = []
    for row in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = parse_json(row)
        except ValueError:
            continue  # cut off in the middle of a write; others may have followed
        if isinstance(line, dict):
            found.append(line)
    return found
