"""Runs of networks that are pretrained, or partly frozen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import fedtailor
from fedtailor import BadInput
from fedtailor.core.form import Form
from fedtailor.models import build
from tests.runs.runlab import SMALL, table

pytestmark = pytest.mark.usefixtures("without_pictures")


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "mlp.safetensors"
    save_file(build("mlp", Form("image", (1, 8, 8), 10)).state_dict(), path)
    return path


def state(result: Any, client: str = "client-0") -> dict[str, Tensor]:
    found: dict[str, Tensor] = result.model(client).state_dict()
    return found


def test_frozen_layers_stay_and_models_are_whole(pretrained: Path, tmp_path: Path) -> None:
    given = SMALL | {"device": "cpu", "weights": pretrained, "freeze": "fc1.*"}
    kept = fedtailor.run("fedavg", out=tmp_path / "run", **given)
    weights = load_file(pretrained)
    for result in (kept, fedtailor.run("fedavg", **given)):
        found = state(result)
        assert torch.equal(found["fc1.weight"], weights["fc1.weight"])
        assert not torch.equal(found["fc.weight"], weights["fc.weight"])
    assert "fc1.weight" not in load_file(tmp_path / "run" / "models" / "client-0.safetensors")
    trained = sum(v.numel() for k, v in weights.items() if k.startswith("fc."))
    per_turn = kept["bytes"]["up"] / (SMALL["rounds"] * SMALL["clients"])
    assert 4 * trained <= per_turn < 4 * trained + 500


def test_a_finished_run_needs_no_weights_file(tmp_path: Path) -> None:
    data = table(tmp_path / "own.csv", {"north": 40, "south": 40})
    start = tmp_path / "w.safetensors"
    save_file(build("mlp", Form("table", (2,), 2)).state_dict(), start)
    given = {"data": str(data), "model": "mlp", "rounds": 2, "weights": start, "freeze": "fc1.*"}
    done = fedtailor.run("ditto", out=tmp_path / "run", **given)
    before = fedtailor.predict(tmp_path / "run", "north", [data])
    whole = state(done, "north")
    start.unlink()
    assert fedtailor.predict(tmp_path / "run", "north", [data]) == before
    assert all(torch.equal(v, whole[k]) for k, v in state(done, "north").items())


def test_resume_refuses_other_weights(pretrained: Path, tmp_path: Path) -> None:
    class PowerCut(Exception):
        pass

    def cut(line: dict[str, Any], rounds: int) -> None:
        raise PowerCut

    copy = tmp_path / "w.safetensors"
    copy.write_bytes(pretrained.read_bytes())
    given = SMALL | {"device": "cpu", "weights": copy, "checkpoint_every": 1}
    with pytest.raises(PowerCut):
        fedtailor.run("fedavg", out=tmp_path / "run", watch=cut, **given)
    other = load_file(copy)
    other["fc1.bias"][0] += 1
    save_file(other, copy)
    with pytest.raises(BadInput, match="not those that the run began with"):
        fedtailor.resume(tmp_path / "run")
    copy.write_bytes(pretrained.read_bytes())
    fedtailor.resume(tmp_path / "run")


def test_a_state_dict_will_do(pretrained: Path) -> None:
    weights = load_file(pretrained)
    given = SMALL | {"device": "cpu", "rounds": 1}
    named, made = (fedtailor.run("fedavg", weights=w, **given) for w in (pretrained, weights))
    assert all(torch.equal(v, state(made)[k]) for k, v in state(named).items())
    with pytest.raises(BadInput, match="weights is a int"):
        fedtailor.run("fedavg", weights=3, **given)


def test_a_frozen_module_is_taken_as_it_is() -> None:
    def net() -> nn.Module:
        made = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
        made[1].requires_grad_(False)
        return made

    module = net()
    for model in (module, net):
        result = fedtailor.run("ditto", **SMALL | {"model": model, "device": "cpu"})
        first = [state(result, f"client-{i}")["1.weight"] for i in range(2)]
        assert torch.equal(*first)
        if model is module:
            assert torch.equal(first[0], module[1].weight)


def test_a_comparison_keeps_its_linear_yardstick(pretrained: Path, tmp_path: Path) -> None:
    given = {"rounds": 1, "weights": pretrained, "freeze": "fc1.*"}
    found = fedtailor.compare("fedavg", out=tmp_path / "all", **SMALL | given)
    assert "linear" in found["methods"]
    start = load_file(pretrained)["fc1.weight"]
    for method in ("fedavg", "local", "centralised"):
        assert torch.equal(found.model("client-0", method).state_dict()["fc1.weight"], start)


def test_frozen_random_layers_follow_the_seed() -> None:
    given = SMALL | {"rounds": 1, "device": "cpu", "freeze": "fc1.*"}
    layers = [state(fedtailor.run("fedavg", seed=s, **given))["fc1.weight"] for s in (0, 0, 1)]
    assert torch.equal(layers[0], layers[1]) and not torch.equal(layers[0], layers[2])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"freeze": "body.*"}, r"freeze 'body\.\*' fits no name: known: fc1\.weight"),
        ({"freeze": "*"}, "all parameters are frozen"),
        ({"weights": "none.safetensors"}, "is no file"),
        ({"weights_except": "fc.*"}, "without --weights"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(given: dict[str, str], said: str) -> None:
    with pytest.raises(BadInput, match=said) as caught:
        fedtailor.run("fedavg", **SMALL | given)
    assert "\n" not in str(caught.value)
