"""Encoders can be saved; what older versions saved still opens."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedtailor.datasets import Encoder, encode, encode_clients, fit_encoder, source_of
from fedtailor.datasets.encoding.columns import Target
from tests.datasets.datafiles import refusal
from tests.datasets.sources import SOURCES, TRAIN, make_source, one_row, table_source


@pytest.mark.parametrize("kind", SOURCES)
def test_json_round_trip(kind):
    encoder, x = encode(SOURCES[kind], TRAIN)
    again = Encoder.from_json(json.loads(json.dumps(encoder.to_json())))
    assert again == encoder
    np.testing.assert_array_equal(again.apply(SOURCES[kind].raw), x)


@pytest.mark.parametrize("kind", SOURCES)
def test_missing_and_unknown_keys_are_refused(kind):
    data = encode(SOURCES[kind], TRAIN)[0].to_json()
    for key in ("kind", "shape", "classes", "columns", "words"):
        rest = {k: v for k, v in data.items() if k != key}
        refusal(lambda rest=rest: Encoder.from_json(rest), key)
    refusal(lambda: Encoder.from_json(data | {"shapes": 1}), "'shapes'", "'shape'")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"kind": "sound"}, ["'sound'"]),
        ({"shape": [4]}, ["'columns'"]),
        ({"shape": [-3]}, ["'shape'"]),
        ({"shape": [3, 1]}, ["'shape'"]),
        ({"shape": "3"}, ["'shape'"]),
        ({"classes": ["a"]}, ["'classes'"]),
        ({"classes": ["a", 1]}, ["classes"]),
        ({"classes": ["a", "a"]}, ["'classes'"]),
        ({"words": ["x"]}, ["'words'"]),
        ({"columns": 5}, ["'columns'"]),
        ({"columns": [5]}, ["column"]),
        ({"columns": [{"name": "a", "fill": 0, "shift": 0}]}, ["'a'", "scale"]),
        ({"columns": [{"name": "a", "fill": 0, "shift": 0, "scale": 0}]}, ["'scale' is 0"]),
        ({"columns": [{"name": "a", "fill": "x", "shift": 0, "scale": 1}]}, ["'fill' is x"]),
        ({"columns": [{"name": "a", "fill": float("nan"), "shift": 0, "scale": 1}]}, ["nan"]),
        ({"columns": [{"name": 1, "values": ["x", "y", "z"]}]}, ["'name'"]),
        ({"columns": [{"name": "a", "values": [1, 2, 3]}]}, ["'a'"]),
        ({"columns": [{"name": "a", "values": ["x"], "scale": 1}]}, ["'scale'"]),
    ],
)
def test_wrong_values_in_json_are_refused(change, named):
    data = encode(table_source(), TRAIN)[0].to_json()
    refusal(lambda: Encoder.from_json(data | change), *named)


def test_json_that_is_no_object():
    refusal(lambda: Encoder.from_json([1]), "kind")


def with_clients(alone: bool) -> Encoder:
    source = source_of({"a": ([[1.0], [2.0]], [0.5, 1.5]), "b": ([[5.0], [9.0]], [3.0, 7.0])},
                       task="regression")  # fmt: skip
    train = [np.array([0, 1]), np.array([2, 3])]
    common = fit_encoder(source, train)
    return encode_clients(source, common, source.owners, train, train, alone=alone).encoder


def test_what_is_each_clients_own_is_saved():
    for encoder in (with_clients(False), with_clients(True), text_alone(), table_alone()):
        text = json.dumps(encoder.to_json())
        assert Encoder.from_json(json.loads(text)) == encoder
        assert encoder.clients and not encoder.without_clients().clients
    assert with_clients(False).of_client("b").target == Target("label", 5, 2)


def text_alone() -> Encoder:
    source, train = make_source(("a b", "b c"), "text"), [np.array([0]), np.array([1])]
    return encode_clients(
        source, fit_encoder(source, train), "xy", train, train, alone=True
    ).encoder


def table_alone() -> Encoder:
    train = [TRAIN[:2], TRAIN[2:]]
    common = fit_encoder(table_source(), train)
    return encode_clients(table_source(), common, "xy", train, train, alone=True).encoder


def test_a_file_of_version_0_1_still_opens():
    old = {
        "kind": "table", "shape": [3], "classes": ["no", "yes"], "words": [],
        "columns": [
            {"name": "age", "fill": 2.0, "shift": 2.0, "scale": 1.0},
            {"name": "sex", "values": ["f", "m"]},
        ],
    }  # fmt: skip
    found = Encoder.from_json(old)
    assert found.normalise == "pooled" and found.form.task == "classification"
    assert found.of_client("anybody") is found
    assert found.apply(one_row(3.0, "m")).tolist() == [[1, 0, 1]]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"task": "ranking"}, ["'ranking'"]),
        ({"task": "survival"}, ["'target'"]),
        ({"classes": ["a", "b"]}, ["'classes'"]),
        ({"target": None}, ["'target'"]),
        ({"target": {"name": "y", "shift": 0, "scale": 0}}, ["'scale' is 0"]),
        ({"target": {"name": "y", "shift": 0}}, ["scale"]),
        ({"normalise": "mine"}, ["'mine'"]),
        ({"seen": ["word"]}, ["'seen'"]),
        ({"clients": 3}, ["'clients'"]),
        ({"clients": {"a": {}}}, ["'a'", "columns"]),
        ({"clients": {"a": {"columns": 3, "target": None, "seen": None}}}, ["'a'"]),
        ({"clients": {"a": {"columns": [{"name": "z"}], "target": None, "seen": None}}}, ["z"]),
        ({"clients": {"a": {"columns": [7], "target": None, "seen": None}}}, ["None"]),
        ({"clients": {"a": {"columns": [], "target": None, "seen": None}}}, ["'target'"]),
    ],
)
def test_wrong_values_in_json_of_a_regression_are_refused(change, named):
    data = with_clients(False).to_json()
    refusal(lambda: Encoder.from_json(data | change), *named)
