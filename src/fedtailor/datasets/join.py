"""How the parts of a data set become one `Source`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedtailor.datasets.labels import TaskChoice, settle_labels
from fedtailor.datasets.parts import SourcePart, joined_raws, sorted_names
from fedtailor.datasets.source import Array, Source, kind_of


def _joined(moments: Sequence[Array]) -> Array | None:
    return np.concatenate(moments) if moments else None


def join_parts(
    name: str,
    parts: Sequence[SourcePart],
    classes: tuple[str, ...] = (),
    task: TaskChoice = "auto",
) -> Source:
    """One source from all parts; the class set is the union of what the parts hold.

    `classes` fixes the class names and their order where the data set is known.
    """
    settled = settle_labels(parts, task, classes)
    owners = sorted_names(o for p in parts for o in p.owners)
    place = {owner: i for i, owner in enumerate(owners)}
    owner = [i for p in parts for i in ([place[o] for o in p.owners] or [-1] * len(p.labels))]
    return Source(
        name=name,
        kind=kind_of(parts[0].raw),
        raw=joined_raws(parts),
        labels=settled.labels,
        classes=settled.classes,
        official_test=np.concatenate([np.full(len(p.labels), p.test) for p in parts]),
        owners=owners,
        owner=np.array(owner, dtype=np.int64),
        task=settled.task,
        label=parts[0].label,
        decided=settled.decided,
        groups=np.array([g for p in parts for g in p.groups]) if parts[0].groups else None,
        moments=_joined([p.moments for p in parts if p.moments is not None]),
        levels=parts[0].levels,
        notes=tuple(dict.fromkeys(note for p in parts for note in p.notes)),
        readings=parts[0].readings,
    )
