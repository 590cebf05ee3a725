"""The small networks that the papers on personalised federated learning train."""

from __future__ import annotations

from math import prod
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional

from fedtailor.core.errors import BadInput
from fedtailor.core.form import Form
from fedtailor.models.parts import batch_norm, batch_norm_without_statistics, chain, image_shape


def linear_model(form: Form) -> nn.Module:
    """One linear layer on images or tables: a weight per feature and output.

    The loss makes it a regression: of a class (multinomial, with a row of weights per class), of a
    number, or of a risk (Cox).
    """
    _no_text(form)
    return chain(flatten=nn.Flatten(), fc=nn.Linear(prod(form.shape), form.outputs))


class ZeroFirst(nn.Module):
    """A logit 0 for the first class, before those of the others."""

    def forward(self, logits: Tensor) -> Tensor:
        return functional.pad(logits, (1, 0))


def logistic(form: Form) -> nn.Module:
    """Logistic regression: for two classes one linear unit, the log odds of the second.

    The first class has the logit 0, so that cross-entropy is the binary one of a sigmoid. `linear`
    says the same with a row of weights per class; by gradient descent its log odds learn twice as
    fast, from a beginning that is √2 times as wide.
    """
    _no_text(form)
    if form.task != "classification":
        raise BadInput(f"takes classes, not {form.task}: choose linear")
    if form.classes < 2:
        raise BadInput(f"{form.classes} classes: give at least 2")
    unit = nn.Linear(prod(form.shape), form.classes - 1)
    return chain(flatten=nn.Flatten(), fc=unit, first=ZeroFirst())


def mlp(form: Form, hidden: int = 1) -> nn.Module:
    """Hidden layers of 200 on images or tables: 784-200-10 (159 010 parameters) on MNIST.

    Args:
      form: what the examples look like.
      hidden: how many hidden layers; `mlp-2` and `mlp-3` have more, for clients of unequal depth.
    """
    _no_text(form)
    layers: dict[str, nn.Module] = {"flatten": nn.Flatten()}
    for i in range(1, hidden + 1):
        layers[f"fc{i}"] = nn.Linear(prod(form.shape) if i == 1 else 200, 200)
        layers[f"relu{i}"] = nn.ReLU()
    return chain(**layers, fc=nn.Linear(200, form.outputs))


def _no_text(form: Form) -> None:
    if form.kind == "text":
        raise BadInput(f"takes images or tables, not text of shape {form.shape}: choose fasttext")


def lenet(form: Form) -> nn.Module:
    """pFedHN's LeNet: 121 182 parameters on CIFAR-10."""
    return _convolutions(form, (16, 32), 5, hidden=(120, 84), least=16)


def moon_cnn(form: Form) -> nn.Module:
    """MOON's simple CNN with its projection: 92 626 parameters on CIFAR-10.

    Two convolutions and linear layers of 120 and 84; then 84 with ReLU and 256 without, on which
    the classifier stands: these 256 numbers are the features that MOON contrasts.
    """
    return _convolutions(form, (6, 16), 5, hidden=(120, 84), least=16, projection=256)


def cnn(form: Form) -> nn.Module:
    """The four-layer CNN of McMahan et al. as FedALA trains it.

    582 026 / 878 538 / 924 708 / 5 694 600 parameters on MNIST / CIFAR-10 / CIFAR-100 /
    Tiny-ImageNet. The convolutions are unpadded; only on images of fewer than 16 pixels a side,
    of which they would leave nothing, are both padded by 2.
    """
    padding = 2 if min(image_shape(form, least=4)[1:]) < 16 else 0
    return _convolutions(form, (32, 64), 5, hidden=(512,), least=4, padding=padding)


def tf_cnn(form: Form) -> nn.Module:
    """The TensorFlow tutorial's CNN, in FedFomo's code: 122 570 parameters on CIFAR-10."""
    return _convolutions(form, (32, 64, 64), 3, hidden=(64,), least=18)


