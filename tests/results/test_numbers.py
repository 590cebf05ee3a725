"""The numbers on the page are those of the runs."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import fedtailor
from fedtailor.core.errors import BadInput
from fedtailor.report.page import page_data, render_report
from fedtailor.results.collect import collect, collect_so_far, variant_labels
from fedtailor.results.mixes import likeness_order
from fedtailor.results.numbers import largest_epsilon, played_on
from fedtailor.results.pack import pack_counts, pack_scaled
from fedtailor.results.records import binned, map_size
from fedtailor.runs.result import block_names
from tests.report import synthetic

KINDS = {"u16": "<u2", "u32": "<u4", "s8": "u1", "s16": "<u2"}


def unpack(packed: dict[str, Any]) -> np.ndarray:
    """As the page does it."""
    codes = np.frombuffer(base64.b64decode(packed["data"]), KINDS[packed["kind"]])
    codes = codes.reshape(packed["shape"])
    if packed["kind"].startswith("u"):
        return codes.astype(np.int64)
    steps = {"s8": 254, "s16": 65534}[packed["kind"]]
    values = packed["low"] + (packed["high"] - packed["low"]) * codes / steps
    return np.where(codes > steps, np.nan, values)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic.make_comparison(tmp_path_factory.mktemp("report") / "compared", seeds=2)


@pytest.fixture(scope="module")
def data(compared: Path) -> dict[str, Any]:
    return page_data(collect([compared]))


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison that was really run."""
    folder = tmp_path_factory.mktemp("report") / "real"
    fedtailor.compare("fedavg", "fedfomo", model="mlp", clients=4, rounds=2, batch=150, out=folder)
    return folder


def result(folder: Path, method: str, seed: int) -> dict[str, Any]:
    path = folder / "runs" / f"{method}-seed{seed}" / "result.json"
    return dict(json.loads(path.read_text()))


def test_accuracies_are_the_mean_over_seeds_of_the_results(
    compared: Path, data: dict[str, Any]
) -> None:
    assert [row["label"] for row in data["methods"]] == list(synthetic.METHODS)
    for row in data["methods"]:
        runs = [result(compared, row["method"], seed) for seed in (0, 1)]
        for key in ("mean", "bottom5", "std", "loss"):
            each = [run["accuracy"][key] for run in runs]
            assert row["score"][key]["mean"] == pytest.approx(np.mean(each), abs=1e-6)
            assert row["score"][key]["std"] == pytest.approx(np.std(each, ddof=1), abs=1e-6)
        clients = np.mean([list(run["per_client"].values()) for run in runs], axis=0)
        np.testing.assert_allclose(row["per_client"], clients, atol=1e-6)
        assert row["up"] == runs[0]["bytes"]["up"]


def test_gain_is_counted_against_training_alone(data: dict[str, Any]) -> None:
    alone = np.array(data["methods"][data["yardstick"]]["per_client"])
    for row in data["methods"]:
        gain = np.array(row["per_client"]) - alone
        np.testing.assert_allclose(row["gain"], gain, atol=2e-6)
        assert row["better_off"] == (gain > 1e-9).sum()
        assert row["worse_off"] == (gain < -1e-9).sum()


def test_curves_have_the_least_and_largest_over_seeds(compared: Path, data: dict[str, Any]) -> None:
    place = list(synthetic.METHODS).index("fedala")
    curve, each = data["curves"][place], []
    for seed in (0, 1):
        text = (compared / "runs" / f"fedala-seed{seed}" / "history.jsonl").read_text()
        each.append([json.loads(line)["pre"]["mean"] for line in text.splitlines()])
    np.testing.assert_allclose(curve["mean"]["mid"], np.mean(each, axis=0), atol=1e-6)
    np.testing.assert_allclose(curve["mean"]["low"], np.min(each, axis=0), atol=1e-6)
    np.testing.assert_allclose(curve["mean"]["high"], np.max(each, axis=0), atol=1e-6)
    assert curve["sent"][-1] == 2 * result(compared, "fedala", 0)["bytes"]["up"]


