"""Who holds which rows: how data are divided among clients, and each client's rows into parts.

Everything here is a pure function of its arguments.
"""

from fedtailor.partition.draws import draws
from fedtailor.partition.files import load_partition, save_partition
from fedtailor.partition.objects import partition_of
from fedtailor.partition.parts import (
    Partition,
    hold_out,
    numbered_clients,
    permute_targets,
    split_again,
    split_rows,
)
from fedtailor.partition.recipes import (
    dirichlet,
    groups,
    iid,
    natural,
    noniid1,
    noniid2,
    pathological,
    shards,
)
from fedtailor.partition.scheme import (
    Scheme,
    divide,
    left_out_note,
    natural_names,
    parse_partition,
)
from fedtailor.partition.similarity import relatives, ring
from fedtailor.partition.statistics import count_classes, statistics
from fedtailor.partition.units import RowUnits

__all__ = [
    "Partition",
    "RowUnits",
    "Scheme",
    "count_classes",
    "dirichlet",
    "divide",
    "draws",
    "groups",
    "hold_out",
    "iid",
    "left_out_note",
    "load_partition",
    "natural",
    "natural_names",
    "noniid1",
    "noniid2",
    "numbered_clients",
    "parse_partition",
    "partition_of",
    "pathological",
    "permute_targets",
    "relatives",
    "ring",
    "save_partition",
    "shards",
    "split_again",
    "split_rows",
    "statistics",
]
