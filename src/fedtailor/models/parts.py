"""What several networks are made of, and the check that a network fits the data."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from torch import Tensor, nn

from fedtailor.core.errors import BadInput
from fedtailor.core.form import Form

Norm = Callable[[int], nn.Module]  # channels -> normalisation


def chain(**parts: nn.Module) -> nn.Sequential:
    """The parts one after the other, under their names."""
    return nn.Sequential(OrderedDict(parts))


class SpatialMean(nn.Module):
    """The mean over height and width: adaptive pooling to one pixel, as a plain reduction."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def group_norm(channels: int) -> nn.Module:
    """GroupNorm of 32 groups; where there are fewer channels, one group per channel."""
    return nn.GroupNorm(min(32, channels), channels)


def batch_norm(channels: int) -> nn.Module:
    """BatchNorm with running statistics."""
    return nn.BatchNorm2d(channels)


def batch_norm_without_statistics(channels: int) -> nn.Module:
    """BatchNorm by the batch at hand, in evaluation too: parameters, but no buffers."""
    return nn.BatchNorm2d(channels, track_running_stats=False)


def start_for_relu(model: nn.Module) -> nn.Module:
    """Draw the convolutions' weights as ResNet and VGG do: normal, variance 2 / fan-out."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


def image_shape(form: Form, least: int = 1) -> tuple[int, int, int]:
    """Channels, height and width, provided that the examples are images of `least` pixels a side.

    Raises:
      BadInput: they are not.
    """
    if form.kind != "image":
        cure = "choose fasttext" if form.kind == "text" else "choose mlp"
        raise BadInput(f"takes images, not {form.kind} examples of shape {form.shape}: {cure}")
    channels, height, width = form.shape
    if min(height, width) < least:
        cure = "choose mlp or cnn" if min(height, width) >= 4 else "choose mlp"
        raise BadInput(
            f"takes images of {least} x {least} pixels or more, not {height} x {width}: "
            f"{cure}, or enlarge the images"
        )
    return channels, height, width
