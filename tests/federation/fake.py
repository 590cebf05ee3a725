"""A transport within this process, whose places can misbehave in every way that real ones do."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fedtailor.core.errors import BadInput
from fedtailor.federation.coordinator.coordinator import Coordinator
from fedtailor.federation.coordinator.federation_file import read_federation
from fedtailor.federation.coordinator.store import EVENTS, CoordinatorStore, read_lines
from fedtailor.federation.protocol.packet import Packet, from_bytes, to_bytes
from fedtailor.federation.protocol.plan import set_up
from fedtailor.federation.protocol.transport import Answer, Rules
from fedtailor.federation.site.settings import read_settings
from fedtailor.federation.site.site import Site
from tests.federation.trial import Trial

Fault = Callable[[Packet, Callable[[Packet], Packet]], list[Packet | str] | None]


class FakeTransport:
    """Sites by place; `faults` decides what becomes of a message.

    A fault is given the request and the site, and returns answers (a text is a failure), or None
    to behave. `[]` is silence: the deadline passes.
    """

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.faults: dict[tuple[int, str, int], Fault] = {}
        self.trained: list[tuple[int, int]] = []
        self.gone: set[int] = set()
        self.restart()

    def restart(self) -> None:
        """All sites' processes end; what is on their disks stays."""
        self.sites = {10 + i: Site(read_settings(p)) for i, p in enumerate(self.trial.sites)}

    def places(self) -> list[int]:
        return [p for p in self.sites if p not in self.gone]

    def on(self, client: int, kind: str, round: int, fault: Fault) -> None:
        self.faults[(client + 10, kind, round)] = fault

    def ask(self, requests, seconds) -> Iterator[Answer]:
        for place, packet in requests.items():
            there = from_bytes(to_bytes(packet))
            kind, round = there.text("kind"), there.number("round")
            fault = self.faults.pop((place, kind, round), None)
            answers = fault(there, self.sites[place].answer) if fault else None
            if answers is None:
                answers = [self.sites[place].answer(there)]
            for answer in answers:
                if isinstance(answer, str):
                    yield Answer(place, None, answer)
                    continue
                try:
                    yield Answer(place, from_bytes(to_bytes(answer)))
                except BadInput as error:  # as the carrier does
                    yield Answer(place, None, str(error))


RULES = Rules(min_sites=2, deadline=5, join=1, wait=1, attempts=3, pause=0.01, again=0.0)


def coordinator(trial: Trial, transport: FakeTransport, rules: Rules = RULES) -> Coordinator:
    found = read_federation(trial.federation)
    plan = found.plan
    store = CoordinatorStore(found.folder, found.id, plan.fingerprint(), plan.rounds)
    return Coordinator(set_up(found.plan), found.id, store, transport, rules, keyed=found.keyed)


def said(coordinator):
    return " | ".join(
        f"{e['site']} {e['event']} {e.get('detail', '')}"
        for e in read_lines(coordinator.store.folder / EVENTS)
    )
