"""What a coordinator needs of a carrier of messages, and how long it waits for whom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from fedtailor.federation.protocol.packet import Limits, Packet


class Answer(NamedTuple):
    """What came back from a place, or what became of the message.

    Attributes:
      place: where it was sent.
      packet: the answer; None if there is none.
      failure: why not.
      down: bytes that the carrier added to the message.
      up: bytes that it added to the answer.
    """

    place: int
    packet: Packet | None
    failure: str = ""
    down: int = 0
    up: int = 0


class Post(Protocol):
    """Carries messages; Flower in earnest, a list of functions in tests."""

    def places(self) -> list[int]:
        """Where somebody is there now."""

    def ask(self, requests: Mapping[int, Packet], seconds: float) -> Iterator[Answer]:
        """Sends each place its own message and gives answers as they come, until all have come or
        the time is over; the caller may stop listening at any moment."""


class Rules(NamedTuple):
    """How long to wait for whom.

    Attributes:
      min_sites: a round with fewer answers is not counted, and played again.
      deadline: seconds for a round.
      join: seconds that a new site gets to say who it is; it is asked again later.
      wait: seconds until all sites must be there at the beginning; who is not comes later.
      attempts: how often a round is tried before the federation stops (it can be resumed).
      pause: seconds between attempts.
      again: seconds until a place that was not admitted is asked again.
      score_every: ask all sites for their model's score after every so many rounds; 0: never.
      largest: an upload with a larger number than this is garbage, though a finite one.
      limits: of an upload.
    """

    min_sites: int = 2
    deadline: float = 600.0
    join: float = 60.0
    wait: float = 600.0
    attempts: int = 20
    pause: float = 5.0
    again: float = 30.0
    score_every: int = 0
    largest: float = 1e12
    limits: Limits = Limits()
