"""VGG-11."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from fedtailor.core.form import Form
from fedtailor.models.parts import Norm, SpatialMean, chain, image_shape, start_for_relu


def vgg11(form: Form, norm: Norm | None = None) -> nn.Module:
    """VGG-11 with dropout, and with BatchNorm or the like where `norm` is given.

    From 224 pixels a side on it is ImageNet's: 7 x 7 x 512 inputs and two hidden layers of 4 096
    (132 863 336 parameters for 1 000 classes). Below, it is the CIFAR variant: the mean of the
    last map, which has one pixel on CIFAR, and two hidden layers of 512 (9 750 922 parameters on
    CIFAR-10). Five pools need 32 pixels a side. Coarse blocks: five stages, three linear layers.
    """
    channels, height, width = image_shape(form, least=32)
    stages = [(channels, 64), (64, 128), (128, 256, 256), (256, 512, 512), (512, 512, 512)]
    parts = {f"stage{k}": _stage(widths, norm) for k, widths in enumerate(stages, 1)}
    if min(height, width) < 224:
        classifier = chain(
            pool=SpatialMean(),
            dropout1=nn.Dropout(0.5),
            fc1=nn.Linear(512, 512),
            relu1=nn.ReLU(),
            dropout2=nn.Dropout(0.5),
            fc2=nn.Linear(512, 512),
            relu2=nn.ReLU(),
            fc=nn.Linear(512, form.outputs),
        )
    else:
        classifier = chain(
            pool=nn.AdaptiveAvgPool2d(7),
            flatten=nn.Flatten(),
            fc1=nn.Linear(512 * 7 * 7, 4096),
            relu1=nn.ReLU(),
            dropout1=nn.Dropout(0.5),
            fc2=nn.Linear(4096, 4096),
            relu2=nn.ReLU(),
            dropout2=nn.Dropout(0.5),
            fc=nn.Linear(4096, form.outputs),
        )
    return start_for_relu(chain(**parts, **dict(classifier.named_children())))


def _stage(widths: tuple[int, ...], norm: Norm | None) -> nn.Module:
    parts: dict[str, nn.Module] = {}
    for number, (inputs, outputs) in enumerate(pairwise(widths), 1):
        parts[f"conv{number}"] = nn.Conv2d(inputs, outputs, 3, padding=1)
        if norm is not None:
            parts[f"norm{number}"] = norm(outputs)
        parts[f"relu{number}"] = nn.ReLU()
    return chain(**parts, pool=nn.MaxPool2d(2))
