"""The shape of a learning problem, as far as a network has to know it."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["image", "table", "text"]
TaskKind = Literal["classification", "regression", "survival"]


class Form(NamedTuple):
    """What one example looks like, and what is to be said of it.

    Attributes:
      kind: `image` (uint8, channels first), `table` (float features) or `text` (token numbers).
      shape: of one example: (channels, height, width), (features,) or (tokens,).
      classes: number of classes; 0 where a number is learnt.
      vocabulary: number of token numbers, padding (0) included; 0 unless `kind` is `text`.
      task: what is learnt: a class, a number, or how long it takes until an event.

    Example:
      >>> Form("table", (8,), 3).outputs, Form("table", (8,), 0, task="regression").outputs
      (3, 1)
    """

    kind: Kind
    shape: tuple[int, ...]
    classes: int
    vocabulary: int = 0
    task: TaskKind = "classification"

    @property
    def outputs(self) -> int:
        """How many numbers a network gives for an example: a logit per class, else one."""
        return self.classes if self.task == "classification" else 1
