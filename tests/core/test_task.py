"""Networks as pure functions of their parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap

from fedtailor.core import rng, tree
from fedtailor.core.errors import BadInput
from fedtailor.core.task import Batch, Task, classification, to_input
from fedtailor.core.training import Recipe
from fedtailor.methods import METHODS
from tests.methods.worlds import NETS, gap, play, ragged, simulate

pytestmark = pytest.mark.usefixtures("float64")


def with_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def with_dropout() -> nn.Module:
    inner = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5))
    return nn.Sequential(inner, nn.ReLU(), nn.Dropout(0.25), nn.Linear(16, 3))


def a_batch(n: int = 5, number: int = 0, weight: list[float] | None = None) -> Batch:
    key = rng.key(100, number)
    for_x, for_y, own = rng.split(key, 3)
    return Batch(
        rng.normal(for_x, n, 4),
        rng.bits(for_y, n) % 3,
        torch.ones(n) if weight is None else torch.tensor(weight, dtype=torch.float64),
        torch.tensor(True),
        own,
    )


def same(a: tree.Params, b: tree.Params) -> bool:
    return list(a) == list(b) and all(torch.equal(a[k], b[k]) for k in a)


def test_a_model_that_lacks_parameters_is_refused() -> None:
    """Torch would take the module's own in their place, which nobody trains: 58 % on digits."""
    task = classification(
        lambda: nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    )
    params, x = task.init(rng.key(0)), torch.zeros(2, 2)
    assert task.predict(params, x).shape == (2, 2)
    body = {k: v for k, v in params.items() if not k.startswith("2.")}
    with pytest.raises(BadInput, match=r"^a model lacks 2\.bias, 2\.weight: give all"):
        task.predict(body, x)
    with pytest.raises(BadInput, match=r"^a model lacks 2\.bias: give all"):
        task.predict({k if k != "2.bias" else "2.bais": v for k, v in params.items()}, x)


def test_the_initial_parameters_depend_on_the_key_alone() -> None:
    task = classification(with_norm)
    torch.manual_seed(1)
    one = task.init(rng.key(3))
    torch.manual_seed(2)
    torch.rand(5)
    assert same(task.init(rng.key(3)), one)
    assert not same(task.init(rng.key(4)), one)
    # a second task around the same network begins at the same point
    assert same(classification(with_norm).init(rng.key(3)), one)


def test_making_a_task_and_init_leave_the_global_generators_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def reseed(*args: object) -> None:
        raise AssertionError("torch.manual_seed reseeds every device")

    monkeypatch.setattr(torch, "manual_seed", reseed)
    before = torch.get_rng_state()
    task = classification(with_norm)
    assert torch.equal(torch.get_rng_state(), before)
    task.init(rng.key(3))
    assert torch.equal(torch.get_rng_state(), before)


def test_init_gives_new_tensors_each_time() -> None:
    task = classification(with_norm)
    one = task.init(rng.key(3))
    for leaf in one.values():
        assert not leaf.requires_grad
        leaf.zero_()
    assert float(tree.sq_norm(task.init(rng.key(3)))) > 0


def test_names_of_buffers_and_norms() -> None:
    task = classification(with_norm)
    assert set(task.buffers) == {"1.running_mean", "1.running_var"}
    assert set(task.batch_norm) == {*task.buffers, "1.weight", "1.bias"}
    assert "1.num_batches_tracked" not in task.init(rng.key(0))
    assert set(task.init(rng.key(0))) == {name for block in task.blocks for name in block}


def test_buffers_are_returned_and_the_callers_stay_as_they_are() -> None:
    task, batch = classification(with_norm), a_batch()
    params = task.init(rng.key(0))
    before = {k: v.clone() for k, v in params.items()}
    _, written = task.loss(params, batch)
    assert same(params, before)
    assert set(written) == set(task.buffers)

    module = with_norm()
    module.load_state_dict(params, strict=False)
    module.train()
    module(batch.x)
    for name in task.buffers:
        torch.testing.assert_close(written[name], module.state_dict()[name], rtol=1e-12, atol=0)
        assert not torch.equal(written[name], params[name])


