"""pFedMe in plain PyTorch, as the benchmark has it, is pFedMe."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.func import functional_call, grad
from torch.nn.functional import cross_entropy

from fedtailor.core import rng
from fedtailor.core.task import Batch
from fedtailor.methods.regularised.pfedme import moreau_gradient
from tests.benchmarks.scripts import load


@pytest.fixture(scope="module")
def overshoot() -> Any:
    return load("overshoot")


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    parts = {}
    for part in ("train", "test"):
        parts[f"x_{part}"] = draw.integers(0, 256, (60, 32, 32, 3), dtype=np.uint8)
        parts[f"y_{part}"] = draw.choice([1, 3, 8], 60)
    np.savez(tmp_path / "cifar10.npz", **parts)
    return tmp_path


def test_curvature_is_the_largest_eigenvalue(overshoot: Any) -> None:
    def loss(params: dict[str, torch.Tensor]) -> torch.Tensor:
        return 2 * params["a"].square().sum() + 7 * params["b"].square().sum() / 2

    at = {"a": torch.ones(3), "b": torch.ones(2)}
    assert overshoot.curvature(loss, at) == pytest.approx(7, rel=1e-3)


def test_a_batch_is_what_fedtailor_does(
    overshoot: Any, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same inner steps by `fedtailor.methods.regularised.pfedme`, and the same outer one."""
    monkeypatch.setattr(overshoot, "MOMENTS", (1,))
    setting = overshoot.Setting("x", 15.0, 0.09)
    ours = overshoot.train(setting, 0, str(data))["moments"][0]

    images, labels, test, truth = overshoot.rows_of(data)
    assert set(labels.tolist()) <= {3, 8}
    net = overshoot.network(0)
    w = {k: v.detach() for k, v in net.named_parameters()}
    chosen = torch.randint(len(images), (50,), generator=torch.Generator().manual_seed(0))

    def at(theta: Any, batch: Batch, given: Any, carried: Any) -> Any:
        def loss(params: Any) -> Any:
            return cross_entropy(functional_call(net, params, (batch.x,)), batch.y)

        return grad(loss)(theta), loss(theta), {}

    batch = Batch(images[chosen], labels[chosen], torch.ones(50), torch.tensor(True), rng.key(1))
    slope, _, changed = moreau_gradient(15.0, 5, 0.09)(at)(w, batch, {}, {"theta": w, "rest": {}})
    moved = {k: v - 0.005 * slope[k] for k, v in w.items()}
    for who, params in (("w", moved), ("theta", changed["theta"])):
        loss = float(cross_entropy(functional_call(net, params, (test,)), truth))
        assert ours[who]["loss"] == pytest.approx(loss, abs=1e-4)


def test_sgd_has_one_model(overshoot: Any, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overshoot, "MOMENTS", (1, 2))
    found = overshoot.train(overshoot.SETTINGS[0], 1, str(data))
    assert [m["batches"] for m in found["moments"]] == [1, 2]
    assert all(m["w"] == m["theta"] for m in found["moments"])
