"""What a method may not do beside what it returns: others would be changed by it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedtailor.core import tree
from fedtailor.core.errors import BadInput
from fedtailor.core.network.repeatable import generators, unmoved
from fedtailor.core.tree import Tree
from fedtailor.engine.loops.torch_internals import changes_of


@contextmanager
def without_effects(server: Tree, device: torch.device) -> Iterator[None]:
    """Within, clients leave the server's state and torch's random numbers as they are.

    Raises:
      BadInput: they did not.
    """
    drawn, sent = generators(device), tree.flatten(server)
    before = changes_of(sent)
    yield
    if changed := [name for name, times in changes_of(sent).items() if times != before[name]]:
        raise BadInput(
            f"the method changes {changed[0]} of the server's state in place, and so for all other "
            "clients: make a new tensor, e.g. `w = 0.9 * w` instead of `w *= 0.9`"
        )
    if not unmoved(drawn, device):
        raise BadInput(
            "the method draws from torch's own random numbers, which a run's seed does not "
            "reach: draw with fedtailor.rng and the turn's key, e.g. rng.uniform(turn.key, 3)"
        )
