"""Features: what the head of a network is given."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from fedtailor.core import rng, tree
from fedtailor.core.errors import BadInput
from fedtailor.core.network.features import input_of
from fedtailor.core.task import classification


class Net(nn.Module):
    """A body of one convolution, and a classifier of two layers behind dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten())
        self.drop = nn.Dropout(0.5)
        self.classifier = nn.Sequential(nn.Linear(27, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.drop(self.body(x)))


class Named(Net):
    head_begins = "classifier"


X = (rng.bits(rng.key(1), 6 * 25) % 256).to(torch.uint8).view(6, 1, 5, 5)
HEAD = ("classifier.0.weight", "classifier.0.bias", "classifier.2.weight", "classifier.2.bias")


def by_hand(params: tree.Params, upto: int) -> Tensor:
    net = Net().eval()
    net.load_state_dict(params, strict=False)
    x = net.body(X / 127.5 - 1)
    return net.classifier[:upto](x)


@pytest.mark.parametrize(("net", "head", "upto"), [(Named, HEAD, 0), (Net, HEAD[2:], 2)])
def test_the_network_says_where_its_head_begins_or_it_is_the_last_block(
    net: type[Net], head: tuple[str, ...], upto: int
) -> None:
    task = classification(net)
    assert task.head == task.blocks[-1] == head
    assert task.top(1) == head
    params = [task.init(rng.key(i)) for i in range(2)]
    found = [task.features(p, X) for p in params]
    for p, features in zip(params, found, strict=True):
        torch.testing.assert_close(features, by_hand(p, upto))
    together = vmap(task.features, (0, None))(tree.stack(params), X)
    torch.testing.assert_close(together, torch.stack(found))


def test_nothing_stays_at_the_network() -> None:
    net = Net().eval()
    x = X / 127.5 - 1
    found = input_of(net, "classifier", lambda: net(x))
    assert torch.equal(found, net.body(x))
    assert not net.classifier._forward_pre_hooks


def test_features_have_gradients() -> None:
    task = classification(Named)
    params = task.init(rng.key(0))
    rest, trained = tree.pick(params, task.buffers), tree.drop(params, task.buffers)
    grads = torch.func.grad(lambda p: task.features(p | rest, X).square().sum())(trained)
    assert float(grads["body.0.weight"].abs().sum()) > 0
    assert float(grads["classifier.0.weight"].abs().sum()) == 0


def test_of_a_single_layer_they_are_the_input() -> None:
    task = classification(lambda: nn.Linear(4, 3))
    x = rng.normal(rng.key(0), 5, 4)
    assert torch.equal(task.features(task.init(rng.key(0)), x), x)


def test_a_head_that_is_not_there_is_refused() -> None:
    class Wrong(Net):
        head_begins = "clasifier"

    with pytest.raises(BadInput, match="head_begins is 'clasifier': the network has no such part"):
        classification(Wrong)


def test_a_head_that_is_not_called_is_refused() -> None:
    class Around(Named):
        def forward(self, x: Tensor) -> Tensor:
            for layer in self.classifier:
                x = layer(self.body(x) if x.ndim == 4 else x)
            return x

    task = classification(Around)
    with pytest.raises(BadInput, match="does not call 'classifier', where its head begins"):
        task.features(task.init(rng.key(0)), X)
