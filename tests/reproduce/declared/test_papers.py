"""What holds for every declared paper: its cells could be run as they stand, small ones soon."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from fedtailor.datasets import KNOWN
from fedtailor.methods.describe import page
from fedtailor.methods.find import find
from fedtailor.models import build
from fedtailor.partition import Partition, divide, parse_partition, split_rows
from fedtailor.reproduce.declared.declare import read_papers
from fedtailor.reproduce.declared.measures import measure_of
from fedtailor.reproduce.declared.schema import Experiment, Paper
from fedtailor.reproduce.playing.cells import Cell, Scale, make_cells, run_key
from fedtailor.results.config import Config
from fedtailor.runs.schedule import arrivals
from tests.reproduce.declared.costs import SIZES, form_of, operations

PAPERS = ("fedala", "fedfomo", "flamby", "pfedla", "plgu", "pmixfed")


def experiments() -> list[Experiment]:
    return [e for paper in read_papers().values() for e in paper.experiments]


@cache
def cells_of(key: str, small: bool = False) -> list[Cell]:
    return make_cells({e.key: e for e in experiments()}[key], Scale(small=small))


@cache
def runs_of(key: str, small: bool = False) -> dict[str, Config]:
    return {run_key(c): c for cell in cells_of(key, small) for c in cell.configs}


@cache
def options_of(method: str) -> frozenset[str]:
    return frozenset(option.name for option in page(find(method)).options)


every_experiment = pytest.mark.parametrize("experiment", experiments(), ids=lambda e: e.key)


def test_all_papers_are_declared() -> None:
    assert tuple(read_papers()) == PAPERS


@pytest.mark.parametrize("paper", read_papers().values(), ids=lambda p: p.key)
def test_choices_are_used_and_explained(paper: Paper) -> None:
    used = {choice.name for e in paper.experiments for choice in e.chosen}
    assert used == set(paper.choices)
    for choice in paper.choices.values():
        assert len(choice.reason) > 10, choice.name


@every_experiment
def test_cells_are_known_methods_on_known_data(experiment: Experiment) -> None:
    for config in runs_of(experiment.key).values():
        assert set(config.options) <= options_of(config.method)
        assert config.data in KNOWN


@every_experiment
def test_printed_numbers_can_be_what_they_are_said_to_be(experiment: Experiment) -> None:
    for cell in cells_of(experiment.key):
        if cell.published is None:
            continue
        mean, low, high = cell.published.mean, cell.published.low, cell.published.high
        assert mean >= 0
        if measure_of(cell.metric).unit == "%":
            assert mean <= 100, (cell.row, cell.column)
        if low is not None and high is not None:
            assert low <= mean <= high, (cell.row, cell.column)


@every_experiment
def test_a_small_version_says_how_else_it_divides_the_rows(experiment: Experiment) -> None:
    def divisions(small: bool) -> set[str]:
        found = [parse_partition(c.partition) for c in runs_of(experiment.key, small).values()]
        return {f"{p.name}:{p.parameters[0]}" for p in found if p.parameters}

    if not divisions(small=True) <= divisions(small=False):
        _, _, said = experiment.note.partition("Small scale:")
        assert "instead of" in said


@every_experiment
def test_small_version_is_a_small_part(experiment: Experiment) -> None:
    def cost(small: bool) -> float:
        return sum(operations(config) for config in runs_of(experiment.key, small).values())

    assert experiment.small is not None
    assert 0 < cost(small=True) < cost(small=False) / 5


@cache
def _laid_out(data: str, partition: str, clients: int, official: bool, *shares: float) -> Partition:
    """A partition of made-up rows: as many rows and classes as the data have, all equally often."""
    rows, official_share, form = SIZES[data]
    labels = np.random.default_rng(0).permutation(np.arange(rows) % form.classes)
    scheme = parse_partition(partition)
    clusters = labels % int(scheme.parameters[0]) if scheme.name == "latent" else None
    mask = np.random.default_rng(1).random(rows) < official_share if official else None
    share, val = shares
    held = divide(scheme, labels, clients, seed=0, clusters=clusters)
    names = [str(i) for i in range(clients)]
    return split_rows(
        held, labels, names, test=share, val=val, seed=0, scheme=partition, official_test=mask
    )


@every_experiment
def test_every_run_could_begin(experiment: Experiment) -> None:
    """Rows enough for all clients, a network that takes the pictures, newcomers to wait for."""
    for config in (*runs_of(experiment.key).values(), *runs_of(experiment.key, True).values()):
        _builds(config.model, config.data, config.image_size)
        if parse_partition(config.partition).name == "natural":  # everyone has its own rows
            continue
        shares = (config.test, config.val)
        made = _laid_out(
            config.data, config.partition, config.clients, config.official_test, *shares
        )
        assert config.batch <= max(len(rows) for rows in made.train)
        assert config.held_out < config.clients
        everyone = torch.arange(config.clients)
        arrivals(config.join, everyone, config.partition_seed, config.rounds)


@cache
def _builds(model: str, data: str, side: int) -> None:
    if model != "auto":
        with torch.device("meta"):
            build(model, form_of(data, side))
