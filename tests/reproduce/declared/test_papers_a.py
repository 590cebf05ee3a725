"""FedALA's, pFedLA's and PLGU's experiments are those of the papers."""

from __future__ import annotations

from functools import cache

import pytest

from fedtailor.methods.describe import page
from fedtailor.methods.find import find
from fedtailor.partition import parse_partition
from fedtailor.reproduce.declared.declare import read_papers
from fedtailor.reproduce.declared.measures import MEASURES, Value
from fedtailor.reproduce.declared.schema import Experiment
from fedtailor.reproduce.playing.cells import Cell, Scale, declared_rounds, make_cells, run_key
from fedtailor.results.config import Config

OURS = ("pFedLA, rate 1", "HeurpFedLA, rate 1")  # rows that no paper has
CELLS = {  # as many as the paper prints, or draws
    "fedala": {
        "table1": 7 + 6,
        "table2": 14 * 8,
        "table3": 14 * 2,
        "table4": 14 * 5 + 9 * 2,  # nine methods take ALA
    },
    "pfedla": {
        "table1": (9 + len(OURS)) * 8 + 4,  # FedBN on CIFAR alone
        "table2": (9 + len(OURS)) * 8 + 4,
        "table3": 2 * (3 + 4),
        "fig5": 4,
        "fig6": 4,
        "fig7": 2,
    },
    "plgu": {
        "table1": 5 * 5,
        "table2": 7 * 5,
        "table3": 4 * 3,
        "table4": 4 * 3,
        "fig1": 2,
        "fig4": 7 * 3,
        "fig5": 2 * 5,
        "fig6": 3,
        "fig7": 1,
    },
}


def experiments() -> list[Experiment]:
    return [e for paper in CELLS for e in read_papers()[paper].experiments]


def experiment(key: str) -> Experiment:
    return next(e for e in experiments() if e.key == key)


@cache
def cells(key: str, small: bool = False) -> dict[tuple[str, str], Cell]:
    return {(c.row, c.column): c for c in make_cells(experiment(key), Scale(small=small))}


def first(key: str, row: str, column: str) -> Config:
    """The run of a cell with the first seed."""
    return cells(key)[row, column].configs[0]


@cache
def runs(key: str) -> set[str]:
    return {run_key(c) for cell in cells(key).values() for c in cell.configs}


every_experiment = pytest.mark.parametrize("declared", experiments(), ids=lambda e: e.key)


@pytest.mark.parametrize("paper", CELLS)
def test_every_table_and_figure_is_there_with_all_its_cells(paper: str) -> None:
    found = {e.name: len(cells(e.key)) for e in read_papers()[paper].experiments}
    assert found == CELLS[paper]


@every_experiment
def test_methods_and_their_options_are_known(declared: Experiment) -> None:
    for small in (False, True):
        for cell in cells(declared.key, small).values():
            for config in cell.configs:
                known = {option.name for option in page(find(config.method)).options}
                assert set(config.options) <= known


@every_experiment
def test_printed_cells_have_the_form_of_their_table(declared: Experiment) -> None:
    for row in declared.rows:
        if row.name in OURS:
            assert row.paper is None
        elif declared.name.startswith("table"):
            assert row.paper is not None and len(row.paper) == len(declared.columns)
        for cell in row.published or ():
            if cell is None:
                continue
            grouped = declared.paper.key == "plgu" and declared.shows == "table"
            assert (cell.low is not None) == grouped
            spread = declared.key in ("fedala/table2", "fedala/table4") or declared.key in (
                "pfedla/table1",
                "pfedla/table2",
            )
            assert (cell.std is not None) == spread


@pytest.mark.parametrize("paper", CELLS)
def test_choices_are_named_and_none_is_idle(paper: str) -> None:
    declared = read_papers()[paper]
    used = [c.name for e in declared.experiments for c in e.chosen]
    assert set(used) == set(declared.choices)
    for e in declared.experiments:
        names = [c.name for c in e.chosen]
        assert len(names) == len(set(names)), e.key


