"""What labels are taken for: classes, numbers, or times until an event."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from fedtailor.core.errors import BadInput, unknown
from fedtailor.core.form import TaskKind
from fedtailor.datasets.formats.cells import NEARLY, number_or_none, numbers, plain
from fedtailor.datasets.parts import SourcePart, class_numbers, refuse_rows, sorted_names
from fedtailor.datasets.source import Array, Source, check_numbers
from fedtailor.datasets.wording import one_line, quoted

TaskChoice = Literal["auto", "classification", "regression", "survival"]
# A column of whole numbers is taken for classes up to so many different ones, however few the
# rows; beyond, only while each stands for more than ten rows on average.
FEW, ROWS_EACH = 20, 10
FEW_FRACTIONS = 10  # more different fractional numbers than this are surely measured


class SettledLabels(NamedTuple):
    """Labels of all parts, of one task."""

    task: TaskKind  # what is learnt
    labels: Array  # as a `Source` has them
    classes: tuple[str, ...] = ()  # the class names; empty unless classes are learnt
    # one line that says what was decided and how to have it otherwise; empty where the user or the
    # data set said it
    decided: str = ""


def checked_task(task: Any) -> TaskChoice:
    """The task, if it is one."""
    if task not in get_args(TaskChoice):
        raise unknown("task", one_line(task), get_args(TaskChoice))
    return task  # type: ignore[no-any-return]


def settle_labels(
    parts: Sequence[SourcePart],
    task: TaskChoice = "auto",
    classes: tuple[str, ...] = (),
) -> SettledLabels:
    """The parts' labels as labels of one task.

    Args:
      parts: with labels as they were found.
      task: what they are; `auto` tells it from them.
      classes: names and order of the classes of a known data set.

    Raises:
      BadInput: they cannot be labels of that task.

    Example:
      >>> ages = np.array(["31.5", "40", "64"])
      >>> settle_labels([SourcePart(("a", "b", "c"), ages, "'ages.csv'")], "regression").labels
      array([31.5, 40. , 64. ])
    """
    paired = [p for p in parts if p.labels.ndim == 2]
    if task == "survival" or paired:
        return _times(parts, paired, task)
    if classes:
        return SettledLabels("classification", _numbered(parts, classes), classes)
    values = _as_numbers(parts)
    decided = ""
    chosen: TaskChoice = task
    if task == "auto":
        chosen, decided = _decide(parts, values)
    if chosen == "regression":
        if values is None:
            part, row = _first_name(parts)
            raise BadInput(
                f"task is regression, but {part.place(row)} has the label "
                f"{quoted(part.labels[row])}: give numbers, or use --task classification"
            )
        check_numbers(values, "regression", parts[0].where)
        return SettledLabels("regression", values, (), decided)
    named = [_with_names(p) for p in parts]
    classes = sorted_names(str(c) for p in named for c in np.unique(p.labels))
    return SettledLabels("classification", _numbered(named, classes), classes, decided)


def _times(
    parts: Sequence[SourcePart], paired: Sequence[SourcePart], task: TaskChoice
) -> SettledLabels:
    if len(paired) < len(parts):
        single = next(p for p in parts if p.labels.ndim == 1)
        raise BadInput(
            f"task is survival, but {single.where} has one label per row: give a time and an "
            "event (--time-column and --event-column, or y of two columns)"
        )
    if task != "survival":
        raise BadInput(
            f"{paired[0].where} has two labels per row: if they are time and event, say --task "
            "survival; else give one"
        )
    for part in paired:
        time, event = part.labels.T
        refuse_rows(part.with_labels(time), ~(time >= 0), "times from 0 upwards")
        refuse_rows(
            part.with_labels(event), ~np.isin(event, (0, 1)), "1 where the event came, else 0"
        )
    joined = np.concatenate([p.labels for p in paired])
    check_numbers(joined, "survival", parts[0].where)
    return SettledLabels("survival", joined)


def _numbered(parts: Sequence[SourcePart], classes: tuple[str, ...]) -> Array:
    return np.concatenate([class_numbers(p, classes) for p in parts])


def _as_numbers(parts: Sequence[SourcePart]) -> Array | None:
    """All labels as float64, or None where one is no number."""
    found = []
    for part in parts:
        names = part.labels.dtype.kind == "U"
        values = numbers([str(n) for n in part.labels]) if names else part.labels
        if isinstance(values, int):
            return None
        found.append(values.astype(np.float64))
    return np.concatenate(found)


def _first_name(parts: Sequence[SourcePart]) -> tuple[SourcePart, int]:
    """Where the first label stands that is no number."""
    for part in parts:
        row = numbers([str(n) for n in part.labels])
        if isinstance(row, int):
            return part, row
    raise AssertionError("all labels are numbers")


def _decide(parts: Sequence[SourcePart], values: Array | None) -> tuple[TaskKind, str]:
    what = f"label {quoted(parts[0].label)}" if parts[0].label else "the label"
    if values is None:
        return "classification", _of_names(parts, what)
    count = len(np.unique(values))
    found = f"{what} holds {count:,} different numbers in {len(values):,} rows"
    if (fractional := ~np.isfinite(values) | (np.trunc(values) != values)).any():
        if count <= FEW_FRACTIONS:
            row = int(np.flatnonzero(fractional)[0])
            raise BadInput(
                f"{_place(parts, row)} has the label {values[row]:g}, and {found}: say --task "
                "regression to learn numbers, or --task classification to take each for a class"
            )
        measured = True
    else:
        measured = count > FEW and count * ROWS_EACH > len(values)
    if measured:
        # as classes they would be refused where most rows had one of their own
        other = " (else: --task classification)" if 2 * count <= len(values) else ""
        return "regression", f"{found}: taken as regression{other}"
    return "classification", f"{found}: taken as classes (else: --task regression)"


def _of_names(parts: Sequence[SourcePart], what: str) -> str:
    """What to say of labels that can be nothing but classes, since one of them is no number.

    Raises:
      BadInput: the others are, and so many that they look measured.
    """
    names = np.concatenate([part.labels.astype(np.str_) for part in parts])
    distinct, counts = np.unique(names, return_counts=True)
    words = [number_or_none(str(name)) is None for name in distinct]
    part, row = _first_name(parts)
    few = len(distinct) <= FEW or len(distinct) * ROWS_EACH <= len(names)
    found = f"{what} holds {len(distinct):,} different names in {len(names):,} rows"
    if counts[words].sum() > (1 - NEARLY) * len(names):
        return "" if few else f"{found}, such as {quoted(part.labels[row])}: taken as classes"
    other = f"{part.place(row)} has the label {quoted(part.labels[row])}, while most are numbers"
    if few:
        return f"{other}: taken as a class of its own"
    raise BadInput(
        f"{other}: give a number there to learn numbers, or say --task classification to take "
        "each for a class"
    )


def _place(parts: Sequence[SourcePart], row: int) -> str:
    for part in parts:
        if row < len(part.labels):
            return part.place(row)
        row -= len(part.labels)
    raise AssertionError("no such row")


def _with_names(part: SourcePart) -> SourcePart:
    """The part with class names as labels."""
    values, place = np.unique(part.labels, return_inverse=True)  # a class is looked at once
    if values.dtype.kind == "f":
        names = np.array([plain(float(value)) for value in values], dtype=np.str_)
    else:
        names = values.astype(np.str_)
    wrong = np.array([bool(re.fullmatch(r"-\d+", str(name))) for name in names], dtype=bool)
    cure = "names or numbers from 0 (-1 often stands for no label), or --task regression"
    refuse_rows(part, wrong[place], cure)
    return part.with_labels(names[place])


def refuse_as_many_classes_as_rows(source: Source) -> None:
    """Raise `BadInput` where most rows have a class of their own: then nothing can be learnt."""
    count = len(np.unique(source.labels))
    if source.task == "classification" and count > FEW and 2 * count > len(source):
        measured = not isinstance(numbers(source.classes), int)
        raise BadInput(
            f"data {quoted(source.name)} has {count:,} classes in {len(source):,} rows: name "
            f"another label column (--label){', or use --task regression' * measured}"
        )
