"""Data: known sets and one's own, from disk or the hub, to arrays that a network takes.

`load` finds a data set by its name or path, `source_of` takes objects in memory. Both return a
`Source`: raw examples with labels, the official split and the natural clients, all checked.
`encode` fits the preprocessing on the training rows only and returns an `Encoder`, which is saved
with a model so that `read_examples` can feed it later; `fit_encoder` and `encode_clients` do so for
many clients, each scaled by its own rows or all alike. `unfamiliar` names rows that are unlike
those that an encoder was fitted on.
"""

from fedtailor.datasets.encoding.encoder import Encoder
from fedtailor.datasets.encoding.fit import encode, encode_clients, fit_encoder, fit_own
from fedtailor.datasets.encoding.unfamiliar import unfamiliar
from fedtailor.datasets.examples import read_examples
from fedtailor.datasets.features.choices import ColumnChoices, make_choices
from fedtailor.datasets.load import KNOWN, load
from fedtailor.datasets.objects import source_of
from fedtailor.datasets.source import Source, Table

__all__ = [
    "KNOWN",
    "ColumnChoices",
    "Encoder",
    "Source",
    "Table",
    "encode",
    "encode_clients",
    "fit_encoder",
    "fit_own",
    "load",
    "make_choices",
    "read_examples",
    "source_of",
    "unfamiliar",
]