def test_stacked_buffers_are_not_written_to_under_vmap() -> None:
    task = classification(with_norm)
    params = tree.stack([task.init(rng.key(i)) for i in range(3)])
    before = {k: v.clone() for k, v in params.items()}
    batches = [a_batch(number=i) for i in range(3)]
    stacked = Batch(*(torch.stack(leaf) for leaf in zip(*(b[:5] for b in batches), strict=True)))
    loss, written = vmap(task.loss, randomness="different")(params, stacked)
    assert same(params, before)
    for i, batch in enumerate(batches):
        alone, buffers = task.loss(tree.index(params, i), batch)
        torch.testing.assert_close(loss[i], alone, rtol=1e-12, atol=1e-12)
        for name in task.buffers:
            torch.testing.assert_close(written[name][i], buffers[name], rtol=1e-12, atol=1e-12)


def test_shared_buffers_get_a_client_axis_under_vmap() -> None:
    # all clients begin with the server's one copy: BatchNorm would write into an unbatched tensor
    task = classification(with_norm)
    params = task.init(rng.key(0))
    batches = [a_batch(number=i) for i in range(2)]
    stacked = Batch(*(torch.stack(leaf) for leaf in zip(*(b[:5] for b in batches), strict=True)))
    trained = tree.drop(params, task.buffers)
    buffers = tree.pick(params, task.buffers)
    gradient = lambda p, b: grad(lambda q: task.loss(buffers | q, b)[0])(p)
    together = vmap(gradient, (None, 0), randomness="different")(trained, stacked)
    for i, batch in enumerate(batches):
        alone = gradient(trained, batch)
        for name in alone:
            torch.testing.assert_close(together[name][i], alone[name], rtol=1e-10, atol=1e-12)


def test_dropout_is_a_function_of_the_key() -> None:
    task, batch = classification(with_dropout), a_batch(20)
    params = task.init(rng.key(0))
    loss = lambda key: float(task.loss(params, batch._replace(key=rng.key(key)))[0])
    assert loss(1) == loss(1)
    assert len({loss(k) for k in range(5)}) == 5
    before = torch.get_rng_state()
    loss(1)
    assert torch.equal(torch.get_rng_state(), before)


def test_another_pass_over_a_batch_has_a_key_of_its_own() -> None:
    batch = a_batch()
    again = batch.again()
    assert torch.equal(again.x, batch.x) and torch.equal(again.weight, batch.weight)
    # apart from the step's own key, its augmentation's and its dropouts'
    used = [batch.key, *(rng.fold(batch.key, i) for i in (-2, 0, 1, 2)), again.again().key]
    assert int(again.key) not in {int(k) for k in used}


def test_dropout_under_vmap_is_dropout_in_a_loop() -> None:
    task = classification(with_dropout)
    params = task.init(rng.key(0))
    batches = [a_batch(number=i) for i in range(4)]
    stacked = Batch(*(torch.stack(leaf) for leaf in zip(*(b[:5] for b in batches), strict=True)))
    together = vmap(task.loss, (None, 0), randomness="different")(params, stacked)[0]
    alone = torch.stack([task.loss(params, batch)[0] for batch in batches])
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-12)


class Spy(nn.Module):
    """Keeps what passes through it."""

    seen: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x.detach()
        return x


def test_dropout_keeps_the_right_share_and_scales_it() -> None:
    before, after = Spy(), Spy()
    task = classification(lambda: nn.Sequential(nn.Linear(4, 400), before, nn.Dropout(0.3), after))
    task.loss(task.init(rng.key(0)), a_batch(50))
    kept = after.seen != 0
    assert abs(float(kept.double().mean()) - 0.7) < 5 * (0.3 * 0.7 / kept.numel()) ** 0.5
    torch.testing.assert_close(after.seen[kept], before.seen[kept] / 0.7)


def test_two_dropouts_have_masks_of_their_own() -> None:
    task, batch = classification(with_dropout), a_batch(20)
    both = [n for n, m in with_dropout().named_modules() if isinstance(m, nn.Dropout)]
    assert len(both) == 2  # one of them nested
    lines = nn.Linear(4, 4, bias=False)
    with torch.no_grad():
        lines.weight.copy_(torch.eye(4))
    # x · m1/(1-p) · m2/(1-p): with equal masks every kept entry would be kept by both
    seen: list[Tensor] = []

    class Spy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.detach())
            return x

    task = classification(
        lambda: nn.Sequential(lines, nn.Dropout(0.5), Spy(), nn.Dropout(0.5), Spy())
    )
    task.loss(task.init(rng.key(0)), batch._replace(x=torch.ones(20, 4)))
    first, second = seen[-2] != 0, seen[-1] != 0
    assert bool((first & ~second).any())


