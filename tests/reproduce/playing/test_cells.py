"""Whose setting goes before whose, which cells are run, and which runs are the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedtailor.core.errors import BadInput
from fedtailor.reproduce.declared.schema import Column, Experiment, Row
from fedtailor.reproduce.playing.cell_filter import filter_cells
from fedtailor.reproduce.playing.cells import Scale, make_cells, run_key, world_key


def by_place(cells):
    return {(c.row, c.column): c for c in cells}


def test_settings_from_the_general_to_the_special(experiments) -> None:
    cells = by_place(make_cells(experiments["table1"]))
    plain, special = cells["FedAvg", "iid"].configs[0], cells["Ditto", "iid"].configs[0]
    assert plain.batch == 50  # the paper's
    assert plain.lr == 0.05  # the choice's, before the paper's
    assert special.lr == 0.02  # the row's, before the choice's
    assert plain.partition == "iid"  # the column's
    assert special.options == {"lam": 0.3}  # only of the method that has it
    assert plain.options == {}
    assert [c.seed for c in cells["FedAvg", "iid"].configs] == [0, 1]


def test_small_replaces_everything_and_only_some_columns(experiments) -> None:
    cells = by_place(make_cells(experiments["table1"], Scale(small=True)))
    assert set(cells) == {("FedAvg", "iid"), ("Ditto", "iid")}
    config = cells["FedAvg", "iid"].configs[0]
    assert (config.clients, config.rounds) == (3, 1)
    assert len(cells["FedAvg", "iid"].configs) == 1
    with pytest.raises(BadInput, match="tiny/fig1 has no small version"):
        make_cells(experiments["fig1"], Scale(small=True))


def test_rounds_and_seeds_of_the_command_go_first(experiments) -> None:
    cells = make_cells(experiments["table1"], Scale(small=True, rounds=7, seeds=3))
    assert {c.configs[0].rounds for c in cells} == {7}
    assert {len(c.configs) for c in cells} == {3}


def test_what_is_not_as_in_the_paper_is_marked(experiments) -> None:
    table = experiments["table1"]
    assert Scale().mark(table) == ""
    assert Scale(rounds=2, seeds=2).mark(table) == ""
    assert Scale(seeds=3).mark(table) == "3 seeds instead of 2"
    assert Scale(rounds=1).mark(table) == "1 rounds instead of 2"
    longer = replace(table, columns=(Column("a"), Column("b", rounds=9)), small=None)
    assert Scale(rounds=2).mark(longer) == "2 rounds instead of 2 or 9"
    patient = Scale(rounds=2, patience=4)
    assert patient.mark(table) == "until 4 tests brought nothing on validation rows"
    assert {c.configs[0].patience for c in make_cells(table, patient)} == {4}
    assert Scale(small=True).mark(table) == ("small scale, 1 rounds instead of 2, 1 of 2 seeds")


def test_a_cell_the_paper_leaves_out_is_not_run(experiments) -> None:
    table = experiments["table1"]
    assert ("Ditto", "two classes") not in by_place(make_cells(table))
    every = by_place(make_cells(replace(table, skip_missing=False)))
    assert every["Ditto", "two classes"].published is None


def test_a_column_adds_to_the_method(experiments: dict[str, Experiment]) -> None:
    columns = (Column("plain"), Column("with ALA", suffix="+ala"), Column("other", method="local"))
    options = {"ditto.lam": 0.7}
    table = replace(
        experiments["fig1"], columns=columns, rows=(Row("D", "ditto"),), options=options
    )
    cells = make_cells(table)
    assert [c.configs[0].method for c in cells] == ["ditto", "ditto+ala", "local"]
    assert [c.configs[0].options.get("lam") for c in cells] == [0.7, 0.7, None]


def test_an_option_of_nobody_is_named(experiments: dict[str, Experiment]) -> None:
    for options in ({"lamb": 1}, {"ditto.lamb": 1}):
        with pytest.raises(BadInput, match="tiny/fig1: unknown option"):
            make_cells(replace(experiments["fig1"], options=options))
    rows = (Row("D", "ditto", options={"lamb": 1}),)
    with pytest.raises(BadInput, match="row 'D', column 'iid': unknown option 'lamb'"):
        make_cells(replace(experiments["fig1"], rows=rows))


def test_equal_runs_are_one_wherever_they_are_played(experiments) -> None:
    first = by_place(make_cells(experiments["table1"]))["FedAvg", "iid"].configs[0]
    again = make_cells(experiments["fig1"], given={"device": "cpu"})[0].configs[0]
    assert run_key(first) == run_key(again)
    assert run_key(first) != run_key(replace(first, seed=1))
    assert run_key(first) != run_key(replace(first, precision="fp32"))


def test_worlds_differ_by_data_not_by_method(experiments) -> None:
    cells = by_place(make_cells(experiments["table1"]))
    fedavg, ditto = cells["FedAvg", "iid"].configs, cells["Ditto", "iid"].configs
    assert world_key(fedavg[0]) == world_key(fedavg[1]) == world_key(ditto[0])
    assert world_key(fedavg[0]) != world_key(cells["FedAvg", "two classes"].configs[0])


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        ([], 3),
        (["FedAvg"], 2),
        (["fedavg"], 2),
        (["two*"], 1),
        (["FedAvg,Ditto"], 3),
        (["FedAvg", "iid"], 1),
        (["D*,iid"], 1),
    ],
)
def test_only(experiments, only: list[str], expected: int) -> None:
    cells = make_cells(experiments["table1"])
    chosen = filter_cells(only, cells)
    assert sum(chosen.wants(c) for c in cells) == expected


def test_only_says_what_matches_nothing(experiments) -> None:
    cells = make_cells(experiments["table1"])
    with pytest.raises(BadInput, match=r"--only 'FedAvgg': did you mean 'FedAvg'\?"):
        filter_cells(["iid,FedAvgg"], cells)
    with pytest.raises(BadInput, match="no row that is named has a cell in these columns"):
        filter_cells(["Ditto", "two classes"], cells)


def test_only_may_name_rows_of_other_experiments(experiments) -> None:
    cells = make_cells(experiments["table1"])
    chosen = filter_cells(["Ditto,Local", "elsewhere"], cells, only_here=False)
    assert chosen == filter_cells(["Ditto"], cells)
    with pytest.raises(BadInput, match="unknown row or column in --only 'Local elsewhere'"):
        filter_cells(["Local", "elsewhere"], cells, only_here=False)
