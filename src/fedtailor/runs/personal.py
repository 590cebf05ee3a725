"""A client's personal model as an ordinary `nn.Module`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from fedtailor.core import tree
from fedtailor.core.form import Form
from fedtailor.core.network.made import made_alike
from fedtailor.core.tree import Params, Tree
from fedtailor.results.config import Config
from fedtailor.runs.build import make_method, make_network, make_task


class PersonalModel(nn.Module):
    """A model that is more than one network's weights: the method says how it predicts.

    Args:
      predict: (model, x) -> outputs.
      model: what the method made for the client.
    """

    def __init__(self, predict: Callable[[Any, Tensor], Tensor], model: Tree) -> None:
        super().__init__()
        self._predict = predict
        flat = tree.flatten(model)
        self._names = list(flat)
        self.weights = nn.ParameterList(nn.Parameter(leaf, False) for leaf in flat.values())

    def forward(self, x: Tensor) -> Tensor:
        leaves = dict(zip(self._names, self.weights, strict=True))
        return self._predict(tree.unflatten(leaves), x)


def personal_model(
    config: Config, form: Form, network: str, model: Tree, constants: Params | None = None
) -> nn.Module:
    """A client's model, ready to be used: on the CPU, in evaluation mode.

    It takes what the network takes: images from -1 to 1, tables as the run's preprocessing left
    them. Where the method predicts with one network, it is that network with the client's weights.

    Args:
      config: of the run.
      form: what examples look like.
      network: the client's, by name.
      model: the client's, as the method made it.
      constants: the network's frozen parameters, if they are known.
    """
    task = make_task(config, form, network, constants)
    predict = make_method(config, task).predict
    model = tree.map(lambda leaf: leaf.detach().to("cpu", copy=True), model)
    if predict is not task.predict:
        return PersonalModel(predict, model).eval()
    made = made_alike(lambda: make_network(config, form, network))
    made.load_state_dict(made.state_dict() | model | task.constants)
    return made.eval()
