"""A round's uploads on their way to the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.method import Upload
from fedtailor.core.tree import Tree
from fedtailor.core.uploads.watch import UploadWatch, compare_uploads
from fedtailor.engine.fold import Fold, demand_weight
from fedtailor.federation.protocol.messages import message_bytes

Admission = Callable[[Tree, Upload], Upload]  # (what a site was sent, its upload) -> what counts


class Gathered:
    """Uploads of a round, folded in the order of ids whatever the order they come in.

    A result must not depend on who was faster. What comes early waits; all but that is one model.
    """

    def __init__(
        self, cohort: list[int], admit: Callable[[int], Admission], watch: UploadWatch, round: int
    ) -> None:
        self._order, self._admit, self._watch = sorted(cohort), admit, watch
        self._round = round
        self._looks: dict[int, Tensor] = {}
        self._waiting: dict[int, Upload] = {}
        self._fold, self._ids = Fold(), list[int]()
        self._each: list[Tree] = []
        self._next, self._up = 0, 0
        self._largest: dict[int, float] = {}

    def add(self, client: int, upload: Upload, sent: Tree) -> None:
        """Takes an upload in, as far as the method admits it, from one who was `sent` that."""
        self._looks[client] = self._watch.look(sent, upload)
        self._waiting[client] = self._admit(client)(sent, upload)
        while self._next < len(self._order) and self._order[self._next] in self._waiting:
            self._take(self._order[self._next])
            self._next += 1

    def _take(self, client: int) -> None:
        upload = self._waiting.pop(client)
        self._up += message_bytes(upload.mean) + message_bytes(upload.each)
        self._fold.add(
            tree.map(lambda p: p[None], upload.mean), torch.as_tensor(upload.weight)[None]
        )
        self._each.append(upload.each)
        sent = [*tree.leaves(upload.mean), *tree.leaves(upload.each)]
        sizes = [float(p.abs().max()) for p in sent if p.is_floating_point() and p.numel()]
        self._largest[client] = max(sizes, default=0.0)
        self._ids.append(client)

    def whole(self) -> tuple[Tensor, Upload, int]:
        """(ids, what the server receives, bytes that came), without those who are missing."""
        for client in sorted(self._waiting):
            self._take(client)
        demand_weight(self._fold, self._fold.folded().total, self._round)
        upload = Upload(self._fold.mean(), self._fold.share(), tree.stack(self._each))
        return torch.tensor(self._ids), upload, self._up

    def looks(self) -> dict[int, dict[str, Any]]:
        """How far each upload moves, how far it is from the others' median, and who stands out."""
        who = sorted(self._looks)
        seen = compare_uploads(torch.stack([self._looks[i] for i in who]))
        columns = zip(who, *(column.tolist() for column in seen), strict=True)
        return {
            client: {"norm": float(f"{norm:.4g}"), "distance": float(f"{far:.4g}"), "odd": odd}
            for client, norm, far, odd in columns
        }

    def extreme(self) -> int:
        """Who sent the largest number."""
        return max(self._largest, key=lambda client: self._largest[client])
