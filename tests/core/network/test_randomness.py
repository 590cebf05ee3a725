"""What networks draw comes from the step's key: in every run, under every engine."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap

from fedtailor.core import rng
from fedtailor.core.network.randomness import KeyedDraws
from fedtailor.core.task import Batch, classification
from fedtailor.core.training import Recipe
from tests.methods.worlds import gap, make, models, play, ragged, same, simulate

pytestmark = pytest.mark.usefixtures("float64")


class Between(nn.Module):
    """A function between two linear layers."""

    def __init__(self, fn: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.fn = nn.Linear(4, 8), nn.Linear(8, 3), fn

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.fn(self.first(x)))
        return out


class Transformer(nn.Module):
    """Four tokens of one number each."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(1, 4)
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.3, batch_first=True)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.layer(self.embed(x[..., None])).mean(1))
        return out


def depth(x: Tensor) -> Tensor:
    """Stochastic depth as torchvision has it."""
    return x * torch.empty([len(x), 1], dtype=x.dtype, device=x.device).bernoulli_(0.7).div_(0.7)


def halves(x: Tensor) -> Tensor:
    return torch.stack([x[:, :4], x[:, 4:]], 1)


DRAWING: dict[str, Callable[[], nn.Module]] = {
    "functional": lambda: Between(lambda x: F.dropout(x, 0.4)),
    "alpha": lambda: Between(lambda x: F.alpha_dropout(x, 0.4, training=True)),
    "transformer": Transformer,
    "attention": lambda: Between(
        lambda x: F.scaled_dot_product_attention(*[halves(x)] * 3, dropout_p=0.5).flatten(1)
    ),
    "noise": lambda: Between(lambda x: x + 0.3 * torch.randn_like(x)),
    "mask": lambda: Between(lambda x: x * torch.bernoulli(torch.full_like(x, 0.6))),
    "shuffle": lambda: Between(lambda x: x[:, torch.randperm(8)]),
    "depth": lambda: Between(depth),
    "gumbel": lambda: Between(F.gumbel_softmax),
    "rrelu": lambda: Between(lambda x: F.rrelu(x, training=True)),
    "distribution": lambda: Between(
        lambda x: torch.distributions.Normal(x, x.abs() + 0.1, validate_args=False).rsample()
    ),
}


def played(build: Callable[[], nn.Module], stream: int, **options: Any) -> Any:
    torch.manual_seed(stream)
    task = classification(build)
    sim = simulate(
        make("fedavg", task, Recipe(lr=0.1, batch=5)), ragged((7, 12, 9)), task, **options
    )
    play(sim, 2)
    assert torch.initial_seed() == stream
    return models(sim)


@pytest.mark.parametrize("name", DRAWING)
def test_two_runs_and_all_engines_draw_the_same(name: str) -> None:
    build = DRAWING[name]
    first = played(build, 1)
    assert same(first, played(build, 2))
    assert gap(first, played(build, 3, engine="sequential")) < 1e-10
    assert gap(first, played(build, 4, loop_mode="traced")) < 1e-10


@pytest.mark.parametrize("name", DRAWING)
def test_every_step_and_every_client_has_draws_of_its_own(name: str) -> None:
    task = classification(DRAWING[name])
    params = task.init(rng.key(0))
    assert task.outputs is not None
    x = torch.ones(6, 4)
    one = torch.ones(6)
    said = [task.outputs(params, Batch(x, one, one, one[0] > 0, rng.key(i)))[0] for i in (0, 1)]
    assert not torch.equal(*said)
    keys = torch.stack([rng.key(0), rng.key(1)])
    outputs = task.outputs

    def one_client(key: Tensor) -> Tensor:
        return outputs(params, Batch(x, one, one, one[0] > 0, key))[0]

    mapped = vmap(one_client, randomness="error")
    torch.testing.assert_close(mapped(keys), torch.stack(said), rtol=1e-12, atol=1e-12)


def test_a_dropout_that_is_used_twice_drops_twice() -> None:
    drop = nn.Dropout(0.5)
    with KeyedDraws(rng.key(0)):
        first, second = (drop(torch.ones(100)) for _ in range(2))
    assert not torch.equal(first, second)


def drawn(fn: Callable[[], Tensor], key: int = 0) -> Tensor:
    before = torch.get_rng_state()
    with KeyedDraws(rng.key(key)):
        found = fn()
    assert torch.equal(torch.get_rng_state(), before)
    return found


