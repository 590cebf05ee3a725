"""WISDM: what 36 people do, from the accelerometer of the phone in their pocket.

Activity prediction data set 1.1 of the Wireless Sensor Data Mining lab at Fordham University
(Kwapisz, Weiss and Moore, "Activity recognition using cell phone accelerometers", SensorKDD 2010).
A row is ten seconds of a user's walking, jogging, climbing, sitting or standing, in 43 numbers made
from 200 samples: how the values of each axis spread over ten bins, their mean, the time between
peaks, deviations, and the mean length of the acceleration. Windows do not overlap. Every user is a
client.

The file's column UNIQUE_ID is left out, as its owners do. Times between peaks are missing in some
rows. As published, XAVG is 0 in all rows and ZSTANDDEV repeats XSTANDDEV; both stay.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from fedtailor.core.errors import BadInput
from fedtailor.datasets.download import PublishedFile
from fedtailor.datasets.formats.cells import numbers
from fedtailor.datasets.natural.published import PublishedData
from fedtailor.datasets.source import Array, Source, Table
from fedtailor.datasets.wording import listed, quoted, reason

ACTIVITIES = ("Walking", "Jogging", "Upstairs", "Downstairs", "Sitting", "Standing")
WISDM_FEATURES = (
    *(f"{axis}{i}" for axis in "XYZ" for i in range(10)),
    *(f"{axis}{what}" for what in ("AVG", "PEAK", "ABSOLDEV", "STANDDEV") for axis in "XYZ"),
    "RESULTANT",
)
FILE = "WISDM_ar_v1.1_transformed.arff"
_ATTRIBUTE = re.compile(r"""@attribute\s+(?:"([^"]+)"|'([^']+)'|(\S+))""", re.IGNORECASE)


def read_arff(path: Path) -> tuple[list[str], list[int], list[list[str]]]:
    """The names of an ARFF file's attributes, and the line and the cells of each row.

    Types are passed over (WISDM's own file leaves some out), and so are quotes around cells.

    Raises:
      BadInput: it is no such file, or a row has more or fewer cells than there are attributes.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{quoted(path)} is not utf-8 text ({reason(error)})") from error
    names: list[str] = []
    places: list[int] = []
    rows: list[list[str]] = []
    inside = False
    for number, whole in enumerate(lines, start=1):
        line = whole.strip()
        if not line or line.startswith("%"):
            continue
        if inside:
            cells = [cell.strip() for cell in line.split(",")]
            if len(cells) != len(names):
                raise BadInput(
                    f"{quoted(path)} line {number} has {len(cells)} fields, not {len(names)}: "
                    "fetch the file again"
                )
            places.append(number)
            rows.append(cells)
        elif line.lower() == "@data":
            inside = True
        elif found := _ATTRIBUTE.match(line):
            names.append(next(filter(None, found.groups())))
    if not names or not rows:
        raise BadInput(f"{quoted(path)} has no rows after '@data': fetch the file again")
    return names, places, rows


def wisdm(path: Path) -> Source:
    """What a user does: 5,418 times ten seconds, of 36 users."""
    names, places, rows = read_arff(path)
    absent = [n for n in ("user", "class", *WISDM_FEATURES) if n not in names]
    if absent:
        raise BadInput(
            f"{quoted(path)} lacks the attributes {listed(absent)}: fetch the file again"
        )

    def cells(name: str) -> list[str]:
        at = names.index(name)
        return [row[at] for row in rows]

    def odd(row: int, name: str) -> BadInput:
        value = quoted(cells(name)[row], 30)
        return BadInput(f"{quoted(path)} line {places[row]} has {value} as {name}: mend it")

    columns: dict[str, Array] = {}
    for name in WISDM_FEATURES:
        found = numbers(cells(name))
        if isinstance(found, int):
            raise odd(found, name)
        columns[name] = found
    users, done = cells("user"), cells("class")
    for row, (user, activity) in enumerate(zip(users, done, strict=True)):
        if not re.fullmatch(r"\d{1,6}", user):
            raise odd(row, "user")
        if activity not in ACTIVITIES:
            raise odd(row, "class")
    known = sorted({int(user) for user in users})
    return Source(
        "wisdm",
        "table",
        Table(columns),
        np.array([ACTIVITIES.index(activity) for activity in done], dtype=np.int64),
        ACTIVITIES,
        np.zeros(len(rows), dtype=np.bool_),
        tuple(f"user-{user:02d}" for user in known),
        np.searchsorted(known, [int(user) for user in users]).astype(np.int64),
        label="class",
    )


WISDM = PublishedData(
    "wisdm",
    ("wisdmarv1.1", "wisdmarlatest"),
    (
        PublishedFile(
            FILE,
            "https://www.cis.fordham.edu/wisdm/includes/datasets/latest/WISDM_ar_latest.tar.gz",
            "fcfb48d764d737bbadf26cb443d7443a",
            packed=True,
        ),
    ),
    wisdm,
)
