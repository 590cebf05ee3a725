"""FedFomo's and pMixFed's experiments are those of the papers."""

from __future__ import annotations

from functools import cache

import pytest

from fedtailor.reproduce.declared.declare import read_papers
from fedtailor.reproduce.declared.schema import Experiment
from fedtailor.reproduce.playing.cells import Cell, Scale, make_cells, run_key, world_key
from fedtailor.results.config import Config
from tests.reproduce.declared.costs import operations

# on two cores that do 50 operations a nanosecond each, as measured with small CNNs; counted as
# FedAvg: with what other methods compute beside it, these are about ten
SEVEN_MINUTES = 2 * 420 * 50e9
CELLS = {
    "fedfomo": {
        "table1": 44,
        "table2": 55,
        "table3": 22,
        "table4": 24,
        "table5": 55,
        "table6": 36,
        "fig1": 55,
        "fig2": 6,
        "fig3": 8,
        "fig4": 22,
        "fig4-bottom": 1,
        "fig5": 3,
        "fig5-right": 6,
        "fig6": 1,
        "fig7": 1,
        "fig9": 8,
    },
    "pmixfed": {
        "table1": 64,
        "table2": 80,
        "table3": 10,
        "table4": 6,
        "fig3": 32,
        "fig4": 8,
        "fig5": 8,
        "fig5-b": 8,
        "fig7": 1,
        "fig8": 1,
        "fig9": 5,
    },
}


def experiment(key: str) -> Experiment:
    paper = read_papers()[key.partition("/")[0]]
    return next(e for e in paper.experiments if e.key == key)


@cache
def cells(key: str) -> dict[tuple[str, str], Cell]:
    return {(c.row, c.column): c for c in make_cells(experiment(key))}


def first(key: str, row: str, column: str) -> Config:
    """The run of a cell with the first seed."""
    return cells(key)[row, column].configs[0]


def runs(key: str) -> set[str]:
    return {run_key(c) for cell in cells(key).values() for c in cell.configs}


@pytest.mark.parametrize("paper", CELLS)
def test_every_table_and_figure_is_there_with_all_its_cells(paper: str) -> None:
    found = {e.name: len(make_cells(e)) for e in read_papers()[paper].experiments}
    assert sorted(found) == sorted(CELLS[paper])
    assert found == CELLS[paper]


@pytest.mark.parametrize(
    ("key", "row", "column", "text"),
    [
        ("fedfomo/table1", "Local Training", "MNIST, 15 clients", "99.62±0.21"),
        ("fedfomo/table1", "FedFomo (n=10)", "CIFAR-10, 100 clients", "92.67±4.21"),
        ("fedfomo/table2", "Clustered FL", "4 distributions", "78.31±12.90"),
        ("fedfomo/table3", "pFedMe", "CIFAR-100", "25.41±2.33"),
        ("fedfomo/table4", "FedFomo, σ = 1", "CIFAR-10, ε", "6.89±0.13"),
        ("fedfomo/table4", "FedAvg, σ = 0", "CIFAR-100, ε", "∞"),
        ("fedfomo/table5", "FedFomo (n=5)", "10 distributions", "44.29±1.22"),
        ("fedfomo/table6", "FedFomo (MA), σ = 2", "CIFAR-100, accuracy", "9.52±0.72"),
        ("pmixfed/table1", "FedAlt", "CIFAR-100, N = 10, C = 100%", "14.31"),
        ("pmixfed/table2", "Per-FedAvg", "MNIST, N = 10, C = 100%", "50.34"),
        ("pmixfed/table3", "CIFAR-100", "α = 2", "49.8"),
        ("pmixfed/table4", "MNIST, adaptive", "accuracy", "98.6"),
    ],
)
def test_cells_hold_what_the_papers_print(key: str, row: str, column: str, text: str) -> None:
    found = cells(key)[row, column].published
    assert found is not None
    assert found.text == text


@pytest.mark.parametrize("key", [f"{p}/{name}" for p, names in CELLS.items() for name in names])
def test_small_version_takes_minutes(key: str) -> None:
    small = make_cells(experiment(key), Scale(small=True))
    needed = {run_key(c): operations(c) for cell in small for c in cell.configs}
    assert sum(needed.values()) <= SEVEN_MINUTES


