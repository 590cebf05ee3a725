"""The figures that `fedtailor figure` knows."""

from __future__ import annotations

from fedtailor.figures import clients, curves, landscape, learnt
from fedtailor.figures.style import PAGE
from fedtailor.figures.wish import Picture

FIGURES: dict[str, Picture] = {
    "accuracy": Picture(
        "mean test accuracy by round; bands: least and largest over seeds",
        "any runs",
        curves.accuracy,
    ),
    "loss": Picture("test loss of personal models by round", "any runs", curves.loss),
    "gain": Picture(
        "each client's gain over training alone, best first",
        "training alone (local) among the runs",
        clients.gain,
        PAGE,
        against=True,
    ),
    "spread": Picture(
        "how many clients have which accuracy, a histogram per method", "any runs", clients.spread
    ),
    "communication": Picture(
        "mean accuracy against bytes sent, up and down together", "any runs", curves.communication
    ),
    "time": Picture("mean accuracy against seconds", "any runs", curves.time),
    "partition": Picture(
        "rows of each class at each client, like clients side by side",
        "class counts, which every run keeps",
        clients.partition,
    ),
    "weights": Picture(
        "who learns from whom: client × client by block, like clients side by side (--round)",
        "a method that records it: fedfomo, pfedla, apple ...",
        learnt.weights,
        PAGE,
    ),
    "mixing": Picture(
        "how much of each global block is taken over, block × round",
        "pmixfed, or a method with its mixing",
        learnt.mixing,
    ),
    "scores": Picture(
        "FedALA's weights or PLGU's scores per block, mean and middle 80 % of clients (--round)",
        "fedala, plgu-lf or plgu-grep",
        learnt.scores,
    ),
    "landscape": Picture(
        "the loss around global and personal models, along two random directions",
        "fedtailor landscape DIR, said before",
        landscape.landscape,
        PAGE,
    ),
    "trajectory": Picture(
        "the way of a client's model over its training loss, on its principal plane",
        "runs with --keep-path, and fedtailor trajectory DIR..., said before",
        landscape.trajectory,
    ),
}
