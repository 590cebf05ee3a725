"""Who is where, and whether what comes from there is an answer to what was asked."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedtailor.core import __version__
from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.plain_text import check_name, printable
from fedtailor.federation.coordinator.owners import NumberOwners
from fedtailor.federation.coordinator.store import (
    FAILED_IN,
    NO_ANSWER,
    NOT_ADMITTED,
    CoordinatorStore,
)
from fedtailor.federation.protocol.packet import JOIN, PROTOCOL, Header, Packet
from fedtailor.federation.protocol.plan import TrainingPlan
from fedtailor.federation.protocol.transport import Answer, Rules, Transport

log = logging.getLogger("fedtailor.coordinator")

LONGEST_REASON = 500


def capped_rows(rows: Mapping[int, int], share: float) -> dict[int, int]:
    """Rows that count for each: none has more than this share of them all, if that can be.

    Whoever has more is lowered to t = share (rest + m t), m being how many are lowered.

    Example:
      >>> capped_rows({0: 10, 1: 10**9, 2: 10}, 0.8), capped_rows({0: 10, 1: 30}, 0.8)
      ({0: 10, 1: 80, 2: 10}, {0: 10, 1: 30})
    """
    sizes = sorted(rows.values(), reverse=True)
    for lowered, largest in enumerate(sizes):
        if share * lowered >= 1:
            break
        most = share * sum(sizes[lowered:]) / (1 - share * lowered)
        if largest <= most:
            return {client: min(n, int(most + 1e-9)) for client, n in rows.items()}
    # fewer sites than 1 / share: all count alike
    return dict.fromkeys(rows, min(sizes, default=0))


class Responses(NamedTuple):
    """A round's answers."""

    packets: dict[int, Packet]  # by client
    failed: dict[int, str]  # why the others of the cohort are missing
    envelope: dict[str, int]  # bytes around messages and answers


class _NotAdmitted(NamedTuple):
    """A place that cannot take part."""

    who: str  # the name that it gives itself, or its place
    client: int  # the number that it gives itself; -1 if it has none, or another's
    why: str
    again: float  # when it is asked again


class LateAnswer(BadInput):
    """An answer to an older message; the right one may still come."""


