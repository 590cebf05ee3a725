"""Configurations: written, read, checked, and the same again."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest

from fedtailor.core.errors import BadInput
from fedtailor.core.training import Recipe
from fedtailor.methods import METHODS
from fedtailor.results.config import (
    WHO_WORKS,
    Config,
    make_config,
    read_config,
    settings,
    write_config,
)


def round_trip(config: Config, folder: Path) -> Config:
    path = folder / "config.toml"
    path.write_text(write_config(config, "0"), encoding="utf-8")
    method, given, options = read_config(path)
    assert method is not None
    return make_config(method, given, options)


@pytest.mark.parametrize("method", METHODS)
def test_round_trip_of_the_defaults(method: str, tmp_path: Path) -> None:
    config = make_config(method, {}, {})
    again = round_trip(config, tmp_path)
    assert again == config
    assert again.fingerprint() == config.fingerprint()


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({"lr": 1e-7, "clip": 1e22, "participation": 1 / 3}, {"mu": 0.1 + 0.2}),
        ({"data": 'a "quoted"\\path', "label": "tab\there", "client_column": "größe"}, {}),
        ({"hub": True, "permute_targets": True, "official_test": "yes"}, {"weighting": "uniform"}),
        ({"seed": 2**62, "rounds": 10**6}, {}),
        ({"partition": "noniid2:3,0.5", "states": "disk", "optimizer": "adamw"}, {"mu": 5}),
        ({"data": "clinic-😀"}, {}),
    ],
)
def test_round_trip(given: dict[str, Any], options: dict[str, Any], tmp_path: Path) -> None:
    config = make_config("fedprox", given, options)
    again = round_trip(config, tmp_path)
    assert asdict(again) == asdict(config)
    assert again.fingerprint() == config.fingerprint()


def test_every_setting_changes_the_fingerprint() -> None:
    config = make_config("fedprox", {}, {"mu": 0.1})
    seen = {config.fingerprint()}
    others: dict[str, Any] = {"method": "fedavg", "options": {"mu": 0.2}}
    for name, (option, _) in settings().items():
        if option.kind is bool:
            others[name] = not option.default
        elif option.choices:
            others[name] = next(c for c in option.choices if c != option.default)
        else:
            others[name] = option.default + (1 if option.kind is not str else "x")
    assert others.keys() == config.values().keys()
    for name, value in others.items():
        seen.add(replace(config, **{name: value}).fingerprint())
    assert len(seen) == len(others) - len(WHO_WORKS) + 1


@pytest.mark.parametrize(
    "other",
    [{"workers": 7}, {"address": "auto"}, {"worker_gpus": 0.5}],
    ids=lambda o: next(iter(o)),
)
def test_who_does_the_work_does_not_change_the_fingerprint(other: dict[str, Any]) -> None:
    config = make_config("fedavg", {"engine": "ray"}, {})
    moved = make_config("fedavg", {"engine": "ray"} | other, {})
    assert moved != config and moved.fingerprint() == config.fingerprint()


def test_the_file_is_complete_and_plain_toml(tmp_path: Path) -> None:
    found = tomllib.loads(write_config(make_config("ditto", {}, {"lam": 2}), "0"))
    assert found.keys() == {f.name for f in fields(Config)} - {"objects"}
    assert found["options"] == {"lam": 2.0}


def test_the_recipe_takes_the_training_settings() -> None:
    config = make_config("fedavg", {"epochs": 3, "batch": 7, "lr": 0.3, "momentum": 0.9}, {})
    assert config.recipe() == Recipe(epochs=3, batch=7, lr=0.3, momentum=0.9)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("roundss = 3", "did you mean 'rounds'"),
        ("metod = 'fedavg'", "did you mean 'method'"),
        ("[option]\nmu = 1", "did you mean 'options'"),
        ("rounds = ", "not valid TOML"),
        ("rounds = 3\nrounds = 4", "not valid TOML"),
        ("method = 3", "quotes"),
        ("[rounds]\nx = 1", "'rounds' must be a value"),
        ("options = 3", "'options' must be a table"),
    ],
)
def test_slips_in_a_file(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(BadInput) as caught:
        read_config(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value), "which file is it?"


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_files_that_cannot_be_read(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInput, match=r"own\.toml"):
        read_config(path)


def test_a_folder_is_no_config(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lrr": 1}, "did you mean 'lr'"),
        ({"rounds": 0}, "at least 1"),
        ({"rounds": 10**20}, "at most 1,000,000"),
        ({"epochs": "99999999999999999999"}, "at most 1,000,000"),
        ({"steps": 1_000_001}, "at most 1,000,000"),
        ({"dp_clip": 1.0, "dp_noise": 1e-300}, "at least 0.01"),
        ({"rounds": "many"}, "'many'"),
        ({"rounds": 2.5}, "whole number"),
        ({"lr": -1}, "at least 0"),
        ({"lr": "nan"}, "lr"),
        ({"engine": "warp"}, "sequential"),
        ({"participation": 0}, "nobody would train"),
        ({"participation": 1.5}, "from 0 to 1"),
        ({"test": 0}, "test is 0"),
        ({"test": 1}, "test is 1"),
        ({"val": 1}, "nothing would be left"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**62 + 1}, "seed"),
        ({"hub": "perhaps"}, "true | false"),
        ({"method": "local"}, "unknown setting 'method'"),
    ],
)
def test_settings_out_of_range(given: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as caught:
        make_config("fedavg", given, {})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_learning_rate_is_finite() -> None:
    with pytest.raises(BadInput):
        make_config("fedavg", {"lr": "inf"}, {})


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [
        ("fedprox", {"muu": 1}, "did you mean 'mu'"),
        ("fedavg", {"mu": 1}, "unknown option 'mu'"),
        ("fedavg", {"recipe": 1}, "unknown option 'recipe'"),
        ("fedprox", {"mu": -1}, "at least 0"),
        ("fedprox", {"weighting": "most"}, "data | uniform"),
        ("fedala", {"s": 101}, "from 0 to 100"),
        ("local", {"mu": 1}, "none"),
    ],
)
def test_options_of_the_method(method: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as caught:
        make_config(method, {}, options)
    assert said in str(caught.value)


def test_official_test_rows_need_no_share() -> None:
    assert make_config("fedavg", {"test": 0, "official_test": True}, {}).test == 0


def test_a_setting_under_its_earlier_name_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('method = "pmixfed"\ndepths = "mlp-2:2,mlp:4"\n')
    assert read_config(path)[1] == {"models": "mlp-2:2,mlp:4"}
