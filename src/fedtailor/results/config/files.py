"""Configurations as TOML files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

from fedtailor.core.errors import BadInput, unknown
from fedtailor.core.inputs.settings_file import read_toml
from fedtailor.results.config.checked import make_config
from fedtailor.results.config.record import RENAMED, Config, settings
from fedtailor.results.folder import CONFIG
from fedtailor.results.objects import SETTINGS as OBJECT_SETTINGS
from fedtailor.results.objects import Objects


def read_config(path: Path) -> tuple[str | None, dict[str, Any], dict[str, Any]]:
    """(method, settings, options) from a TOML file, not yet checked."""
    read = read_toml(path, "config")
    found = {RENAMED.get(name, name): value for name, value in read.items()}
    known = [*settings(), "method", "options"]
    for name, value in found.items():
        if name not in known:
            guess = unknown("setting", name, known)
            raise BadInput(f"config '{path}': {guess}")
        if isinstance(value, dict) != (name == "options"):
            raise BadInput(
                f"config '{path}': '{name}' must be a {'table' if name == 'options' else 'value'}"
            )
    options = found.pop("options", {})
    method = found.pop("method", None)
    if method is not None and not isinstance(method, str):
        raise BadInput(f"config '{path}': method is {method!r}: give its name in quotes")
    return method, found, options


def config_of(
    folder: Path,
    objects: Objects = Objects(),
    *,
    using: Sequence[str] = OBJECT_SETTINGS,
    **changed: Any,
) -> Config:
    """The configuration that a run's folder was made with.

    Args:
      folder: of the run.
      objects: those that the run was started with, if there were any.
      using: which of them are needed.
      changed: settings that are to be others.
    """
    path = folder / CONFIG
    method, given, options = read_config(path)
    if method is None:
        raise BadInput(f"'{path}' names no method: it was changed")
    return make_config(method, given | changed, options, objects, using)


def as_toml(value: Any) -> str:
    """A setting's value as TOML."""
    # JSON's words for text, numbers and truth are TOML's too, but for infinity
    if isinstance(value, float) and value in (inf, -inf):
        return "inf" if value > 0 else "-inf"
    return json.dumps(value, ensure_ascii=False)


def write_config(config: Config, version: str, name: str = CONFIG) -> str:
    """The configuration as TOML, complete: it reruns the run; `name` is of its file."""
    values = config.values()
    options = values.pop("options")
    lines = [
        f"# FedTailor {version}. Run it again: fedtailor run --config {name}",
        *(f"{name} = {as_toml(value)}" for name, value in values.items()),
        "",
        "[options]",
        *(f"{name} = {as_toml(value)}" for name, value in options.items()),
    ]
    return "\n".join(lines) + "\n"
