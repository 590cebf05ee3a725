"""Which column of a table plays which part: label, client, text, features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fedtailor.core.errors import BadInput, unknown
from fedtailor.datasets.formats.tables import RawTable
from fedtailor.datasets.wording import listed, one_line, quoted

LABEL_NAMES = ("label", "target", "class", "y")
CLIENT_NAMES = ("client", "site", "hospital", "user")
FLAGS = (
    "--label", "--client-column", "--text-column", "--time-column", "--event-column",
    "--group-column", "--time-column-split",
)  # fmt: skip


class NamedColumns(NamedTuple):
    """The columns that the user named; None where the usual names are looked for."""

    label: str | None = None
    client: str | None = None
    text: str | None = None
    time: str | None = None
    event: str | None = None
    group: str | None = None  # whose rows stay on one side of the split
    moment: str | None = None  # when a row was, to train on the past

    def refuse(self, why: str) -> None:
        """Raise `BadInput` if a column was named: these data have none."""
        for flag, name in zip(FLAGS, self, strict=True):
            if name is not None:
                raise BadInput(f"{flag} {quoted(name)} {why}: leave it out")

    @property
    def survival(self) -> bool:
        """Whether a time or an event was named."""
        return self.time is not None or self.event is not None


class ColumnRoles(NamedTuple):
    """Which column is what; `text` is None where the features make a table."""

    labels: tuple[str, ...]  # the label, or time and event
    client: str | None
    text: str | None
    features: tuple[str, ...]


def column_roles(table: RawTable, named: NamedColumns, survival: bool = False) -> ColumnRoles:
    """Settle the columns: as named by the user, else by their usual names."""
    names = tuple(table.columns)
    for name in named:
        if name is not None and name not in names:
            raise unknown(f"column in {table.where}", one_line(name), map(one_line, names))
    labels: tuple[str, ...]
    if survival:
        labels = _time_and_event(names, table.where, named)
    else:
        labels = (named.label or _usual_label(names, table.where, named),)
    client = named.client
    if client is None:
        taken = (*labels, named.text, named.group, named.moment)
        usual = [n for n in names if n.lower() in CLIENT_NAMES and n not in taken]
        client = usual[0] if len(usual) == 1 else None
    features = tuple(n for n in names if n not in (*labels, client, named.group, named.moment))
    given = (*labels, client, named.text, named.group, named.moment)
    roles = [name for name in given if name is not None]
    if len(set(roles)) < len(roles):
        twice = next(name for name in roles if roles.count(name) > 1)
        raise BadInput(
            f"{table.where}: column {quoted(twice)} cannot be two of label, time, event, client, "
            "text, group and time of the split at once: name different columns"
        )
    if not features:
        raise BadInput(f"{table.where} has only the columns {listed(names)}: add a feature column")
    text = named.text
    if text is None and len(features) == 1 and features[0].lower() == "text":
        text = features[0]
    return ColumnRoles(labels, client, text, features)


def _usual_label(names: Sequence[str], where: str, named: NamedColumns) -> str:
    for usual in LABEL_NAMES:
        for name in names:
            if name.lower() == usual and name not in (named.client, named.text):
                return name
    raise BadInput(f"{where} has no label column among {listed(names)}: name it with --label")


def _time_and_event(names: Sequence[str], where: str, named: NamedColumns) -> tuple[str, str]:
    if named.label is not None:
        raise BadInput(
            f"--label {quoted(named.label)} beside a time and an event: for survival name these "
            "with --time-column and --event-column alone; else say --task classification or "
            "regression without them"
        )
    found = []
    for what, name in (("time", named.time), ("event", named.event)):
        usual = [n for n in names if n.lower() == what]
        if name is None and not usual:
            raise BadInput(
                f"{where} has no {what} column among {listed(names)}: name it with --{what}-column"
            )
        found.append(name or usual[0])
    return found[0], found[1]
