"""Every method through Flower's own records, in this process, against the simulation."""

import json
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs flwr: pip install 'fedtailor[flower]'")

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

import fedtailor
from fedtailor.federation.coordinator.app import server_app
from fedtailor.federation.coordinator.progress import finished_of, rounds_of
from fedtailor.federation.coordinator.store import CoordinatorStore, read_lines
from fedtailor.federation.protocol.packet import from_records, to_records
from fedtailor.federation.site.app import make_client_app
from fedtailor.federation.site.settings import read_settings
from fedtailor.federation.site.site import Site
from fedtailor.methods import METHODS
from fedtailor.results.storage import load_tensors
from fedtailor.runs.predict import predict
from tests.federation.local_grid import LocalGrid
from tests.federation.site.test_local_data import write_sites
from tests.federation.trial import SETTINGS, Trial, distance
from tests.methods.worlds import QUICK

# what a method needs beside its defaults to be played by sites, and less of what takes time alone
OPTIONS = QUICK | {"fedavg-data": {"beta": 0.0}}


def play(trial: Trial) -> CoordinatorStore:
    sites = {}

    def answer(path, packet):
        if path not in sites:
            sites[path] = Site(read_settings(path))
        return sites[path].answer(packet)

    nodes = {100 + i: {"site": str(path)} for i, path in enumerate(trial.sites)}
    grid = LocalGrid(make_client_app(answer), nodes)
    config = {"federation": str(trial.federation)}
    server_app(grid, Context(1, 1, {}, RecordDict(), config))
    return trial.root / "coordinator" / "trial"


@pytest.mark.usefixtures("without_pages")
@pytest.mark.parametrize("name", [name for name in METHODS if name != "centralised"])
def test_equals_the_simulation(name, tmp_path, float64):
    trial = Trial(tmp_path, name, OPTIONS.get(name), participation=0.7)
    for i in range(3):
        trial.write_site(i, min_rows=1)  # classes have a few rows each
    folder = play(trial)
    sim = trial.simulate()
    latest = json.loads((folder / "latest.json").read_text())
    assert latest["round"] == 2
    from fedtailor.core import tree

    server = tree.unflatten(load_tensors(folder / latest["file"]))
    assert distance(server, sim.server) <= 1e-9
    for cid, model in sim.models():
        path = tmp_path / f"site-{cid}" / "federations" / "trial" / "models"
        found = load_tensors(path / f"site-{cid}.safetensors")
        assert distance(tree.unflatten(found), model) <= 1e-9


@pytest.mark.parametrize(
    ("name", "max_norm"),
    [("fedavg+median", 0.0), ("ditto+krum", 0.3), ("fedrep+clip", 0.0), ("scaffold", 0.3)],
)
def test_robust_means_equal_the_simulation(name, max_norm, tmp_path, float64):
    from fedtailor.core import tree

    trial = Trial(tmp_path, name, max_norm=max_norm)
    folder = play(trial)
    latest = json.loads((folder / "latest.json").read_text())
    server = tree.unflatten(load_tensors(folder / latest["file"]))
    assert distance(server, trial.simulate().server) <= 1e-9
    lines = [json.loads(row) for row in (folder / "history.jsonl").read_text().splitlines()]
    import torch

    report = trial.simulate(0).step(torch.arange(3))
    assert lines[0]["bytes"] == {"up": int(report.up.sum()), "down": int(report.down.sum())}


