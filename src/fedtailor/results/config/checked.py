"""A configuration from settings by name: everything is checked before anything is made."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

from fedtailor.core.errors import BadInput, unknown
from fedtailor.results.config.record import PATHS, WHO_WORKS, Config, settings
from fedtailor.results.objects import MARK, Objects, require
from fedtailor.results.objects import SETTINGS as OBJECT_SETTINGS

METRIC_NAMES = (
    "accuracy", "balanced-accuracy", "macro-f1", "roc-auc", "average-precision", "sensitivity",
    "specificity", "log-loss", "perplexity", "brier", "calibration-error", "rmse", "mae", "r2",
    "concordance",
)  # fmt: skip
LEAST_NOISE = 0.01  # of DP-SGD, as a multiple of the clip


def _make_absolute(values: dict[str, Any]) -> None:
    """Paths as they are from any folder, so that a run can be repeated and resumed from there."""
    from fedtailor.datasets import KNOWN

    for name in PATHS:
        value = values.get(name, "")
        known = name == "data" and (value in KNOWN or not Path(value).exists())
        known |= value.startswith(MARK)
        if value and not known:
            values[name] = str(Path(value).resolve())


def make_config(
    method: str,
    given: dict[str, Any],
    options: dict[str, Any],
    objects: Objects = Objects(),
    using: Sequence[str] = OBJECT_SETTINGS,
) -> Config:
    """A checked configuration.

    Args:
      method: name of the method, or package.module:factory.
      given: settings by name; the others keep their defaults.
      options: the method's hyper-parameters by name.
      objects: what those names stand for that are marks, see `objects.separate`.
      using: which objects must be there.

    Raises:
      BadInput: something is unknown or out of range.
    """
    from fedtailor.engine.cohort import parse_slow  # late: they need torch
    from fedtailor.methods.describe import page, parse_options
    from fedtailor.methods.find import find

    require({"method": method} | given, objects, using)
    known = settings()
    for name in given:
        if name not in known:
            if name in {option.name for option in page(objects.factory() or find(method)).options}:
                raise BadInput(
                    f"unknown setting '{name}': it is an option of {method}: give it in options, "
                    f"{{'{name}': ...}}"
                )
            raise unknown("setting", name, known)
    values = {name: known[name][0].parse(value) for name, value in given.items()}
    _make_absolute(values)
    _check_weights(values, objects)
    factory = objects.factory() or find(method)
    config = Config(method, **values, options=parse_options(factory, options), objects=objects)
    _check_names(config)
    if config.participation == 0:
        raise BadInput("participation is 0: nobody would train; give a share above 0, up to 1")
    if config.dropout == 1:
        raise BadInput("dropout is 1: nobody would answer; give a chance below 1")
    parse_slow(config.slow)
    if config.test in (0, 1) and not config.official_test:
        raise BadInput(f"test is {config.test:g}: give a share between 0 and 1")
    if config.dp_noise and not config.dp_clip:
        raise BadInput(f"dp-noise is {config.dp_noise:g} without --dp-clip: give one, e.g. 1.0")
    if 0 < config.dp_noise < LEAST_NOISE:
        raise BadInput(
            f"dp-noise is {config.dp_noise:g}, which protects nobody: give at least "
            f"{LEAST_NOISE:g}, or 0 for clipping alone"
        )
    if config.dp_noise and config.dp_clip == inf:
        raise BadInput("dp-clip is inf, so no noise would be enough: give a finite --dp-clip")
    if config.dp_noise and config.class_weights == "balanced":
        raise BadInput(
            "class-weights is 'balanced', which counts the rows of each class without noise: give "
            "the weights as numbers"
        )
    if config.dp_clip and not 0 < config.dp_delta < 1:
        raise BadInput(f"dp-delta is {config.dp_delta:g}: give a number between 0 and 1, e.g. 1e-5")
    if config.engine != "ray":
        for name in WHO_WORKS:
            if getattr(config, name) != known[name][0].default:
                flag = name.replace("_", "-")
                raise BadInput(
                    f"{flag} is {getattr(config, name)}, but engine is '{config.engine}': "
                    "it is for --engine ray"
                )
    elif config.worker_gpus == 0:
        raise BadInput("worker-gpus is 0: give a share above 0, or --device cpu for no GPU at all")
    if config.patience and config.val == 0 and not config.partition_file:
        raise BadInput(
            f"patience is {config.patience}, but val is 0: without validation rows nothing tells "
            "when to stop; raise --val"
        )
    if config.val == 1:
        raise BadInput("val is 1: nothing would be left to train on; give a share below 1")
    return config


def _check_weights(values: dict[str, Any], objects: Objects) -> None:
    """Notes the digest of the weights, or refuses others than those that were noted."""
    from fedtailor.models import digest_of

    path, noted = values.get("weights", ""), values.get("weights_digest", "")
    if not path:
        if values.get("weights_except") and not noted:
            raise BadInput("weights-except is given without --weights: give both")
        return
    if path.startswith(MARK) and objects.weights is None:
        return  # nobody is going to use them
    found = digest_of(path if objects.weights is None else objects.weights)
    if noted and noted != found:
        raise BadInput(f"weights '{path}' are not those that the run began with: give those")
    values["weights_digest"] = found


def _check_names(config: Config) -> None:
    """Refuses what is no schedule, and names of functions that only Python can give."""
    from fedtailor.core.steps.schedules import parse_schedule

    if not config.schedule.startswith(MARK):
        parse_schedule(config.schedule)
    if config.loss != "auto" and not config.loss.startswith(MARK):
        _check_loss(config)
    check_class_weights(config.class_weights)
    if config.metric != "auto" and config.metric not in METRIC_NAMES:
        raise unknown("metric", config.metric, METRIC_NAMES)
    if config.metrics and not config.metrics.startswith(MARK):
        raise BadInput(f"metrics is '{config.metrics}': give functions from Python, by name")
    if config.models and config.weights:
        raise BadInput(f"models is '{config.models}', but weights are one network's: leave one out")
    if config.models and config.objects.model is not None:
        raise BadInput(f"models is '{config.models}', but model is an object: name a model")


def _check_loss(config: Config) -> None:
    """Refuses a loss that no task has, or that the task asked for has not."""
    from fedtailor.core.losses import LOSSES, parse_loss

    name = config.loss.partition(":")[0]
    tasks = [t for t, known in LOSSES.items() if name in {k.partition(":")[0] for k in known}]
    if not tasks:
        raise unknown("loss", config.loss, [k for known in LOSSES.values() for k in known])
    parse_loss(config.loss, tasks[0])


def check_class_weights(given: str, classes: int | None = None) -> tuple[float, ...]:
    """The weights that were given as numbers; none for `none` and `balanced`.

    Example:
      >>> check_class_weights("1,5", classes=2)
      (1.0, 5.0)
    """
    if given in ("none", "balanced"):
        return ()
    try:
        weights = tuple(float(part) for part in given.split(","))
    except ValueError:
        weights = ()
    if not weights or not all(0 <= w < inf for w in weights) or sum(weights) == 0:
        raise BadInput(
            f"class-weights is '{given}': give none, balanced, or numbers from 0 on with commas"
        )
    if classes is not None and len(weights) != classes:
        raise BadInput(
            f"class-weights is '{given}', but there are {classes} classes: give a number for each"
        )
    return weights
