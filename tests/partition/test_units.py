"""Splits that keep groups together, and splits that train on the past."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedtailor.core.errors import BadInput
from fedtailor.partition import RowUnits, split_rows
from fedtailor.results.config import make_config
from fedtailor.runs.data import lay_out


def cut(rows, units, **given):
    names = [f"c{i}" for i in range(len(rows))]
    count = 1 + max(int(r.max()) for r in rows)
    return split_rows(
        rows, np.zeros(count, int), names, seed=0, scheme="natural", units=units, **given
    )


def test_a_group_is_in_one_part_of_all_clients():
    groups = np.array([f"p{i % 50}" for i in range(400)])
    made = cut([np.arange(200), np.arange(200, 400)], RowUnits(groups))
    parts = [np.concatenate(p) for p in (made.train, made.val, made.test)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(400))
    held = [set(groups[p]) for p in parts]
    assert not held[0] & held[1] and not held[0] & held[2] and not held[1] & held[2]
    assert 0.2 < len(parts[2]) / 400 < 0.35
    other = cut([np.arange(200), np.arange(200, 400)], RowUnits(groups), split_seed=1)
    assert set(groups[np.concatenate(other.test)]) != held[2]
    alone = cut([np.arange(200)], RowUnits(groups))
    np.testing.assert_array_equal(alone.test[0], cut([np.arange(200)], RowUnits(groups)).test[0])


def test_the_future_is_tested_and_equal_times_stay_together():
    moments = np.random.default_rng(0).integers(0, 40, 300).astype(float)
    made = cut([np.arange(300)], RowUnits(moments=moments))
    train, val, test = (moments[p[0]] for p in (made.train, made.val, made.test))
    assert train.max() < val.min() and val.max() < test.min()
    assert abs(len(test) / 300 - 0.25) < 0.05


def test_groups_in_time_go_by_their_last_row():
    groups, moments = np.repeat(["a", "b", "c", "d"], 5), np.arange(20.0)
    made = cut([np.arange(20)], RowUnits(groups, moments))
    assert [set(groups[p[0]]) for p in (made.train, made.val, made.test)] == [
        {"a", "b"}, {"c"}, {"d"}
    ]  # fmt: skip


def test_too_few_groups_are_named():
    with pytest.raises(BadInput, match="client 'c0' has 2 groups, too few for train, val and test"):
        cut([np.arange(10)], RowUnits(np.repeat(["a", "b"], 5)))


def visits(tmp_path: Path) -> Path:
    rows = [
        f"P{i % 30},{1 + i % 28:02d}.{1 + i // 28:02d}.2023,{i % 7},{'ns'[i % 2]},{'ab'[i % 3 > 0]}"
        for i in range(240)
    ]
    path = tmp_path / "visits.csv"
    path.write_text("\n".join(["patient,seen,x,site,label", *rows]) + "\n")
    return path


def test_a_guessed_order_of_days_and_months_is_said_and_can_be_chosen(tmp_path):
    """Read the other way round, a client would train on its future."""
    months = [f"{1 + i % 9}/{1 + i % 10}/2023,{i % 7},{'ab'[i % 3 > 0]}" for i in range(90)]
    path = tmp_path / "visits.csv"
    path.write_text("\n".join(["seen,x,label", *months]) + "\n")
    given = {"data": str(path), "partition": "iid", "clients": 2, "time_column_split": "seen"}
    source = lay_out(make_config("local", given, {}))[1]
    line = "column 'seen': day or month may come first: read as day first (else: --types "
    assert [n for n in source.notes if "seen" in n] == [line + "seen=date-mdy)"]
    other = lay_out(make_config("local", {**given, "types": "seen=date-mdy"}, {}))[1]
    assert not any("seen" in note for note in other.notes)
    # 1/10/2023, the tenth row: the first of October or the tenth of January
    assert source.moments[9] - other.moments[9] == 274 - 10
    with pytest.raises(BadInput, match="'seen' is the time of the split, and --types says cat"):
        lay_out(make_config("local", {**given, "types": "seen=category"}, {}))


def test_columns_of_a_table_say_it(tmp_path):
    config = lambda **given: make_config("local", {"data": str(visits(tmp_path)), **given}, {})
    _, source, made = lay_out(config(group_column="patient"))
    assert source.raw.names == ("seen", "x"), "the group is no feature"
    tested, trained = (set(source.groups[np.concatenate(p)]) for p in (made.test, made.train))
    assert tested and not tested & trained
    _, source, made = lay_out(config(time_column_split="seen", drop="patient"))
    for train, test in zip(made.train, made.test, strict=True):
        assert source.moments[train].max() < source.moments[test].min()
    for given, words in [
        ({"time_column_split": "seen", "split_seed": 2}, "leaves nothing to draw"),
        ({"group_column": "patient", "official_test": True}, "choose one"),
        ({"group_column": "patent"}, "'patent'"),
        ({"group_column": "site", "client_column": "site"}, "at once"),
        ({"time_column_split": "patient"}, "no cell of it is a number"),
        ({"data": "digits", "group_column": "patient"}, "--group-column"),
    ]:
        with pytest.raises(BadInput, match=words):
            lay_out(config(**{"data": str(visits(tmp_path)), **given}))
