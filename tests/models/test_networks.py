"""The networks: sizes, shapes, order of use and behaviour under vmap."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from fedtailor.core.errors import BadInput
from fedtailor.core.form import Form
from fedtailor.models import MODELS, build
from fedtailor.models.text import LSTMLayer, TransformerBlock

DIGITS = Form("image", (1, 8, 8), 10)
MNIST = Form("image", (1, 28, 28), 10)
SVHN = Form("image", (3, 28, 28), 10)
CIFAR10 = Form("image", (3, 32, 32), 10)
CIFAR100 = Form("image", (3, 32, 32), 100)
TINY = Form("image", (3, 64, 64), 200)
IMAGENET = Form("image", (3, 224, 224), 1000)
AG_NEWS = Form("text", (200,), 4, vocabulary=98_635)
TABLE = Form("table", (7,), 3)

TEXT_MODELS = ["fasttext", "lstm", "transformer"]
IMAGE_MODELS = [name for name in MODELS if name not in TEXT_MODELS]


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize(
    ("name", "form", "parameters"),
    [
        ("linear", MNIST, 784 * 10 + 10),
        ("linear", TABLE, 7 * 3 + 3),
        ("linear", Form("table", (39,), 0, task="survival"), 40),
        ("logistic", Form("table", (13,), 2), 14),
        ("logistic", TABLE, 7 * 2 + 2),
        ("mlp", MNIST, 784 * 200 + 200 + 200 * 10 + 10),
        ("mlp", TABLE, 7 * 200 + 200 + 200 * 3 + 3),
        ("mlp-2", MNIST, 784 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10),
        ("mlp-3", MNIST, 784 * 200 + 200 + 2 * (200 * 200 + 200) + 200 * 10 + 10),
        ("lenet", CIFAR10, 121_182),
        ("moon-cnn", CIFAR10, 92_626),
        ("cnn", MNIST, 582_026),
        ("cnn", CIFAR10, 878_538),
        ("cnn", CIFAR100, 924_708),
        ("cnn", TINY, 5_694_600),
        ("tf-cnn", CIFAR10, 122_570),
        ("fedbabu-cnn", CIFAR10, 115_658),
        ("fedbn-cnn", SVHN, 14_219_210),
        ("fedbn-cnn", CIFAR10, 18_151_370),
        ("pfedla-cnn", CIFAR10, 18_151_370 - 2 * (64 + 64 + 128 + 2048 + 512)),
        ("pfedla-cnn-bn", CIFAR10, 18_151_370 - 2 * (2048 + 512)),
        ("mobilenet", CIFAR10, 3_217_226),
        ("mobilenet-bn", CIFAR10, 3_217_226),
        ("resnet18", IMAGENET, 11_689_512),
        ("resnet18-bn", IMAGENET, 11_689_512),
        ("resnet18-bn", CIFAR10, 11_181_642),
        ("resnet18-cifar", CIFAR10, 11_173_962),
        ("resnet18-cifar-bn", CIFAR10, 11_173_962),
        ("resnet50", TINY, 23_917_832),
        ("resnet50-bn", IMAGENET, 25_557_032),
        ("wrn-28-10", CIFAR100, 36_536_884),
        ("wrn-28-10-bn", CIFAR100, 36_536_884),
        ("vgg11", CIFAR10, 9_750_922),
        ("vgg11-bn", CIFAR10, 9_756_426),
        ("vgg11", IMAGENET, 132_863_336),
        ("vgg11-bn", IMAGENET, 132_868_840),
        ("fasttext", AG_NEWS, 98_635 * 32 + 32 * 33 + 33 * 4),
        ("lstm", Form("text", (80,), 80, vocabulary=80), 817_872),
        ("transformer", Form("text", (80,), 65, vocabulary=67), 113_729),
    ],
)
def test_parameter_counts_are_the_published_ones(name: str, form: Form, parameters: int) -> None:
    with torch.device("meta"):
        assert count(build(name, form)) == parameters


LEAST = {"lenet": 16, "moon-cnn": 16, "tf-cnn": 18, "fedbabu-cnn": 16, "vgg11": 32, "vgg11-bn": 32}


@pytest.mark.parametrize("form", [DIGITS, MNIST, CIFAR10, TINY], ids=lambda f: str(f.shape))
@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_images_in_class_scores_out(name: str, form: Form) -> None:
    least = LEAST.get(name, 1)
    with torch.device("meta"):
        if form.shape[1] < least:
            with pytest.raises(BadInput, match=f"{least} x {least} pixels or more"):
                build(name, form)
        else:
            scores = build(name, form)(torch.zeros(2, *form.shape))
            assert scores.shape == (2, form.classes)


@pytest.mark.parametrize("name", LEAST)
def test_the_least_image_is_enough(name: str) -> None:
    least = LEAST[name]
    with torch.device("meta"):
        form = Form("image", (3, least, least + 5), 4)
        assert build(name, form)(torch.zeros(2, *form.shape)).shape == (2, 4)
        with pytest.raises(BadInput):
            build(name, Form("image", (3, least - 1, least + 5), 4))


@pytest.mark.parametrize("side", [4, 15, 16, 17])
def test_cnn_pads_only_images_below_16_pixels(side: int) -> None:
    form = Form("image", (1, side, 20), 3)
    model = build("cnn", form)
    assert model.conv1.padding == model.conv2.padding == ((2, 2) if side < 16 else (0, 0))
    assert model(torch.rand(2, *form.shape)).shape == (2, 3)


@pytest.mark.parametrize("name", ["mlp", "lenet", "cnn", "tf-cnn", "fedbabu-cnn", "mobilenet"])
def test_real_scores_are_finite_and_differ_between_images(name: str) -> None:
    torch.manual_seed(0)
    scores = build(name, MNIST)(torch.rand(3, 1, 28, 28))
    assert scores.isfinite().all()
    assert not torch.equal(scores[0], scores[1])


@pytest.mark.parametrize("name", MODELS)
def test_modules_are_registered_in_the_order_of_their_use(name: str) -> None:
    form = AG_NEWS if name in TEXT_MODELS else CIFAR10
    with torch.device("meta"):
        model = build(name, form)
        x = torch.zeros(2, *form.shape, dtype=torch.long if form.kind == "text" else None)
        owners = [n for n, m in model.named_modules() if list(m.parameters(recurse=False))]
        used: list[str] = []
        for owner in owners:
            model.get_submodule(owner).register_forward_hook(lambda *_, n=owner: used.append(n))
        model(x)
    assert used == owners
    assert owners[-1] == "fc"


@pytest.mark.parametrize("name", MODELS)
def test_only_bn_variants_have_buffers(name: str) -> None:
    with torch.device("meta"):
        model = build(name, AG_NEWS if name in TEXT_MODELS else CIFAR10)
    assert bool(list(model.buffers())) == (name.endswith("-bn") or name == "fedbn-cnn")
    assert not any(getattr(m, "inplace", False) for m in model.modules())


def test_group_norm_has_32_groups_where_the_channels_allow() -> None:
    with torch.device("meta"):
        models = [build(name, CIFAR10) for name in ("resnet18", "resnet50", "wrn-28-10")]
    norms = [m for model in models for m in model.modules() if isinstance(m, nn.GroupNorm)]
    assert {(n.num_groups, n.num_channels) for n in norms if n.num_groups != 32} == {(16, 16)}


def test_vgg_drops_out_half_of_the_hidden_units() -> None:
    with torch.device("meta"):
        model = build("vgg11", CIFAR10)
    assert [m.p for m in model.modules() if isinstance(m, nn.Dropout)] == [0.5, 0.5]


def log_odds(model: nn.Module, x: Tensor) -> Tensor:
    logits = model(x)
    return logits[:, 1] - logits[:, 0]


def test_logistic_is_one_unit_with_a_sigmoid() -> None:
    """The same numbers and gradients as binary cross-entropy of one linear unit."""
    torch.manual_seed(0)
    x, y = torch.randn(20, 5, dtype=torch.float64), torch.randint(2, (20,))
    model = build("logistic", Form("table", (5,), 2)).double()
    unit = nn.Linear(5, 1).double()
    unit.load_state_dict(model.fc.state_dict())
    ours = functional.cross_entropy(model(x), y)
    theirs = functional.binary_cross_entropy(unit(x).sigmoid()[:, 0], y.double())
    assert float(ours) == pytest.approx(float(theirs), rel=1e-12)
    ours.backward()
    theirs.backward()
    assert torch.allclose(model.fc.weight.grad, unit.weight.grad, rtol=1e-10)
    assert torch.allclose(model.fc.bias.grad, unit.bias.grad, rtol=1e-10)


@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.Adam])
def test_linear_learns_log_odds_twice_as_fast_as_logistic(optimiser: Any) -> None:
    """With half the learning rate and the same beginning its path is the same."""
    torch.manual_seed(1)
    form = Form("table", (5,), 2)
    one, two = build("logistic", form).double(), build("linear", form).double()
    with torch.no_grad():
        one.fc.weight.copy_(two.fc.weight[1:] - two.fc.weight[:1])
        one.fc.bias.copy_(two.fc.bias[1:] - two.fc.bias[:1])
    steps = [optimiser(one.parameters(), lr=0.1), optimiser(two.parameters(), lr=0.05)]
    for _ in range(30):
        x, y = torch.randn(4, 5, dtype=torch.float64), torch.randint(2, (4,))
        for model, step in zip((one, two), steps, strict=True):
            step.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            step.step()
        assert torch.allclose(log_odds(one, x), log_odds(two, x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["linear", "logistic"])
def test_linear_models_take_images_and_tables_and_no_text(name: str) -> None:
    for form in (MNIST, TABLE):
        assert build(name, form)(torch.rand(2, *form.shape)).shape == (2, form.classes)
    assert "choose fasttext" in refusal(name, AG_NEWS)


def test_logistic_is_of_classes() -> None:
    for task in ("regression", "survival"):
        form = Form("table", (7,), 0, task=task)
        assert f"takes classes, not {task}: choose linear" in refusal("logistic", form)
        assert build("linear", form)(torch.rand(3, 7)).shape == (3, 1)
    assert "at least 2" in refusal("logistic", Form("table", (7,), 1))


def test_fasttext_ignores_padding() -> None:
    torch.manual_seed(0)
    model = build("fasttext", Form("text", (4,), 3, vocabulary=9))
    short, long = torch.tensor([[5, 7]]), torch.tensor([[5, 0, 7, 0]])
    torch.testing.assert_close(model(short), model(long))
    mean = model.embedding.weight[[5, 7]].mean(0)
    torch.testing.assert_close(model(long)[0], model.fc(model.fc1(mean)))
    empty = model(torch.zeros(1, 4, dtype=torch.long))
    torch.testing.assert_close(empty[0], model.fc(model.fc1(torch.zeros(32))))


@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_padding_changes_nothing_and_order_does(name: str) -> None:
    torch.manual_seed(0)
    model = build(name, Form("text", (6,), 3, vocabulary=9)).double()
    short, long = torch.tensor([[5, 7, 2]]), torch.tensor([[5, 7, 2, 0, 0, 0]])
    torch.testing.assert_close(model(short), model(long))
    assert not torch.allclose(model(short), model(torch.tensor([[7, 5, 2]])))
    empty = model(torch.zeros(1, 6, dtype=torch.long))
    torch.testing.assert_close(empty[0], model.fc.bias)


def test_lstm_layers_are_pytorchs() -> None:
    torch.manual_seed(0)
    ours, theirs = LSTMLayer(3, 5).double(), nn.LSTM(3, 5, batch_first=True).double()
    assert ours.bias[5:10].eq(1).all()
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(ours.weight_ih)
        theirs.weight_hh_l0.copy_(ours.weight_hh)
        theirs.bias_ih_l0.copy_(ours.bias)
        theirs.bias_hh_l0.zero_()
    x = torch.randn(4, 7, 3, dtype=torch.float64)
    torch.testing.assert_close(ours(x), theirs(x)[0])


def test_transformer_blocks_are_pytorchs() -> None:
    torch.manual_seed(0)
    ours = TransformerBlock(8, 2, 12).double()
    theirs = nn.TransformerEncoderLayer(
        8, 2, 12, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    ).double()
    named = dict(theirs.named_parameters())
    pairs = {"self_attn.in_proj_": "attend.", "self_attn.out_proj.": "join.", "linear1.": "fc1."}
    pairs |= {"linear2.": "fc2.", "norm1.": "norm1.", "norm2.": "norm2."}
    with torch.no_grad():
        for there, here in pairs.items():
            for part in ("weight", "bias"):
                named[there + part].copy_(ours.get_parameter(here + part))
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2, [False] * 4 + [True]])
    hide = padding.double()[:, None, None, :] * -1e9
    found, expected = ours(x, hide), theirs(x, src_key_padding_mask=padding)
    torch.testing.assert_close(found[~padding], expected[~padding])


def randoms(form: Form, batch: int) -> Tensor:
    if form.kind == "text":
        return torch.randint(form.vocabulary, (2, batch, *form.shape))
    return torch.rand(2, batch, *form.shape, dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("mlp", TABLE),
        ("mlp", MNIST),
        ("lenet", CIFAR10),
        ("cnn", DIGITS),
        ("cnn", CIFAR10),
        ("tf-cnn", CIFAR10),
        ("fasttext", Form("text", (6,), 3, vocabulary=11)),
        ("lstm", Form("text", (6,), 3, vocabulary=11)),
        ("transformer", Form("text", (6,), 3, vocabulary=11)),
        ("fedbabu-cnn", CIFAR10),
        ("fedbn-cnn", DIGITS),
        ("pfedla-cnn", DIGITS),
        ("pfedla-cnn-bn", DIGITS),
        ("resnet18", Form("image", (1, 16, 16), 3)),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value.shape),
)
def test_two_clients_under_vmap_learn_what_each_learns_alone(name: str, form: Form) -> None:
    torch.manual_seed(0)
    clients = [build(name, form).double() for _ in range(2)]
    x, y = randoms(form, 3), torch.randint(form.classes, (2, 3))
    params = {
        k: torch.stack([dict(c.named_parameters())[k].detach() for c in clients])
        for k, _ in clients[0].named_parameters()
    }
    buffers = {
        k: torch.stack([dict(c.named_buffers())[k] for c in clients])
        for k, _ in clients[0].named_buffers()
    }
    net = copy.deepcopy(clients[0])

    def loss(
        p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor, y: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        b = {k: v.clone() for k, v in b.items()}  # BatchNorm writes into them
        return nn.functional.cross_entropy(functional_call(net, (p, b), (x,)), y), b

    gradients, moved = vmap(grad(loss, has_aux=True))(params, buffers, x, y)
    for k, client in enumerate(clients):
        nn.functional.cross_entropy(client(x[k]), y[k]).backward()
        for n, p in client.named_parameters():
            torch.testing.assert_close(gradients[n][k], p.grad, rtol=1e-9, atol=1e-12)
        for n, b in client.named_buffers():
            torch.testing.assert_close(moved[n][k], b)


def refusal(name: str, form: Form) -> str:
    with pytest.raises(BadInput) as caught:
        build(name, form)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    message = refusal("resnet81", CIFAR10)
    assert message.startswith("unknown model 'resnet81': did you mean 'resnet18'?")
    assert "package.module:factory" in message


@pytest.mark.parametrize("form", [TABLE, AG_NEWS], ids=lambda f: f.kind)
@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_image_models_refuse_other_data(name: str, form: Form) -> None:
    if name.startswith(("mlp", "linear", "logistic")) and form.kind == "table":
        return
    message = refusal(name, form)
    assert f"'{name}'" in message
    assert form.kind in message
    assert "choose" in message


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_text_networks_refuse_what_is_not_text(name: str) -> None:
    assert "takes text, not image examples" in refusal(name, CIFAR10)
    assert "vocabulary" in refusal(name, Form("text", (5,), 2))


@pytest.mark.parametrize(
    ("form", "words"),
    [
        (Form("image", (28, 28), 10), "give 3 numbers above 0"),
        (Form("table", (), 10), "give 1 number above 0"),
        (Form("table", (0,), 10), "give 1 number above 0"),
        (Form("table", (4,), 0), "0 classes"),
        (Form("sound", (4,), 2), "unknown kind of data 'sound'"),  # type: ignore[arg-type]
    ],
)
def test_an_impossible_form_is_refused(form: Form, words: str) -> None:
    assert words in refusal("mlp", form)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ownnets.py").write_text(
        "from torch import nn\n"
        "from fedtailor.core.errors import BadInput\n"
        "def good(form): return nn.Linear(form.shape[0], form.classes)\n"
        "def wrong(form): return 'a net'\n"
        "def picky(form): raise BadInput('only on Sundays')\n"
        "number = 3\n"
    )
    (tmp_path / "brokennets.py").write_text("raise RuntimeError('first\\nsecond')\n")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("own")
def test_a_factory_of_ones_own() -> None:
    model = build("ownnets:good", TABLE)
    assert isinstance(model, nn.Linear)
    assert model.weight.shape == (3, 7)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ownnets:wrong", "returned str: return a torch.nn.Module"),
        ("ownnets:picky", "model 'ownnets:picky': only on Sundays"),
        ("ownnets:godo", "did you mean 'good'?"),
        ("ownnets:number", "known: BadInput, good"),
        ("ownnets:", "known: BadInput, good"),
        ("nosuchpackage.nets:make", "cannot import 'nosuchpackage.nets' (ModuleNotFoundError"),
        ("brokennets:make", "RuntimeError: first second"),
        (":make", "write package.module:factory"),
        (".nets:make", "write package.module:factory"),
    ],
)
def test_a_factory_that_cannot_be_used(name: str, words: str) -> None:
    assert words in refusal(name, TABLE)


def test_a_factory_may_lie_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netshere.py").write_text(
        "from torch import nn\ndef make(form): return nn.Linear(form.shape[0], form.classes)\n"
    )
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert isinstance(build("netshere:make", TABLE), nn.Linear)
    assert sys.path == before
