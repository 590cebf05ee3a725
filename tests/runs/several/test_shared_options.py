"""Runs with several values of an option: together where the method can be made once for all."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fedtailor
from fedtailor import BadInput
from fedtailor.core.method import Method
from fedtailor.core.options import NonNegative
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe, fit
from fedtailor.methods.check import toy_task
from fedtailor.results.config import Config, make_config
from fedtailor.results.folder import CHECKPOINT, CONFIG, open_folder
from fedtailor.results.storage import read_checkpoint
from fedtailor.runs.resume import resume_run
from fedtailor.runs.run import Watcher, play_config
from fedtailor.runs.several.shared_options import differ_in_numbers, why_not_shared
from fedtailor.runs.several.together import RunToPlay, play_together
from tests.engine.test_side_by_side import OPTIONS, two_values
from tests.runs.runlab import history, result
from tests.runs.several.test_together import SMALL, PowerCut, same_folders

pytestmark = pytest.mark.usefixtures("float64")


# ALA's first adaptation may take a hundred passes, which sharing calls is not about
FEWER = {"fedala": {"max_ala_epochs": 3}, "ditto+ala": {"max_ala_epochs": 3}}


def configs(method: str, option: str, *values: float, **more: Any) -> list[Config]:
    fixed = FEWER.get(method, {})
    return [make_config(method, SMALL | more, fixed | {option: value}) for value in values]


def alone(config: Config, folder: Path) -> Path:
    play_config(config, open_folder(folder))
    return folder


@pytest.mark.parametrize(
    ("method", "option", "values", "more"),
    [
        ("ditto", "lam", (0.1, 5.0), {}),
        ("fedprox", "mu", (0.1, 5.0), {}),
        ("plgu-lf", "rho", (0.01, 0.5), {}),
        ("moon", "mu", (0.1, 5.0), {}),  # which is asked whether it is 0
        ("fedala", "eta", (0.1, 1.0), {}),
        ("ditto+ala", "eta", (0.1, 1.0), {}),
        ("fedproto", "lam", (0.1, 5.0), {"models": "mlp-2:2,mlp:2"}),
    ],
)
def test_each_folder_is_as_if_the_run_had_been_alone(
    method: str, option: str, values: tuple[float, ...], more: dict[str, Any], tmp_path: Path
) -> None:
    runs = configs(method, option, *values, rounds=2, **more)
    runs.append(replace(runs[1], seed=1, lr=0.03))
    ends = play_together([RunToPlay(c, tmp_path / str(i)) for i, c in enumerate(runs)])
    assert [end.result["side_by_side"] for end in ends] == [3, 3, 3]
    for i, config in enumerate(runs):
        apart = alone(config, tmp_path / f"alone-{i}")
        same_folders(tmp_path / str(i), apart)
        mine, theirs = (read_checkpoint(f / CHECKPOINT) for f in (tmp_path / str(i), apart))
        assert mine["config"] == theirs["config"]
        assert (tmp_path / str(i) / CONFIG).read_text() == (apart / CONFIG).read_text()
    scores = [result(tmp_path / str(i))["score"]["loss"] for i in range(2)]
    assert abs(scores[0] - scores[1]) > 1e-6  # or equality would say nothing


def test_one_that_was_cut_off_goes_on_alone_or_beside_others(tmp_path: Path) -> None:
    runs = configs("ditto", "lam", 0.1, 1.0, 5.0)

    def cut() -> Watcher:
        def watch(line: dict[str, Any], rounds: int) -> None:
            if line["round"] == 2:
                raise PowerCut

        return watch

    places = [tmp_path / str(i) for i in range(3)]
    cut_off = [RunToPlay(c, f, announce=cut) for c, f in zip(runs[1:], places[1:], strict=True)]
    ends = play_together([RunToPlay(runs[0], places[0]), *cut_off], keep_going=True)
    assert [end.error is None for end in ends] == [True, False, False]
    assert [len(history(place)) for place in places] == [3, 2, 2]
    resume_run(places[1])
    # the last goes on beside one that begins
    more = make_config("ditto", SMALL, {"lam": 3.0})
    last = play_together([RunToPlay(runs[2], places[2]), RunToPlay(more, tmp_path / "3")])
    assert [end.result["side_by_side"] for end in last] == [2, 2]
    for i, config in enumerate([*runs, more]):
        same_folders(tmp_path / str(i), alone(config, tmp_path / f"alone-{i}"))


def told(messages: list[str]) -> list[str]:
    return [message for message in messages if "one after another" in message]


@pytest.mark.parametrize(
    ("method", "option", "values", "why"),
    [
        ("moon", "mu", (0.0, 1.0), "moon has to be made for each value of its options: what is do"),
        ("fedala", "s", (20.0, 80.0), "cannot be mapped"),  # rows are counted on the host
    ],
)
def test_values_that_need_a_program_each_go_one_by_one_but_their_seeds_together(
    method: str, option: str, values: tuple[float, ...], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    few = {"rounds": 1, "clients": 3}
    both = [
        config for seed in (0, 1) for config in configs(method, option, *values, seed=seed, **few)
    ]
    with caplog.at_level(logging.INFO, "fedtailor"):
        ends = play_together(both)
    assert [end.result["side_by_side"] for end in ends] == [2, 2, 2, 2]
    assert [end.result["options"][option] for end in ends] == [*values, *values]
    assert len(told(caplog.messages)) == 1 and why in told(caplog.messages)[0]
    alone = play_together(both, side_by_side=False)
    for one, other in zip(ends, alone, strict=True):
        assert one.result["score"]["loss"] == pytest.approx(other.result["score"]["loss"], rel=1e-9)


def odd(task: Task, *, pull: NonNegative = 1.0, recipe: Recipe = Recipe()) -> Method:
    """Branches on its option, but not in the small world, whose rows have six columns."""
    host = fedtailor.METHODS["fedavg"](task, recipe=recipe)

    def client(msg: Any, state: Any, data: Any, turn: Any) -> Any:
        out = host.client(msg, state, data, turn)
        far = data.x.shape[1] != 6 and pull > 0.5
        params = fit(task, out.model, data, turn.aside(), recipe) if far else out.model
        return out._replace(upload=out.upload._replace(mean={"params": params}))

    return host._replace(client=client, download=None)


def test_what_only_the_real_network_shows_is_played_again_apart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"{__name__}:odd"
    runs = configs(name, "pull", 0.1, 1.0, rounds=1)
    with caplog.at_level(logging.INFO, "fedtailor"):
        ends = play_together([RunToPlay(c, tmp_path / str(i)) for i, c in enumerate(runs)])
    assert [end.result["side_by_side"] for end in ends] == [1, 1]
    assert len(told(caplog.messages)) == 1 and "gt(pull, 0.5)" in told(caplog.messages)[0]
    for i, config in enumerate(runs):
        same_folders(tmp_path / str(i), alone(config, tmp_path / f"alone-{i}"))


def test_a_value_out_of_range_is_refused_as_ever() -> None:
    with pytest.raises(BadInput, match="option 'lam' is '-1'"):
        fedtailor.tune("ditto", over={"lam": "0.1,-1"}, search="grid", trials=2, **SMALL)


def test_counts_words_and_what_only_one_has_given_are_not_shared() -> None:
    def both(one: dict[str, Any], other: dict[str, Any], method: str = "ditto") -> bool:
        return differ_in_numbers(*(make_config(method, SMALL, given) for given in (one, other)))

    assert both({"lam": 0.1}, {"lam": 2}) and both({}, {})
    assert not both({"own_epochs": 1}, {"own_epochs": 2})
    assert not both({"weighting": "data"}, {"weighting": "uniform"})
    assert not both({"lam": 0.1}, {})


@pytest.mark.slow
def test_nearly_all_options_share_a_program_as_docs_say() -> None:
    apart = []
    for named, option in OPTIONS.items():
        method = named.rpartition(".")[0]
        runs = configs(method, option.name, *two_values(option))
        if why_not_shared(runs, toy_task()):
            apart.append(named)
    assert apart == ["fednova.mu", "fedala.s", "knn-per.lam"]
    assert len(OPTIONS) == 101
