"""Encoders are fitted on training rows only, and can be saved."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedtailor.core.form import Form
from fedtailor.datasets import Encoder, Table, encode
from tests.datasets.datafiles import images, refusal
from tests.datasets.sources import SOURCES, TRAIN, make_source, table_source


def test_tables_are_standardised_and_one_hot():
    encoder, x = encode(table_source(), TRAIN)
    assert x.dtype == np.float32 and encoder.form == Form("table", (3,), 2)
    expected = [[-1, 1, 0], [1, 0, 1], [0, 0, 0], [98, 0, 0]]
    np.testing.assert_allclose(x, expected)
    _, raw = encode(table_source(), TRAIN, normalise="none")
    np.testing.assert_allclose(raw[:, 0], [1, 3, 2, 100])
    assert encode(table_source(), TRAIN, normalise="pooled")[0] == encoder


def test_only_training_rows_shape_the_table_encoder():
    encoder, x = encode(table_source(), TRAIN)
    other, y = encode(table_source(age=(1, 3, np.nan, -5e6), sex=("f", "m", "", "zz")), TRAIN)
    assert encoder == other
    np.testing.assert_array_equal(x[:3], y[:3])
    assert encode(table_source(age=(1, 4, np.nan, 100)), TRAIN)[0] != encoder


def test_constant_and_wholly_missing_columns():
    _, x = encode(table_source(age=(0.1, 0.1, 0.1, 1.1)), TRAIN)
    np.testing.assert_allclose(x[:, 0], [0, 0, 0, 1], atol=1e-6)
    _, x = encode(table_source(age=(np.nan, np.nan, np.nan, 7)), TRAIN)
    np.testing.assert_allclose(x[:, 0], [0, 0, 0, 7])
    empty = make_source(Table({"sex": np.array(["", "", "m"])}), "table")
    refusal(lambda: encode(empty, np.array([0, 1])), "'s'", "no feature")


def test_a_mask_is_as_good_as_row_numbers():
    mask = np.array([True, True, True, False])
    assert encode(table_source(), mask)[0] == encode(table_source(), TRAIN)[0]


@pytest.mark.parametrize("rows", [[], [4], [-1], [0.5], [True]])
def test_wrong_training_rows(rows):
    refusal(lambda: encode(table_source(), np.array(rows)), "training")


def test_wrong_options():
    refusal(lambda: encode(table_source(), TRAIN, normalise="pool"), "'pool'", "'pooled'")
    refusal(lambda: encode(table_source(), TRAIN, length=0), "length 0")
    refusal(lambda: encode(table_source(age=(1e308, -1e308, 1e308, 0)), TRAIN), "'age'", "scale")
    big = table_source(age=(1e100, 0, 0, 0))
    refusal(lambda: encode(big, TRAIN, normalise="none"), "'age'", "too large")


# Texts and images.


def test_texts_become_word_numbers():
    source = make_source(("The cat, the DOG_2!", "a cat", "unseen the"), "text")
    encoder, x = encode(source, np.array([0, 1]), length=4)
    assert encoder.words == ("cat", "the", "2", "a", "dog")
    assert encoder.form == Form("text", (4,), 2, vocabulary=7)
    assert x.dtype == np.int64 and x.tolist() == [[3, 2, 3, 6], [5, 2, 0, 0], [1, 3, 0, 0]]
    small, y = encode(source, np.array([0, 1]), length=2, vocabulary=1)
    assert small.words == ("cat",) and y.tolist() == [[1, 2], [1, 2], [1, 1]]


def test_only_training_rows_shape_the_vocabulary():
    one, _ = encode(make_source(("a b", "b c", "x y"), "text"), np.array([0, 1]))
    two, _ = encode(make_source(("a b", "b c", "c c c c"), "text"), np.array([0, 1]))
    assert one == two


def test_images_pass_unchanged():
    x = images(4, 3, 5, 6)
    encoder, out = encode(make_source(x, "image"), TRAIN)
    np.testing.assert_array_equal(out, x)
    assert out.dtype == np.uint8 and encoder.form == Form("image", (3, 5, 6), 2)
    refusal(lambda: encoder.apply(images(1, 1, 5, 6)), "(1, 5, 6)", "(3, 5, 6)")
    refusal(lambda: encoder.apply(("text",)), "image")


# JSON.


@pytest.mark.parametrize("kind", SOURCES)
def test_json_round_trip(kind):
    encoder, x = encode(SOURCES[kind], TRAIN)
    again = Encoder.from_json(json.loads(json.dumps(encoder.to_json())))
    assert again == encoder
    np.testing.assert_array_equal(again.apply(SOURCES[kind].raw), x)


@pytest.mark.parametrize("kind", SOURCES)
def test_missing_and_unknown_keys_are_refused(kind):
    data = encode(SOURCES[kind], TRAIN)[0].to_json()
    for key in data:
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