def test_a_clients_curve_ends_where_its_result_is(data: dict[str, Any]) -> None:
    for row, curve in zip(data["methods"], data["client_curves"], strict=True):
        last = unpack(curve["values"])[:, -1]
        np.testing.assert_allclose(last, row["per_client"], atol=1e-4)


def test_confusion_counts_add_up_to_the_test_rows(data: dict[str, Any]) -> None:
    for kept in data["confusion"]:
        start, cells = unpack(kept["start"]), unpack(kept["cells"])
        for client, rows in enumerate(data["rows"]["test"]):
            own = cells[start[client] : start[client + 1]]
            assert own[:, 2].sum() == kept["seeds"] * rows


def test_a_real_runs_confusion_gives_its_accuracy(real: Path) -> None:
    data = page_data(collect([real]))
    for row, kept in zip(data["methods"], data["confusion"], strict=True):
        start, cells = unpack(kept["start"]), unpack(kept["cells"])
        for client, accuracy in enumerate(row["per_client"]):
            own = cells[start[client] : start[client + 1]]
            right = own[own[:, 0] == own[:, 1], 2].sum()
            assert right / own[:, 2].sum() == pytest.approx(accuracy, abs=1e-6)
    counts = unpack(data["class_counts"])
    rows = np.sum([data["rows"][part] for part in ("train", "val", "test")], axis=0)
    np.testing.assert_array_equal(counts.sum(1), rows)


