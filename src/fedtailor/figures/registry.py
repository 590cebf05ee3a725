"""The figures that `fedtailor figure` knows."""

from __future__ import annotations

from functools import partial

from fedtailor.core.errors import unknown
from fedtailor.figures import clients, curves, forest, landscape, learnt, tested
from fedtailor.figures.options import FigureKind
from fedtailor.figures.style import PAGE

FIGURES: dict[str, FigureKind] = {
    "score": FigureKind(
        "the metric on test rows by round, mean over clients; bands: least and largest over seeds",
        "any runs",
        partial(curves.lines_figure, measure="mean", against="round"),
    ),
    "loss": FigureKind(
        "test loss of personal models by round",
        "any runs",
        partial(curves.lines_figure, measure="loss", against="round"),
    ),
    "gain": FigureKind(
        "each client's gain over training alone, best first",
        "training alone (local) among the runs",
        clients.gain_figure,
        PAGE,
        against=True,
    ),
    "forest": FigureKind(
        "gain over training alone with its interval: the mean, then every client",
        "training alone (local) among the runs, and their outputs on test rows",
        forest.forest_figure,
        against=True,
    ),
    "spread": FigureKind(
        "how many clients have which value of the metric, a histogram per method",
        "any runs",
        clients.spread_figure,
    ),
    "communication": FigureKind(
        "the metric, mean over clients, against bytes sent, up and down together",
        "any runs",
        partial(curves.lines_figure, measure="mean", against="sent"),
    ),
    "time": FigureKind(
        "the metric, mean over clients, against seconds",
        "any runs",
        partial(curves.lines_figure, measure="mean", against="seconds"),
    ),
    "simulated-time": FigureKind(
        "the metric, mean over clients, against simulated time",
        "runs with --slow or --deadline",
        partial(curves.lines_figure, measure="mean", against="simulated"),
    ),
    "partition": FigureKind(
        "rows of each class at each client, like clients side by side",
        "classification: class counts, which every run keeps",
        clients.partition_figure,
    ),
    "roc": FigureKind(
        "sensitivity against 1 − specificity, all clients' rows together; thin: each client's",
        "classification, and outputs on test rows",
        tested.roc_figure,
    ),
    "calibration": FigureKind(
        "how often what is said with a probability is true",
        "classification, and outputs on test rows",
        tested.calibration_figure,
    ),
    "residuals": FigureKind(
        "predicted against true, and each client's errors",
        "regression, and outputs on test rows",
        tested.residuals_figure,
        PAGE,
    ),
    "survival": FigureKind(
        "who is without the event by time, in thirds by predicted risk, with rows at risk",
        "survival, and outputs on test rows",
        tested.survival_figure,
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

# other names that people know a figure by
ALIASES = {"accuracy": "score"}


def figure_named(name: str) -> FigureKind:
    """The figure of a name.

    Raises:
      BadInput: there is none; says which one may have been meant.
    """
    kind = FIGURES.get(ALIASES.get(name, name))
    if kind is None:
        raise unknown("figure", name, [*FIGURES, *ALIASES])
    return kind