def test_small_versions_keep_to_small_data() -> None:
    for e in experiments():
        for cell in cells(e.key, small=True).values():
            assert cell.configs[0].data in ("mnist", "fashion-mnist", "cifar10"), e.key
            assert len(cell.configs) == 1


def test_fedala_trains_as_section_4_1_says() -> None:
    rates = {
        "MNIST pat": 0.1,
        "Cifar10 pat": 0.005,
        "Cifar100 pat": 0.005,
        "Cifar10": 0.005,
        "Cifar100": 0.005,
        "TINY": 0.005,
        "TINY*": 0.1,
        "AG News": 0.1,
    }
    for column, rate in rates.items():
        config = first("fedala/table2", "FedALA", column)
        assert (config.lr, config.batch, config.epochs, config.rounds) == (rate, 10, 1, 2000)
        assert (config.clients, config.participation, config.test) == (20, 1.0, 0.25)
        assert (config.options["s"], config.options["p"]) == (80, 1)
        assert len(cells("fedala/table2")["FedALA", column].configs) == 5
    assert first("fedala/table2", "FedALA", "TINY*").model == "resnet18-bn"
    assert first("fedala/table2", "APPLE", "TINY").options["M"] == 20
    assert first("fedala/table2", "FedFomo", "TINY").options["M"] == 20


def test_fedala_shares_runs_between_tables() -> None:
    both = cells("fedala/table1")
    assert both["FedALA", "s=80, p=1"].configs == both["FedALA", "p=1, s=80"].configs
    assert len(runs("fedala/table1")) == 12 * 5
    assert runs("fedala/table1") & runs("fedala/table2")


def test_ala_is_added_to_the_methods_that_take_it() -> None:
    added = {c.configs[0].method for c in cells("fedala/table4").values() if "+ALA" in c.column}
    hosts = ("fedavg", "fedprox", "perfedavg-fo", "fedrep", "pfedme", "ditto", "fedamp", "fedphp")
    assert added == {f"{host}+ala" for host in (*hosts, "partialfed")}


def test_pfedla_trains_few_and_many_clients_as_it_says() -> None:
    for key in ("pfedla/table1", "pfedla/table2"):
        few, many = first(key, "pFedLA", "CIFAR10 10"), first(key, "pFedLA", "CIFAR10 100")
        assert (few.rounds, few.epochs, few.participation, few.lr) == (600, 10, 1.0, 0.01)
        assert (many.rounds, many.epochs, many.participation, many.lr) == (2500, 20, 0.1, 0.01)
        assert few.partition == many.partition
        for config in (few, many):
            assert (config.batch, config.test) == (32, 0.3)
            assert parse_partition(config.partition).limit == 600
        assert first(key, "pFedLA", "EMNIST 10").lr == 0.005
        assert first(key, "HeurpFedLA", "CIFAR10 10").options["k"] == 1
        assert (first(key, "FedFomo", "CIFAR10 10").val, few.val) == (0.2, 0.0)


def test_pfedla_has_batch_norm_on_cifar_alone() -> None:
    for (_, column), cell in cells("pfedla/table1").items():
        assert cell.configs[0].model == "pfedla-cnn" + "-bn" * column.startswith("CIFAR")


def test_retained_blocks_are_swept_and_none_is_pfedla() -> None:
    found = cells("pfedla/table3")
    kept = [c.configs[0].options["k"] for c in found.values() if c.row == "Model Accuracy"]
    assert kept == [0, 1, 2, 0, 1, 2, 3]
    for column in ("EMNIST", "CIFAR10"):
        alone = cells("pfedla/table1")["pFedLA", f"{column} 10"].published
        none_kept = found["Model Accuracy", f"{column} k=0"].published
        assert alone is not None and none_kept is not None
        assert none_kept.mean == alone.mean


