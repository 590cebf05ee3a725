"""Modules of the user's own, by name."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def import_named(name: str) -> ModuleType:
    """The module of this name: installed, or else from the working directory.

    The working directory is on the path for this import only, behind everything else, and only
    where it has the module: nothing that lies there by chance is ever imported.

    Example:
      >>> import_named("json").__name__
      'json'
    """
    top, here = name.partition(".")[0], Path.cwd()
    if not top or importlib.util.find_spec(top) is not None:
        return importlib.import_module(name)
    if not (here / f"{top}.py").is_file() and not (here / top).is_dir():
        return importlib.import_module(name)
    sys.path.append(str(here))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(here))
