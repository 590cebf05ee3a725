"""The figures that `fedtailor figure` knows."""

from __future__ import annotations

from fedtailor.figures import clients, curves, landscape, learnt
from fedtailor.figures.options import FigureKind
from fedtailor.figures.style import PAGE

FIGURES: dict[str, FigureKind] = {
    "accuracy": FigureKind(
        "mean test accuracy by round; bands: least and largest over seeds",
        "any runs",
        curves.accuracy_figure,
    ),
    "loss": FigureKind("test loss of personal models by round", "any runs", curves.loss_figure),
    "gain": FigureKind(
        "each client's gain over training alone, best first",
        "training alone (local) among the runs",
        clients.gain_figure,
        PAGE,
        against=True,
    ),
    "spread": FigureKind(
        "how many clients have which accuracy, a histogram per method",
        "any runs",
        clients.spread_figure,
    ),
    "communication": FigureKind(
        "mean accuracy against bytes sent, up and down together",
        "any runs",
        curves.communication_figure,
    ),
    "time": FigureKind("mean accuracy against seconds", "any runs", curves.time_figure),
    "partition": FigureKind(
        "rows of each class at each client, like clients side by side",
        "class counts, which every run keeps",
        clients.partition_figure,
    ),
    "weights": FigureKind(
        "who learns from whom: client × client by block, like clients side by side (--round)",
        "a method that records it: fedfomo, pfedla, apple ...",
        learnt.weights_figure,
        PAGE,
    ),
    "mixing": FigureKind(
        "how much of each global block is taken over, block × round",
        "pmixfed, or a method with its mixing",
        learnt.mixing_figure,
    ),
    "scores": FigureKind(
        "FedALA's weights or PLGU's scores per block, mean and middle 80 % of clients (--round)",
        "fedala, plgu-lf or plgu-grep",
        learnt.scores_figure,
    ),
    "landscape": FigureKind(
        "the loss around global and personal models, along two random directions",
        "fedtailor landscape DIR, said before",
        landscape.landscape_figure,
        PAGE,
    ),
    "trajectory": FigureKind(
        "the way of a client's model over its training loss, on its principal plane",
        "runs with --keep-path, and fedtailor trajectory DIR..., said before",
        landscape.trajectory_figure,
    ),
}
