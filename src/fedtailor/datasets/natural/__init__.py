"""Known data sets whose rows belong to somebody: hospitals, roles of plays, users of phones."""

from collections.abc import Mapping

from fedtailor.datasets.natural.hospitals import HOSPITALS
from fedtailor.datasets.natural.published import PublishedData
from fedtailor.datasets.natural.shakespeare import SHAKESPEARE
from fedtailor.datasets.natural.wisdm import WISDM

NATURAL: Mapping[str, PublishedData] = {**HOSPITALS, "shakespeare": SHAKESPEARE, "wisdm": WISDM}

__all__ = ["NATURAL", "PublishedData"]
