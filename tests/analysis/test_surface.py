"""Loss surfaces: directions by hand, surfaces known in closed form, and a loop as the reference."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtailor.analysis import surface
from fedtailor.analysis.surface import direction, grid, measure_points, plane, segment, sharpness
from fedtailor.core import rng
from fedtailor.core.task import classification
from fedtailor.core.tree import Tree


def squared(outputs: Tensor, wanted: Tensor) -> Tensor:
    return (outputs[:, 0] - wanted).square()


def linear(model: Tree, x: Tensor) -> Tensor:
    return x @ model["w"].T


def test_filters_of_a_direction_are_as_long_as_those_of_the_model() -> None:
    weight = torch.tensor([[3.0, 4.0], [0.0, 0.5]])  # two filters, of norms 5 and 0.5
    found = direction({"w": weight, "b": torch.tensor([7.0, 7.0])}, rng.key(1))
    assert found["w"].norm(dim=1).tolist() == pytest.approx([5.0, 0.5])
    assert not torch.allclose(found["w"] / weight.norm(dim=1)[:, None], weight)
    drawn = rng.normal(rng.fold(rng.key(1), 1), 2, 2)  # w is the second name
    assert torch.allclose(F.normalize(found["w"]), F.normalize(drawn))


def test_a_convolutions_filter_is_everything_of_one_output_channel() -> None:
    weight = torch.arange(24.0).reshape(2, 3, 2, 2)
    found = direction({"w": weight}, rng.key(0))["w"]
    expected = [weight[i].norm().item() for i in range(2)]
    assert [found[i].norm().item() for i in range(2)] == pytest.approx(expected)


def test_what_has_one_axis_does_not_move() -> None:
    task = classification(lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3)))
    model = task.init(rng.key(0)) | {"count": torch.ones(2, 2, dtype=torch.int64)}
    found = direction(model, rng.key(0))
    moving = {name for name, leaf in found.items() if leaf.abs().sum() > 0}
    assert moving == {"0.weight"}
    assert {k: (v.shape, v.dtype) for k, v in found.items()} == {
        k: (v.shape, v.dtype) for k, v in model.items()
    }


def test_two_models_get_the_same_draws_scaled_to_each() -> None:
    one, other = {"w": torch.ones(2, 3)}, {"w": torch.full((2, 3), 4.0)}
    first, second = (direction(model, rng.key(5))["w"] for model in (one, other))
    assert torch.allclose(4 * first, second)
    assert not torch.allclose(first, direction(one, rng.key(6))["w"])


def test_a_filter_of_zeros_stays_where_it_is() -> None:
    found = direction({"w": torch.zeros(2, 3)}, rng.key(0))["w"]
    assert torch.equal(found, torch.zeros(2, 3))


def test_a_quadratic_surface_is_the_known_one() -> None:
    # w = (1, 2), x = (1, 1), y = 1: what is left over is 2 + a (p0 + p1) + b (q0 + q1)
    model = {"w": torch.tensor([[1.0, 2.0]], dtype=torch.float64)}
    p, q = ({"w": torch.tensor([v], dtype=torch.float64)} for v in ([1.0, 2.0], [-1.0, 0.5]))
    axis = torch.linspace(-1, 1, 5, dtype=torch.float64)
    x, y = torch.ones(1, 2, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    found = measure_points(linear, plane(model, p, q), grid(axis), x, y, loss=squared)
    a, b = axis[:, None], axis[None, :]
    assert torch.allclose(found.loss.reshape(5, 5), (2 + 3 * a - 0.5 * b) ** 2, atol=1e-12)


def network() -> tuple[surface.Predict, Tree, Tensor, Tensor]:
    def build() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
        )

    task = classification(build)
    x = rng.uniform(rng.key(1), 300, 1, 8, 8)
    return task.predict, task.init(rng.key(0)), x, rng.bits(rng.key(2), 300) % 3


def test_all_points_at_once_are_one_after_another() -> None:
    predict, model, x, y = network()
    at = plane(model, *(direction(model, rng.key(i)) for i in range(2)))
    points = grid(torch.linspace(-1, 1, 3))
    found = measure_points(
        predict, at, points, x, y, chunk=4
    )  # the last chunk is short, so are the rows
    with torch.no_grad():
        for k, point in enumerate(points):
            logits = predict(at(point), x)
            assert found.loss[k].item() == pytest.approx(
                F.cross_entropy(logits, y).item(), rel=1e-5
            )
            assert found.accuracy[k].item() == pytest.approx(
                (logits.argmax(1) == y).double().mean().item()
            )


def test_a_chunk_that_does_not_fit_is_halved() -> None:
    predict, model, x, y = network()
    at = plane(model, *(direction(model, rng.key(i)) for i in range(2)))
    points, told = grid(torch.linspace(-1, 1, 3)), []
    expected = measure_points(predict, at, points, x, y, chunk=1)

    def small(some: Tree, rows: Tensor) -> Tensor:
        if torch._C._functorch.get_unwrapped(some["4.weight"]).shape[0] > 2:
            raise RuntimeError("not enough memory: you tried to allocate too much")
        return predict(some, rows)

    found = measure_points(small, at, points, x, y, chunk=9, tell=told.append)
    assert torch.allclose(found.loss, expected.loss)
    assert sum(told) == 9 and max(told) == 2


def test_other_errors_are_not_swallowed() -> None:
    def broken(some: Tree, rows: Tensor) -> Tensor:
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        measure_points(
            broken,
            lambda t: {"w": t},
            torch.zeros(1, 1),
            torch.zeros(2, 1),
            torch.zeros(2),
            chunk=4,
        )


def test_a_segment_goes_straight_and_statistics_stop_at_its_ends() -> None:
    start = {"w": torch.tensor([0.0, 2.0]), "norm": {"var": torch.tensor([1.0])}}
    end = {"w": torch.tensor([4.0, 2.0]), "norm": {"var": torch.tensor([0.1])}}
    at = segment(start, end, ["var"])
    places = [at(torch.tensor([t])) for t in (-0.5, 0.0, 0.5, 1.0, 1.5)]
    assert [p["w"][0].item() for p in places] == [-2, 0, 2, 4, 6]
    assert [p["norm"]["var"].item() for p in places] == pytest.approx([1, 1, 0.55, 0.1, 0.1])


def test_sharpness_of_a_bowl() -> None:
    axis = torch.linspace(-1, 1, 21, dtype=torch.float64)
    axis[10] = 0
    bowl = 3 + 2 * (axis[:, None] ** 2 + axis[None, :] ** 2)
    found = sharpness(axis, bowl, 0.5)
    inside = [
        2 * (a * a + b * b) / 100
        for a in range(-10, 11)
        for b in range(-10, 11)
        if a * a + b * b <= 25
    ]
    assert found.centre == pytest.approx(3)
    assert found.highest == pytest.approx(0.5)  # 2 · 0.5²
    assert found.mean == pytest.approx(sum(inside) / len(inside))
    flat = sharpness(axis, torch.full((21, 21), 0.7, dtype=torch.float64), 0.5)
    assert flat == pytest.approx((0.7, 0, 0))


def test_where_a_model_says_no_number_no_row_is_right() -> None:
    model = {"w": torch.tensor([[1e38], [0.0]])}
    x, y = torch.full((3, 1), 2.0), torch.zeros(3, dtype=torch.long)
    zero = {"w": torch.zeros(2, 1)}
    step = {"w": torch.tensor([[1e38], [0.0]])}
    found = measure_points(linear, plane(model, step, zero), torch.tensor([[0.0, 0], [1, 0]]), x, y)
    assert found.accuracy.tolist() == [1, 0]  # 4e38 is beyond single precision
