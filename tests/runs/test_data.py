"""From a configuration to data and clients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedtailor
from fedtailor.core.errors import BadInput
from fedtailor.datasets.features.suspicions import suspicions
from fedtailor.partition import save_partition
from fedtailor.results.config import Config, make_config
from fedtailor.runs.data import find_source, lay_out, load_run_data


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


@pytest.mark.parametrize(
    ("column", "value", "given", "said"),
    [
        ("label", "3", {"label": "label"}, "only the class '3', so there is nothing to tell"),
        ("died", "0", {"time_column": "days", "event_column": "died"}, "no event, so there is"),
    ],
)
def test_where_all_rows_are_alike_nothing_can_be_learnt(
    tmp_path: Path, column: str, value: str, given: dict[str, str], said: str
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"x,days,{column}\n" + "".join(f"{i},{i},{value}\n" for i in range(40)))
    asked = config(data=str(path), **given)
    with pytest.raises(BadInput, match=said):
        load_run_data(asked)
    assert any(said.partition(",")[0] in line for line in suspicions(find_source(asked)))


def test_clients_of_natural_data_cannot_be_chosen(own: Path) -> None:
    with pytest.raises(BadInput, match="names 2"):
        load_run_data(config(data=str(own), clients=5))


def test_tables_are_not_augmented(own: Path) -> None:
    with pytest.raises(BadInput, match="crop-flip"):
        load_run_data(config(data=str(own), augment="crop-flip"))


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


# --- labels that are numbers or times ---


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    """Two towns, of which one is ten times as dear."""
    draw = np.random.default_rng(0)
    rows = ["town,rooms,price"]
    for town, much in (("a", 10.0), ("b", 100.0)):
        for _ in range(40):
            rooms = draw.integers(1, 6)
            rows.append(f"{town},{rooms},{much * (rooms + draw.normal() / 10):.2f}")
    path = tmp_path / "prices.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def test_a_number_is_learnt_scaled_and_told_in_its_unit(
    prices: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = config(data=str(prices), label="price", client_column="town")
    with caplog.at_level("INFO", logger="fedtailor"):
        pooled = load_run_data(replace(plain, normalise="pooled"))
    assert "label 'price' holds" in caplog.text and "taken as regression" in caplog.text
    assert pooled.encoder.form.task == "regression" and pooled.encoder.form.outputs == 1
    y, train = pooled.client_data.y, np.concatenate(pooled.partition.train)
    assert y.dtype == torch.float32 and y.shape == (80,)
    assert abs(y[train].mean()) < 1e-6 and abs(y[train].std(correction=0) - 1) < 1e-6
    assert pooled.targets is not None and pooled.targets.shift[0] == pooled.targets.shift[1]
    for data in (pooled, load_run_data(plain), load_run_data(replace(plain, normalise="none"))):
        assert data.targets is not None
        for i in range(2):
            rows = data.partition.rows(i)
            told = data.targets.unscaled(data.client_data.y[rows].double().expand(2, -1))[i]
            assert np.allclose(told, data.source.labels[rows], rtol=1e-5)
        assert data.rows_digest() == pooled.rows_digest()


def test_a_time_and_an_event_are_learnt_as_they_are(tmp_path: Path) -> None:
    rows = [f"{i % 2},{i},{10 * i},{i % 4 == 0:d}" for i in range(40)]
    (tmp_path / "s.csv").write_text("\n".join(["site,a,T,E", *rows]) + "\n")
    given = {"data": str(tmp_path / "s.csv"), "time_column": "T", "event_column": "E"}
    data = load_run_data(config(**given))
    assert data.encoder.form.task == "survival" and data.targets is None
    assert data.client_data.y.dtype == torch.float32
    assert data.client_data.y[8].tolist() == [80, 1]
    iid = load_run_data(config(**given, partition="iid", clients=4, batch=5))
    events = [data.source.strata[iid.partition.rows(i)].sum() for i in range(4)]
    assert sum(events) == 10
    for partition in ("dirichlet:1", "pathological:1", "noniid1:1"):
        more = {"partition": partition, "clients": 2, "min_samples": 1, "batch": 0}
        assert len(load_run_data(config(**given, **more)).partition) == 2


def test_a_task_that_the_labels_do_not_allow(prices: Path) -> None:
    town = {"data": str(prices), "label": "town"}
    with pytest.raises(BadInput, match="--task classification"):
        load_run_data(config(**town, task="regression"))
    with pytest.raises(BadInput, match="classes in 80 rows"):
        load_run_data(config(data=str(prices), label="price", task="classification"))


# --- whose rows scale the numbers ---


@pytest.fixture
def wards(tmp_path: Path) -> Path:
    """Two hospitals that measure in other units, each with a ward of its own."""
    draw = np.random.default_rng(0)
    rows = ["client,dose,ward,label"]
    for client, unit, wards in (("north", 1.0, "ab"), ("south", 1000.0, "bc")):
        for i in range(40):
            rows.append(f"{client},{unit * draw.normal():.4f},{wards[i % 2]},{'yn'[i % 3 == 0]}")
    path = tmp_path / "wards.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def test_auto_scales_every_client_by_its_own_training_rows(wards: Path) -> None:
    data = load_run_data(config(data=str(wards)))
    assert data.encoder.normalise == "own" and set(data.encoder.clients) == {"north", "south"}
    for rows in data.partition.train:
        dose = data.client_data.x[rows, 0]
        assert abs(dose.mean()) < 1e-6 and abs(dose.std(correction=0) - 1) < 1e-6
    pooled = load_run_data(config(data=str(wards), normalise="pooled"))
    assert pooled.client_data.x[pooled.partition.train[0], 0].std() < 0.1
    federated = load_run_data(config(data=str(wards), normalise="federated"))
    assert torch.allclose(pooled.client_data.x, federated.client_data.x, atol=1e-6)


def test_alone_is_alone(wards: Path) -> None:
    """Whatever is done to the rows of the south, the north alone sees the same."""
    data = load_run_data(config(data=str(wards), normalise="pooled"))
    alone = data.alone()
    assert alone.encoder.form == data.encoder.form
    assert alone.rows_digest() == data.rows_digest() and alone.digest() != data.digest()
    north = data.partition.rows(0)
    assert torch.equal(alone.client_data.train.flat, data.client_data.train.flat)
    assert not alone.client_data.x[north, 3].any(), "ward c is the south's"
    lines = [line.split(",") for line in wards.read_text().splitlines()]
    for line in lines:
        if line[0] == "south":
            line[1] = f"{float(line[1]) * 2 + 5e4}"
    wards.write_text("\n".join(map(",".join, lines)) + "\n")
    other = load_run_data(config(data=str(wards), normalise="pooled"))
    assert not torch.equal(other.client_data.x[north], data.client_data.x[north])
    assert torch.equal(other.alone().client_data.x[north], alone.client_data.x[north])


def test_images_alone_are_the_same() -> None:
    data = load_run_data(config(clients=3))
    assert data.alone().client_data.x is data.client_data.x
    assert data.alone().digest() == data.digest()


def test_prices_alone_are_scaled_by_own_prices(prices: Path) -> None:
    given = {"data": str(prices), "label": "price", "client_column": "town"}
    data = load_run_data(config(**given, normalise="pooled"))
    alone = data.alone()
    assert data.targets is not None and alone.targets is not None
    assert alone.targets.shift[1] > 5 * alone.targets.shift[0]
    assert torch.equal(alone.client_data.y, load_run_data(config(**given)).client_data.y)


# --- another cut of the same clients' rows ---


def test_another_split_seed_cuts_the_same_rows_anew(own: Path, tmp_path: Path) -> None:
    def parts(**given: Any) -> Any:
        return lay_out(config(data=str(own), **given))[2]

    first, again = parts(), parts(split_seed=1)
    for i in range(2):
        assert np.array_equal(first.rows(i), again.rows(i))
        assert not np.array_equal(first.test[i], again.test[i])
        assert len(first.test[i]) == len(again.test[i])
    assert np.array_equal(parts(split_seed=1).test[0], again.test[0])
    assert not np.array_equal(parts(split_seed=2).test[0], again.test[0])
    save_partition(first, tmp_path / "p.npz")
    of_file = parts(partition_file=str(tmp_path / "p.npz"), split_seed=1)
    assert [len(r) for r in of_file.train] == [len(r) for r in first.train]
    assert np.array_equal(of_file.rows(0), first.rows(0))
    assert not np.array_equal(of_file.test[0], first.test[0])
    assert np.array_equal(parts(partition_file=str(tmp_path / "p.npz")).test[0], first.test[0])


def test_a_forgotten_client_column_is_what_is_said(own: Path, tmp_path: Path) -> None:
    path = tmp_path / "forgotten.csv"
    path.write_text(own.read_text().replace("client,", "town,", 1))
    with pytest.raises(BadInput, match=r"'forgotten.csv' name no clients .*--client-column"):
        lay_out(config(data=str(path)))
    path.write_text("town,u,label\n" + "".join(f"n,{i},c{i % 10}\n" for i in range(900)))
    told = lay_out(config(data=str(path), min_samples=3))[1].notes
    assert told == (
        "data 'forgotten.csv' name no clients (name their column with --client-column): its rows "
        "are dealt to 20 by dirichlet:0.1",
    )
    assert lay_out(config(data=str(path), clients=3, min_samples=1))[1].notes == ()
