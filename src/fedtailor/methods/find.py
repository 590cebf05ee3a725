"""A method's factory by its name: one of ours, one with a part added, or anybody's."""

from __future__ import annotations

import inspect

from fedtailor.core.errors import BadInput, unknown
from fedtailor.core.inputs.importing import import_named
from fedtailor.methods import METHODS
from fedtailor.methods.combine import with_part
from fedtailor.methods.describe import Factory, flat_options, raised


def find(name: str) -> Factory:
    """A method's factory: by its name, with parts added, or `package.module:factory`.

    The module may be installed, on PYTHONPATH, or a file or folder in the working directory.

    Raises:
      BadInput: there is no such method.

    Example:
      >>> find("ditto+ala").__name__
      'ditto_ala'
    """
    if name in METHODS:
        return METHODS[name]
    host, plus, part = name.rpartition("+")
    if plus:
        return with_part(find(host), host, part)
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise unknown("method", name, METHODS)
    try:
        factory = getattr(import_named(module_name), attribute)
        takes = inspect.signature(factory).parameters if callable(factory) else {}
    except Exception as error:  # a stranger's module may raise anything
        raise BadInput(
            f"method '{name}': {raised(error)}: write package.module:factory, of a package "
            "installed, on PYTHONPATH or in this folder"
        ) from error
    if "task" not in takes:
        raise BadInput(f"method '{name}': not a factory: its first parameter must be 'task'")
    return flat_options(factory)
