"""Encoders are fitted on training rows only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedtailor.core.form import Form
from fedtailor.datasets import Table, encode, encode_clients, fit_encoder, source_of
from tests.datasets.datafiles import images, refusal
from tests.datasets.sources import TRAIN, make_source, one_row, table_source


def test_tables_are_standardised_and_one_hot():
    encoder, x = encode(table_source(), TRAIN)
    assert x.dtype == np.float32 and encoder.form == Form("table", (3,), 2)
    expected = [[-1, 1, 0], [1, 0, 1], [0, 0, 0], [98, 0, 0]]
    np.testing.assert_allclose(x, expected)
    _, raw = encode(table_source(), TRAIN, normalise="none")
    np.testing.assert_allclose(raw[:, 0], [1, 3, 2, 100])
    pooled, same = encode(table_source(), TRAIN, normalise="pooled")
    assert pooled.columns == encoder.columns and np.array_equal(same, x)


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


def test_a_column_of_one_value_at_a_client_takes_the_common_deviation():
    """Beyond its only value nothing says what is far: unscaled, a test row would drown the rest."""
    source = table_source(age=(5.0, 5.0, 105.0, 10.0), sex=("f", "f", "f", "f"))
    train, held = [np.array([0, 1]), np.array([3])], [np.array([0, 1, 2]), np.array([3])]
    encoder = fit_encoder(source, train)
    common = encoder.columns[0].scale
    assert common == pytest.approx(np.std([5, 5, 10]))
    found = encode_clients(source, encoder, ["a", "b"], train, held)
    np.testing.assert_allclose(found.x[:, 0], [0, 0, 100 / common, 0], rtol=1e-6)
    # by itself a client knows of no other deviation
    lone = encode_clients(source, encoder, ["a", "b"], train, held, alone=True)
    np.testing.assert_allclose(lone.x[:, 0], [0, 0, 100, 0])


def test_a_label_of_one_value_at_a_client_takes_the_common_deviation():
    given = {"a": ([[1.0], [2.0]], [7.0, 7.0]), "b": ([[3.0], [4.0]], [100.0, 300.0])}
    source = source_of(given, task="regression")
    rows = [np.array([0, 1]), np.array([2, 3])]
    encoder = fit_encoder(source, rows)
    found = encode_clients(source, encoder, ["a", "b"], rows, rows).encoder
    mine, common = found.of_client("a").target, encoder.target
    assert mine and common and (mine.shift, mine.scale) == (7, common.scale)
    assert found.of_client("b").target == replace(common, shift=200.0, scale=100.0)
    lone = encode_clients(source, encoder, ["a", "b"], rows, rows, alone=True).encoder
    assert lone.of_client("a").target == replace(common, shift=7.0, scale=1.0)


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


# Many clients.


def clients(normalise, **how):
    """Two clients; the second has no age at all in training, and a sex that the first has not."""
    age = [1.0, 3.0, 5.0, np.nan, np.nan, 8.0]
    source = table_source(age, sex=("f", "m", "m", "x", "f", "x"))
    train, held = [TRAIN[:2], np.array([3, 4])], [TRAIN, np.array([3, 4, 5])]
    common = fit_encoder(source, train, normalise=normalise)
    return encode_clients(source, common, ("one", "two"), train, held, **how)


def test_own_numbers_and_common_categories():
    encoder, x, _ = clients("own")
    assert encoder.normalise == "own"
    np.testing.assert_allclose(x[:3, 0], [-1, 1, 3])  # mean 2, deviation 1
    # nothing of its own: the common fill, 2, becomes 0, and 8 is 6 above it
    np.testing.assert_allclose(x[3:, 0], [0, 0, 6])
    assert encoder.columns[1].values == ("f", "m", "x") and x[3, 1:].tolist() == [0, 0, 1]
    assert encoder.of_client("one").apply(one_row(5.0, "m")).tolist() == [[3, 0, 1, 0]]
    refusal(lambda: encoder.of_client("three"), "'three'", "one, two")


def test_alone_nothing_comes_from_the_others():
    encoder, x, _ = clients("pooled", alone=True)
    assert encoder.normalise == "own" and encoder.form == clients("pooled").encoder.form
    np.testing.assert_allclose(x[:3, 0], [-1, 1, 3])
    np.testing.assert_allclose(x[3:, 0], [0, 0, 8])  # no mean of its own, and none from others
    assert x[:, 1:].tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 0, 1]]
    assert encoder.of_client("one").apply(one_row(2.0, "x")).tolist() == [[0] * 4]
    _, bare, _ = clients("none", alone=True)
    np.testing.assert_allclose(bare[:3, 0], [1, 3, 5])


def test_alone_never_looks_at_another_client():
    """Whatever the other client has: a client's own features that it can have stay the same."""
    mine = []
    for age, sex in ((1e3, "zz"), (-7.0, "f")):
        source = table_source((1.0, 3.0, 5.0, age, age + 1), ("f", "m", "m", sex, sex))
        train = [TRAIN[:2], np.array([3, 4])]
        common = fit_encoder(source, train)
        found = encode_clients(source, common, "ab", train, [TRAIN, train[1]], alone=True)
        places = [found.encoder.columns[1].values.index(v) for v in ("f", "m")]
        mine.append(found.x[:3][:, [0, *(1 + p for p in places)]])
        others = np.delete(found.x[:3], [0, *(1 + p for p in places)], axis=1)
        assert not others.any()
    np.testing.assert_array_equal(*mine)


def test_pooled_and_federated_are_the_same_up_to_rounding():
    pooled, federated = clients("pooled"), clients("federated")
    np.testing.assert_allclose(pooled.x, federated.x, rtol=1e-6)
    assert not pooled.encoder.clients and federated.encoder.normalise == "federated"


def test_words_that_only_others_have_are_unknown_when_alone():
    source = make_source(("a b", "b c", "c a", "d"), "text")
    train = [np.array([0]), np.array([1, 3])]
    common = fit_encoder(source, train, length=2)
    held = [np.array([0, 2]), np.array([1, 3])]
    together = encode_clients(source, common, "xy", train, held)
    assert together.x.tolist() == [[3, 2], [2, 4], [4, 3], [5, 0]]  # b a c d
    alone = encode_clients(source, common, "xy", train, held, alone=True)
    assert alone.x.tolist() == [[3, 2], [2, 4], [1, 3], [5, 0]], "c is not among x's own words"
    assert alone.encoder.form == together.encoder.form


def test_a_row_of_two_clients_cannot_be_scaled_by_both():
    source, train = table_source(), [TRAIN[:2], TRAIN[1:]]
    common = fit_encoder(source, train)
    refusal(lambda: encode_clients(source, common, "ab", train, train), "row 1", "pooled")
    pooled = fit_encoder(source, train, normalise="pooled")
    assert encode_clients(source, pooled, "ab", train, train).x.shape == (4, 3)
