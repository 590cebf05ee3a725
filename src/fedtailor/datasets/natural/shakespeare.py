"""Shakespeare's roles: which character comes next in what a role says.

Every role of the plays is a client, as in FedAvg (McMahan et al., 2017,
https://arxiv.org/abs/1602.05629) and LEAF (Caldas et al., 2018, https://arxiv.org/abs/1812.01097).
An example is 80 characters, its label the one that follows. The text is A. Karpathy's "tiny
Shakespeare", 40 000 lines of the plays (public domain).

What is ours:

- A role's speeches are joined, with a new line between them, and cut into blocks of 400 characters;
  windows begin every 10 characters and never leave their block. A block is wholly for training, for
  validation or for testing, so no two of these parts share a character. The earlier blocks train,
  the later ones test. (LEAF has a window for every character, and cuts the list of windows: those
  at the cut share up to 80 characters.)
- Roles of fewer than three blocks are left out, since they could not train, validate and test.
- The file does not say where a play ends: roles of the same name in two plays are one client.
- The classes are all characters of the text, as if all clients had agreed on an alphabet.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedtailor.core.errors import BadInput
from fedtailor.datasets.download import PublishedFile
from fedtailor.datasets.natural.published import PublishedData
from fedtailor.datasets.source import Source
from fedtailor.datasets.wording import listed, quoted, reason

WINDOW = 80  # characters that an example has
STRIDE = 10  # characters from the start of one window to the next
BLOCK = 400  # characters that are for training, for validation or for testing together
LEAST_BLOCKS = 3
NAMES = {"\n": "new line", " ": "space", "\t": "tab"}  # of characters that do not show


class TextWindow(NamedTuple):
    """An example: where it stands in its role's text, and what it says."""

    start: int
    text: str
    following: str  # the character after it

    @property
    def block(self) -> int:
        return self.start // BLOCK


def speeches_by_role(text: str, where: str) -> dict[str, str]:
    r"""What each role says, in the order of the text, one new line between speeches.

    Args:
      text: speeches with blank lines between them; each begins with a line `NAME:`.
      where: what messages call the text.

    Example:
      >>> speeches_by_role("All:\nSpeak.\n\nROMEO:\nAy me!\n\nAll:\nAway,\naway!\n", "a play")
      {'All': 'Speak.\nAway,\naway!', 'ROMEO': 'Ay me!'}
    """
    said: dict[str, list[str]] = {}
    speaker = None
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            speaker = None
        elif speaker is not None:
            said[speaker].append(line)
        else:
            name, colon, rest = line.rstrip().partition(":")
            if not colon or rest or not name.strip():
                raise BadInput(
                    f"{where} line {number} is {quoted(line, 40)}: a speech begins with a line "
                    "'NAME:' after an empty one"
                )
            speaker = name.strip()
            said.setdefault(speaker, [])
    return {name: "\n".join(lines) for name, lines in said.items()}


def windows_of(text: str) -> list[TextWindow]:
    """The examples of one role: none reaches over the end of its block.

    Example:
      >>> [(w.start, w.block) for w in windows_of("to be " * 84)][-4:]
      [(310, 0), (400, 1), (410, 1), (420, 1)]
    """
    found = []
    for begin in range(0, len(text), BLOCK):
        end = min(begin + BLOCK, len(text))
        for start in range(begin, end - WINDOW, STRIDE):
            stop = start + WINDOW
            found.append(TextWindow(start, text[start:stop], text[stop]))
    return found


def shakespeare(path: Path) -> Source:
    """The next character of each role that says enough."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{quoted(path)} is not utf-8 text ({reason(error)})") from error
    roles = speeches_by_role(text, quoted(path))
    examples = {name: windows_of(said) for name, said in sorted(roles.items())}
    kept = {n: w for n, w in examples.items() if len({e.block for e in w}) >= LEAST_BLOCKS}
    if not kept:
        raise BadInput(
            f"{quoted(path)} has no role of {LEAST_BLOCKS} blocks of {BLOCK} characters: "
            "give more of the plays"
        )
    silent = [name for name in roles if name not in kept]
    rows = [(at, window) for at, found in enumerate(kept.values()) for window in found]
    names = tuple(kept)
    alphabet = sorted({c for said in roles.values() for c in said})
    number = {c: i for i, c in enumerate(alphabet)}
    note = (
        f"shakespeare leaves out {len(silent)} of {len(roles)} roles, which have fewer than "
        f"{LEAST_BLOCKS} blocks of {BLOCK} characters: {listed(silent, 6)}"
    )
    return Source(
        "shakespeare",
        "text",
        tuple(window.text for _, window in rows),
        np.array([number[window.following] for _, window in rows], dtype=np.int64),
        tuple(NAMES.get(c, c) for c in alphabet),
        np.zeros(len(rows), dtype=np.bool_),
        names,
        np.array([at for at, _ in rows], dtype=np.int64),
        label="next character",
        groups=np.array([f"{names[at]}/{window.block}" for at, window in rows]),
        moments=np.array([window.start for _, window in rows], dtype=np.float64),
        notes=(note,) if silent else (),
        window=WINDOW,
    )


SHAKESPEARE = PublishedData(
    "shakespeare",
    ("tinyshakespeare",),
    (
        PublishedFile(
            "tinyshakespeare.txt",
            "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
            "6fb458f1232090904fb40fe944165e91",
            also=("input.txt",),
        ),
    ),
    shakespeare,
)