@pytest.mark.parametrize(
    ("fn", "mean", "deviation"),
    [
        (lambda: torch.rand(100, 100), 0.5, 12**-0.5),
        (lambda: torch.rand((100, 100), dtype=torch.float32), 0.5, 12**-0.5),
        (lambda: torch.randn(10000), 0, 1),
        (lambda: torch.rand_like(torch.ones(10000)), 0.5, 12**-0.5),
        (lambda: torch.randn_like(torch.ones(10000)), 0, 1),
        (lambda: torch.normal(2.0, 3.0, (10000,)), 2, 3),
        (lambda: torch.normal(torch.full((10000,), 2.0), 3.0), 2, 3),
        (lambda: torch.normal(2.0, torch.full((10000,), 3.0)), 2, 3),
        (lambda: torch.bernoulli(torch.full((10000,), 0.2)), 0.2, 0.4),
        (lambda: torch.empty(10000).bernoulli_(0.2), 0.2, 0.4),
        (lambda: torch.empty(10000).uniform_(-1, 2), 0.5, 3 * 12**-0.5),
        (lambda: torch.empty(10000).normal_(2, 3), 2, 3),
        (lambda: torch.empty(10000).exponential_(2), 0.5, 0.5),
        (lambda: torch.randint(2, 7, (10000,)), 4, 2**0.5),
        (lambda: torch.randint(5, (10000,)), 2, 2**0.5),
        (lambda: torch.randint_like(torch.ones(10000), 5), 2, 2**0.5),
        (lambda: torch.multinomial(torch.tensor([1.0, 3.0]), 10000, True), 0.75, 0.1875**0.5),
        (
            lambda: torch.multinomial(torch.tensor([1.0, 3.0]).expand(10000, 2), 1),
            0.75,
            0.1875**0.5,
        ),
        (lambda: F.dropout(torch.ones(10000), 0.2), 1, 0.5),
        (lambda: F.dropout(torch.ones(10000), 0.2, inplace=True), 1, 0.5),
        (lambda: torch.native_dropout(torch.ones(10000), 0.2, True)[0], 1, 0.5),
        (lambda: F.alpha_dropout(torch.randn(10000), 0.2, training=True), 0, 1),
        (lambda: F.rrelu(-torch.ones(10000), 0.0, 1.0, training=True), -0.5, 12**-0.5),
    ],
)
def test_draws_have_their_distribution(
    fn: Callable[[], Tensor], mean: float, deviation: float
) -> None:
    found = drawn(fn)
    assert torch.equal(found, drawn(fn)) and not torch.equal(found, drawn(fn, 1))
    numbers = found.double()
    assert abs(float(numbers.mean()) - mean) < 5 * deviation / math.sqrt(numbers.numel())
    assert float(numbers.std()) == pytest.approx(deviation, rel=0.05)


def test_permutations_and_samples_without_replacement() -> None:
    order = drawn(lambda: torch.randperm(50))
    assert order.sort().values.tolist() == list(range(50)) != order.tolist()
    some = drawn(lambda: torch.multinomial(torch.ones(20), 20))
    assert some.sort().values.tolist() == list(range(20))
    assert drawn(lambda: torch.multinomial(torch.tensor([0.0, 1.0, 0.0]), 1)).tolist() == [1]


def test_kinds_and_shapes_are_torch_s() -> None:
    for fn in (
        lambda: torch.rand(2, 3, dtype=torch.float32),
        lambda: torch.randn([2, 3]),
        lambda: torch.rand(size=(2, 3)),
        lambda: torch.rand(()),
        lambda: torch.randint(3, size=(2,), dtype=torch.int32),
        lambda: torch.randint(low=0, high=3, size=(2,)),
        lambda: torch.randint_like(torch.ones(2), 1, 3),
        lambda: torch.rand_like(torch.ones(2, dtype=torch.int64), dtype=torch.float32),
        lambda: torch.randperm(4),
        lambda: torch.bernoulli(torch.ones(3, dtype=torch.float32)),
        lambda: torch.multinomial(torch.ones(2, 5), 3),
        lambda: torch.multinomial(torch.ones(5), 3, replacement=True),
    ):
        ours, theirs = drawn(fn), fn()
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)


def test_attention_without_dropout_is_torch_s() -> None:
    q, k, v = torch.rand(3, 2, 4, 5, 6)
    mask = torch.rand(5, 5) > 0.3
    mask[2] = False  # sees nothing at all
    for options in ({}, {"is_causal": True}, {"attn_mask": mask}, {"attn_mask": mask.double()}):
        theirs = F.scaled_dot_product_attention(q, k, v, **options)  # type: ignore[arg-type]
        ours = drawn(lambda o=options: F.scaled_dot_product_attention(q, k, v, **o))
        torch.testing.assert_close(ours, theirs)


def test_a_generator_that_the_network_seeds_itself_is_left_alone() -> None:
    def fixed() -> Tensor:
        return torch.rand(3, generator=torch.Generator().manual_seed(5))

    assert torch.equal(drawn(fixed), fixed())
