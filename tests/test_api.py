"""The public face: names or objects, one signature, a result one can go on with."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedtailor
from fedtailor.cli import main
from fedtailor.core.errors import BadInput
from fedtailor.core.task import to_input
from fedtailor.core.training import Recipe

SMALL = {"clients": 4, "rounds": 2, "model": "mlp", "batch": 100, "device": "cpu"}
# ALA's first adaptation may take a hundred passes, which nothing here is about
ALA = SMALL | {"options": {"max_ala_epochs": 2}}


def pairs() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Three clients with arrays of their own."""
    made = {}
    for seed, name in enumerate(("north", "south", "west")):
        draw = np.random.default_rng(seed)
        x = draw.normal(size=(80, 3)) + seed
        made[name] = (x, (x[:, 0] > seed).astype(int))
    return made


class Net(nn.Module):
    """Three numbers in, two out."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).relu())


class Lost(Net):
    """As a network whose training diverged, where the first number is large."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lost = torch.tensor(torch.nan if not self.training else 0.0)
        return super().forward(x) + torch.where(x[:, :1] > 5, lost, 0.0)


def same(one: dict, other: dict) -> None:
    """Two results of one run: only clocks differ."""
    for key in ("per_client", "bytes", "best_round", "accuracy"):
        assert one[key] == other[key], key


# --- a model that diverged ---


def test_a_client_whose_model_diverged_is_named_and_does_not_leave_the_mean(
    tmp_path: Path,
) -> None:
    data = pairs()
    data["west"] = (data["west"][0] + [10, 0, 0], data["west"][1])
    settings = {
        "data": data,
        "model": Lost,
        "normalise": "none",
        "rounds": 2,
        "device": "cpu",
        "metric": "accuracy",
    }
    found = fedtailor.run("fedavg", out=tmp_path / "run", **settings)
    each = found["per_client"]
    assert found["diverged"] == ["west"] and each["west"] == 0
    assert found["score"]["mean"] == pytest.approx(sum(each.values()) / 3, abs=1e-6)
    assert found["metrics"]["log-loss"]["clients"] == 2
    page = (tmp_path / "run" / "report.html").read_text()
    assert "the final model of west diverged" in page

    compared = fedtailor.compare("fedavg", out=tmp_path / "both", seeds=2, **settings)
    assert compared["table"]["fedavg"]["diverged"] == {"west": 2}
    assert "west (2 times)" in (tmp_path / "both" / "report.html").read_text()


# --- results that another process gets ---


def again(one: Any) -> Any:
    """As another process has it."""
    return pickle.loads(pickle.dumps(one))  # noqa: S301 - our own bytes


def test_results_travel_to_another_process_without_what_cannot(tmp_path: Path) -> None:
    plain = {"data": pairs(), "rounds": 1, "device": "cpu"}
    found = fedtailor.run("fedavg", model=lambda: Net(), **plain)
    kept = fedtailor.run("fedavg", model="mlp", out=tmp_path / "run", **plain)
    both = fedtailor.compare("fedavg", model="mlp", out=tmp_path / "both", **plain)
    swept = fedtailor.sweep("fedavg", lr=[0.1, 0.2], model="mlp", **plain)
    for one in (found, kept, both, swept):
        other = again(one)
        assert type(other) is type(one) and other == one and other.folder == one.folder
        assert swept is one or other.history == one.history
    with pytest.raises(BadInput, match="none was kept"):
        again(found).model("north")
    x = torch.zeros(2, 3)
    for one, which in ((kept, ("north",)), (both, ("north", "fedavg"))):
        assert torch.equal(again(one).model(*which)(x), one.model(*which)(x))


# --- methods ---


def test_a_factory_is_as_good_as_its_name() -> None:
    named = fedtailor.run("ditto", **SMALL)
    made = fedtailor.run(fedtailor.METHODS["ditto"], **SMALL)
    assert made["method"] == "ditto"
    same(named, made)


def test_a_factory_that_no_name_leads_to(tmp_path: Path) -> None:
    def mine(task, *, recipe=Recipe()):
        """FedAvg under another name."""
        return fedtailor.METHODS["fedavg"](task, recipe=recipe)

    found = fedtailor.run(mine, out=tmp_path / "run", **SMALL)
    assert found["method"] == "object:mine"
    same(found, fedtailor.run("fedavg", **SMALL))


