"""WISDM's users as clients, from small files of the true form."""

from __future__ import annotations

import numpy as np
import pytest

from fedtailor.datasets import load
from fedtailor.datasets.natural.wisdm import ACTIVITIES, WISDM_FEATURES
from fedtailor.results.config import make_config
from fedtailor.runs.data import load_run_data
from tests.datasets.datafiles import refusal
from tests.datasets.natural.plays_and_sensors import USERS, write_wisdm


@pytest.mark.parametrize("folder", ["wisdm", "WISDM_ar_v1.1", "."])
def test_each_user_is_a_client(tmp_path, folder):
    write_wisdm(tmp_path / "data" / folder)
    source = load("wisdm", data_dir=tmp_path / "data")
    assert source.owners == ("user-02", "user-07", "user-33")
    assert np.bincount(source.owner).tolist() == [USERS[2], USERS[7], USERS[33]]
    assert source.owner[0] == 2 and source.classes == ACTIVITIES
    assert source.labels[:4].tolist() == [0, 1, 2, 0]
    # the owners' 43 features; neither the row's number nor the user is one
    assert source.raw.names == WISDM_FEATURES and len(WISDM_FEATURES) == 43
    assert np.flatnonzero(np.isnan(source.raw.columns["YPEAK"])).tolist()[:3] == [0, 5, 10]
    assert not np.isnan(source.raw.columns["XPEAK"]).any()


def test_a_run_has_the_users_and_numbers_without_gaps(tmp_path):
    write_wisdm(tmp_path / "wisdm")
    given = {"data": "wisdm", "data_dir": str(tmp_path), "batch": 4}
    data = load_run_data(make_config("local", given, {}))
    assert data.client_data.x.shape == (41, 43) and data.client_data.x.isfinite().all()
    assert data.client_data.names == ("user-02", "user-07", "user-33")
    some = load_run_data(make_config("local", given | {"partition": "natural:12"}, {}))
    assert some.client_data.names == ("user-02", "user-33")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("33,", "x,", ("line 51", "'x' as user")),
        (",Walking", ",Flying", ("line 51", "'Flying' as class")),
        (",Walking", "", ("line 51", "45 fields, not 46")),
        ('"YPEAK"', '"YPEEK"', ("lacks the attributes YPEAK",)),
        ("?", "!", ("line 51", "'!' as YPEAK")),
        ("@data", "@date", ("no rows after '@data'",)),
    ],
)
def test_broken_files_are_named(tmp_path, old, new, words):
    path = write_wisdm(tmp_path)
    path.write_text(path.read_text().replace(old, new, 1))
    refusal(lambda: load("wisdm", data_dir=tmp_path), path.name, *words)


def test_what_is_not_there_is_named(tmp_path):
    refusal(lambda: load("wisdm", data_dir=tmp_path), "transformed.arff", "wisdm/", "--hub")
