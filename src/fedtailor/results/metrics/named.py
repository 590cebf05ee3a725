"""Metrics by name, and the one that a result goes by unless another is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

from torch import Tensor

from fedtailor.core.errors import BadInput, unknown
from fedtailor.core.form import TaskKind
from fedtailor.datasets.wording import quoted
from fedtailor.results.metrics import classification, regression, survival, undefined

OfRows = Callable[[Tensor, Tensor, Tensor], Tensor]

# Classes are balanced while each has between 1 / BALANCED and BALANCED times an equal share.
BALANCED = 1.5


class WhyUndefined(Protocol):
    """Says of one client's labels and weight why a metric has no value there, or None."""

    def __call__(self, labels: Tensor, weight: Tensor, part: str = "test") -> str | None: ...


@dataclass(frozen=True)
class Metric:
    """A measure of how well a model answers."""

    name: str  # as people type it
    # of outputs [..., R, K], labels [..., R] (survival: [..., R, 2]) and weight [..., R]; gives
    # [...], nan where undefined
    function: OfRows
    tasks: tuple[TaskKind, ...]  # for which it is made
    higher_is_better: bool  # False for errors
    title: str  # as it stands above a table
    # of the same arguments; gives a number per row [..., R], 0 in the padding, whose mean over the
    # real rows is the metric. None where there is no such number
    per_row: OfRows | None = None
    # gives the reason, of one client's labels and weight
    why_undefined: WhyUndefined = undefined.without_rows
    percent: bool = False  # whether it is shown as a percentage
    two_classes: bool = False  # whether it needs exactly two classes
    one_sided: bool = False  # whether, of two classes, another would have another value

    @property
    def times(self) -> int:
        """What a value is multiplied by where it is shown."""
        return 100 if self.percent else 1

    @property
    def bounds(self) -> tuple[float, float]:
        """Between which its values lie, whatever a model says.

        Example:
          >>> METRICS["accuracy"].bounds, METRICS["rmse"].bounds
          ((0.0, 1.0), (0.0, inf))
        """
        least = {"r2": -inf, "perplexity": 1.0}.get(self.name, 0.0)
        return least, 1.0 if self.higher_is_better else inf

    def fits(self, task: TaskKind, classes: int = 0) -> bool:
        """Whether it can be had of a task, with so many classes."""
        return task in self.tasks and (classes == 2 or not self.two_classes)


_CLASSES: tuple[TaskKind, ...] = ("classification",)
_NUMBER: tuple[TaskKind, ...] = ("regression",)
_TIME: tuple[TaskKind, ...] = ("survival",)

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            "accuracy",
            classification.accuracy,
            _CLASSES,
            higher_is_better=True,
            title="Accuracy",
            per_row=classification.right_answers,
            percent=True,
        ),
        Metric(
            "balanced-accuracy",
            classification.balanced_accuracy,
            _CLASSES,
            higher_is_better=True,
            title="Balanced accuracy",
            percent=True,
        ),
        Metric(
            "macro-f1",
            classification.macro_f1,
            _CLASSES,
            higher_is_better=True,
            title="Macro-F1",
        ),
        Metric(
            "roc-auc",
            classification.roc_auc,
            _CLASSES,
            higher_is_better=True,
            title="ROC AUC",
            why_undefined=undefined.one_class,
        ),
        Metric(
            "average-precision",
            classification.average_precision,
            _CLASSES,
            higher_is_better=True,
            title="Average precision",
            why_undefined=undefined.one_class,
            one_sided=True,
        ),
        Metric(
            "sensitivity",
            classification.sensitivity,
            _CLASSES,
            higher_is_better=True,
            title="Sensitivity",
            why_undefined=undefined.no_positive,
            percent=True,
            two_classes=True,
            one_sided=True,
        ),
        Metric(
            "specificity",
            classification.specificity,
            _CLASSES,
            higher_is_better=True,
            title="Specificity",
            why_undefined=undefined.no_negative,
            percent=True,
            two_classes=True,
            one_sided=True,
        ),
        Metric(
            "log-loss",
            classification.log_loss,
            _CLASSES,
            higher_is_better=False,
            title="Log loss",
            per_row=classification.row_log_losses,
        ),
        Metric(
            "perplexity",
            classification.perplexity,
            _CLASSES,
            higher_is_better=False,
            title="Perplexity",
        ),
        Metric(
            "brier",
            classification.brier,
            _CLASSES,
            higher_is_better=False,
            title="Brier score",
            per_row=classification.row_briers,
        ),
        Metric(
            "calibration-error",
            classification.calibration_error,
            _CLASSES,
            higher_is_better=False,
            title="Calibration error",
        ),
        Metric("rmse", regression.rmse, _NUMBER, higher_is_better=False, title="RMSE"),
        Metric(
            "mae",
            regression.mae,
            _NUMBER,
            higher_is_better=False,
            title="MAE",
            per_row=regression.row_errors,
        ),
        Metric(
            "r2",
            regression.r2,
            _NUMBER,
            higher_is_better=True,
            title="R²",
            why_undefined=undefined.one_value,
        ),
        Metric(
            "concordance",
            survival.concordance,
            _TIME,
            higher_is_better=True,
            title="Concordance",
            why_undefined=undefined.no_pair,
        ),
    )
}


