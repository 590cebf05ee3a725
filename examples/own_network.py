"""Your own network, loss, metric and learning-rate schedule.

python examples/own_network.py
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedtailor


class Small(nn.Module):
    """A network of your own: what it returns is one number per class."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def smoothed(outputs: Tensor, labels: Tensor) -> Tensor:
    """A loss for each row."""
    return F.cross_entropy(outputs, labels, label_smoothing=0.1, reduction="none")


def second_guess(outputs: Tensor, labels: Tensor) -> float:
    """How often the right class is among the two most likely ones."""
    return float((outputs.topk(2).indices == labels[:, None]).any(-1).float().mean())


result = fedtailor.run(
    "fedrep",
    model=Small,
    loss=smoothed,
    metrics=second_guess,
    schedule="warmup:2+cosine",
    clients=6,
    rounds=4,
)
print(f"accuracy {result['accuracy']['mean']:.3f}")
print(f"among two guesses {result['metrics']['second_guess']['mean']:.3f}")

network = result.model("client-3")  # an ordinary nn.Module, with that client's weights
with torch.no_grad():
    print(network(torch.zeros(1, 1, 8, 8)).shape)