def test_a_real_comparison_writes_its_report_with_its_verdict(real: Path) -> None:
    summary = json.loads((real / "summary.json").read_text())
    data = page_data(collect([real]))
    assert data["verdict"] == summary["verdict"]
    for row in data["methods"]:
        assert row["score"]["mean"] == summary["table"][row["label"]]["accuracy"]["mean"]
    assert (real / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert data["learnt"][0]["records"][0]["name"] == "affinity"


def test_maps_show_what_was_recorded(compared: Path, data: dict[str, Any]) -> None:
    found = next(e for e in data["learnt"] if data["methods"][e["method"]]["method"] == "fedfomo")
    record = found["records"][0]
    maps = unpack(record["maps"])  # round, block, row, column
    folder = compared / "runs" / "fedfomo-seed0" / "records"
    order = data["order"]
    for k, number in enumerate(record["rounds"]):
        raw = load_file(folder / f"{number:06d}.safetensors")["server/affinity"][order][:, order]
        low, high = record["maps"]["low"], record["maps"]["high"]
        step = (high - low) / 254
        np.testing.assert_allclose(maps[k, 0], raw.clip(low, high), atol=0.51 * step)
    last = load_file(folder / f"{record['rounds'][-1]:06d}.safetensors")["server/affinity"]
    others = np.where(np.eye(len(last), dtype=bool), -np.inf, last)
    assert [row[0] for row in record["donors"]] == others.argmax(1).tolist()


def test_blocks_have_the_mean_over_clients(data: dict[str, Any]) -> None:
    found = next(e for e in data["learnt"] if data["methods"][e["method"]]["method"] == "pmixfed")
    record = found["records"][0]
    assert (record["name"], record["kind"]) == ("mix_degree", "blocks")
    assert record["blocks"] == ["fc1", "fc2", "fc"]
    np.testing.assert_allclose(record["mid"][0], [0.2 + 0.5 / r for r in range(1, 6)], atol=1e-5)


def test_clients_with_like_mixes_stand_together() -> None:
    mixes = np.array([[10, 0], [0, 10], [9, 1], [1, 9], [10, 0]])
    order = likeness_order(mixes, 5).tolist()
    sides = [mixes[i].argmax() for i in order]
    assert sides in ([0, 0, 0, 1, 1], [1, 1, 0, 0, 0])
    assert likeness_order(None, 3).tolist() == [0, 1, 2]
    many = np.eye(3, dtype=int)[np.arange(2400) % 3]
    assert (np.diff(many[likeness_order(many, 2400)].argmax(1)) != 0).sum() == 2


def test_maps_of_many_clients_are_averaged() -> None:
    matrix = np.arange(36.0).reshape(1, 6, 6)
    order = np.array([5, 4, 3, 2, 1, 0])
    found = binned(matrix, order, 3)
    assert found.shape == (1, 3, 3)
    assert found[0, 0, 0] == matrix[0, 4:, 4:].mean()
    assert found.mean() == pytest.approx(matrix.mean())
    np.testing.assert_array_equal(binned(matrix, order, 6)[0, 0], matrix[0, 5, ::-1])


@pytest.mark.parametrize(
    "clients, blocks, rounds", [(10, 2, 500), (1000, 1, 500), (1000, 60, 500), (9000, 200, 3)]
)
def test_maps_stay_small(clients: int, blocks: int, rounds: int) -> None:
    kept, width = map_size(clients, blocks, rounds)
    assert 1 <= kept <= rounds and 1 <= width <= clients
    assert kept * blocks * width**2 <= 1_200_000


def test_packing_keeps_numbers() -> None:
    np.testing.assert_array_equal(unpack(pack_counts(np.array([0, 7, 65535]))), [0, 7, 65535])
    np.testing.assert_array_equal(unpack(pack_counts(np.array([0, 70_000]))), [0, 70_000])
    values = np.array([0.0, 0.123456, 1.0, np.nan, 7.0])
    back = unpack(pack_scaled(values, 0.0, 1.0, fine=True))
    np.testing.assert_allclose(back, [0, 0.123456, 1, np.nan, 1], atol=1e-5)


def test_names_tell_apart() -> None:
    assert block_names([("a.0.weight", "a.0.bias"), ("a.1.w", "b.w"), ("w",)]) == [
        "a.0",
        "block 1",
        "block 2",
    ]
    labels = variant_labels([("m", "{}", "a"), ("m", "{}", "a"), ("n", "{}", "a")])
    assert len(set(labels)) == 3 and labels[2] == "n"


def test_runs_with_other_options_are_rows_of_their_own(tmp_path: Path) -> None:
    for name, p in (("one", 1), ("two", 2), ("more", 2)):
        synthetic.make_run(tmp_path / name, "fedala", options={"p": p}, seed=int(name == "more"))
    made = collect([tmp_path / n for n in ("one", "two", "more")]).contenders
    assert [(c.label, len(c.runs)) for c in made] == [("fedala p=1", 1), ("fedala p=2", 2)]


def test_one_run_has_words_without_training_alone(tmp_path: Path) -> None:
    folder = synthetic.make_run(tmp_path / "run", "fedala")
    data = page_data(collect([folder]))
    assert data["yardstick"] is None
    assert data["methods"][0]["gain"] is None
    assert "is not known" in data["verdict"][0]
    assert data["verdict"][1].startswith("fedala has ")


def test_clients_without_test_rows_have_no_accuracy(tmp_path: Path) -> None:
    for method in ("local", "fedala"):
        folder = synthetic.make_run(tmp_path / method, method)
        found = json.loads((folder / "result.json").read_text())
        found["per_client"]["client-0003"] = None
        (folder / "result.json").write_text(json.dumps(found))
        table = (folder / "clients.csv").read_text().splitlines()
        row = table[4].split(",")
        row[3] = "0"
        (folder / "clients.csv").write_text("\n".join([*table[:4], ",".join(row), *table[5:]]))
    data = page_data(collect([tmp_path / "local", tmp_path / "fedala"]))
    assert data["methods"][1]["per_client"][3] is None
    assert data["methods"][1]["gain"][3] is None
    assert "7 clients" in " ".join(data["verdict"])


@pytest.mark.parametrize(
    "each, found",
    [
        ([{"max": 2.5}, {"max": 7.5}, {"max": 3.0}], {"max": 7.5}),
        ([{"max": 2.5}, {"max": None}], {"max": None}),
        ([{"max": 2.5}, {"max": float("inf")}], {"max": None}),
        ([{"max": 2.5}, None], {"max": None}),
        ([None, None], None),
    ],
)
def test_the_largest_epsilon_of_all_seeds_counts(each: list[Any], found: Any) -> None:
    assert largest_epsilon([{"epsilon": one} for one in each]) == found


def test_epsilon_is_told_in_words(tmp_path: Path) -> None:
    spent = {"fedavg": (2.5, 7.5), "fedala": (None, 1.0), "local": None}
    for method, each in spent.items():
        for seed in (0, 1):
            folder = synthetic.make_run(tmp_path / f"{method}-{seed}", method, seed=seed)
            found = json.loads((folder / "result.json").read_text())
            found["epsilon"] = {"delta": 1e-5, "max": each[seed]} if each else None
            (folder / "result.json").write_text(json.dumps(found))
    data = page_data(collect(sorted(tmp_path.iterdir())))
    assert [note for note in data["notes"] if "ε" in note] == [
        "Differential privacy, ε of the client with the largest, in any seed: "
        "fedala = ∞, which is no guarantee, fedavg ≤ 7.50. The noise of a simulation is keyed by "
        "its seed: whoever knows that can take it away."
    ]
    render_report(data)  # it can be written as JSON


def _as_if_run(folder: Path, **facts: Any) -> Path:
    found = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(found | facts))
    return folder