def metrics_of(task: TaskKind, classes: int = 0) -> list[str]:
    """The names of the metrics that a task with so many classes can have.

    Example:
      >>> metrics_of("regression")
      ['rmse', 'mae', 'r2']
    """
    return [name for name, metric in METRICS.items() if metric.fits(task, classes)]


def positive_note(names: Iterable[str], classes: Sequence[str]) -> str:
    """A line that says which class counts as positive, where one of these metrics goes by that.

    Example:
      >>> positive_note(["accuracy", "sensitivity"], ["sick", "well"])
      "Positive, for sensitivity, is 'well', which comes after 'sick': to have the other, name it \
so that it comes last."
      >>> positive_note(["roc-auc"], ["sick", "well"])
      ''
    """
    found = [name for name in names if name in METRICS and METRICS[name].one_sided]
    if len(classes) != 2 or not found:
        return ""
    first, second = (quoted(name, 40) for name in classes)
    return (
        f"Positive, for {', '.join(found)}, is {second}, which comes after {first}: to have the "
        "other, name it so that it comes last."
    )


def metric_named(name: str, task: TaskKind, classes: int = 0) -> Metric:
    """The metric of that name, if the task can have it.

    Raises:
      BadInput: no metric has that name, or it is made for another task.

    Example:
      >>> metric_named("mae", "regression").title
      'MAE'
      >>> metric_named("mae", "survival")
      Traceback (most recent call last):
      ...
      fedtailor.core.errors.BadInput: metric 'mae' is for regression, not survival: try concordance
    """
    fitting = metrics_of(task, classes)
    if name not in METRICS:
        raise unknown("metric", name, fitting)
    metric = METRICS[name]
    instead = f"try {', '.join(fitting)}"
    if task not in metric.tasks:
        raise BadInput(
            f"metric '{name}' is for {' and '.join(metric.tasks)}, not {task}: {instead}"
        )
    if not metric.fits(task, classes):
        raise BadInput(f"metric '{name}' needs two classes, not {classes}: {instead}")
    return metric


def default_metric(task: TaskKind, class_shares: Sequence[float] = ()) -> tuple[str, str]:
    """The metric that a result goes by unless another is asked for, and a sentence that says why.

    Args:
      task: what is learnt.
      class_shares: which share of the rows (or how many) each class has; of classification only.

    Example:
      >>> name, why = default_metric("classification", [970, 30])
      >>> print(why)
      The metric is roc-auc: classes are unbalanced, and always answering the commonest would be \
right for 97 % of the rows. Another is chosen with --metric NAME (metric=NAME in Python).
    """
    if task == "regression":
        name, why = "rmse", "the error in the label's own unit"
    elif task == "survival":
        name, why = "concordance", "how often who had the event earlier was given the higher risk"
    else:
        name, why = _by_balance(class_shares)
    others = "Another is chosen with --metric NAME (metric=NAME in Python)."
    if len(metrics_of(task)) == 1:
        others = "It is the only one for this task."
    return name, f"The metric is {name}: {why}. {others}"


def _by_balance(class_shares: Sequence[float]) -> tuple[str, str]:
    total, classes = sum(class_shares), len(class_shares)
    if not total > 0:
        raise ValueError("the classes' shares are needed to choose a metric for classification")
    equal = total / classes
    most, least = max(class_shares), min(class_shares)
    if most <= BALANCED * equal and least >= equal / BALANCED:
        return "accuracy", "the classes are about equally common"
    name = "roc-auc" if classes == 2 else "balanced-accuracy"
    share = f"{100 * most / total:.0f} %"
    return name, (
        "classes are unbalanced, and always answering the commonest would be right for "
        f"{share} of the rows"
    )


def refuse_our_names(names: Iterable[str]) -> None:
    """Refuses metrics of somebody's own that are called as ours are: both stand in one table."""
    for name in names:
        if name in METRICS:
            raise BadInput(f"a metric of your own is called '{name}', as ours is: rename it")