def test_fedfomo_trains_as_its_appendix_says() -> None:
    few = first("fedfomo/table1", "FedAvg", "MNIST, 15 clients")
    many = first("fedfomo/table1", "FedAvg", "CIFAR-10, 100 clients")
    assert (few.lr, few.rounds, few.participation, few.augment) == (0.01, 20, 1.0, "none")
    assert (many.lr, many.rounds, many.participation, many.augment) == (0.1, 100, 0.1, "crop-flip")
    for config in (few, many):
        assert (config.epochs, config.weight_decay, config.lr_decay) == (5, 1e-4, 0.99)
        assert config.official_test
        assert config.val == 0.2


def test_clustered_fl_may_split_within_fedfomos_rounds() -> None:
    config = first("fedfomo/table1", "Clustered FL", "MNIST, 15 clients")
    assert config.options["first_split"] < config.rounds


def test_only_other_peoples_targets_are_permuted() -> None:
    for e in read_papers()["fedfomo"].experiments:
        permuted = {c.permute_targets for cell in make_cells(e) for c in cell.configs}
        assert permuted == {e.name in ("table3", "fig4", "fig4-bottom", "fig6")}, e.name


def test_all_seeds_share_one_shuffle_as_the_choice_says() -> None:
    found = cells("fedfomo/table3")["FedAvg", "CIFAR-10"].configs
    assert len(found) == 5
    assert len({world_key(config) for config in found}) == 1
    (choice,) = (c for c in experiment("fedfomo/table3").chosen if c.name == "shuffle")
    assert "the five seeds share one shuffle" in choice.reason


def test_infinite_epsilons_need_no_runs_of_their_own() -> None:
    both = [first("fedfomo/table4", "FedAvg, σ = 0", f"CIFAR-10, {m}") for m in ("ε", "accuracy")]
    assert run_key(both[0]) == run_key(both[1])


def test_privacy_rows_differ_in_noise_alone() -> None:
    for method in ("FedAvg", "FedFomo", "FedFomo (MA)"):
        for sigma in (0, 1, 2):
            config = first("fedfomo/table6", f"{method}, σ = {sigma}", "CIFAR-10, accuracy")
            assert (config.dp_clip, config.dp_noise, config.dp_delta) == (1.0, sigma, 1e-5)


@pytest.mark.parametrize(
    ("figure", "tables"),
    [
        ("fedfomo/table4", ["fedfomo/table6"]),
        ("fedfomo/fig4", ["fedfomo/table3"]),
        ("fedfomo/fig4-bottom", ["fedfomo/fig6"]),
        ("fedfomo/fig5", ["fedfomo/fig5-right"]),
        ("fedfomo/fig5-right", ["fedfomo/table4"]),
        ("fedfomo/fig6", ["fedfomo/table3"]),
        ("fedfomo/fig7", ["fedfomo/table2"]),
        ("pmixfed/fig3", ["pmixfed/table1", "pmixfed/table2"]),
        ("pmixfed/fig7", ["pmixfed/table2"]),
        ("pmixfed/fig8", ["pmixfed/fig7"]),
        ("pmixfed/fig9", ["pmixfed/table3"]),
    ],
)
def test_figures_show_runs_of_the_tables(figure: str, tables: list[str]) -> None:
    assert runs(figure) <= set().union(*(runs(table) for table in tables))


@pytest.mark.parametrize(("table", "shared"), [("table1", 7), ("table2", 2)])
def test_partial_methods_share_the_lower_half_and_show_their_best_round(
    table: str, shared: int
) -> None:
    for (row, _), cell in cells(f"pmixfed/{table}").items():
        partial = row in ("FedAlt", "FedSim")
        assert cell.metric == ("best" if partial else "last")
        assert cell.configs[0].options.get("shared_blocks") == (shared if partial else None)


def test_clients_of_pmixfed_have_half_of_the_classes_at_most() -> None:
    found = {(c.configs[0].data, c.configs[0].partition) for c in cells("pmixfed/table2").values()}
    assert found == {("cifar10", "shards:5"), ("cifar100", "shards:50"), ("mnist", "shards:5")}


def test_five_clients_join_pmixfeds_figure_4_in_round_10() -> None:
    joins = {column: c.configs[0].join for (_, column), c in cells("pmixfed/fig4").items()}
    # they are there after round 9
    assert joins == {"(a) no newcomers": "", "(b) five join in round 10": "9:5"}
