"""Flower as the carrier of a coordinator's messages, with a deadline that holds.

Flower's own waiting may last minutes longer than it was told: fetching an answer whose sender died
in the middle of the upload blocks until the upload's session ends. So every push and every fetch of
a single message runs in a thread of its own, and whoever is stuck is left behind.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

from fedtailor.core import __version__
from fedtailor.core.errors import BadInput
from fedtailor.federation.protocol.packet import (
    Limits,
    Packet,
    envelope_bytes,
    from_records,
    to_records,
)
from fedtailor.federation.protocol.transport import Answer

log = logging.getLogger("fedtailor.coordinator")

POLL = 0.5  # seconds between two looks for the same answer, and as much more
PER_MESSAGE = 0.1  # for each message under way: every look costs the SuperLink work
STUCK = 2.0  # a call that lasts longer no longer counts among those that go on at a time
AT_ONCE = 4
BUSY = (1.0, 2.0, 5.0, 10.0)  # seconds until a SuperLink that failed is asked again
CANNOT_LOAD = 1  # Flower's code
OTHER_VERSION = (
    f"cannot load FedTailor's app: install FedTailor {__version__} there, as here, and start its "
    "node again"
)
_TYPES = {
    "survey": "query", "join": "query", "train": "train", "score": "evaluate", "finish": "evaluate",
}  # fmt: skip


def _is_busy(error: httpx.HTTPStatusError) -> bool:
    """Whether the SuperLink failed, as it does while its database is busy, and did not refuse."""
    return error.response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR


# calls that came back: place, and the message's id, or an answer, or nothing yet, or an error
_Calls = SimpleQueue[tuple[int, Any]]


@dataclass
class _Flight:
    """A message under way."""

    message: Message | None
    down: int
    id: str = ""
    since: float | None = None  # when the call that is running now was begun
    due: float = 0.0


class FlowerTransport:
    """Sends packets to Flower's nodes, and takes answers within limits."""

    def __init__(self, grid: Grid, limits: Limits = Limits()) -> None:
        self.grid, self.limits = grid, limits

    def places(self) -> list[int]:
        """Nodes that are connected now."""
        for pause in BUSY:
            try:
                return sorted(int(node) for node in self.grid.get_node_ids())
            except httpx.HTTPStatusError as error:
                if not _is_busy(error):
                    raise
                log.warning("the SuperLink is busy: asked again in %g s", pause)
                time.sleep(pause)
        return sorted(int(node) for node in self.grid.get_node_ids())

    def ask(self, requests: Mapping[int, Packet], seconds: float) -> Iterator[Answer]:
        """Sends each node its message; gives answers as they come, until the time is over."""
        until = time.monotonic() + seconds
        flights = {}
        for place, packet in requests.items():
            records = to_records(packet)
            message = Message(
                records,
                dst_node_id=place,
                message_type=_TYPES[packet.text("kind")],
                group_id=str(packet.header.get("round", "")),
                ttl=max(seconds, 1.0),
            )
            flights[place] = _Flight(message, envelope_bytes(records, packet))
        done: _Calls = SimpleQueue()
        while flights and (now := time.monotonic()) < until:
            self._start_calls(flights, done, now)
            try:
                place, found = done.get(timeout=max(min(_next_look(flights, now), until - now), 0))
            except Empty:
                continue
            flight = flights[place]
            flight.since = None
            flight.due = time.monotonic() + POLL + PER_MESSAGE * len(flights)
            if isinstance(found, str) and found:
                flight.id, flight.message = found, None
            elif isinstance(found, Exception):
                del flights[place]
                yield _no_answer(place, f"Flower: {type(found).__name__}: {found}", flight)
            elif isinstance(found, Message):
                del flights[place]
                yield self._read(place, found, flight)

    def _start_calls(self, flights: dict[int, _Flight], done: _Calls, now: float) -> None:
        running = sum(f.since is not None and now - f.since < STUCK for f in flights.values())
        for place, flight in sorted(flights.items(), key=lambda item: item[1].due):
            if running >= AT_ONCE:
                return
            if flight.since is None and now >= flight.due:
                flight.since = now
                running += 1
                threading.Thread(
                    target=self._call, args=(place, flight.message, flight.id, done), daemon=True
                ).start()

    def _call(self, place: int, message: Message | None, id: str, done: _Calls) -> None:
        """Sends the message, or looks for its answer."""
        try:
            if message is not None:
                ids = list(self.grid.push_messages([message]))
                failed = RuntimeError("the message could not be sent: the node may be gone")
                done.put((place, ids[0] if ids and ids[0] else failed))
                return
            # an error comes from the SuperLink, not from the node: told by what it replies to
            for reply in self.grid.pull_messages([id]):
                if reply.metadata.reply_to_message_id == id:
                    done.put((place, reply))
                    return
            done.put((place, None))
        except httpx.HTTPStatusError as error:
            # its database was busy: it may have taken the message, and a site answers it once
            done.put((place, None if _is_busy(error) else error))
        except Exception as error:  # whatever the carrier raises concerns this message alone
            done.put((place, error))

    def _read(self, place: int, reply: Message, flight: _Flight) -> Answer:
        try:
            if reply.has_error():
                reason = f"Flower: {reply.error.reason} (code {reply.error.code})"
                if reply.error.code == CANNOT_LOAD:
                    reason = OTHER_VERSION
                return _no_answer(place, reason, flight)
            packet = from_records(reply.content, self.limits)
            return Answer(place, packet, "", flight.down, envelope_bytes(reply.content, packet))
        except BadInput as error:
            return _no_answer(place, str(error), flight)
        except Exception as error:  # whatever one node sends must not end the others' round
            log.exception("the answer of place %d cannot be read", place)
            reason = f"its answer cannot be read ({type(error).__name__}: {error})"
            return _no_answer(place, reason, flight)


def _next_look(flights: dict[int, _Flight], now: float) -> float:
    """Seconds until an answer may be looked for again; calls that are stuck need a look, too."""
    return min([0.1, *(f.due - now for f in flights.values() if f.since is None and f.due > now)])


def _no_answer(place: int, reason: str, flight: _Flight) -> Answer:
    return Answer(place, None, " ".join(reason.split())[:300], flight.down)
