"""Shakespeare's roles as clients: windows, blocks, what is left out, and what learns from it."""

from __future__ import annotations

import json
import logging
from itertools import pairwise

import numpy as np
import pytest

import fedtailor
from fedtailor.datasets import Encoder, fit_encoder, load, unfamiliar
from fedtailor.datasets.natural.shakespeare import (
    BLOCK,
    STRIDE,
    WINDOW,
    speeches_by_role,
    windows_of,
)
from fedtailor.federation.protocol.survey import survey_of
from fedtailor.results.config import make_config
from fedtailor.runs.data import load_run_data
from tests.datasets.datafiles import refusal
from tests.datasets.natural.plays_and_sensors import write_play

ROLES = ("First Citizen", "JULIET", "ROMEO")


def run_data(folder, **given):
    config = {"data": "shakespeare", "data_dir": str(folder), "batch": 8} | given
    return load_run_data(make_config("fedavg", config, {}))


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("shakespeare", "tinyshakespeare.txt"),
        ("TinyShakespeare", "input.txt"),
        (".", "tinyshakespeare.txt"),
    ],
)
def test_each_role_that_says_enough_is_a_client(tmp_path, folder, name):
    write_play(tmp_path / "data" / folder, name)
    source = load("shakespeare", data_dir=tmp_path / "data")
    assert source.owners == ROLES and source.kind == "text" and source.window == 80
    assert source.notes == (
        "shakespeare leaves out 2 of 5 roles, which have fewer than 3 blocks of 400 characters: "
        "Page, Nurse",
    )
    assert source.classes[:3] == ("new line", "space", ",")
    assert {len(text) for text in source.raw} == {80}


def test_an_input_file_outside_a_folder_of_its_own_is_somebody_elses(tmp_path):
    write_play(tmp_path, "input.txt")
    refusal(
        lambda: load("shakespeare", data_dir=tmp_path),
        "tinyshakespeare.txt",
        "shakespeare/",
        "--hub",
    )


def test_labels_are_the_characters_that_follow(tmp_path):
    path = write_play(tmp_path / "shakespeare")
    source = load("shakespeare", data_dir=tmp_path)
    said = speeches_by_role(path.read_text(), "it")
    shown = {"new line": "\n", "space": " "}
    for row in range(0, len(source), 7):
        text, start = said[source.owners[source.owner[row]]], int(source.moments[row])
        name = source.classes[source.labels[row]]
        assert source.raw[row] == text[start : start + WINDOW]
        assert shown.get(name, name) == text[start + WINDOW]


def test_windows_stay_in_their_block_and_begin_every_stride():
    text = "".join(chr(ord("a") + i % 26) for i in range(2 * BLOCK + WINDOW + STRIDE + 1))
    found = windows_of(text)
    starts = [w.start for w in found]
    inside = list(range(0, BLOCK - WINDOW, STRIDE))
    last = [2 * BLOCK, 2 * BLOCK + STRIDE]
    assert starts == [*inside, *(BLOCK + s for s in inside), *last]
    assert all((w.start + WINDOW) // BLOCK == w.block for w in found)  # the label's too
    assert windows_of("x" * WINDOW) == []  # nothing follows


@pytest.mark.parametrize("val", [0.2, 0.0])
def test_parts_share_no_character_and_later_text_is_for_testing(tmp_path, val):
    write_play(tmp_path / "shakespeare")
    data = run_data(tmp_path, val=val)
    assert data.client_data.names == ROLES
    moments = data.source.moments
    for parts in zip(data.partition.train, data.partition.val, data.partition.test, strict=True):
        parts = [rows for rows in parts if len(rows)]
        assert len(parts) == (3 if val else 2)
        for earlier, later in pairwise(parts):
            # a window and its label have 81 characters
            assert moments[earlier].max() + WINDOW < moments[later].min()


def test_how_it_is_cut_is_not_drawn(tmp_path):
    write_play(tmp_path / "shakespeare")
    for given in ({"official_test": True}, {"split_seed": 1}):
        refusal(lambda given=given: run_data(tmp_path, **given), "data 'shakespeare'", "leave")


def test_least_rows_of_a_client_are_said(tmp_path, caplog):
    write_play(tmp_path / "shakespeare")
    with caplog.at_level(logging.INFO, "fedtailor"):
        data = run_data(tmp_path, partition="natural:100", metric="perplexity")
    assert data.client_data.names == ("JULIET", "ROMEO") and data.config.clients == 2
    told = "natural:100 leaves out 1 of 3 clients, with fewer rows: First Citizen"
    assert told in caplog.messages and len(caplog.messages) == 2
    refusal(lambda: run_data(tmp_path, partition="natural:9999"), "natural:9999", "largest has")
    # a run that is resumed says how many there are
    assert run_data(tmp_path, partition="natural:100", clients=2).config.clients == 2
    refusal(lambda: run_data(tmp_path, partition="natural:100", clients=3), "names 2")


def test_characters_become_numbers_as_they_are(tmp_path):
    write_play(tmp_path / "shakespeare")
    data = run_data(tmp_path)
    encoder = data.encoder
    assert data.config.model == "lstm" and encoder.characters and encoder.form.shape == (80,)
    assert set(encoder.words) <= set("\n ,abcdefghijklmnopqrstuvwxyz")
    row = int(data.partition.train[0][0])
    letters = [encoder.words[number - 2] for number in data.client_data.x[row]]
    assert "".join(letters) == data.source.raw[row]
    again = Encoder.from_json(json.loads(json.dumps(encoder.to_json())))
    assert again == encoder
    # of a long text the end counts, a short one has padding behind, and Z was never seen
    long, short = encoder.apply(("x" * 30 + data.source.raw[row], "Zo"))
    assert np.array_equal(long, data.client_data.x[row])
    assert short[:3].tolist() == [1, 2 + encoder.words.index("o"), 0]
    assert unfamiliar(("Zo", "Z"), encoder) == ["", "no character is known"]
    broken = encoder.to_json() | {"words": ["ab"]}
    refusal(lambda: Encoder.from_json(broken), "'words'")
    refusal(lambda: Encoder.from_json(encoder.to_json() | {"characters": 1}), "'characters'")


def test_words_are_still_words():
    source = fedtailor.datasets.source_of({"a": (["Good day", "bad day"], ["x", "y"])})
    encoder = fit_encoder(source, [np.arange(2)])
    assert encoder.words == ("day", "bad", "good") and "characters" not in encoder.to_json()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Act one\n\nROMEO:\nAy me!\n", ("line 1", "'Act one'", "NAME:")),
        ("ROMEO:\nAy me!\n\nHe jests: at scars\n", ("line 4", "NAME:")),
        ("ROMEO:\nAy me!\n", ("no role of 3 blocks", "give more")),
        ("", ("no role of 3 blocks",)),
    ],
)
def test_other_texts_are_refused(tmp_path, text, words):
    (tmp_path / "tinyshakespeare.txt").write_text(text)
    refusal(lambda: load("shakespeare", data_dir=tmp_path), "tinyshakespeare.txt", *words)


def test_what_is_no_text_is_refused(tmp_path):
    (tmp_path / "tinyshakespeare.txt").write_bytes(b"\xff\xfe\x00\x81")
    refusal(lambda: load("shakespeare", data_dir=tmp_path), "not utf-8 text")


def test_sites_refuse_what_is_read_by_character(tmp_path):
    write_play(tmp_path / "shakespeare")
    source = load("shakespeare", data_dir=tmp_path)
    refusal(
        lambda: survey_of(source, np.arange(9), min_rows=1, min_category=1), "read by character"
    )