def test_a_factory_without_a_recipe_is_told_so() -> None:
    with pytest.raises(BadInput, match=r"takes no recipe.*: give its factory an argument recipe"):
        fedtailor.run(lambda task: fedtailor.METHODS["fedavg"](task), **SMALL)


def test_a_method_that_was_made_already() -> None:
    data, recipe = pairs(), Recipe(lr=0.1)
    task = fedtailor.classification(Net)
    method = fedtailor.METHODS["fedavg"](task, recipe=recipe)
    found = fedtailor.run(method, data=data, model=Net, rounds=2, device="cpu")
    same(found, fedtailor.run("fedavg", data=data, model=Net, rounds=2, lr=0.1, device="cpu"))


def test_options_of_a_method_that_was_made_already_are_refused() -> None:
    method = fedtailor.METHODS["fedavg"](fedtailor.classification(Net))
    with pytest.raises(BadInput, match="lam"):
        fedtailor.run(method, data=pairs(), model=Net, options={"lam": 1})


def test_what_is_no_method_is_refused() -> None:
    with pytest.raises(BadInput, match="method is a int"):
        fedtailor.run(3, **SMALL)


def test_a_name_is_no_method_to_be_checked() -> None:
    with pytest.raises(BadInput, match="factory is 'ditto': give a function"):
        fedtailor.check_method("ditto")  # type: ignore[arg-type]


# --- data, networks, functions ---


def test_what_functions_cannot_mean_is_refused_before_anything_is_kept(tmp_path: Path) -> None:
    out = {"out": tmp_path / "run"} | SMALL
    with pytest.raises(BadInput, match="'accuracy', as ours is: rename it"):
        fedtailor.run("fedavg", metrics={"accuracy": lambda outputs, labels: 0.5}, **out)
    with pytest.raises(BadInput, match=r"schedule gives -1 for round 0"):
        fedtailor.run("fedavg", schedule=lambda round, rounds: -1.0, **out)
    assert not (tmp_path / "run").exists()


def test_arrays_of_clients_and_a_module() -> None:
    torch.manual_seed(0)
    start = Net()
    found = fedtailor.run("fedavg", data=pairs(), model=start, rounds=1, lr=0.0, device="cpu")
    assert found["clients"] == 3
    assert set(found["per_client"]) == {"north", "south", "west"}
    # nothing was learnt, so everybody has the weights that were given
    kept = found.model("south").state_dict()
    assert all(torch.allclose(kept[k], v, atol=1e-6) for k, v in start.state_dict().items())


def test_a_data_frame_with_a_client_column() -> None:
    pandas = pytest.importorskip("pandas")
    rows = [
        {"a": x[0], "b": x[1], "c": x[2], "ill": y, "site": site}
        for site, (xs, ys) in pairs().items()
        for x, y in zip(xs, ys, strict=True)
    ]
    frame = pandas.DataFrame(rows)
    found = fedtailor.run(
        "local", data=frame, label="ill", client_column="site", rounds=1, device="cpu"
    )
    same(found, fedtailor.run("local", data=pairs(), rounds=1, device="cpu"))


def test_a_torch_dataset_per_client() -> None:
    data = {
        name: torch.utils.data.TensorDataset(torch.tensor(x).float(), torch.tensor(y))
        for name, (x, y) in pairs().items()
    }
    found = fedtailor.run("local", data=data, rounds=1, device="cpu")
    assert set(found["per_client"]) == {"north", "south", "west"}


def test_a_partition_of_ones_own() -> None:
    def halves(source, clients, seed):
        return {
            "odd": np.flatnonzero(source.labels % 2),
            "even": np.flatnonzero(source.labels % 2 == 0),
        }

    found = fedtailor.run("local", partition=halves, model="mlp", rounds=1, device="cpu")
    assert list(found["per_client"]) == ["odd", "even"]
    assert found["partition"] == "object:halves"


def test_a_loss_of_ones_own_is_what_is_made_small() -> None:
    def nothing(outputs, labels):
        return outputs.sum(-1) * 0

    asleep = fedtailor.run("fedavg", loss=nothing, **SMALL)
    begun = fedtailor.run("fedavg", lr=0.0, **SMALL)
    assert asleep["per_client"] == begun["per_client"]

    def plain(outputs, labels):
        return F.cross_entropy(outputs, labels, reduction="none")

    same(fedtailor.run("fedavg", loss=plain, **SMALL), fedtailor.run("fedavg", **SMALL))


