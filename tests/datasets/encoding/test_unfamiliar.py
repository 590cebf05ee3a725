"""Rows that are unlike training are named."""

from __future__ import annotations

import numpy as np

from fedtailor.datasets import Table, encode, encode_clients, fit_encoder, unfamiliar
from tests.datasets.datafiles import images
from tests.datasets.sources import TRAIN, make_source, table_source


def rows(age, sex):
    return Table({"sex": np.array(sex), "age": np.array(age, dtype=float)})


def test_new_categories_and_far_numbers():
    encoder, _ = encode(table_source(), TRAIN)  # ages 1 and 3, sexes f and m
    found = unfamiliar(
        rows([2, 4, 4.1, -0.1, 0, np.nan, 9], ["f", "m", "f", "m", "zz", "", "zz"]), encoder
    )
    assert found == [
        "", "", "age 4.1 is far from 1 to 3", "age -0.1 is far from 1 to 3", "sex 'zz' is new", "",
        "age 9 is far from 1 to 3, sex 'zz' is new",
    ]  # fmt: skip


def test_a_client_judges_by_its_own_rows():
    source = table_source((1.0, 3.0, 50.0, 90.0), ("f", "m", "x", "x"))
    train = [np.array([0, 1]), np.array([2, 3])]
    common = fit_encoder(source, train)
    encoder = encode_clients(source, common, "ab", train, train, alone=True).encoder
    assert unfamiliar(rows([60], ["x"]), encoder.of_client("b")) == [""]
    assert unfamiliar(rows([60], ["x"]), encoder.of_client("a")) == [
        "age 60 is far from 1 to 3, sex 'x' is new"
    ]


def test_nothing_is_said_where_nothing_is_known():
    sums = fit_encoder(table_source(), [TRAIN], normalise="federated")
    assert unfamiliar(rows([1e9], ["f"]), sums) == [""], "sums do not tell the range"
    texts, _ = encode(make_source(("a b", "c"), "text"), np.array([0, 1]))
    assert unfamiliar(("a z", "z", ""), texts) == ["", "no word is known", "no word is known"]
    pictures, _ = encode(make_source(images(4, 1, 3, 3), "image"), TRAIN)
    assert unfamiliar(images(2, 1, 3, 3), pictures) == ["", ""]
