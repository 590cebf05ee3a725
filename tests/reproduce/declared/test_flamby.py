"""FLamby's table is that of its benchmark: settings to the letter, columns that are hospitals."""

from __future__ import annotations

import pytest

from fedtailor.core.errors import BadInput
from fedtailor.reproduce.declared.declare import read_papers
from fedtailor.reproduce.declared.measures import measure_of
from fedtailor.reproduce.declared.schema import Experiment
from fedtailor.reproduce.playing.cells import Cell, Scale, make_cells, run_key


@pytest.fixture(scope="module")
def heart() -> Experiment:
    return {e.name: e for e in read_papers()["flamby"].experiments}["heart-disease"]


@pytest.fixture(scope="module")
def cells(heart: Experiment) -> list[Cell]:
    return make_cells(heart)


def test_columns_are_the_hospitals_of_one_and_the_same_run(cells: list[Cell]) -> None:
    fedavg = [cell for cell in cells if cell.row == "FedAvg"]
    assert [cell.metric for cell in fedavg] == [
        "client:cleveland", "client:hungarian", "client:switzerland", "client:va", "last",
        "weighted",
    ]  # fmt: skip
    assert len({run_key(config) for cell in fedavg for config in cell.configs}) == 5
    assert [config.seed for config in fedavg[0].configs] == [42, 43, 44, 45, 46]


def test_fewer_seeds_begin_with_the_first(heart: Experiment) -> None:
    (cell, *_) = make_cells(heart, Scale(seeds=2))
    assert [config.seed for config in cell.configs] == [42, 43]


def test_the_protocol_is_the_benchmarks(cells: list[Cell]) -> None:
    runs = {cell.row: cell.configs[0] for cell in cells}
    for name, config in runs.items():
        assert (config.batch, config.official_test, config.val) == (4, True, 0.0)
        assert (config.model, config.clients, config.participation) == ("logistic", 4, 1.0)
        assert config.normalise == ("pooled" if name == "Pooled" else "own")
        if name in ("Pooled", "Pooled, own z-scores", "Local"):
            assert (config.rounds, config.epochs, config.steps) == (1, 50, 0)
            assert (config.optimizer, config.lr) == ("adam", 0.001)
        else:
            assert (config.rounds, config.steps, config.optimizer) == (15, 100, "sgd")
    rates = {"FedAvg": 1e-3, "SCAFFOLD": 1e-3, "FedAdam": 0.01, "FedYogi": 0.003162}
    assert {name: runs[name].lr for name in rates} == rates
    assert runs["FedProx"].options == {"mu": 0.01}
    assert runs["SCAFFOLD"].options == {"server_lr": 1.0, "weighting": "data"}
    reading = {"server_lr": 0.01, "beta1": 0.9, "beta2": 0.999, "tau": 1e-8}
    assert runs["FedAdam"].options == runs["FedYogi"].options == reading
    adagrad = {"server_lr": 0.316228, "beta1": 0.9, "tau": 1e-8}
    assert runs["FedAdagrad"].options == adagrad


def test_means_are_those_of_the_hospitals(cells: list[Cell]) -> None:
    """What the result files say of each hospital gives the fifth column."""
    for row in ("Local", "FedAvg", "SCAFFOLD", "FedAdam", "FedYogi"):
        found = [c.published.mean for c in cells if c.row == row and c.published]
        assert sum(found[:4]) / 4 == pytest.approx(found[4], abs=0.011)


def test_one_client_is_a_measure() -> None:
    result = {"per_client": {"va": 0.75, "cleveland": None}}
    assert measure_of("client:va").read(result, []).main == 75.0
    assert measure_of("client:cleveland").read(result, []) is None
    assert measure_of("client:nobody").read(result, []) is None
    for bad in ("client:", "clients:va", "lst"):
        with pytest.raises(BadInput, match="unknown metric"):
            measure_of(bad)