def _convolutions(
    form: Form,
    widths: tuple[int, ...],
    kernel: int,
    *,
    hidden: tuple[int, ...],
    least: int,
    padding: int = 0,
    projection: int = 0,
) -> nn.Module:
    """Convolutions with ReLU, the first two with a pool of 2; then linear layers with ReLU.

    With a projection, one of those is repeated, and a linear one of that width follows.
    """
    inputs, *sides = image_shape(form, least)
    layers: dict[str, nn.Module] = {}
    for i, width in enumerate(widths, 1):
        layers[f"conv{i}"] = nn.Conv2d(inputs, width, kernel, padding=padding)
        layers[f"relu{i}"] = nn.ReLU()
        sides = [side - kernel + 1 + 2 * padding for side in sides]
        if i <= 2:
            layers[f"pool{i}"] = nn.MaxPool2d(2)
            sides = [side // 2 for side in sides]
        inputs = width
    layers["flatten"] = nn.Flatten()
    inputs *= prod(sides)
    for i, width in enumerate(hidden, 1):
        layers[f"fc{i}"] = nn.Linear(inputs, width)
        layers[f"relu{len(widths) + i}"] = nn.ReLU()
        inputs = width
    if projection:
        layers["project1"], layers["relu"] = nn.Linear(inputs, inputs), nn.ReLU()
        layers["project2"], inputs = nn.Linear(inputs, projection), projection
    return chain(**layers, fc=nn.Linear(inputs, form.outputs))


def fedbabu_cnn(form: Form) -> nn.Module:
    """FedBABU's CNN: four blocks of 64 channels and one linear layer.

    115 658 parameters on CIFAR-10, namely convolutions with bias (1 792 + 3 x 36 928), BatchNorm
    with weight and bias but without running statistics (4 x 128), and a pool after every block,
    the fourth too, which leaves 64 x 2 x 2 inputs for the linear layer (2 570).
    """
    channels, height, width = image_shape(form, least=16)

    def block(inputs: int) -> nn.Module:
        return chain(
            conv=nn.Conv2d(inputs, 64, 3, padding=1),
            norm=batch_norm_without_statistics(64),
            relu=nn.ReLU(),
            pool=nn.MaxPool2d(2),
        )

    return chain(
        block1=block(channels),
        block2=block(64),
        block3=block(64),
        block4=block(64),
        flatten=nn.Flatten(),
        fc=nn.Linear(64 * (height // 16) * (width // 16), form.outputs),
    )


def fedbn_cnn(form: Form, after: Literal["all", "convolutions", "none"] = "all") -> nn.Module:
    """FedBN's network for digits: three convolutions and three linear layers with BatchNorm.

    14 219 210 parameters on ten classes of 3 x 28 x 28 pixels, as in FedBN; 18 151 370 on
    CIFAR-10, as in pFedLA's code. Convolutions are padded by 2, the third has no pool.

    Args:
      form: what the examples look like.
      after: which layers have BatchNorm; pFedLA's text says the convolutions (on CIFAR), or none.
    """
    channels, height, width = image_shape(form, least=4)

    def convolution(inputs: int, outputs: int, **pool: nn.Module) -> nn.Module:
        norm = {"norm": batch_norm(outputs)} if after != "none" else {}
        conv = nn.Conv2d(inputs, outputs, 5, padding=2)
        return chain(conv=conv, **norm, relu=nn.ReLU(), **pool)

    def linear(inputs: int, outputs: int) -> nn.Module:
        norm = {"norm": nn.BatchNorm1d(outputs)} if after == "all" else {}
        return chain(linear=nn.Linear(inputs, outputs), **norm, relu=nn.ReLU())

    return chain(
        conv1=convolution(channels, 64, pool=nn.MaxPool2d(2)),
        conv2=convolution(64, 64, pool=nn.MaxPool2d(2)),
        conv3=convolution(64, 128),
        flatten=nn.Flatten(),
        fc1=linear(128 * (height // 4) * (width // 4), 2048),
        fc2=linear(2048, 512),
        fc=nn.Linear(512, form.outputs),
    )
