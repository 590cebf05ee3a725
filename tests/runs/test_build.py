"""From a configuration to data, clients and network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedtailor
from fedtailor.core.errors import BadInput
from fedtailor.core.task import classification
from fedtailor.partition import save_partition
from fedtailor.results.config import Config, make_config
from fedtailor.runs.build import choose_device, lay_out, load_run_data, make_method


def config(**given: Any) -> Config:
    return make_config("fedavg", given, {})


@pytest.fixture
def own(tmp_path: Path) -> Path:
    rows = [
        f"{client},{i % 3},{i % 2},{'ab'[i % 2]}"
        for client in ("north", "south")
        for i in range(20)
    ]
    path = tmp_path / "own.csv"
    path.write_text("\n".join(["client,u,v,label", *rows]) + "\n")
    return path


def test_auto_of_a_known_set() -> None:
    found = load_run_data(config()).config
    assert (found.partition, found.clients, found.model) == ("dirichlet:0.1", 20, "cnn")
    assert found.device in ("cpu", "cuda")


def test_auto_of_own_data_with_clients(own: Path) -> None:
    world = load_run_data(config(data=str(own)))
    assert (world.config.partition, world.config.clients) == ("natural", 2)
    assert world.config.model == "mlp"
    assert tuple(world.client_data.names) == ("north", "south")


def test_own_data_can_be_divided_anew(own: Path) -> None:
    world = load_run_data(config(data=str(own), partition="iid", clients=4, min_samples=1, batch=5))
    assert len(world.client_data.names) == 4
    assert "north" not in world.client_data.names


def test_every_row_has_one_place() -> None:
    _, source, partition = lay_out(config(clients=7))
    rows = np.concatenate([*partition.train, *partition.val, *partition.test])
    assert sorted(rows) == list(range(len(source)))


def test_held_out_clients_are_not_among_the_trained() -> None:
    world = load_run_data(config(clients=6, held_out=2))
    assert len(world.held_out) == 2
    assert sorted([*world.trained.tolist(), *world.held_out.tolist()]) == list(range(6))


def test_the_digest_knows_data_and_partition(own: Path) -> None:
    plain = config(data=str(own))
    first = load_run_data(plain).digest()
    assert load_run_data(plain).digest() == first
    assert load_run_data(replace(plain, lr=1.0, seed=3)).digest() == first, (
        "that is no matter of data"
    )
    assert load_run_data(replace(plain, partition_seed=1)).digest() != first
    own.write_text(own.read_text().replace("north,0,", "north,5,", 1))
    assert load_run_data(plain).digest() != first


def test_the_rows_digest_knows_whose_the_rows_are(own: Path) -> None:
    plain = config(data=str(own))
    first = load_run_data(plain).rows_digest()
    assert load_run_data(replace(plain, partition_seed=1)).rows_digest() != first
    assert load_run_data(replace(plain, lr=1.0, seed=3)).rows_digest() == first
    raw = replace(plain, normalise="none")
    assert load_run_data(raw).rows_digest() == first, "the rows are the same, however encoded"
    assert load_run_data(raw).digest() != load_run_data(plain).digest()


def test_the_preprocessing_never_sees_a_test_row(own: Path) -> None:
    """A huge value in a test row must not move the scale of the training rows."""
    plain = config(data=str(own))
    world = load_run_data(plain)
    row = int(world.partition.test[0][0])
    lines = own.read_text().splitlines()
    client, _, v, label = lines[row + 1].split(",")
    lines[row + 1] = f"{client},1e6,{v},{label}"
    own.write_text("\n".join(lines) + "\n")
    other = load_run_data(plain)
    train = torch.from_numpy(np.concatenate(world.partition.train))
    assert torch.equal(world.client_data.x[train], other.client_data.x[train])
    assert other.client_data.x[row].abs().max() > 1000


@pytest.mark.parametrize("name", ["gpu9", "cuda:99", "", "cpu:x"])
def test_devices_that_are_not_there(name: str) -> None:
    with pytest.raises(BadInput, match="try --device cpu") as caught:
        choose_device(name)
    assert "\n" not in str(caught.value)


def test_a_device_that_cannot_compute_is_refused() -> None:
    with pytest.raises(BadInput):
        choose_device("meta")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"batch": 10**6}, "lower --batch"),
        ({"clients": 5000}, "5000 clients for 1797 rows"),
        ({"partition": "pathological:11"}, "11 classes"),
        ({"partition": "natural"}, "do not say who owns"),
        ({"official_test": True}, "no test rows of its own"),
        ({"partition_file": "nowhere.npz"}, "nowhere.npz"),
        ({"held_out": 20}, "held out"),
    ],
)
def test_what_the_data_do_not_allow(given: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        load_run_data(config(**given))


def test_clients_of_natural_data_cannot_be_chosen(own: Path) -> None:
    with pytest.raises(BadInput, match="names 2"):
        load_run_data(config(data=str(own), clients=5))


def test_tables_are_not_augmented(own: Path) -> None:
    with pytest.raises(BadInput, match="crop-flip"):
        load_run_data(config(data=str(own), augment="crop-flip"))


def test_fedfomo_needs_validation_rows() -> None:
    task = classification(lambda: torch.nn.Linear(2, 2))
    for name in ("fedfomo", "fedfomo-ma", "pmixfed", "fedsim+mix"):
        with pytest.raises(BadInput, match="raise --val"):
            make_method(make_config(name, {"val": 0}, {}), task)


def test_a_saved_partition_is_the_same(tmp_path: Path) -> None:
    _, _, partition = lay_out(config(clients=5, partition="pathological:2"))
    save_partition(partition, tmp_path / "partition.npz")
    again = lay_out(config(partition_file=str(tmp_path / "partition.npz")))[2]
    assert again.names == partition.names
    for one, two in zip(partition.train, again.train, strict=True):
        assert np.array_equal(one, two)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"clients": 7}, r"clients is 7, but the partition in '.*p\.npz' has 5: leave it out"),
        ({"partition": "iid"}, r"partition is 'iid', but the one in .* is 'dirichlet:0\.5': leave"),
        ({"clients": 5, "partition": "iid"}, "partition is 'iid'"),
    ],
)
def test_what_contradicts_a_saved_partition_is_refused(
    given: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "p.npz"
    save_partition(lay_out(config(clients=5, partition="dirichlet:0.5"))[2], path)
    with pytest.raises(BadInput, match=said):
        lay_out(config(partition_file=str(path), **given))
    same = {"clients": 5, "partition": "dirichlet:0.50"}
    resolved = lay_out(config(partition_file=str(path), **same))[0]
    assert lay_out(resolved)[0] == resolved, "as a resumed run has it"


# --- a run can be repeated from any folder ---


@pytest.mark.parametrize(
    "way",
    [
        "own.csv",
        "./own.csv",
    ],
)
def test_own_data_are_found_from_any_folder(
    way: str, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own.parent)
    fedtailor.run("local", data=way, rounds=1, out=tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert fedtailor.resume(tmp_path / "run")["clients"] == 2


def test_a_saved_partition_is_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_partition(lay_out(config(clients=5))[2], tmp_path / "partition.npz")
    given = {"partition_file": "partition.npz", "rounds": 1, "model": "mlp"}
    fedtailor.run("local", out=tmp_path / "run", **given)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    fedtailor.resume(tmp_path / "run")


def test_a_result_says_where_its_partition_is_from(tmp_path: Path) -> None:
    save_partition(lay_out(config(clients=5, partition="iid"))[2], tmp_path / "partition.npz")
    found = fedtailor.run(
        "local", partition_file=str(tmp_path / "partition.npz"), rounds=1, model="mlp"
    )
    assert "dirichlet" not in found["partition"]
