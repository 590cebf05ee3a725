"""Networks as objects."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from fedtailor.core import rng
from fedtailor.core.errors import BadInput
from fedtailor.core.form import Form
from fedtailor.core.task import classification
from fedtailor.models import build, network_of

TABLE = Form("table", (4,), 3)
DIGITS = Form("image", (1, 8, 8), 10)


def same(one: nn.Module, other: nn.Module) -> bool:
    states = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    return all(k == j and torch.equal(v, w) for (k, v), (j, w) in states)


class Net(nn.Module):
    """Its arguments all have defaults: none of them is the form."""

    def __init__(self, width: int = 5, classes: int = 3) -> None:
        super().__init__()
        self.body, self.norm = nn.Linear(4, width), nn.BatchNorm1d(width)
        self.fc = nn.Linear(width, classes)

    def forward(self, x):
        return self.fc(self.norm(self.body(x)).relu())


def test_a_name_is_built():
    torch.manual_seed(0)
    want = build("mlp", TABLE)
    torch.manual_seed(0)
    assert same(network_of("mlp", TABLE), want)


def test_a_module_is_copied_with_its_weights_and_statistics():
    module = Net()
    module.norm.running_mean += 3
    found = network_of(module, TABLE)
    assert found is not module and same(found, module) and found.training
    task = classification(lambda: network_of(module, TABLE))
    for seed in (1, 2):  # whatever the seed, all start from these weights
        assert torch.equal(task.init(rng.key(seed))["fc.weight"], module.fc.weight)


@pytest.mark.parametrize(
    "factory",
    [
        Net,
        lambda: Net(7),
        lambda form: nn.Linear(*form.shape, form.classes),
        lambda f: nn.Linear(*f.shape, f.classes),
        lambda form=None, width=3: nn.Linear(*form.shape, form.classes),
        lambda: nn.Sequential(nn.LazyLinear(3)),
    ],
)
def test_a_factory_makes_new_weights_from_the_seed(factory):
    task = classification(lambda: network_of(factory, TABLE))
    name = task.blocks[0][0]
    one, again, other = (task.init(rng.key(seed))[name] for seed in (1, 1, 2))
    assert torch.equal(one, again) and not torch.equal(one, other)


def test_texts_and_images_are_tried_as_they_will_come():
    words = Form("text", (6,), 2, vocabulary=9)
    network_of(nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(24, 2)), words)
    network_of(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), DIGITS)
    network_of(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).double(), DIGITS)


def test_looking_at_a_network_draws_no_numbers():
    torch.manual_seed(0)
    want = torch.rand(1)
    torch.manual_seed(0)
    network_of(nn.Sequential(nn.Dropout(), nn.LazyLinear(3)), TABLE)
    assert torch.equal(torch.rand(1), want)


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (nn.Linear(4, 2), ("Linear", "(2,)", "3 logits")),
        (nn.Linear(5, 3), ("Linear", "(4,)", "first layer")),
        (nn.Sequential(nn.Flatten(0), nn.Linear(8, 3)), ("Sequential", "3 logits")),
        (nn.Identity(), ("Identity", "no parameters")),
        (lambda a, b: nn.Linear(4, 3), ("needs a, b", "form")),
        (lambda: "mlp", ("returned str", "torch.nn.Module")),
        (nn.Linear, ("Linear", "in_features, out_features")),
        (7, ("of type int", "nn.Module")),
    ],
)
def test_wrong_networks(model, named):
    with pytest.raises(BadInput) as caught:
        network_of(model, TABLE)
    for word in named:
        assert word in str(caught.value), str(caught.value)
    assert "\n" not in str(caught.value)


STRANGERS = """
from torch import nn


def too_many(form):
    return nn.Linear(form.shape[0], form.outputs + 2)


def nothing_given():
    return nn.Linear(4, 3)


def two(a, b):
    return nn.Linear(4, 3)


ONE = nn.Linear(4, 3)


def always_the_same(form):
    return ONE
"""


@pytest.fixture
def _strangers(tmp_path, monkeypatch):
    (tmp_path / "strangers_nets.py").write_text(STRANGERS)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("strangers_nets", None)


@pytest.mark.usefixtures("_strangers")
def test_a_factory_named_by_its_module_is_held_to_the_same():
    with pytest.raises(
        BadInput, match=r"model Linear gives \(5,\) for an example: return 3 logits"
    ):
        network_of("strangers_nets:too_many", TABLE)  # had trained on two classes that nobody has
    with pytest.raises(BadInput, match="'strangers_nets:two': the factory needs a, b"):
        network_of("strangers_nets:two", TABLE)
    assert network_of("strangers_nets:nothing_given", TABLE).out_features == 3
    one, two = (network_of("strangers_nets:always_the_same", TABLE) for _ in range(2))
    assert one is not two
    assert same(one, two)