def test_one_dropout_under_two_names_is_keyed_under_both() -> None:
    def build() -> nn.Module:
        drop = nn.Dropout(0.5)
        return nn.Sequential(nn.Linear(4, 16), drop, nn.Linear(16, 16), drop, nn.Linear(16, 3))

    task, batch = classification(build), a_batch(20)
    params = task.init(rng.key(0))
    assert float(task.loss(params, batch)[0]) == float(task.loss(params, batch)[0])
    assert float(task.loss(params, batch)[0]) != float(task.loss(params, batch.again())[0])


@pytest.mark.parametrize(
    ("kind", "shape"),
    [(nn.Dropout1d, (8, 6)), (nn.Dropout2d, (8, 3, 2)), (nn.Dropout3d, (8, 3, 2, 2))],
)
def test_dropout_of_channels_is_keyed_too(kind: type[nn.Module], shape: tuple[int, ...]) -> None:
    before, after = Spy(), Spy()
    width = torch.Size(shape).numel()
    task = classification(
        lambda: nn.Sequential(
            nn.Linear(4, width), nn.Unflatten(1, shape), before, kind(0.25), after, nn.Flatten()
        )
    )
    params, batch = task.init(rng.key(0)), a_batch(200)
    stream = torch.get_rng_state()
    one = float(task.loss(params, batch)[0])
    kept = after.seen != 0
    assert one == float(task.loss(params, batch)[0])
    assert one != float(task.loss(params, batch.again())[0])
    assert torch.equal(torch.get_rng_state(), stream)
    # a channel of an example goes as a whole or stays as a whole, scaled
    whole = kept.flatten(2)
    assert torch.equal(whole.all(2), whole.any(2))
    share = float(whole.all(2).double().mean())
    assert abs(share - 0.75) < 5 * (0.25 * 0.75 / whole.all(2).numel()) ** 0.5
    task.loss(params, batch)
    torch.testing.assert_close(after.seen[kept], before.seen[kept] / 0.75)


def half_frozen() -> nn.Module:
    made = with_norm()
    made[0].requires_grad_(False)
    return made


def test_frozen_parameters_are_constants() -> None:
    task = classification(half_frozen, key=rng.key(5))
    assert sorted(task.constants) == ["0.bias", "0.weight"]
    whole = classification(with_norm)
    same_seed = whole.init(rng.key(5))
    assert same(task.constants, tree.pick(same_seed, task.constants))
    params = task.init(rng.key(5))
    assert not params.keys() & task.constants.keys()
    assert task.blocks == (tuple(k for k in whole.blocks[0] if k[0] != "0"), whole.blocks[1])
    # the network is the whole one
    x, batch = a_batch().x, a_batch()
    assert torch.equal(task.predict(params, x), whole.predict(same_seed, x))
    assert torch.equal(task.loss(params, batch)[0], whole.loss(same_seed, batch)[0])
    given = {k: torch.zeros_like(v) for k, v in task.constants.items()}
    zero = classification(half_frozen, constants=given)
    assert not torch.equal(zero.predict(params, x), task.predict(params, x))


def test_a_block_without_anything_trained_is_none() -> None:
    def build() -> nn.Module:
        made = nn.Sequential(
            nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)
        )
        for i in (0, 1):
            made[i].requires_grad_(False)
        return made

    statistics = ("1.running_mean", "1.running_var")
    task = classification(build)
    first, second = task.blocks
    assert first[:2] == statistics and "2.weight" in first and second == ("4.weight", "4.bias")


def test_a_network_of_constants_alone_is_refused() -> None:
    with pytest.raises(BadInput, match="all parameters are frozen"):
        classification(lambda: nn.Linear(4, 3).requires_grad_(False))


@pytest.mark.parametrize("compute", [None, torch.bfloat16])
def test_frozen_parameters_are_computed_with_in_the_same_type(compute: Any) -> None:
    def build() -> nn.Module:
        made = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
        made[0].requires_grad_(False)
        return made

    task = classification(build, compute=compute)
    loss, _ = task.loss(task.init(rng.key(0)), a_batch())
    assert bool(loss.isfinite())


