"""Networks of a task are made alike, whatever they draw beside parameters."""

from __future__ import annotations

from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedtailor
from fedtailor.core import rng
from fedtailor.core.errors import BadInput
from fedtailor.core.network.made import copied, drawing
from fedtailor.core.network.repeatable import generators, unmoved
from fedtailor.core.task import Batch, classification


class Shuffled(nn.Module):
    """Inputs in a drawn order, masked, and shifted by a tensor that nobody registered."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("order", torch.randperm(64))
        self.register_buffer("mask", torch.rand(64) > 0.5)
        self.register_buffer("scale", torch.randn(64), persistent=False)
        self.shift = torch.randn(64)
        self.fc = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        z = x.flatten(1)[:, self.order] * self.mask * self.scale + self.shift
        out: Tensor = self.fc(z)
        return out


def test_training_and_evaluation_have_the_same_drawn_constants() -> None:
    task = classification(Shuffled)
    x, ones = torch.rand(4, 1, 8, 8), torch.ones(4)
    params = task.init(rng.key(3))
    batch = Batch(x, torch.zeros(4).long(), ones, torch.tensor(True), rng.key(0))
    assert task.outputs is not None
    torch.testing.assert_close(task.outputs(params, batch)[0], task.predict(params, x))
    # made again, as a model that comes back is, it still has them
    torch.testing.assert_close(classification(Shuffled).predict(params, x), task.predict(params, x))
    assert not torch.equal(task.init(rng.key(4))["fc.weight"], params["fc.weight"])


def test_a_model_that_comes_back_is_the_one_that_was_judged(tmp_path: Any) -> None:
    given = {"data": "digits", "model": Shuffled, "clients": 2, "rounds": 1, "steps": 2}
    result = fedtailor.run("fedavg", out=tmp_path / "run", **given)
    judged = next(iter(fedtailor.simulate("fedavg", **given)))
    x = torch.rand(5, 1, 8, 8)
    torch.testing.assert_close(result.model("client-0")(x), judged.model("client-0")(x))


def test_a_factory_of_one_and_the_same_module_is_as_good_as_the_module() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Linear(16, 10))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    given: dict[str, Any] = {"data": "digits", "clients": 2, "rounds": 1, "steps": 2}
    module = fedtailor.run("local", model=net, **given)
    factory = fedtailor.run("local", model=lambda form: net, **given)
    assert factory["score"] == module["score"]  # statistics move: it trains in training mode
    one, two = (factory.model(f"client-{i}") for i in range(2))
    assert one is not two
    assert not torch.equal(one[1].weight, two[1].weight)
    assert all(torch.equal(net.state_dict()[name], value) for name, value in before.items())


def test_a_task_is_not_built_of_one_and_the_same_module() -> None:
    net = nn.Linear(2, 2)
    with pytest.raises(BadInput, match="model Linear: it is one and the same module every time"):
        classification(lambda: net)


def test_what_torch_does_not_draw_is_named() -> None:
    draw = np.random.default_rng(0)

    def made() -> nn.Module:
        net = nn.Sequential(nn.Linear(2, 2))
        nn.init.constant_(net[0].bias, float(draw.random()))
        return net

    with pytest.raises(BadInput, match=r"from one seed, it differs in '0\.bias': let torch draw"):
        classification(made)


def test_a_complex_parameter_is_refused_and_not_left_untrained() -> None:
    class Spectral(nn.Module):
        def __init__(self, trained: bool) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(2, 3, dtype=torch.complex64), trained)
            self.fc = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.fc((x.to(self.w.dtype) @ self.w).abs())
            return out

    with pytest.raises(BadInput, match="parameter 'w' is complex and would not be trained"):
        classification(lambda: Spectral(True))
    assert classification(lambda: Spectral(False)).blocks == (("fc.weight", "fc.bias"),)


def test_batch_norm_of_several_processes_is_refused() -> None:
    with pytest.raises(BadInput, match="module '1': SyncBatchNorm is for several processes"):
        classification(lambda: nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2)))


@pytest.mark.parametrize("wrapped", [nn.DataParallel, torch.jit.script])
def test_wrapped_networks_are_refused_in_one_line(wrapped: Any) -> None:
    with pytest.raises(BadInput, match=r"^module '.*': .*: give the network "):
        classification(lambda: wrapped(nn.Linear(2, 2)))


def test_what_no_deepcopy_takes_is_copied() -> None:
    with pytest.warns(FutureWarning, match="deprecated"):
        net = nn.Sequential(nn.utils.weight_norm(nn.Linear(2, 2)))
    net.last = net(torch.ones(1, 2))  # type: ignore[assignment]
    twin = copied(net)
    assert torch.equal(twin(torch.ones(1, 2)), net.last)
    with torch.no_grad():
        twin[0].weight_v.zero_()
    assert float(net[0].weight_v.detach().abs().sum()) > 0


class Centred(nn.Module):
    """Statistics of its own, put in a buffer's place or written into it."""

    def __init__(self, replaces: bool) -> None:
        super().__init__()
        self.replaces = replaces
        self.fc1, self.fc = nn.Linear(4, 3), nn.Linear(3, 2)
        self.register_buffer("mean", torch.zeros(3))
        self.mean: Tensor

    def forward(self, x: Tensor) -> Tensor:
        z = self.fc1(x)
        if self.training:
            now = 0.9 * self.mean + 0.1 * z.detach().mean(0)
            if self.replaces:
                self.mean = now
            else:
                self.mean.copy_(now)
        out: Tensor = self.fc(z - self.mean)
        return out


def test_a_buffer_that_forward_replaces_is_kept_as_one_that_it_writes_into() -> None:
    x, ones = torch.rand(4, 4), torch.ones(4)
    batch = Batch(x, torch.zeros(4).long(), ones, torch.tensor(True), rng.key(0))
    found = []
    for replaces in (True, False):
        task = classification(lambda replaces=replaces: Centred(replaces))  # type: ignore[misc]
        assert task.buffers == ("mean",)
        params = task.init(rng.key(0))
        loss, written = task.loss(params, batch)
        found.append((loss, written["mean"].detach()))
        assert float(params["mean"].abs().sum()) == 0
    torch.testing.assert_close(found[0], found[1])
    assert float(found[0][1].abs().sum()) > 0


def test_threads_draw_one_after_another() -> None:
    """They share torch's generator: without order each would spoil the other's first weights."""
    begun, before, found = Event(), generators(), dict[str, Any]()

    def first() -> None:
        with drawing(rng.key(1)):
            begun.set()
            Event().wait(0.3)  # meanwhile the others try
            found["first"] = torch.randn(2)

    def second() -> None:
        begun.wait()
        with drawing(rng.key(2)):
            found["second"] = torch.randn(2)

    def onlooker() -> None:
        begun.wait()
        found["unmoved"] = unmoved(before)

    threads = [Thread(target=play) for play in (first, second, onlooker)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, number in (("first", 1), ("second", 2)):
        with drawing(rng.key(number)):
            assert torch.equal(found[name], torch.randn(2))
    assert found["unmoved"]
    assert unmoved(before)