def test_runs_on_other_partitions_are_refused(tmp_path: Path) -> None:
    one, same, other = (
        _as_if_run(synthetic.make_run(tmp_path / name, name), rows_digest=digest)
        for name, digest in (("local", "a"), ("fedavg", "a"), ("fedala", "b"))
    )
    assert len(collect([one, same]).contenders) == 2
    older = synthetic.make_run(tmp_path / "older", "pfedla")
    with pytest.raises(BadInput, match="have other rows"):
        collect([older, one, other])
    said = f"the clients of '{other}' have other rows than those of '{one}': make a report of each"
    with pytest.raises(BadInput, match=said) as error:
        collect([one, same, other])
    assert "\n" not in str(error.value)
    synthetic.unfinish(other, 3)
    with pytest.raises(BadInput, match=said):
        collect_so_far([one, other])


@pytest.mark.parametrize("digest", [None, "a"])
def test_runs_from_before_the_digest_are_compared_by_class_counts(
    digest: str | None, tmp_path: Path
) -> None:
    one = synthetic.make_run(tmp_path / "one", "local")
    other = _as_if_run(synthetic.make_run(tmp_path / "other", "fedavg"), rows_digest=digest)
    assert len(collect([one, other]).contenders) == 2
    kept = load_file(other / "confusion.safetensors")
    kept["class_counts"][0, 2] += 1
    save_file(kept, other / "confusion.safetensors")
    with pytest.raises(BadInput, match="have other rows"):
        collect([one, other])
    (other / "confusion.safetensors").unlink()
    assert len(collect([one, other]).contenders) == 2, "nothing is known that speaks against it"


def test_real_runs_on_one_partition_stay_together(tmp_path: Path) -> None:
    """Whatever differs but the partition: methods, seeds, networks, encoding, pooled rows."""
    small = {"model": "mlp", "clients": 3, "partition": "iid", "rounds": 1, "batch": 100}
    runs: list[tuple[str, dict[str, Any]]] = [
        ("local", {}),
        ("local", {"seed": 1}),
        ("fedavg-data", {}),
        ("fedavg", {"model": "cnn"}),
        ("pfedla", {"image_size": 6}),
        ("pmixfed", {"options": {"acc_source": "test"}}),
    ]
    folders = []
    for number, (method, given) in enumerate(runs):
        folders.append(tmp_path / str(number))
        fedtailor.run(method, out=folders[-1], **small | given)
    assert sum(len(c.runs) for c in collect(folders).contenders) == len(runs)
    other = tmp_path / "other"
    fedtailor.run("local", out=other, **small | {"partition_seed": 1})
    begun = [json.loads((f / "begun.json").read_text()) for f in (folders[0], other)]
    assert begun[0]["rows_digest"] != begun[1]["rows_digest"]
    with pytest.raises(BadInput, match="--partition-seed"):
        collect([*folders, other])


