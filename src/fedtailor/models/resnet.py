"""Residual networks: ResNet-18 and -50, with the ImageNet or the CIFAR stem, and WRN-28-10."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from fedtailor.core.form import Form
from fedtailor.models.parts import Norm, SpatialMean, chain, image_shape, start_for_relu

Stem = Callable[[int, Norm], nn.Module]  # channels of the image -> 64 channels


def imagenet_stem(channels: int, norm: Norm) -> nn.Module:
    """A 7 x 7 convolution and a pool, both of stride 2."""
    return chain(
        conv=nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False),
        norm=norm(64),
        relu=nn.ReLU(),
        pool=nn.MaxPool2d(3, stride=2, padding=1),
    )


def cifar_stem(channels: int, norm: Norm) -> nn.Module:
    """A 3 x 3 convolution that keeps the size of the image."""
    return chain(conv=_conv(channels, 64, 3), norm=norm(64), relu=nn.ReLU())


def resnet18(form: Form, norm: Norm, stem: Stem = imagenet_stem) -> nn.Module:
    """ResNet-18: 11 181 642 parameters for 3 channels and 10 classes, 11 173 962 with CIFAR stem.

    Six coarse blocks: the stem, four stages, the linear layer.
    """
    return _resnet(form, norm, stem, _basic, (2, 2, 2, 2))


def resnet50(form: Form, norm: Norm, stem: Stem = imagenet_stem) -> nn.Module:
    """ResNet-50: 23 917 832 parameters on Tiny-ImageNet; a bottleneck's stride is in its 3 x 3."""
    return _resnet(form, norm, stem, _bottleneck, (3, 4, 6, 3))


def wrn_28_10(form: Form, norm: Norm) -> nn.Module:
    """The wide residual network of depth 28 and width 10: 36 536 884 parameters on CIFAR-100.

    The last normalisation belongs to the last stage, so that the linear layer alone is the head.
    """
    channels, _, _ = image_shape(form)
    parts: dict[str, nn.Module] = {"stem": _conv(channels, 16, 3)}
    inputs = 16
    for number, (outputs, stride) in enumerate([(160, 1), (320, 2), (640, 2)], 1):
        stage: dict[str, nn.Module] = {}
        for place in range(1, 5):
            stage[f"block{place}"] = _PreActivation(
                inputs, outputs, stride if place == 1 else 1, norm
            )
            inputs = outputs
        if number == 3:
            stage |= {"norm": norm(outputs), "relu": nn.ReLU()}
        parts[f"layer{number}"] = chain(**stage)
    return start_for_relu(chain(**parts, pool=SpatialMean(), fc=nn.Linear(inputs, form.outputs)))


def _resnet(
    form: Form, norm: Norm, stem: Stem, body: _Body, blocks: tuple[int, int, int, int]
) -> nn.Module:
    channels, _, _ = image_shape(form)
    parts: dict[str, nn.Module] = {"stem": stem(channels, norm)}
    inputs = 64
    for number, (width, count) in enumerate(zip((64, 128, 256, 512), blocks, strict=True), 1):
        stage: dict[str, nn.Module] = {}
        for place in range(1, count + 1):
            stride = 2 if place == 1 and number > 1 else 1
            branch, outputs = body(inputs, width, stride, norm)
            stage[f"block{place}"] = _Residual(branch, inputs, outputs, stride, norm)
            inputs = outputs
        parts[f"layer{number}"] = chain(**stage)
    return start_for_relu(chain(**parts, pool=SpatialMean(), fc=nn.Linear(inputs, form.outputs)))


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


# (inputs, width, stride, norm) -> the residual branch and its number of output channels
_Body = Callable[[int, int, int, Norm], tuple[nn.Module, int]]


def _basic(inputs: int, width: int, stride: int, norm: Norm) -> tuple[nn.Module, int]:
    branch = chain(
        conv1=_conv(inputs, width, 3, stride),
        norm1=norm(width),
        relu=nn.ReLU(),
        conv2=_conv(width, width, 3),
        norm2=norm(width),
    )
    return branch, width


def _bottleneck(inputs: int, width: int, stride: int, norm: Norm) -> tuple[nn.Module, int]:
    branch = chain(
        conv1=_conv(inputs, width, 1),
        norm1=norm(width),
        relu1=nn.ReLU(),
        conv2=_conv(width, width, 3, stride),
        norm2=norm(width),
        relu2=nn.ReLU(),
        conv3=_conv(width, 4 * width, 1),
        norm3=norm(4 * width),
    )
    return branch, 4 * width


class _Residual(nn.Module):
    """The branch plus the input, which is projected where its shape differs; then ReLU."""

    def __init__(
        self, branch: nn.Module, inputs: int, outputs: int, stride: int, norm: Norm
    ) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = chain()
        if stride != 1 or inputs != outputs:
            self.shortcut = chain(conv=_conv(inputs, outputs, 1, stride), norm=norm(outputs))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(self.branch(x) + self.shortcut(x))
        return out


class _PreActivation(nn.Module):
    """A wide residual block: normalisation and ReLU come before each convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.norm = norm(inputs)
        self.relu = nn.ReLU()
        self.projects = inputs != outputs
        if self.projects:
            self.shortcut = _conv(inputs, outputs, 1, stride)
        self.branch = chain(
            conv1=_conv(inputs, outputs, 3, stride),
            norm=norm(outputs),
            relu=nn.ReLU(),
            conv2=_conv(outputs, outputs, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        ready = self.relu(self.norm(x))
        kept = self.shortcut(ready) if self.projects else x
        out: Tensor = kept + self.branch(ready)
        return out
