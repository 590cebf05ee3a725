"""The block lists."""

from __future__ import annotations

import doctest
import sys
from itertools import chain as joined

import pytest
import torch
from torch import nn

from fedtailor.core.blocks import blocks
from fedtailor.core.errors import BadInput
from fedtailor.core.form import Form
from fedtailor.models import MODELS, build
from fedtailor.models.parts import chain

CIFAR10 = Form("image", (3, 32, 32), 10)
AG_NEWS = Form("text", (200,), 4, vocabulary=98_635)


def on_meta(name: str) -> nn.Module:
    with torch.device("meta"):
        return build(name, AG_NEWS if name in ("fasttext", "lstm", "transformer") else CIFAR10)


def sizes(model: nn.Module, grouping: str) -> list[int]:
    params = dict(model.named_parameters())
    return [sum(params[n].numel() for n in b if n in params) for b in blocks(model, grouping)]


NUMBERS = {  # of blocks: leaf, coarse
    "linear": (1, 1),
    "logistic": (1, 1),
    "mlp": (2, 2),
    "mlp-2": (3, 3),
    "mlp-3": (4, 4),
    "lenet": (5, 5),
    "moon-cnn": (7, 7),
    "cnn": (4, 4),
    "tf-cnn": (5, 5),
    "fedbabu-cnn": (5, 5),
    "fedbn-cnn": (6, 6),
    "pfedla-cnn": (6, 6),
    "pfedla-cnn-bn": (6, 6),
    "mobilenet": (28, 15),
    "mobilenet-bn": (28, 15),
    "resnet18": (21, 6),
    "resnet18-bn": (21, 6),
    "resnet18-cifar": (21, 6),
    "resnet18-cifar-bn": (21, 6),
    "resnet50": (54, 6),
    "resnet50-bn": (54, 6),
    "wrn-28-10": (29, 5),
    "wrn-28-10-bn": (29, 5),
    "vgg11": (11, 8),
    "vgg11-bn": (11, 8),
    "fasttext": (3, 3),
    "lstm": (4, 4),
    "transformer": (11, 6),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_name_is_in_one_block_and_the_head_is_the_last(name: str) -> None:
    model = on_meta(name)
    names = [n for n in model.state_dict() if not n.endswith("num_batches_tracked")]
    for grouping, number in zip(("leaf", "coarse"), NUMBERS[name], strict=True):
        found = blocks(model, grouping)
        assert len(found) == number
        assert list(joined.from_iterable(found)) == names
        assert found[-1] == ("fc.weight", "fc.bias")


def test_coarse_blocks_of_resnet18_have_the_sizes_of_fedala() -> None:
    head = 512 * 10 + 10
    expected = [9_536, 147_968, 525_568, 2_099_712, 8_393_728, head]
    assert sizes(on_meta("resnet18-bn"), "coarse") == expected


def test_a_leaf_block_holds_the_normalisation_that_follows_with_its_statistics() -> None:
    first = blocks(on_meta("resnet18-bn"))[0]
    norm = ["weight", "bias", "running_mean", "running_var"]
    assert first == ("stem.conv.weight", *(f"stem.norm.{n}" for n in norm))


def test_several_normalisations_join_one_leaf() -> None:
    model = chain(
        norm0=nn.LayerNorm(4),
        fc1=nn.Linear(4, 4),
        norm1=nn.LayerNorm(4),
        relu=nn.ReLU(),
        norm2=nn.GroupNorm(2, 4),
        fc=nn.Linear(4, 2, bias=False),
    )
    assert [{n.partition(".")[0] for n in b} for b in blocks(model)] == [
        {"norm0"},
        {"fc1", "norm1", "norm2"},
        {"fc"},
    ]


class Mixed(nn.Module):
    """Parameters of its own, buffers before and after them, tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.early = nn.Module()
        self.early.register_buffer("mean", torch.zeros(2))
        self.body = nn.Module()
        self.body.scale = nn.Parameter(torch.ones(1))
        self.body.inner = nn.Linear(2, 2)
        self.late = nn.Module()
        self.late.register_buffer("mask", torch.zeros(2))
        self.late.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.tied = self.body.inner


def test_parameters_of_inner_modules_and_bare_buffers_have_a_place() -> None:
    tied = ("tied.weight", "tied.bias")
    inner = ("body.inner.weight", "body.inner.bias")
    assert blocks(Mixed()) == (
        ("early.mean", "body.scale"),
        (*inner, "late.mask"),
        tied,
    )
    assert blocks(Mixed(), "coarse") == (("early.mean", "body.scale", *inner, "late.mask"), tied)


def test_a_model_that_owns_all_parameters_itself_is_one_block() -> None:
    assert blocks(nn.Linear(2, 2)) == blocks(nn.Linear(2, 2), "coarse") == (("weight", "bias"),)
    assert blocks(nn.ReLU()) == ()


def test_a_grouping_of_ones_own() -> None:
    model = chain(
        layer1=nn.Linear(2, 2), layer10=nn.Linear(2, 2), norm=nn.BatchNorm1d(2), fc=nn.Linear(2, 2)
    )
    found = blocks(model, [["layer1", "layer10.bias"], ("norm", "layer10.weight"), ["fc"]])
    assert found[0] == ("layer1.weight", "layer1.bias", "layer10.bias")
    assert found[1][:2] == ("layer10.weight", "norm.weight")
    assert found[2] == ("fc.weight", "fc.bias")


@pytest.mark.parametrize(
    ("grouping", "words"),
    [
        ("leaves", "unknown grouping 'leaves': did you mean 'leaf'?"),
        ([["conv1"], ["conv2", "fc1"]], "leaves out 'fc.weight' and 1 more"),
        ([["conv1", "conv2", "fc1", "fc.bias"]], "leaves out 'fc.weight': put"),
        ([["conv1", "conv2"], ["conv2.bias", "fc1", "fc"]], "'conv2.bias' is in blocks 1 and 2"),
        ([["conv1", "conv3"], ["fc1", "fc"]], "'conv3' in block 1 of the grouping names nothing"),
        ([["conv"], ["fc1", "fc"]], "its parts: conv1, conv2, fc1, fc"),
        ([["conv1", "conv2", "fc1"], "fc"], "write a list, ['fc']"),
        ([["conv1", "conv2", "fc1", "fc"], []], "block 2 of the grouping is empty"),
        ([], "leaves out 'conv1.weight' and 7 more"),
    ],
)
def test_a_grouping_that_cannot_be_used(grouping: str | list[list[str]], words: str) -> None:
    with pytest.raises(BadInput) as caught:
        blocks(on_meta("cnn"), grouping)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("module", [build.__module__, blocks.__module__])
def test_examples_in_the_documentation(module: str) -> None:
    result = doctest.testmod(sys.modules[module])
    assert result.attempted > 0
    assert result.failed == 0
