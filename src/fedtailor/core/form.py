"""The shape of a learning problem, as far as a network has to know it."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["image", "table", "text"]


class Form(NamedTuple):
    """What one example looks like and how many classes there are.

    Attributes:
      kind: `image` (uint8, channels first), `table` (float features) or `text` (token numbers).
      shape: of one example: (channels, height, width), (features,) or (tokens,).
      classes: number of classes.
      vocabulary: number of token numbers, padding (0) included; 0 unless `kind` is `text`.
    """

    kind: Kind
    shape: tuple[int, ...]
    classes: int
    vocabulary: int = 0
