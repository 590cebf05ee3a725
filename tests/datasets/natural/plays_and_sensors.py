"""Small files in the form of the true ones, made here."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedtailor.datasets.natural.wisdm import ACTIVITIES, FILE, WISDM_FEATURES

LENGTHS = {"ROMEO": 1700, "JULIET": 1250, "First Citizen": 900, "Nurse": 300}
WORDS = ("love", "night", "sword", "the", "king", "fair", "o", "sweet", "my lord", "what")


def write_play(folder: Path, name: str = "tinyshakespeare.txt") -> Path:
    """Roles that speak in turn until each has said at least so many characters."""
    draw = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    speeches, left = [], dict(LENGTHS)
    while left:
        for role in list(left):
            lines = [" ".join(draw.choice(WORDS, 6)) + "," for _ in range(3)]
            speeches.append(f"{role}:\n" + "\n".join(lines))
            left[role] -= sum(map(len, lines))
            if left[role] < 0:
                del left[role]
    speeches.insert(3, "Page:")  # says nothing
    path = folder / name
    path.write_text("\n\n".join(speeches) + "\n\n")
    return path


USERS = {33: 12, 2: 20, 7: 9}  # rows of each, in the order of the file


def write_wisdm(folder: Path) -> Path:
    """As the lab publishes it: types left out, '?' where no peak was found, ids that repeat."""
    draw = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["@relation activity_recognition_labeled", "", '@attribute "UNIQUE_ID" numeric']
    lines += ['@attribute "user" ', *(f'@attribute "{n}" numeric' for n in WISDM_FEATURES)]
    lines += ["@attribute class", "", "@data"]
    for user, count in USERS.items():
        for i in range(count):
            cells = [f"{value:.2f}" for value in draw.normal(i % 3, 1, len(WISDM_FEATURES))]
            cells[WISDM_FEATURES.index("XAVG")] = "0"
            if i % 5 == 0:
                cells[WISDM_FEATURES.index("YPEAK")] = "?"
            lines.append(f"{i + 1},{user},{','.join(cells)},{ACTIVITIES[i % 3]}")
    path = folder / FILE
    path.write_text("\n".join(lines) + "\n")
    return path
