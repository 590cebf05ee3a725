"""Body and head apart, and what a client's classes look like between them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap

from fedtailor.core import rng, tree
from fedtailor.core.data import Data
from fedtailor.core.errors import BadInput
from fedtailor.core.form import Form
from fedtailor.core.task import Batch, classification
from fedtailor.methods.check import toy_task
from fedtailor.methods.parts.representation import (
    FAR,
    class_sums,
    head_split,
    mean_features,
    nearness,
    number_of_classes,
    pull,
    rows_per_class,
)

X = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0], [9.0, 9.0]])
Y = torch.tensor([0, 0, 2, 1])
TABLE = Form("table", (2,), 3)


def batch_of(x: Tensor, y: Tensor, weight: Tensor | None = None) -> Batch:
    weight = torch.ones(len(y)) if weight is None else weight
    return Batch(x, y, weight, torch.tensor(True), rng.key(3))


@pytest.mark.parametrize("network", ["dense", "batch-norm"])
def test_head_after_body_is_the_network_in_both_modes(network: str) -> None:
    task = toy_task(network)
    split = head_split(task, "a test")
    params = [task.init(rng.key(i)) for i in range(2)]
    x = rng.normal(rng.key(5), 7, 6)
    batch = batch_of(x, torch.zeros(7).long())
    for p in params:
        features, outputs, buffers = split.embed(p, batch)
        whole, written = task.outputs(p, batch)
        assert torch.equal(outputs, whole)
        assert all(torch.equal(buffers[k], v) for k, v in written.items())
        torch.testing.assert_close(split.classify(p, features, batch), whole)
        seen = task.features(p, x)
        torch.testing.assert_close(split.classify(p, seen), task.predict(p, x))
        assert features.shape == seen.shape == (7, split.width)
    together = vmap(split.embed, (0, None))(tree.stack(params), batch)[0]
    torch.testing.assert_close(together[1], split.embed(params[1], batch)[0])


def test_a_head_of_several_layers_with_dropout_draws_with_the_batch_key() -> None:
    class Net(nn.Module):
        head_begins = "classifier"

        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(2, 5)
            self.classifier = nn.Sequential(
                nn.Linear(5, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3)
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.classifier(self.body(x))

    task = classification(Net, form=TABLE)
    split, params, batch = head_split(task, "a test"), task.init(rng.key(0)), batch_of(X, Y)
    features, outputs, _ = split.embed(params, batch)
    assert split.width == 5
    torch.testing.assert_close(split.classify(params, features, batch), outputs)
    assert not torch.allclose(split.classify(params, features), outputs)  # evaluation drops none


def test_networks_without_a_head_of_their_own_are_refused() -> None:
    class Softened(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(2, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x)).log_softmax(-1)

    with pytest.raises(BadInput, match="prototypes, but the network does something with what its"):
        head_split(classification(Softened, form=TABLE), "prototypes")
    convolution = classification(lambda: nn.Sequential(nn.Conv2d(1, 3, 2), nn.Flatten()))
    with pytest.raises(BadInput, match="prototypes, but the network's head is no module of its"):
        head_split(convolution, "prototypes")


def identity() -> nn.Module:
    net = nn.Sequential(nn.Identity(), nn.Linear(2, 3))
    nn.init.zeros_(net[1].weight)
    return net


def test_class_sums_by_hand_and_without_padding() -> None:
    task = classification(identity, form=TABLE)
    params = task.init(rng.key(0))
    alone = Data.of(X[:3], Y[:3])
    # two clients in a store of four rows; the first has three, padded to four
    padded = Data(X, Y, torch.tensor([0, 1, 2, 0]), torch.tensor(3), torch.zeros(0).long(),
                  torch.tensor(0))  # fmt: skip
    for data in (alone, padded):
        for size in (1, 2, 128):
            sums = class_sums(task, params, data, size)
            assert sums.rows.tolist() == [2, 0, 1]
            assert sums.features.tolist() == [[4, 0], [0, 0], [0, 2]]
            assert sums.squares.tolist() == [10, 0, 4]
            assert sums.means.tolist() == [[2, 0], [0, 0], [0, 2]]
            assert sums.seen.tolist() == [1, 0, 1]
        assert rows_per_class(data, 3).tolist() == [2, 0, 1]
        torch.testing.assert_close(mean_features(task, params, data), torch.tensor([4 / 3, 2 / 3]))
    assert number_of_classes(task) == number_of_classes(classification(identity)) == 3


def test_pull_and_nearness_by_hand() -> None:
    targets, seen = torch.tensor([[1.0, 1.0], [0.0, 0.0], [5.0, 5.0]]), torch.tensor([1.0, 1, 0])
    # (0 + 1)/2 and (4 + 1)/2 of class 0; class 2 has no target; the last row is padding
    batch = batch_of(X, Y, torch.tensor([1.0, 1, 1, 0]))
    assert float(pull(X, batch, targets, seen)) == pytest.approx((0.5 + 2.5) / 3)
    logits = nearness(X[:1], targets, seen)
    torch.testing.assert_close(logits, torch.tensor([[-0.5, -0.5, FAR]]))
    loss = F.cross_entropy(logits, torch.tensor([0]))
    assert float(loss) == pytest.approx(torch.log(torch.tensor(2.0)).item())