def test_a_metric_of_ones_own_is_measured_at_every_client() -> None:
    def accuracy(outputs, labels):
        return (outputs.argmax(-1) == labels).float().mean()

    found = fedtailor.run("ditto", metrics={"mine": accuracy}, **SMALL)
    own, known = found["metrics"]["mine"], found["per_client"]
    assert own["per_client"] == pytest.approx(known, abs=1e-6)
    assert own["mean"] == pytest.approx(found["accuracy"]["mean"], abs=1e-6)


def test_a_metric_that_fails_at_every_client_is_told(caplog: pytest.LogCaptureFixture) -> None:
    metrics = {
        "odd": lambda outputs, labels: outputs + "",
        "some": lambda outputs, labels: 1 / (len(labels) - 1),
    }
    with caplog.at_level("WARNING", "fedtailor"):
        found = fedtailor.run("local", metrics=metrics, **SMALL)
    assert found["metrics"]["odd"]["mean"] is None
    (said,) = [r.getMessage() for r in caplog.records]
    assert "metric 'odd' of your own gives no number at any client: TypeError" in said


def test_a_schedule_by_name_and_as_a_function() -> None:
    named = fedtailor.run("fedavg", schedule="step:1:0.5", **SMALL)
    made = fedtailor.run("fedavg", schedule=lambda now, end: 0.5**now, **SMALL)
    same(named, made)
    assert named["per_client"] != fedtailor.run("fedavg", **SMALL)["per_client"] or (
        named["out_of_sample_gap"] != fedtailor.run("fedavg", **SMALL)["out_of_sample_gap"]
    )


@pytest.mark.parametrize("name", ["schedule", "loss"])
def test_functions_must_be_functions(name: str) -> None:
    with pytest.raises(BadInput, match=f"{name} is a"):
        fedtailor.run("fedavg", **SMALL, **{name: 3})


# --- the result ---