def test_the_hardware_is_named_where_it_is_known() -> None:
    assert played_on({"device": "cuda:0", "hardware": "NVIDIA H200"}) == "cuda:0 (NVIDIA H200)"
    assert played_on({"device": "cuda:0"}) == "cuda:0"


OFF = {"local": 2.0, "fedavg": 0.3}


def test_curves_of_an_error_are_not_cut_off_at_one(tmp_path: Path) -> None:
    folder = synthetic.make_tested(tmp_path / "c", "regression", OFF, clients=4)
    data = page_data(collect([folder]))
    for row, curve in zip(data["methods"], data["client_curves"], strict=True):
        assert max(row["per_client"]) > 1
        np.testing.assert_allclose(unpack(curve["values"])[:, -1], row["per_client"], rtol=1e-3)


def test_less_error_is_a_gain(tmp_path: Path) -> None:
    folder = synthetic.make_tested(tmp_path / "c", "regression", OFF, clients=4)
    alone, fedavg = page_data(collect([folder]))["methods"]
    gains = np.array(alone["per_client"]) - np.array(fedavg["per_client"])
    np.testing.assert_allclose(fedavg["gain"], gains, atol=1e-5)
    assert fedavg["better_off"] == 4


def test_a_client_is_averaged_over_the_seeds_that_have_it(tmp_path: Path) -> None:
    folder = synthetic.make_tested(tmp_path / "c", "classification", OFF, clients=2, seeds=2)
    path = folder / "runs" / "fedavg-seed1" / "result.json"
    kept = json.loads(path.read_text())
    for found in (kept, kept["metrics"]["roc-auc"]):
        found["per_client"]["client-0000"] = None
    kept["metrics"]["roc-auc"]["undefined"]["client-0000"] = "only one class"
    path.write_text(json.dumps(kept))
    data = page_data(collect([folder]))
    first = json.loads((folder / "runs" / "fedavg-seed0" / "result.json").read_text())
    wanted = first["per_client"]["client-0000"]
    assert data["methods"][1]["per_client"][0] == pytest.approx(wanted, abs=1e-6)
    every = data["all_metrics"]
    assert every["values"][1]["roc-auc"][0] == pytest.approx(wanted, rel=1e-4)
    assert every["undefined"] == {}, "one seed has a value"


def test_every_metric_of_every_client_is_on_the_page(tmp_path: Path) -> None:
    folder = synthetic.make_tested(tmp_path / "c", "classification", OFF, clients=2)
    every = page_data(collect([folder]))["all_metrics"]
    told = result(folder, "fedavg", 0)["metrics"]
    assert [m["name"] for m in every["names"]] == list(told)
    for name, table in told.items():
        np.testing.assert_allclose(
            every["values"][1][name], list(table["per_client"].values()), rtol=1e-4
        )


def test_some_runs_of_a_comparison_keep_its_margin(tmp_path: Path) -> None:
    folder = synthetic.make_tested(tmp_path / "c", "regression", OFF | {"ditto": 1.0}, clients=4)
    (folder / "summary.json").write_text(json.dumps({"decision": {"margin": 0.77}}))
    places = [folder / "runs" / f"{name}-seed0" for name in ("local", "ditto")]
    data = page_data(collect(places))
    assert data["decision"]["margin"] == 0.77
    assert data["decision"]["method"] == "ditto"
