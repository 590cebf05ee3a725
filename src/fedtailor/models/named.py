"""Networks by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from fedtailor.core.errors import BadInput, unknown
from fedtailor.core.form import Form
from fedtailor.core.inputs.importing import import_named
from fedtailor.models.factories import made_by
from fedtailor.models.mobilenet import mobilenet
from fedtailor.models.parts import batch_norm, batch_norm_without_statistics, group_norm
from fedtailor.models.resnet import cifar_stem, resnet18, resnet50, wrn_28_10
from fedtailor.models.small import (
    cnn,
    fedbabu_cnn,
    fedbn_cnn,
    lenet,
    linear_model,
    logistic,
    mlp,
    moon_cnn,
    tf_cnn,
)
from fedtailor.models.text import fasttext, lstm, transformer
from fedtailor.models.vgg import vgg11

Factory = Callable[[Form], nn.Module]

# `-bn`: BatchNorm with running statistics
MODELS: dict[str, Factory] = {
    "linear": linear_model,
    "logistic": logistic,
    "mlp": mlp,
    "mlp-2": partial(mlp, hidden=2),
    "mlp-3": partial(mlp, hidden=3),
    "lenet": lenet,
    "moon-cnn": moon_cnn,
    "cnn": cnn,
    "tf-cnn": tf_cnn,
    "fedbabu-cnn": fedbabu_cnn,
    "fedbn-cnn": fedbn_cnn,
    "pfedla-cnn": partial(fedbn_cnn, after="none"),
    "pfedla-cnn-bn": partial(fedbn_cnn, after="convolutions"),
    "mobilenet": partial(mobilenet, norm=batch_norm_without_statistics),  # as in FedBABU
    "mobilenet-bn": partial(mobilenet, norm=batch_norm),
    "resnet18": partial(resnet18, norm=group_norm),
    "resnet18-bn": partial(resnet18, norm=batch_norm),
    "resnet18-cifar": partial(resnet18, norm=group_norm, stem=cifar_stem),
    "resnet18-cifar-bn": partial(resnet18, norm=batch_norm, stem=cifar_stem),
    "resnet50": partial(resnet50, norm=group_norm),
    "resnet50-bn": partial(resnet50, norm=batch_norm),
    "wrn-28-10": partial(wrn_28_10, norm=group_norm),
    "wrn-28-10-bn": partial(wrn_28_10, norm=batch_norm),
    "vgg11": vgg11,
    "vgg11-bn": partial(vgg11, norm=batch_norm),
    "fasttext": fasttext,
    "lstm": lstm,
    "transformer": transformer,
}

_DIMENSIONS = {"image": 3, "table": 1, "text": 1}


def build(name: str, form: Form) -> nn.Module:
    """A new network for data of this form.

    Args:
      name: one of `MODELS`, or `package.module:factory`, a function of the form or of nothing; the
        module may be installed, on PYTHONPATH, or lie in the working directory.
      form: what the examples look like.

    Raises:
      BadInput: no such network, or it does not take such examples.

    Example:
      >>> build("mlp", Form("image", (1, 28, 28), 10)).fc1
      Linear(in_features=784, out_features=200, bias=True)
    """
    if name not in MODELS:
        return made_by(_imported(name), form, f"'{name}'")
    try:
        _check(form)
        return MODELS[name](form)
    except BadInput as error:
        raise BadInput(f"model '{name}': {error}") from None


def _imported(name: str) -> Factory:
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise unknown("model", name, [*MODELS, "package.module:factory"])
    try:
        module = import_named(module_name)
    except Exception as error:  # whatever a stranger's module raises
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise BadInput(
            f"model '{name}': cannot import '{module_name}' ({reason}): "
            "write package.module:factory, of a package installed, on PYTHONPATH or in this folder"
        ) from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        known = [n for n, value in vars(module).items() if callable(value) and n[0] != "_"]
        raise unknown(f"factory of '{module_name}':", attribute, known)
    made: Factory = factory
    return made


def _check(form: Form) -> None:
    dimensions = _DIMENSIONS.get(form.kind)
    if dimensions is None:
        raise unknown("kind of data", form.kind, _DIMENSIONS)
    if len(form.shape) != dimensions or min(form.shape) < 1:
        raise BadInput(
            f"{form.kind} examples of shape {form.shape}: "
            f"give {dimensions} number{'s' * (dimensions > 1)} above 0"
        )
    if form.outputs < 1:
        raise BadInput(f"{form.classes} classes: give at least 1")
