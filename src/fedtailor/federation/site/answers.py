"""What a site has answered, over all federations: a line each, on disk before anything is sent.

Lines are only ever added. They say what DP-SGD has spent on the site's rows, how often it took
part, and which plan of a federation its owner agreed to, whatever a coordinator claims and whatever
becomes of a federation's folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from math import fsum, inf
from pathlib import Path
from typing import NamedTuple

from fedtailor.core.inputs.plain_text import parse_json
from fedtailor.core.steps.privacy import Spent, epsilon
from fedtailor.federation.protocol.packet import JOIN, TRAIN
from fedtailor.federation.site.state import StateError
from fedtailor.results.lock import try_lock

ANSWERS = "answers.jsonl"


class SentAnswer(NamedTuple):
    """One answer that left the site."""

    federation: str
    plan: str  # its fingerprint, shortened
    kind: str  # of the request
    round: int
    request: str  # its digest, shortened
    scored: bool = False  # whether it told scores
    spent: Spent = Spent()  # noisy gradients that were taken for it
    noise: float = 0.0  # of DP-SGD
    delta: float = 0.0


_Group = tuple[str, float, float]  # federation, noise and δ


def _summed(groups: Mapping[_Group, Spent]) -> float:
    """ε of all groups, one after the other."""
    each = [epsilon(spent, noise, delta) for (_, noise, delta), spent in groups.items()]
    return fsum(each) if inf not in each else inf


class AnswerLog:
    """The answers of a site, in its folder, and their sums: no line is read twice."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / ANSWERS
        self._forget()

    def _forget(self) -> None:
        self._end = 0  # bytes of the file that are counted below
        self.lines = 0
        self.answers = 0  # of all kinds but joining
        self.rounds: set[tuple[str, str, int]] = set()  # played, with federation and plan
        self.pinned: dict[str, str] = {}  # the plan that each federation was joined with
        self.spent: dict[_Group, Spent] = {}
        # by federation, plan and kind: the latest round, its request, and the latest with scores
        self._newest: dict[tuple[str, str, str], tuple[int, str]] = {}
        self._scored: dict[tuple[str, str, str], int] = {}

    def _count(self, answer: SentAnswer) -> None:
        self.lines += 1
        whose = (answer.federation, answer.plan, answer.kind)
        if answer.kind == JOIN:
            self.pinned[answer.federation] = answer.plan
            return
        self.answers += 1
        if answer.kind == TRAIN:
            self.rounds.add((answer.federation, answer.plan, answer.round))
        if answer.round >= self._newest.get(whose, (-1, ""))[0]:
            self._newest[whose] = (answer.round, answer.request)
        if answer.scored:
            self._scored[whose] = max(answer.round, self._scored.get(whose, -1))
        if answer.spent.batches:
            group = (answer.federation, answer.noise, answer.delta)
            self.spent[group] = self.spent.get(group, Spent()).and_then(answer.spent)

    def newest(self, federation: str, plan: str, kind: str) -> tuple[int, str]:
        """The latest round of which a request of this kind was answered (-1: none), and which."""
        return self._newest.get((federation, plan, kind), (-1, ""))

    def last_scored(self, federation: str, plan: str, kind: str) -> int | None:
        """The latest round in which an answer of this kind told scores."""
        return self._scored.get((federation, plan, kind))

    def epsilon_in(self, federation: str) -> tuple[float, float]:
        """ε and δ of all answers in a federation, whatever plans it has had."""
        groups = {group: spent for group, spent in self.spent.items() if group[0] == federation}
        return _summed(groups), fsum(delta for _, _, delta in groups)

    def epsilon(self, more: SentAnswer | None = None) -> float:
        """ε of all answers, and of one more: the sum over federations and kinds of noise.

        Their δ add up, too.
        """
        groups = dict(self.spent)
        if more is not None and more.spent.batches:
            group = (more.federation, more.noise, more.delta)
            groups[group] = groups.get(group, Spent()).and_then(more.spent)
        return _summed(groups)

    # --- the file ---

    def refresh(self) -> None:
        """Counts lines that are new in the file; another process may have written some.

        Raises:
          StateError: the file is broken; what it says is needed to keep within limits.
        """
        try:
            size = self.path.stat().st_size if self.path.exists() else 0
            if size < self._end:  # another file
                self._forget()
            if size == self._end:
                return
            with self.path.open("rb") as file:
                file.seek(self._end)
                raw = file.read()
        except OSError as error:
            raise StateError(f"'{self.path}' cannot be read ({error}): put back a copy") from None
        whole, end, _ = raw.rpartition(b"\n")  # of a line that was cut off nothing was sent
        for line in whole.split(b"\n") if end else ():
            self._count(self._parsed(line))
        self._end += len(whole + end)

    def _parsed(self, line: bytes) -> SentAnswer:
        try:
            who, plan, kind, round, request, scored, spent, noise, delta = parse_json(line)
            own = Spent.of(spent)
            return SentAnswer(
                who, plan, kind, int(round), request, bool(scored), own, float(noise), float(delta)
            )
        except (ValueError, TypeError):
            raise StateError(
                f"'{self.path}' line {self.lines + 1} is broken: put back a copy"
            ) from None

    def add(self, answer: SentAnswer) -> None:
        """Adds a line; when this returns, it is on the disk.

        Raises:
          StateError: the disk would not take it.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            new = not self.path.exists()
            with self.path.open("ab") as file:
                if try_lock(file.fileno()) is False:
                    raise StateError(f"another process writes '{self.path}': end it")
                self.refresh()
                file.truncate(self._end)  # what a crash may have left of a line
                file.write(json.dumps(answer).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            if new:
                folder = os.open(self.path.parent, os.O_RDONLY)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)
        except OSError as error:
            raise StateError(
                f"the site's disk did not take '{self.path}' ({error.strerror}): make room there"
            ) from None
        self.refresh()