def test_a_result_is_a_dictionary_and_more(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    found = fedtailor.run("fedala", out=tmp_path / "run", **ALA)
    assert isinstance(found, dict)
    table = found.table()
    assert isinstance(table, pandas.DataFrame)
    assert list(table["client"]) == list(found["per_client"])
    assert list(table.columns[:3]) == ["client", found["metric"], "best"]
    assert list(table[found["metric"]]) == pytest.approx(list(found["per_client"].values()))
    assert set(table.columns[3:]) == set(found["metrics"]) - {found["metric"]}
    assert [line["round"] for line in found.history] == [1, 2]
    assert found.report() == tmp_path / "run" / "report.html"


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("method", ["fedala", "apfl", "fedrep"])
def test_a_model_of_a_client_scores_as_the_result_says(
    method: str, kept: bool, tmp_path: Path
) -> None:
    data = pairs()
    out = tmp_path / "run" if kept else None
    found = fedtailor.run(method, data=data, rounds=2, out=out, normalise="none", device="cpu")
    network = found.model("west")
    assert isinstance(network, nn.Module) and not network.training
    x, y = data["west"]
    with torch.no_grad():
        right = network(torch.tensor(x).float()).argmax(-1).numpy() == y
    assert right.mean() > 0.5
    with pytest.raises(BadInput, match="nort"):
        found.model("nort")


def test_what_needs_a_folder_says_so() -> None:
    found = fedtailor.run("fedavg", **SMALL)
    with pytest.raises(BadInput, match="out="):
        found.report()


def test_a_comparison_takes_objects_and_gives_a_table(tmp_path: Path) -> None:
    pytest.importorskip("pandas")

    def mine(task, *, recipe=Recipe()):
        """FedAvg under another name."""
        return fedtailor.METHODS["fedavg"](task, recipe=recipe)

    out = tmp_path / "all"
    found = fedtailor.compare(
        "fedavg", mine, out=out, data=pairs(), rounds=2, device="cpu", yardsticks=False
    )
    assert found["methods"] == ["local", "fedavg", "object:mine"]
    rows = found["table"]
    assert rows["fedavg"]["per_client"] == rows["object:mine"]["per_client"]
    assert list(found.table().index) == ["local", "fedavg", "object:mine"]
    assert found.decision is not None and found.decision["method"] in ("fedavg", "object:mine")
    assert found.clients.keys() == rows["fedavg"]["per_client"].keys()
    assert isinstance(found.model("north", "object:mine"), nn.Module)
    assert len(found.history["fedavg", 0]) == 2
    assert found.report().name == "report.html"


# --- resume ---


def test_a_run_of_objects_resumes_with_the_same_objects(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(line, rounds):
        if line["round"] == 2:
            raise Stop

    given = {"data": pairs(), "model": Net, "rounds": 4, "device": "cpu", "checkpoint_every": 1}
    with pytest.raises(Stop):
        fedtailor.run("ditto", out=tmp_path / "cut", watch=stop, **given)
    folder = str(tmp_path / "cut")  # a str will do
    with pytest.raises(BadInput, match=r"data is 'object:objects'.*resume\(folder, data=\.\.\.\)"):
        fedtailor.resume(folder)
    other = pairs()
    other["north"][0][0, 0] += 1
    with pytest.raises(BadInput, match=r"data .* have changed"):
        fedtailor.resume(folder, data=other, model=Net)
    found = fedtailor.resume(folder, data=pairs(), model=Net)
    same(found, fedtailor.run("ditto", **given))


def test_resume_takes_no_other_settings(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="unknown object of a run 'lr'"):
        fedtailor.resume(tmp_path, lr=0.1)


def test_the_command_line_says_that_objects_are_needed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fedtailor.run("local", out=tmp_path / "run", data=pairs(), rounds=1, device="cpu")
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(["resume", str(tmp_path / "run")])
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert len(said.strip().splitlines()) == 1
    assert "Python object" in said


# --- round by round ---


def test_rounds_one_at_a_time_are_the_run() -> None:
    whole = fedtailor.run("fedala", **ALA)
    seen = []
    for report in fedtailor.simulate("fedala", **ALA):
        seen.append(report.round)
        assert set(report.cohort) == set(whole["per_client"])
    assert seen == [1, 2]
    assert report.score == pytest.approx(whole["accuracy"]["mean"], abs=1e-6)
    kept = report.model("client-1").state_dict()
    again = whole.model("client-1").state_dict()
    assert all(torch.equal(kept[k], again[k]) for k in again)
    assert "params" in report.server
    assert report.state("client-1")


def test_bad_input_is_told_before_the_first_round() -> None:
    with pytest.raises(BadInput, match="fedalaa"):
        fedtailor.simulate("fedalaa")


def test_stored_examples_and_networks_agree_on_scale() -> None:
    """What a network is given: images from 0..255 become -1..1."""
    x = torch.tensor([0, 255], dtype=torch.uint8)
    assert to_input(x, torch.float32).tolist() == [-1.0, 1.0]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (partial(fedtailor.compare, "fedavg", seeds=[0, 5]), "seeds is [0, 5]: give a number from"),
        (partial(fedtailor.compare, "fedavg", repeats=1.5), "repeats is 1.5: give a number from"),
        (partial(fedtailor.compare, "fedavg", margin="x"), "margin is 'x': give 0 or more"),
        (partial(fedtailor.sweep, "fedavg", seeds="2"), "seeds is '2': give a number from"),
        (partial(fedtailor.sweep, "fedavg", lr=0.1), "lr is 0.1: give a list of learning rates"),
        (partial(fedtailor.tune, "fedavg", trials=[1]), "trials is [1]: give a number from"),
        (partial(fedtailor.tune, "ditto", over={"lam": [1, 2]}), "over: 'lam' is [1, 2]: write"),
        (partial(fedtailor.run, "ditto", options=["lam"]), "options is ['lam']: give a dict"),
        (
            partial(fedtailor.run, "ditto", lam=0.5),
            "'lam': it is an option of ditto: give it",
        ),
        (
            partial(fedtailor.run, partial(fedtailor.METHODS["ditto"], lam=0.5)),
            "method is a partial: give ditto itself, and options={'lam': 0.5}",
        ),
        (partial(fedtailor.predict, "run", "a", "x.png"), "files is of type str: give a list"),
        (partial(fedtailor.predict, "run", "a", [[1, 2]]), "files is of type list: give a list"),
    ],
)
def test_arguments_of_another_kind_are_named_in_one_line(call: Any, said: str) -> None:
    with pytest.raises(fedtailor.BadInput) as error:
        call()
    assert said in str(error.value)
    assert "\n" not in str(error.value)