def test_bytes_card_and_prediction(tmp_path, float64):
    trial = Trial(tmp_path, "fedala")
    folder = play(trial)
    lines = [json.loads(row) for row in (folder / "history.jsonl").read_text().splitlines()]
    end = read_lines(folder / "events.jsonl")[-1]
    assert (end["event"], end["run"]) == ("finished", "1")  # Flower's id: whose end it is
    import torch

    sim = trial.simulate(0)
    for line in lines[:2]:
        report = sim.step(torch.arange(3))
        assert line["bytes"] == {"up": int(report.up.sum()), "down": int(report.down.sum())}
        assert 0 < line["envelope"]["up"] < 20_000
    local = Trial(tmp_path, "local").simulate()
    alone = local.score().test.correct / trial.world.client_data.test.n
    own = sim.score().test.correct / trial.world.client_data.test.n
    for i in range(3):
        site = tmp_path / f"site-{i}" / "federations" / "trial"
        card = json.loads((site / "card.json").read_text())
        assert card["local_score"] == pytest.approx(float(alone[i]), abs=1e-6)
        assert card["score"] == pytest.approx(float(own[i]), abs=1e-6)
        assert sum(card["class_mix"].values()) == card["rows"]["train"]
        found = predict(site, f"site-{i}", [tmp_path / "data" / f"site-{i}" / "rows.npz"])
        assert len(found) == sum(card["rows"].values())


# from which columns it is learnt, what training makes small, and what it is judged by
TASKS = {
    "regression": ({"label": "weight"}, {"loss": "huber:2"}, "rmse"),
    "survival": ({"time_column": "days", "event_column": "died"}, {"lr": 2.0}, "concordance"),
    "classification": (
        {"label": "ill"},
        {"metric": "roc-auc", "loss": "focal:2", "class_weights": "1,2"},
        "roc-auc",
    ),
}


@pytest.mark.parametrize("task", TASKS)
def test_sites_learn_and_judge_as_a_run_does(task: str, tmp_path: Path) -> None:
    columns, judged, metric = TASKS[task]
    data = write_sites(tmp_path / "data")
    trial = Trial(tmp_path, "fedavg", **columns, **judged)
    for i in range(3):
        own = {"min_scored": 1, "score_digits": 0}
        trial.write_site(i, data=f"data/site-{i}/rows.csv", **columns, **own)
    finished = finished_of(play(trial))
    given = SETTINGS | columns | judged | {"data": str(data), "device": "cpu"}
    own, alone = (fedtailor.run(m, **given)["per_client"] for m in ("fedavg", "local"))
    assert own != alone
    for name, said in finished.items():
        card = json.loads((tmp_path / name / "federations" / "trial" / "card.json").read_text())
        assert card["metric"] == metric
        for value, found in ((own[name], "score"), (alone[name], "local_score")):
            assert card[found] == pytest.approx(value, abs=1e-5)
        assert (said["pre_score"], said["local_score"]) == (card["score"], card["local_score"])
        gain = (card["score"] - card["local_score"]) * (-1 if metric == "rmse" else 1)
        assert card["gain"] == pytest.approx(gain, abs=1e-6)
        assert metric in card["metrics"] and metric in card["local_metrics"]


def test_an_array_that_does_not_parse_fails_its_site_alone(tmp_path):
    trial, sites, bad = Trial(tmp_path, "fedavg"), {}, 101
    app = ClientApp()

    def handle(message, context):
        path = context.node_config["site"]
        if path not in sites:
            sites[path] = Site(read_settings(Path(path)))
        records = to_records(sites[path].answer(from_records(message.content)))
        if context.node_id == bad and message.metadata.message_type == "train":
            header = b"{'descr': '<f4', 'shape': (1,".ljust(117) + b"\n"
            raw = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
            array = Array("<f4", (1,), "numpy.ndarray", raw)
            records["arrays"] = ArrayRecord({"mean/x": array})
        return Message(records, reply_to=message)

    for kind in (app.query, app.train, app.evaluate):
        kind()(handle)
    grid = LocalGrid(app, {100 + i: {"site": str(path)} for i, path in enumerate(trial.sites)})
    config = {"federation": str(trial.federation)}
    server_app(grid, Context(1, 1, {}, RecordDict(), config))
    rounds = rounds_of(tmp_path / "coordinator" / "trial")
    assert [line["taken"] for line in rounds] == [[0, 2]] * 2
    assert all("'mean/x' is no array" in line["failed"]["site-1"] for line in rounds)


def test_a_method_that_gives_rows_away_is_refused(tmp_path, float64):
    for name, said in (
        ("fedavg-data", "gives training rows away"),
        ("centralised", "gathers all training rows"),
    ):
        with pytest.raises(Exception, match=said):
            play(Trial(tmp_path / name, name))