class Membership:
    """The sites of a federation, as the coordinator knows them."""

    def __init__(
        self,
        plan: TrainingPlan,
        federation: str,
        store: CoordinatorStore,
        transport: Transport,
        rules: Rules,
        keyed: bool = False,
        registered: Path | None = None,
    ) -> None:
        """`keyed`, `registered`: a place stands for a node's key, see `NumberOwners`."""
        self.owners = NumberOwners(store.folder, keyed=keyed, registered=registered)
        self.plan, self.federation, self.store = plan, federation, store
        self.transport, self.rules = transport, rules
        self.fingerprint = plan.fingerprint()
        self.round = 0  # the one that is played now, from 0
        self.place: dict[int, int] = {}  # client -> where it is
        self.names: dict[int, str] = {}
        self.sizes: dict[int, int] = {}
        self._lowered: dict[int, int] = {}  # rows that count, where that was said
        self._suspect: set[int] = set()  # clients whose latest message failed
        self._out: dict[int, _NotAdmitted] = {}  # by place
        self._silent: set[int] = set()  # places of which it was said that they do not answer

    def name(self, client: int) -> str:
        """What people call a client."""
        told = {out.client: out.who for out in self._out.values()} | self.names
        return told.get(client, f"client {client}")

    def all_heard(self) -> bool:
        """Whether every site is there or has said why it cannot join."""
        out = set(self._out).intersection(self.transport.places()) - set(self.place.values())
        return len(self.place) + len(out) >= self.plan.clients

    def turned_away(self) -> list[str]:
        """Who is there and cannot join, and why."""
        here = set(self.transport.places())
        return [f"{out.who}: {out.why}" for place, out in self._out.items() if place in here]

    def event(self, who: str, what: str, detail: str = "") -> None:
        """Writes down what happened to whom."""
        log.warning("round %d: %s: %s %s", self.round + 1, who, what, detail)
        self.store.event(self.round + 1, who, what, detail)

    def header(self, kind: str, **more: Any) -> Header:
        """What every message says of itself."""
        said: Header = {
            "protocol": PROTOCOL,
            "version": __version__,
            "federation": self.federation,
            "plan": self.fingerprint,
            "kind": kind,
            "round": self.round,
            "seed": self.plan.seed,
        }
        return said | more

    def welcome(self) -> None:
        """Asks places that nobody is known at who they are, if somebody is missing."""
        self.place = {c: p for c, p in self.place.items() if self.owners.is_held(c, p)}
        if len(self.place) == self.plan.clients and not self._suspect:
            return
        known, now = set(self.place.values()), time.monotonic()
        asked = [p for p in self.transport.places() if p not in known]
        asked = [p for p in asked if p not in self._out or now >= self._out[p].again]
        if not asked:
            return
        header = self.header(JOIN, text=self.plan.text())
        silent = set(asked)
        for answer in self.transport.ask({p: Packet(header, {}) for p in asked}, self.rules.join):
            silent.discard(answer.place)
            try:
                self._admit(answer)
            except Exception as error:  # whatever it says ends nobody else's federation
                before = self._out.pop(answer.place, None)
                client, who = self._claimed(answer)
                again = time.monotonic() + self.rules.again
                now_out = _NotAdmitted(who, client, _reason(error), again)
                self._out[answer.place] = now_out
                if before is None or before[:3] != now_out[:3]:  # said once
                    self.event(who, NOT_ADMITTED, now_out.why)
            if len(self.place) == self.plan.clients and not self._suspect:
                return
        for place in sorted(silent - self._silent):
            _, who = self._claimed(Answer(place, None))
            self.event(who, NO_ANSWER, f"in {self.rules.join:g} s: its own log may say why")
        self._silent = (self._silent - set(asked)) | silent

    def _claimed(self, answer: Answer) -> tuple[int, str]:
        """The number and name that a place gives itself, or -1 and its place if not its own.

        Nobody is told to have failed because a stranger says so in its name.
        """
        for client, (place, name) in self.owners.read().items():
            if place == answer.place:  # its key says who it is, whatever it says itself
                return client, name
        nobody = (-1, self.owners.name_of(answer.place) or f"place {answer.place}")
        if answer.packet is None:
            return nobody
        try:
            client = answer.packet.number("client")
            name = check_name(answer.packet.text("name")[:80], "site")
            self.owners.check(client, answer.place)
        except BadInput:
            return nobody
        others = (other for other in range(self.plan.clients) if other != client)
        known = client in self.place or client in {out.client for out in self._out.values()}
        if known or not name or any(self.name(other) == name for other in others):
            return nobody
        return (client, name) if 0 <= client < self.plan.clients else (-1, name)

    def _admit(self, answer: Answer) -> None:
        packet = self._signed(answer, JOIN)
        client, rows = packet.number("client"), packet.number("n")
        if not 0 <= client < self.plan.clients:
            raise BadInput(f"says it is client {client} of {self.plan.clients}")
        if rows < 1:
            raise BadInput(f"client {client} has {rows} training rows")
        self.owners.check(client, answer.place)
        old = self.place.get(client)
        if old is not None and old in self.transport.places() and client not in self._suspect:
            raise BadInput(f"says it is client {client}, which place {old} is already")
        name = check_name(packet.text("name")[:80], "site")
        # whoever reads the history knows sites by their names alone
        for other in range(self.plan.clients):
            if other != client and self.names.get(other, f"client {other}") == name:
                raise BadInput(
                    f"client {client} has the name '{name}' of client {other}: give it another "
                    "one in its site file"
                )
        self.owners.note(client, answer.place, name)
        self.names[client] = name
        self.place[client] = answer.place
        self._suspect.discard(client)
        # who said it was this one, and was not let in, has its place for a name from now on
        self._out = {
            place: out._replace(who=f"place {place}", client=-1)
            if client == out.client or name == out.who
            else out
            for place, out in self._out.items()
            if place != answer.place
        }
        self.sizes[client] = rows
        self.event(self.name(client), "joined", f"{rows} training rows")

    def counted_rows(self) -> dict[int, int]:
        """Training rows of each site, none above `max_share` of all; who has less is told once."""
        share = self.rules.max_share
        found = capped_rows(self.sizes, share)
        for client, rows in found.items():
            if rows < self.sizes[client] and self._lowered.get(client) != rows:
                self._lowered[client] = rows
                said = f"{self.sizes[client]} training rows are more than max_share = {share:g}"
                self.event(self.name(client), "counts for less", f"{said} of all: {rows} count")
        return found

    def _signed(self, answer: Answer, kind: str) -> Packet:
        """The packet of an answer, if it is one of this federation, version, plan and round."""
        packet = answer.packet
        if packet is None:
            raise BadInput(answer.failure or "no answer")
        if packet.header.get("protocol") != PROTOCOL:
            raise BadInput(f"speaks protocol {packet.header.get('protocol')!r}, not {PROTOCOL}")
        if packet.header.get("version") != __version__:
            raise BadInput(f"runs version {packet.header.get('version')!r}, not {__version__}")
        if packet.header.get("status") == "error":
            said = f"{packet.header.get('code', '?')}: {packet.header.get('detail', '')}"
            raise BadInput(said)
        for name, expected in (
            ("federation", self.federation),
            ("plan", self.fingerprint),
            ("kind", kind),
            ("round", self.round),
        ):
            found = packet.header.get(name)
            if found != expected:
                if name == "round" and isinstance(found, int) and found < self.round:
                    raise LateAnswer(f"late answer of round {found + 1}")
                raise BadInput(f"another {name}: {found!r}"[:80])
        return packet

    # --- asking ---

    def collect(
        self,
        ids: list[int],
        kind: str,
        make: Callable[[int], Packet],
        accept: Callable[[int, Packet], object],
    ) -> Responses:
        """Asks clients and hands what is sound to `accept`, which may still refuse it."""
        here = set(self.transport.places())
        responses = Responses({}, {}, {"down": 0, "up": 0})
        for i in ids:
            if self.place.get(i) not in here:
                why = (o.why for p, o in self._out.items() if o.client == i and p in here)
                responses.failed[i] = next((f"{NOT_ADMITTED}: {w}" for w in why), "not connected")
                self.place.pop(i, None)
        requests = {self.place[i]: make(i) for i in ids if i not in responses.failed}
        who = {self.place[i]: i for i in ids if i not in responses.failed}
        for answer in self.transport.ask(requests, self.rules.deadline) if requests else ():
            client = who.get(answer.place)
            if client is None:
                self.event(f"place {answer.place}", "was not asked", "its answer is ignored")
                continue
            responses.envelope["down"] += answer.down
            responses.envelope["up"] += answer.up
            if client in responses.packets:
                self.event(self.name(client), "answered twice", "the first answer counts")
                continue
            try:
                packet = self._signed(answer, kind)
                if packet.number("client") != client:
                    raise BadInput(f"says it is client {packet.number('client')}, not {client}")
                accept(client, packet)
            except LateAnswer as error:
                self.event(self.name(client), "late", f"{error}: ignored")
                continue
            except Exception as error:  # any: it is this site's failure, not the round's
                responses.failed[client] = _reason(error)
                continue
            responses.failed.pop(client, None)
            responses.packets[client] = packet
            if len(responses.packets) == len(requests):
                break
        for client in who.values():
            if client not in responses.packets:
                responses.failed.setdefault(client, f"no answer in {self.rules.deadline:g} s")
        for client, reason in sorted(responses.failed.items()):
            self.event(self.name(client), f"{FAILED_IN} {kind}", reason)
            self._suspect.add(client)
            if reason.startswith("plan:"):  # it lost what it knew: it has to join again
                self.place.pop(client, None)
        self._suspect -= set(responses.packets)
        return responses


def _reason(error: Exception) -> str:
    """Why a site's answer does not count: one line, since sites' own words may be in it."""
    if isinstance(error, BadInput):
        return printable(" ".join(str(error).split()))[:LONGEST_REASON]
    log.error("a site's answer cannot be handled", exc_info=error)
    return f"its answer cannot be handled ({type(error).__name__})"