def test_batch_norm_without_a_momentum_is_refused() -> None:
    # its statistics would be means over all batches so far, whose number is not kept
    norm = lambda: nn.BatchNorm1d(6, momentum=None)
    with pytest.raises(BadInput, match=r"'1'.*momentum") as caught:
        classification(lambda: nn.Sequential(nn.Linear(4, 6), norm(), nn.Linear(6, 3)))
    assert "\n" not in str(caught.value)


def test_predict_is_in_evaluation_mode() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3))

    task, batch = classification(build), a_batch()
    params = task.init(rng.key(0))
    params |= {"1.running_mean": torch.randn(6), "1.running_var": torch.rand(6) + 0.5}
    before = {k: v.clone() for k, v in params.items()}
    module = build()
    module.load_state_dict(params, strict=False)
    torch.testing.assert_close(task.predict(params, batch.x), module.eval()(batch.x))
    # one example's logits do not depend on the others
    torch.testing.assert_close(
        task.predict(params, batch.x[:1]), task.predict(params, batch.x)[:1], rtol=1e-12, atol=1e-12
    )
    assert same(params, before)


def test_images_go_from_minus_one_to_one() -> None:
    x = torch.tensor([0, 51, 255], dtype=torch.uint8)
    for dtype in (torch.float32, torch.float64):
        out = to_input(x, dtype)
        assert out.dtype == dtype
        torch.testing.assert_close(out, torch.tensor([-1, -0.6, 1], dtype=dtype))


def test_features_change_their_precision_and_tokens_do_not() -> None:
    assert to_input(torch.zeros(2, dtype=torch.float32), torch.float64).dtype == torch.float64
    assert to_input(torch.zeros(2, dtype=torch.int64), torch.float64).dtype == torch.int64


def test_a_task_takes_images_as_they_are_stored() -> None:
    task = classification(lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))
    params = task.init(rng.key(0))
    x = torch.tensor([[[[0, 255], [255, 0]]]], dtype=torch.uint8)
    expected = params["1.weight"] @ torch.tensor([-1.0, 1, 1, -1]) + params["1.bias"]
    torch.testing.assert_close(task.predict(params, x)[0], expected)


@pytest.mark.parametrize("weight", [[1, 0, 1, 0, 0, 1], [0, 0, 0, 1, 0, 0]])
def test_rows_of_weight_zero_do_not_count(weight: list[float]) -> None:
    task = classification(lambda: nn.Sequential(nn.Linear(4, 3)))
    params = task.init(rng.key(0))
    whole = a_batch(6, weight=weight)
    kept = whole.weight.bool()
    module = lambda x: x @ params["0.weight"].T + params["0.bias"]
    expected = F.cross_entropy(module(whole.x[kept]), whole.y[kept])
    torch.testing.assert_close(task.loss(params, whole)[0], expected, rtol=1e-12, atol=0)
    changed = whole._replace(x=torch.where(kept[:, None], whole.x, 1e3), y=(whole.y * kept))
    slope = grad(lambda p, b: task.loss(p, b)[0])
    assert same(slope(params, whole), slope(params, changed))


def test_a_batch_without_real_rows_has_loss_zero_and_no_gradient() -> None:
    task = classification(lambda: nn.Sequential(nn.Linear(4, 3)))
    params, batch = task.init(rng.key(0)), a_batch(2, weight=[0, 0])
    assert float(task.loss(params, batch)[0]) == 0
    assert float(tree.sq_norm(grad(lambda p: task.loss(p, batch)[0])(params))) == 0


def three_blocks() -> Task:
    return classification(
        lambda: nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    )


def test_the_top_blocks() -> None:
    task = three_blocks()
    everything = tuple(name for block in task.blocks for name in block)
    assert len(task.blocks) == 3
    assert task.top(0) == ()
    assert task.top(1) == task.head == ("3.weight", "3.bias")
    assert task.top(2) == task.blocks[1] + task.blocks[2]
    assert task.top(3) == task.top(9) == everything


