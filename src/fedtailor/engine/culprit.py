"""Who is to blame when a faster way does not work: operator, module, file and line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import nn

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.their_code import OURS, came_through, package_of, theirs
from fedtailor.engine.memory import is_out_of_memory

LENGTH = 160  # letters of a reason


def may_go_plainer(error: Exception) -> bool:
    """Whether the same may work in a plainer way: all but bad input and a lack of memory."""
    lacking = isinstance(error, (RuntimeError, MemoryError)) and is_out_of_memory(error)
    return not isinstance(error, BadInput) and not lacking


def culprit(error: BaseException) -> str:
    """Where in the user's code an error arose, and what it says, in one line.

    Example:
      >>> import torch
      >>> try:
      ...     torch.zeros(2).item()
      ... except RuntimeError as error:
      ...     print(culprit(error))  # doctest: +ELLIPSIS
      torch.zeros(2).item() (<doctest ...>, line 2): a Tensor with 2 elements...
    """
    places = came_through(error.__traceback__)
    ours = [place for place in places if package_of(place[0]) == OURS]
    place = (theirs(places) or ours or places)[-1:]
    selves = [frame.f_locals.get("self") for frame, _ in places]
    modules = [type(m).__name__ for m in selves if isinstance(m, nn.Module)]
    said = " ".join(str(error).split()) or type(error).__name__
    named = re.search(r"aten::?[\w.]+", said)
    parts = [f"module {modules[-1]}"] if modules else []
    if named and named.start() >= LENGTH:
        parts.append(named[0])
    parts += [f"{f.line} ({Path(f.filename).name}, line {f.lineno})" for _, f in place]
    return f"{', '.join(parts)}: {said[:LENGTH]}"


@contextmanager
def naming_their_code() -> Iterator[None]:
    """Within, an error of the user's own code becomes one line that says where in it to look.

    Raises:
      BadInput: code that is neither ours nor a library's raised, or what it called did.

    Example:
      >>> code = compile("def loss(outputs): return outputs['logits']", "mine.py", "exec")
      >>> exec(code, own := {"__name__": "mine"})
      >>> with naming_their_code():
      ...     own["loss"]({})
      Traceback (most recent call last):
          ...
      fedtailor.core.errors.BadInput: loss of your own (mine.py, line 1) raises KeyError: \
'logits': mend it there
    """
    try:
        yield
    except Exception as error:
        # without this generator, and whoever entered it: they are not to blame
        places = theirs(came_through(error.__traceback__)[2:])
        ours = type(error).__module__.partition(".")[0] == OURS  # says itself what is wrong
        if ours or not places or not may_go_plainer(error):
            raise
        frame, at = places[-1]
        name = frame.f_code.co_qualname.rpartition("<locals>.")[2]
        line = f": {at.line}" if at.line else ""
        said = " ".join(f"{type(error).__name__}: {error}".split())
        more = "" if len(said) <= LENGTH else "..."
        raise BadInput(
            f"{name} of your own ({Path(at.filename).name}, line {at.lineno}{line}) raises "
            f"{said[:LENGTH]}{more}: mend it there"
        ) from error