def test_weights_are_looked_at_where_likeness_is_designed() -> None:
    for key, scheme in (("fig5", "relatives"), ("fig6", "ring"), ("fig7", "relatives")):
        for cell in cells(f"pfedla/{key}").values():
            config = cell.configs[0]
            assert parse_partition(config.partition).name == scheme
            assert config.clients == 8
        assert experiment(f"pfedla/{key}").record == "server/aggregation_weights"
    assert runs("pfedla/fig7") <= runs("pfedla/fig5")


def test_plgu_trains_as_section_6_1_says() -> None:
    for column, classes, model, share in (
        ("CIFAR10 C=10", 3, "resnet18-cifar", 0.1),
        ("CIFAR10 C=100", 3, "resnet18-cifar", 1.0),
        ("CIFAR100 C=10", 10, "wrn-28-10", 0.1),
        ("CIFAR100 C=100", 10, "wrn-28-10", 1.0),
        ("TmgNet C=20", 30, "resnet50", 1.0),
    ):
        config = first("plgu/table2", "PLGU-LF", column)
        assert (config.partition, config.model) == (f"noniid1:{classes}", model)
        assert config.participation == share
        assert (config.epochs, config.batch) == (5, 50)
        assert (config.options["rho"], config.options["D"]) == (0.05, 5)


def test_global_models_are_read_where_there_are_others_beside() -> None:
    for (row, _), cell in cells("plgu/table1").items():
        alone = row in ("FedAvg", "FedSAM")  # what they test is the global model
        assert cell.metric == ("last-groups" if alone else "global-groups")


def test_plgu_ablations_move_what_they_say() -> None:
    for column, epochs in (("K=1", 1), ("K=5", 5), ("K=10", 10)):
        assert first("plgu/table3", "PLGU-LF (G)", column).epochs == epochs
        assert first("plgu/table3", "PLGU-GRep", column).options["head_epochs"] == epochs
    for column, rho in (("rho=0.05", 0.05), ("rho=0.1", 0.1), ("rho=0.5", 0.5)):
        for row in ("PLGU-LF (G)", "PLGU-LF (P)", "PLGU-GRep", "PLGU-GHN"):
            assert first("plgu/table4", row, column).options["rho"] == rho
    depths = [c.configs[0].options["D"] for c in cells("plgu/fig5").values()]
    assert depths[::2] == depths[1::2] == [0, 1, 5, 10, 23]
    assert runs("plgu/table3") & runs("plgu/table4") & runs("plgu/table2")


def test_fedrep_and_plgu_grep_train_alike() -> None:
    ours = first("plgu/table2", "PLGU-GRep", "CIFAR10 C=10").options
    theirs = first("plgu/table2", "FedRep", "CIFAR10 C=10")
    assert (ours["head_epochs"], ours["rep_epochs"]) == (5, 1)
    assert (theirs.options["head_epochs"], theirs.epochs) == (5, 1)


@pytest.mark.parametrize(
    ("metric", "value"),
    [("models-per-round", 2.0), ("megabytes-per-round", 0.0032), ("minutes-per-round", 0.5)],
)
def test_costs_are_counted_per_round(metric: str, value: float) -> None:
    result = {
        "bytes": {"up": 3200, "down": 3200},
        "rounds": 2,
        "parameters": 100,
        "train_seconds": 60,
    }
    history = [{"cohort": [0, 1, 2, 3]}, {"cohort": [4, 5, 6, 7]}]
    assert MEASURES[metric].read(result, history) == Value(pytest.approx(value))


def test_rounds_that_a_paper_has_are_those_of_the_cells_in_question() -> None:
    table = experiment("pfedla/table1")
    assert declared_rounds(table) == {600, 2500}
    assert declared_rounds(table, {("FedAvg", "FMNIST 10"), ("pFedLA", "FMNIST 10")}) == {600}
    assert declared_rounds(table, {("FedAvg", "FMNIST 100")}) == {2500}
