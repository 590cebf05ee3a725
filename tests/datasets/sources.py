"""Small sources, for the tests beside it."""

from __future__ import annotations

import numpy as np

from fedtailor.datasets import Source, Table
from tests.datasets.datafiles import images


def make_source(raw, kind, labels=None):
    n = len(raw)
    labels = np.arange(n) % 2 if labels is None else np.asarray(labels)
    no = np.full(n, -1)
    return Source("s", kind, raw, labels, ("a", "b"), np.zeros(n, bool), (), no)


def table_source(age=(1.0, 3.0, np.nan, 100.0), sex=("f", "m", "", "x")):
    return make_source(Table({"age": np.array(age), "sex": np.array(sex)}), "table")


def one_row(age, sex):
    return Table({"age": np.array([age]), "sex": np.array([sex])})


TRAIN = np.array([0, 1, 2])
SOURCES = {
    "table": table_source(),
    "text": make_source(("a b", "b c", "d", ""), "text"),
    "image": make_source(images(4, 1, 3, 3), "image"),
}
