"""What whoever runs an experiment may say about its runs; all else is the paper's."""

from __future__ import annotations

from typing import Any

from fedtailor.core.errors import BadInput, unknown
from fedtailor.results.config import settings as known_settings

ALLOWED_SETTINGS = (
    "data_dir", "hub", "device", "compile", "compile_limit", "precision", "chunk",
    "checkpoint_every",
)  # fmt: skip


def check_allowed(given: dict[str, Any]) -> None:
    """Refuses the paper's settings: results would look as if they were made as in the paper."""
    for name, value in given.items():
        if name in ALLOWED_SETTINGS:
            continue
        if name not in known_settings():
            raise unknown("setting", name, ALLOWED_SETTINGS)
        raise BadInput(
            f"setting '{name}' is {value!r}: the paper says what it is; declare an experiment of "
            f"your own (papers) to change it; may be given: {', '.join(ALLOWED_SETTINGS)}"
        )
