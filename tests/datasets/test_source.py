"""A source is checked when it is made."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedtailor.datasets import Table
from tests.datasets.datafiles import images, refusal
from tests.datasets.sources import make_source


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"labels": np.array([0, 1, 2])}, ["label 2", "row 3", "0..1"]),
        ({"labels": np.array([0, 1])}, ["labels", "3 examples"]),
        ({"labels": np.array([0.0, 1, 0])}, ["labels", "float64"]),
        ({"classes": ("a", "a")}, ["class twice"]),
        ({"official_test": np.zeros(2, bool)}, ["official_test"]),
        ({"owner": np.array([0, 0, 0])}, ["owner 0", "row 1"]),
        ({"owners": ("p",), "owner": np.array([0, 0, -1])}, ["owner -1", "row 3"]),
        ({"owners": ("p", "p"), "owner": np.array([0, 0, 1])}, ["client twice"]),
        ({"raw": np.zeros((3, 1, 2, 2))}, ["float64", "uint8"]),
        ({"raw": np.zeros((3, 2, 2), np.uint8)}, ["3 dimensions"]),
        ({"raw": ("a", "b", "c")}, ["image", "text"]),
    ],
)
def test_sources_are_checked(change, named):
    source = make_source(images(3, 1, 2, 2), "image")
    refusal(lambda: replace(source, **change), "'s'", *named)


def test_tables_are_checked():
    refusal(lambda: Table({"a": np.zeros(2), "b": np.zeros(3)}), "length")
    refusal(lambda: Table({"a": np.zeros(2, int)}), "'a'", "int64")
    refusal(lambda: Table({"a": np.array(["x", 1], dtype=object)}), "'a'", "object")
    refusal(lambda: Table({"a": np.array([0, np.inf])}), "'a'", "row 2")
