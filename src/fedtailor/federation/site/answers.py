"""What a site has answered, over all federations: a line each, on disk before anything is sent.

Lines are only ever added. They say what DP-SGD has spent on the site's rows, and how often it took
part, whatever a coordinator claims and whatever becomes of a federation's folder.
"""

from __future__ import annotations

import json
import os
from math import fsum, inf
from pathlib import Path
from typing import NamedTuple

from fedtailor.core.steps.privacy import Spent, epsilon
from fedtailor.federation.site.state import StateError

ANSWERS = "answers.jsonl"


class SentAnswer(NamedTuple):
    """One answer that left the site."""

    federation: str
    kind: str  # of the request
    round: int
    request: str  # its digest
    spent: Spent = Spent()  # noisy gradients that were taken for it
    noise: float = 0.0  # of DP-SGD
    delta: float = 0.0


class AnswerLog:
    """The answers of a site, in its folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / ANSWERS

    def read(self) -> list[SentAnswer]:
        """All answers so far.

        Raises:
          StateError: the file is broken; what it says is needed to keep within limits.
        """
        try:
            raw = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise StateError(f"'{self.path}' cannot be read ({error}): put back a copy") from None
        found = []
        # of a line that was cut off nothing was sent
        for number, line in enumerate(raw.split("\n")[:-1], 1):
            try:
                who, kind, round, request, spent, noise, delta = json.loads(line)
                found.append(
                    SentAnswer(who, kind, int(round), request, Spent.of(spent), noise, delta)
                )
            except (ValueError, TypeError):
                raise StateError(
                    f"'{self.path}' line {number} is broken: put back a copy"
                ) from None
        return found

    def add(self, answer: SentAnswer) -> None:
        """Adds a line; when this returns, it is on the disk.

        Raises:
          StateError: the disk would not take it.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.touch()
            with self.path.open("r+b") as file:
                before, end, _ = file.read().rpartition(b"\n")
                file.seek(len(before + end))  # over what a crash may have cut off
                file.truncate()
                file.write(json.dumps(answer).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StateError(
                f"the site's disk did not take '{self.path}' ({error.strerror}): make room there"
            ) from None


def spent_in(answers: list[SentAnswer], federation: str) -> Spent:
    """What noisy gradients were taken for a federation."""
    total = Spent()
    for answer in answers:
        if answer.federation == federation:
            total = total.and_then(answer.spent)
    return total


def epsilon_of(answers: list[SentAnswer]) -> float:
    """ε of all answers together: the sum over federations and kinds of noise (their δ add up too).

    Example:
      >>> one = SentAnswer("wards", "train", 0, "", Spent(10, 1, 0.1), noise=1.0, delta=1e-5)
      >>> both = epsilon_of([one, one._replace(federation="beds")])
      >>> both == 2 * epsilon_of([one]), epsilon_of([])
      (True, 0.0)
    """
    groups = {(a.federation, a.noise, a.delta) for a in answers if a.spent.batches}
    each = []
    for federation, noise, delta in groups:
        same = [a for a in answers if (a.noise, a.delta) == (noise, delta)]
        each.append(epsilon(spent_in(same, federation), noise, delta))
    return fsum(each) if inf not in each else inf
