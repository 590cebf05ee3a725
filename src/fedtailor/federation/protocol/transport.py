"""What a coordinator needs of a carrier of messages, and how long it waits for whom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Annotated, NamedTuple, Protocol

from fedtailor.core.inputs.settings_file import setting
from fedtailor.core.options import Count, Whole
from fedtailor.federation.protocol.packet import Limits, Packet

Seconds = Annotated[float, (1e-6, 1e9), "seconds, above 0"]


class Answer(NamedTuple):
    """What came back from a place, or what became of the message."""

    place: int  # where it was sent
    packet: Packet | None  # the answer; None if there is none
    failure: str = ""  # why not
    down: int = 0  # bytes that the carrier added to the message
    up: int = 0  # bytes that it added to the answer


class Transport(Protocol):
    """Carries messages; Flower in earnest, a list of functions in tests."""

    def places(self) -> list[int]:
        """Where somebody is there now."""

    def ask(self, requests: Mapping[int, Packet], seconds: float) -> Iterator[Answer]:
        """Sends each place its own message and gives answers as they come.

        Until all have come or the time is over; the caller may stop listening at any moment.
        """


@dataclass(frozen=True, kw_only=True)
class MessageBounds:
    """The largest message that is taken, as a settings file says it."""

    max_bytes: Count = setting("bytes of a message", Limits().bytes)
    max_arrays: Count = setting("arrays of a message", Limits().arrays)

    @property
    def limits(self) -> Limits:
        """The same as packets have it."""
        return Limits(self.max_bytes, self.max_arrays)


@dataclass(frozen=True, kw_only=True)
class Rules(MessageBounds):
    """How long the coordinator waits for whom, and what it takes for garbage."""

    min_sites: Count = setting("a round with fewer answers is not counted, and played again", 2)
    deadline: Seconds = setting("for a round", 600.0)
    join: Seconds = setting("that a new site gets to say who it is; it is asked again later", 60.0)
    wait: Seconds = setting(
        "until all sites must be there, or have refused, at the beginning; others come later", 600.0
    )
    attempts: Count = setting(
        "how often a round is tried before the federation stops (it can be resumed)", 20
    )
    pause: Seconds = setting("between attempts", 5.0)
    again: Seconds = setting("until a place that was not admitted is asked again", 30.0)
    score_every: Whole = setting(
        "ask all sites for their model's score after every so many rounds; 0: never", 0
    )
    # at 0.5 none outweighs all others together; an honest site may well have most of the rows
    max_share: Annotated[float, (0.01, 1.0), "a share of all rows, from 0.01 to 1"] = setting(
        "the most of all training rows that one site's count as, whatever it announces", 0.8
    )
    # an upload with a larger number than this is garbage, though a finite one
    largest: Annotated[float, (1e-12, inf), "a number above 0"] = setting("of an upload", 1e12)
