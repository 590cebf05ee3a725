"""MobileNet v1 for small images."""

from __future__ import annotations

from torch import nn

from fedtailor.core.form import Form
from fedtailor.models.parts import Norm, SpatialMean, chain, image_shape

# (channels, stride) of the 13 depthwise-separable blocks
_BLOCKS = [
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    *[(512, 1)] * 5,
    (1024, 2),
    (1024, 1),
]


def mobilenet(form: Form, norm: Norm) -> nn.Module:
    """MobileNet v1 with a stem of stride 1: 3 217 226 parameters on CIFAR-10.

    15 coarse blocks: the stem, 13 depthwise-separable blocks, the linear layer.
    """
    channels, _, _ = image_shape(form)
    parts: dict[str, nn.Module] = {
        "stem": chain(
            conv=nn.Conv2d(channels, 32, 3, padding=1, bias=False), norm=norm(32), relu=nn.ReLU()
        )
    }
    inputs = 32
    for number, (outputs, stride) in enumerate(_BLOCKS, 1):
        parts[f"block{number}"] = chain(
            depthwise=nn.Conv2d(
                inputs, inputs, 3, stride=stride, padding=1, groups=inputs, bias=False
            ),
            norm1=norm(inputs),
            relu1=nn.ReLU(),
            pointwise=nn.Conv2d(inputs, outputs, 1, bias=False),
            norm2=norm(outputs),
            relu2=nn.ReLU(),
        )
        inputs = outputs
    return chain(**parts, pool=SpatialMean(), fc=nn.Linear(inputs, form.outputs))