def test_a_buffer_of_whole_numbers_is_not_trained() -> None:
    class Ordered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 3)
            self.register_buffer("order", torch.tensor([3, 2, 1, 0]))

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x[:, self.order])

    task = classification(Ordered)
    params = task.init(rng.key(0))
    trained = {k for k in params if k not in task.buffers}
    assert trained == {"fc.weight", "fc.bias"}
    assert task.blocks == (("fc.weight", "fc.bias"),)
    # a constant of the network, and in use
    x = a_batch().x
    expected = x.flip(1) @ params["fc.weight"].T + params["fc.bias"]
    torch.testing.assert_close(task.predict(params, x), expected)
    slope = grad(lambda p: task.loss(p, a_batch())[0])(params)
    assert float(tree.sq_norm(slope)) > 0


# ----------------------------------------------------------------------------- a loss of one's own


def doubled(outputs: Tensor, labels: Tensor) -> Tensor:
    """Twice the cross-entropy."""
    return 2 * F.cross_entropy(outputs, labels, reduction="none")


def test_a_loss_of_ones_own_is_averaged_over_the_real_rows() -> None:
    usual, own = (classification(with_norm, **how) for how in ({}, {"loss": doubled}))
    params, batch = usual.init(rng.key(0)), a_batch(weight=[1, 1, 0, 1, 0])
    assert float(own.loss(params, batch)[0]) == pytest.approx(
        2 * float(usual.loss(params, batch)[0])
    )
    assert own.outputs is not None
    logits, _ = own.outputs(params, batch)
    assert torch.equal(own.losses(logits, batch.y, batch.weight), doubled(logits, batch.y))


def test_a_loss_of_torchs_may_be_given_as_it_is() -> None:
    smooth = nn.CrossEntropyLoss(label_smoothing=0.2, reduction="none")
    task, batch = classification(lambda: nn.Linear(4, 3), loss=smooth), a_batch()
    params = task.init(rng.key(0))
    logits = F.linear(batch.x, params["weight"], params["bias"])
    told = -logits.log_softmax(-1)
    expected = (0.8 * told[torch.arange(5), batch.y] + 0.2 * told.mean(-1)).mean()
    assert float(task.loss(params, batch)[0]) == pytest.approx(float(expected))


def test_tied_weights_are_one_parameter_wherever_they_are_used() -> None:
    def tied() -> nn.Module:
        net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 3))
        net[2].weight = net[0].weight
        return net

    task, net, batch = classification(tied), tied(), a_batch()
    params = tree.map(lambda leaf: leaf + 0.3, task.init(rng.key(0)))
    assert "0.weight" in params and "2.weight" not in params
    net.load_state_dict(params | {"2.weight": params["0.weight"]})
    expected = F.cross_entropy(net(batch.x), batch.y)
    torch.testing.assert_close(task.predict(params, batch.x), net(batch.x))
    torch.testing.assert_close(task.loss(params, batch)[0], expected)
    slopes = grad(lambda p: task.loss(p, batch)[0])(params)
    expected.backward()
    torch.testing.assert_close(slopes["0.weight"], net[0].weight.grad)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (nn.CrossEntropyLoss(), r"gives \(\) for 5 rows.*reduction='none'"),
        (lambda outputs, labels: outputs, r"gives \(5, 3\) for 5 rows"),
        (lambda outputs, labels: 0.5, "gives float for 5 rows"),
    ],
)
def test_a_loss_must_give_one_number_per_row(loss: Any, words: str) -> None:
    task = classification(lambda: nn.Linear(4, 3), loss=loss)
    with pytest.raises(BadInput, match=words):
        task.loss(task.init(rng.key(0)), a_batch())


@pytest.mark.parametrize("name", ["fedavg", "fedphp"])
def test_engines_agree_on_a_loss_of_ones_own(name: str) -> None:
    found = []
    for loss, engine in ((doubled, "sequential"), (doubled, "vectorised"), (None, "vectorised")):
        task = classification(NETS["mlp"], **({"loss": loss} if loss else {}))
        method = METHODS[name](task, recipe=Recipe(batch=8, lr=0.05))
        sim = simulate(method, ragged(), task, engine=engine)
        play(sim, 2)
        found.append(sim.server)
    assert gap(found[0], found[1]) < 1e-9
    assert gap(found[1], found[2]) > 1e-4
