"""A federation's rounds, whoever carries the messages.

The coordinator knows places (where a message can be sent) and clients (who answers there). It asks,
waits no longer than the deadline, checks what comes, names who failed and why, and goes on with the
others. The server's state changes only when a round is whole, and is on the disk right after.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fedtailor.core import rng, tree
from fedtailor.core.errors import BadInput
from fedtailor.core.method import Method
from fedtailor.core.tree import Tree
from fedtailor.core.turn import received
from fedtailor.core.uploads.watch import UploadWatch
from fedtailor.engine.cohort import draw_cohort
from fedtailor.engine.loops.runner import LoopRunner
from fedtailor.federation.coordinator.gather import Gathered
from fedtailor.federation.coordinator.membership import Membership, Responses
from fedtailor.federation.coordinator.store import CoordinatorStore, ServerCheckpoint, read_latest
from fedtailor.federation.protocol.lines import Line
from fedtailor.federation.protocol.messages import message_bytes, read_upload, to_arrays
from fedtailor.federation.protocol.packet import FINISH, SCORE, TRAIN, Packet
from fedtailor.federation.protocol.plan import (
    Setup,
    example_upload,
    first_server,
    goes_by_rounds,
    in_dtype,
    weighs_all_alike,
)
from fedtailor.federation.protocol.transport import Rules, Transport

log = logging.getLogger("fedtailor.coordinator")

SCORES = ("post_score", "post_loss", "pre_score", "pre_loss", "local_score", "gain_error")
COUNTS = ("n", "train", "val", "test")


class Stopped(Exception):
    """The federation stopped before its last round; it can go on from its checkpoint."""


class Coordinator:
    """Plays a federation; `watch` is called with each line of its history."""

    def __init__(
        self,
        setup: Setup,
        federation: str,
        store: CoordinatorStore,
        transport: Transport,
        rules: Rules = Rules(),
        watch: Callable[[Line], None] | None = None,
        *,
        keyed: bool = False,
        registered: Path | None = None,
    ) -> None:
        self.setup, self.store, self.rules, self.watch = setup, store, rules, watch
        self.members = Membership(
            setup.plan, federation, store, transport, rules, keyed, registered
        )
        # with signs that no site can know and hide from
        buffers = {name for _, task, _ in setup.players for name in task.buffers}
        self._watch = UploadWatch(buffers, secrets.randbits(64))
        self._loops = LoopRunner("plain", torch.device("cpu"))  # what a server trains may take long
        self._odd: set[int] = set()  # who has been said to stand out
        blank = first_server(setup, torch.ones(setup.plan.clients, dtype=torch.int64))
        self._by_network = {name: setup.of(int(ids[0])) for name, ids in setup.plan.models()}
        examples = {name: example_upload(own, blank) for name, own in self._by_network.items()}
        self._like = {name: {"mean": e.mean, "each": e.each} for name, e in examples.items()}
        self._alike = all(weighs_all_alike(example) for example in examples.values())
        found = store.load(blank)
        self.begun = found is not None
        nobody = [-1] * setup.plan.clients
        self.now = found or ServerCheckpoint(0, blank, nobody, [0] * setup.plan.clients)
        self.members.round = self.now.round
        if found:
            store.forget_after(found.round)
            self._say_if_rounds_changed()

    def _say_if_rounds_changed(self) -> None:
        """A line where the plan has another number of rounds than when it was last played."""
        before, rounds = (read_latest(self.store.folder) or {}).get("rounds"), self.store.rounds
        if before in (None, rounds):
            return
        told = f"{before} → {rounds}: goes on after round {self.now.round}"
        if goes_by_rounds(self.setup):
            told += (
                f"; {self.setup.plan.method} goes by the number of rounds, and those played so far "
                f"went by {before}: the result is not that of {rounds} at once"
            )
        self.members.event("all", "rounds", told)
        self.store.save(self.now)

    @property
    def one_by_one(self) -> bool:
        """Whether the server sees each site's upload; if not, a mean over them would do."""
        return any(bool(tree.leaves(like["each"])) for like in self._like.values())

    def _message(self, purpose: int, client: int) -> Tree:
        cid = torch.tensor(client)
        turn = self.setup.turn(purpose, self.now.round).of(cid)
        with torch.no_grad():
            return self._method(client).send(self.now.server, cid, turn)

    def _method(self, client: int) -> Method:
        return self._by_network[self.setup.plan.network_of(client)].method

    # --- playing ---

    def run(self) -> list[Line]:
        """Plays the rounds that are left, then lets every site finish; returns the history.

        Raises:
          Stopped: too few sites, or somebody asked for it.
        """
        with in_dtype(self.setup.plan.dtype):
            self._begin()
            while self.now.round < self.setup.plan.rounds:
                self._score()
                self._stop_if_asked()
                self.members.welcome()
                self._note(self._round())
            self._end()
        return self.store.history()

    def _note(self, line: Line) -> None:
        self.store.note(line)
        if self.watch:
            self.watch(line)

    def _stop_if_asked(self) -> None:
        if self.store.stop_asked:
            raise Stopped(f"stopped after round {self.now.round}: a stop file was found")

    def _begin(self) -> None:
        """Waits for the sites; who has said that it cannot join is waited for no longer."""
        begun, members, clients = time.monotonic(), self.members, self.setup.plan.clients
        least = min(self.rules.min_sites, clients)
        # those of a federation that goes on are about to come back, or away
        patience = min(self.rules.wait, self.rules.join) if self.begun else self.rules.wait
        while True:
            members.welcome()
            waited = time.monotonic() - begun
            waits = waited <= patience and not members.all_heard()
            if len(members.place) >= least and not waits:
                break
            if self.store.stop_asked:
                raise Stopped("stopped before the next round: a stop file was found")
            if waited > self.rules.wait:
                out = "; ".join(members.turned_away())
                cure = f" ({out}): mend that or start others" if out else ": start them"
                raise Stopped(
                    f"{len(members.place)} of {clients} sites are there, at least {least} are "
                    f"needed{cure}, then run again"
                )
            time.sleep(min(1.0, self.rules.pause))
        if self.begun:
            return
        counted = members.counted_rows()
        usual = max(1, round(sum(counted.values()) / len(counted)))
        sizes = [counted.get(i, usual) for i in range(clients)]  # late ones count as usual
        server = first_server(self.setup, torch.tensor(sizes))
        self.now = self.now._replace(server=server, sizes=sizes)
        self.store.save(self.now)
        self.begun = True
        seen = "one by one" if self.one_by_one else "as a mean"
        self.members.event("all", "began", f"{self.setup.plan.method} needs uploads {seen}")

    def _cohort(self, failed: set[int]) -> list[int]:
        """Who takes part: as the simulation draws.

        Who failed in this round is left out of further attempts as long as enough others are there.
        """
        plan = self.setup.plan
        everyone = torch.arange(plan.clients)
        left = torch.tensor([i for i in range(plan.clients) if i not in failed], dtype=torch.int64)
        eligible = left if len(left) >= max(1, self.rules.min_sites) else everyone
        share = float(plan.settings["participation"])
        return draw_cohort(plan.seed, self.now.round, eligible, share).tolist()

    def _round(self) -> Line:
        failed: dict[int, str] = {}
        short = False  # whether the method itself needs more answers
        for _ in range(self.rules.attempts):
            begun = time.monotonic()
            cohort = self._cohort(set() if short else set(failed))
            gathered = Gathered(
                cohort, lambda who: self._method(who).admit, self._watch, self.now.round + 1
            )
            counted = self.members.counted_rows()
            sent: dict[int, int] = {}

            def make(client: int, sent: dict[int, int] = sent) -> Packet:
                message = self._message(rng.TURN, client)
                sent[client] = message_bytes(message)
                said = self.members.header(
                    TRAIN, client=client, last=self.now.last[client], post=True
                )
                return Packet(said, to_arrays(message))

            def accept(
                client: int,
                packet: Packet,
                gathered: Gathered = gathered,
                counted: dict[int, int] = counted,
            ) -> None:
                _metrics(packet)
                rows = 1 if self._alike else self.members.sizes[client]
                like = self._like[self.setup.plan.network_of(client)]
                upload = read_upload(packet, like, self.rules.largest, rows)
                weight = upload.weight.clamp(max=counted[client])
                upload = upload._replace(weight=weight)
                gathered.add(client, upload, self._message(rng.TURN, client))

            responses = self.members.collect(cohort, TRAIN, make, accept)
            failed |= responses.failed
            came, least = len(responses.packets), min(self.rules.min_sites, len(cohort))
            enough = came >= least
            few = f"{came} of the {least} answers came that are needed"
            try:
                server = self._received(gathered) if enough else None
            except BadInput as error:  # e.g. Krum has its least cohort
                short, enough, server, few = True, False, None, str(error)
            if server is not None:
                return self._count(server, cohort, responses, gathered, sent, failed, begun)
            if enough:
                who = gathered.extreme()
                failed[who] = "its upload would make the server's state infinite, or cannot be used"
                self.members.event(self.members.name(who), "left out", failed[who])
                continue
            self.members.event("all", "round not counted", few)
            self._stop_if_asked()
            time.sleep(self.rules.pause)
            self.members.welcome()
        raise Stopped(
            f"round {self.now.round + 1}: too few sites in {self.rules.attempts} attempts "
            f"({'; '.join(f'{self.members.name(i)}: {why}' for i, why in sorted(failed.items()))})"
        )

    def _received(self, gathered: Gathered) -> Tree | None:
        """The server's state after a round; None if uploads make it overflow, or cannot be used."""
        turn = self.setup.turn(rng.TURN, self.now.round)
        try:
            ids, upload, _ = gathered.whole()
            with torch.no_grad(), self._loops.running_alone():
                server = received(self.setup.method, self.now.server, ids, upload, turn)
        except BadInput:
            raise
        except Exception:  # numbers of the right form may still be nonsense, such as indices
            log.exception("round %d: the server cannot take the uploads in", self.now.round + 1)
            return None
        return server if tree.finite(server) or not tree.finite(self.now.server) else None

    def _count(
        self,
        server: Tree,
        cohort: list[int],
        responses: Responses,
        gathered: Gathered,
        sent: dict[int, int],
        failed: dict[int, str],
        begun: float,
    ) -> Line:
        """Makes a round's new state the server's; returns what is to be noted of it."""
        ids, _, up = gathered.whole()
        taken = set(ids.tolist())
        last = [self.now.round if i in taken else was for i, was in enumerate(self.now.last)]
        self.now = ServerCheckpoint(self.now.round + 1, server, last, self.now.sizes)
        self.members.round = self.now.round
        self.store.save(self.now)
        looks = gathered.looks()
        self._say_who_stands_out(looks)
        return {
            "round": self.now.round,
            "cohort": cohort,
            "taken": sorted(taken),
            "failed": {
                self.members.name(i): why for i, why in sorted(failed.items()) if i not in taken
            },
            "bytes": {"up": up, "down": sum(sent.values())},
            "envelope": responses.envelope,
            "sites": {
                self.members.name(i): _metrics(p) for i, p in sorted(responses.packets.items())
            },
            "uploads": {self.members.name(i): look for i, look in looks.items()},
            "seconds": round(time.monotonic() - begun, 3),
        }

    def _say_who_stands_out(self, looks: dict[int, dict[str, Any]]) -> None:
        """A line for each site whose upload is unlike the others', the first time."""
        middle = sorted(look["norm"] for look in looks.values())[len(looks) // 2]
        for client, look in looks.items():
            if look["odd"] and client not in self._odd:
                self._odd.add(client)
                self.members.event(
                    self.members.name(client),
                    "stands out",
                    f"its upload moves {look['norm']:.3g} (the middle one {middle:.3g}) and is "
                    f"{look['distance']:.3g} from the others: look at its data, or use a robust "
                    "mean; it counts as it is",
                )

    def _score(self) -> None:
        """Asks for scores where they are due after the latest round.

        They are a line of their own: whoever is killed here has noted the round, and asks again
        when it goes on.
        """
        now, every = self.now.round, self.rules.score_every
        if not now or not every or now % every:
            return
        if any(line.get("round") == now and "scores" in line for line in self.store.history()):
            return
        scores, _ = self._everyone(SCORE)
        self._note({"round": now, "scores": scores})

    def _everyone(self, kind: str) -> tuple[dict[str, Any], dict[str, str]]:
        """What all sites say of the model that they would use now, and why others do not."""

        def make(client: int) -> Packet:
            said = self.members.header(kind, client=client, last=self.now.last[client])
            return Packet(said, to_arrays(self._message(rng.SCORE, client)))

        responses = self.members.collect(
            list(range(self.setup.plan.clients)), kind, make, lambda i, p: _metrics(p)
        )
        name = self.members.name
        told = {name(i): _metrics(p) for i, p in sorted(responses.packets.items())}
        return told, {name(i): why for i, why in sorted(responses.failed.items())}

    def _end(self) -> None:
        """Every site makes its model.

        Who is not there now gets it when the federation is run again.
        """
        done = self.store.history()
        last = done[-1] if done else {}
        all_told = last.get("finished", {}).keys() >= set(self.members.names.values())
        if all_told and not last.get("missing"):
            return
        plan, names = self.setup.plan, self.members.names
        has = {name: plan.network_of(i) for i, name in names.items()}
        having = {"networks": has} if plan.settings["models"] else {}
        told, missing = self._everyone(FINISH)
        self._note({"round": self.now.round, "finished": told, "missing": missing} | having)


def _metrics(packet: Packet) -> dict[str, Any]:
    """The agreed numbers of an answer, checked."""
    said = packet.header.keys()
    found: dict[str, Any] = {k: round(packet.real(k), 6) for k in SCORES if k in said}
    return found | {k: packet.number(k) for k in COUNTS if k in said}
