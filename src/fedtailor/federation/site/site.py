"""What a site does with a message. It knows the seven functions of a method, and no method."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from fedtailor.core import __version__, rng, tree
from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.files import write_atomically
from fedtailor.core.method import Model
from fedtailor.core.tree import Tree
from fedtailor.core.turn import ClientTurn, predict_general
from fedtailor.engine.loops.torch_internals import one_client
from fedtailor.federation.protocol.messages import (
    from_arrays,
    like_of,
    ordered_like,
    unknown_parts,
    upload_arrays,
)
from fedtailor.federation.protocol.packet import (
    FINISH,
    JOIN,
    KINDS,
    PROTOCOL,
    SCORE,
    SURVEY,
    TRAIN,
    Header,
    Packet,
    checked_id,
    digest,
    refusal,
)
from fedtailor.federation.protocol.plan import (
    Setup,
    in_dtype,
    read_plan,
    require_version,
    set_up,
    try_message,
)
from fedtailor.federation.site.guard import Guard, Refused
from fedtailor.federation.site.limits import BASELINE, ERROR
from fedtailor.federation.site.local_data import (
    LacksColumns,
    LocalData,
    load_local_data,
    survey_site,
)
from fedtailor.federation.site.model_card import OwnPart, write_model
from fedtailor.federation.site.plan_check import rows_of_rarest_class
from fedtailor.federation.site.scoring import SiteScore, score_model
from fedtailor.federation.site.settings import SiteSettings
from fedtailor.federation.site.state import FEDERATIONS, PLAN, SavedState, SiteStore, StateError
from fedtailor.runs.build import prove_private

log = logging.getLogger("fedtailor.site")


class _Joined(NamedTuple):
    """What a site needs for one federation; made once, kept while its process lives."""

    setup: Setup
    local: LocalData
    store: SiteStore


class Site:
    """One site, with its data."""

    def __init__(self, settings: SiteSettings) -> None:
        self.settings = settings
        self.guard = Guard(settings)
        self._joined: dict[tuple[str, str], _Joined] = {}

    def answer(self, packet: Packet) -> Packet:
        """The answer to a message; a fault is an answer too, and changes nothing here."""
        try:
            return self._answer(packet)
        except (Refused, StateError) as error:
            code, detail = error.code, str(error)
        except BadInput as error:
            code, detail = "message", str(error)
        except MemoryError:
            code, detail = "memory", "the site ran out of memory"
        except Exception as error:  # whatever happens here, the federation must hear of it
            log.exception("the site failed")
            # no more than the kind of fault: its text may quote the site's data
            code, detail = "failed", f"{type(error).__name__}: the site's log says more"
        log.error("refused (%s): %s", code, detail)
        signed = self._signature(packet) | {"name": self.settings.name}
        return refusal(code, self._without_paths(detail), **signed)

    def _without_paths(self, text: str) -> str:
        """The text without the names of this machine's folders, which are nobody's business."""
        for folder in (self.settings.folder, self.settings.path.parent):
            text = text.replace(str(folder), "...")
        return text

    def _signature(self, packet: Packet) -> Header:
        """What every answer says of itself."""
        asked = ("kind", "federation", "plan", "round")
        kept = {k: packet.header[k] for k in asked if k in packet.header}
        own: Header = {"protocol": PROTOCOL, "version": __version__}
        return own | {"client": self.settings.client} | kept

    def _answer(self, packet: Packet) -> Packet:
        try:
            require_version(packet.header.get("protocol"), packet.header.get("version"))
        except BadInput as error:
            raise Refused("version", str(error)) from None
        self.guard.require_unpaused()
        kind = packet.text("kind")
        federation, fingerprint = checked_id(packet.text("federation")), packet.text("plan")
        acts: dict[str, Callable[[Packet, _Joined], Packet]] = {
            TRAIN: self._train,
            SCORE: self._score,
            FINISH: self._finish,
        }
        if kind == SURVEY:
            return self._survey(packet)
        if kind == JOIN:
            return self._join(packet, federation, fingerprint)
        if kind not in acts:
            raise BadInput(f"header: kind is '{kind}', expected one of {', '.join(KINDS)}")
        self.guard.require_pin(federation, fingerprint)
        joined = self._find(federation, fingerprint)
        if packet.number("client") != self.settings.client:
            raise BadInput(
                f"header: the message is for client {packet.number('client')}, "
                f"this is {self.settings.client}"
            )
        with in_dtype(joined.setup.plan.dtype), torch.no_grad(), one_client():
            return acts[kind](packet, joined)

    # --- joining ---

    def _survey(self, packet: Packet) -> Packet:
        """What preprocessing is made of, before anything is agreed on."""
        self.guard.require_survey(packet)
        try:
            told = survey_site(self.settings)
        except BadInput as error:
            raise self._unusable(error) from None
        self.guard.note_survey(packet)
        log.info("told of its columns: %s", told.text())
        said: Header = {"status": "ok", "name": self.settings.name, "text": told.text()}
        return Packet(self._signature(packet) | said, {})

    def _unusable(self, error: BadInput) -> Refused:
        """The refusal of a site whose data cannot be used."""
        log.error("%s", error)
        if isinstance(error, LacksColumns):
            return Refused("data", str(error))
        # what the error quotes may be data, and data stay here
        return Refused("data", "its data cannot be used: the site's log says why")

    def _join(self, packet: Packet, federation: str, fingerprint: str) -> Packet:
        text = packet.text("text")
        pinned = self.guard.require_pin(federation, fingerprint, text)
        joined = self._find(federation, fingerprint, text)
        path = joined.store.folder / PLAN
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        if before != text:
            if before and pinned:
                log.info("the plan has %d rounds now", joined.setup.plan.rounds)
            try:
                write_atomically(path, text, durable=True)
            except OSError as error:
                raise Refused("disk", f"the site's disk: {error.strerror}") from None
        if not pinned:
            self.guard.pin(federation, fingerprint)
        data, test = joined.local.data, joined.local.test
        said: Header = {
            "status": "ok",
            "name": self.settings.name,
            "n": int(data.n),
            "val": self.settings.counted(int(data.val_n)),
            "test": self.settings.counted(int(test.n)),
            "newest": joined.store.newest(),
        }
        return Packet(self._signature(packet) | said, {})

    def _find(self, federation: str, fingerprint: str, text: str | None = None) -> _Joined:
        """What is agreed on by the plan `text`, or was when the site joined, maybe long ago."""
        found = self._joined.get((federation, fingerprint))
        if found and text in (None, found.setup.plan.text()):
            return found
        if text is None:
            path = self.settings.folder / FEDERATIONS / federation / PLAN
            try:
                text = path.read_text(encoding="utf-8")
            except OSError:
                reason = "the site has not joined this federation: send join"
                raise Refused("plan", reason) from None
        plan = read_plan(text)
        if plan.fingerprint() != fingerprint:
            raise Refused("plan", "the site joined with another plan: send join")
        self.guard.require_limits(plan)
        if self.settings.client >= plan.clients:
            raise Refused(
                "client",
                f"the site is number {self.settings.client}, but the federation has "
                f"{plan.clients}: numbers count from 0",
            )
        try:
            setup = set_up(plan, self.settings.limits).of(self.settings.client)
            spec = plan.message_to(self.settings.client)
            try_message(setup, like_of(spec, self.settings.limits))
        except BadInput as error:
            raise Refused("plan", str(error)) from None
        try:
            local = load_local_data(self.settings, setup.encoder)
        except BadInput as error:
            raise self._unusable(error) from None
        whose = (self.settings.folder, federation, fingerprint, self.settings.client)
        store = SiteStore(*whose, local.digest())
        store.newest()  # refuses other rows now, not after they are kept below: they may be mended
        self.guard.require_limits(plan, int(local.data.n), rows_of_rarest_class(setup, local.mix))
        prove_private(setup.config, setup.method, setup.task, local.as_client())
        self._joined = {(federation, fingerprint): _Joined(setup, local, store)}  # one at a time
        return self._joined[(federation, fingerprint)]

    # --- a round ---

    def _turn(
        self, packet: Packet, joined: _Joined, purpose: int
    ) -> tuple[ClientTurn, SavedState | None]:
        """The site's turn, and the state that it goes on from.

        It draws what the simulation draws, but with DP-SGD from a key that nobody else knows, since
        noise that can be computed hides nothing.
        """
        round, last, kind = packet.number("round"), packet.number("last"), packet.text("kind")
        setup, data, rounds = joined.setup, joined.local.data, joined.setup.plan.rounds
        # the rounds that were agreed on and no more, and models of their own at the end alone
        least, most = {TRAIN: (0, rounds - 1), FINISH: (rounds, rounds)}.get(kind, (0, rounds))
        if not -1 <= last < round or not least <= round <= most:
            raise BadInput(f"header: {kind} of round {round} after {last}, of {rounds} rounds")
        kept = joined.store.at(last, begin_again=self.settings.begin_again)
        if setup.config.dp_noise:
            self.guard.require_counted(packet)
        spec = setup.plan.message_to(self.settings.client)
        message = from_arrays(packet.arrays, like_of(spec, self.settings.limits))
        turn = setup.turn(purpose, round).of(torch.tensor(self.settings.client))
        # fresh for every turn: equal noise in two answers could be taken away again
        secret = secrets.token_bytes(32) if setup.config.dp_clip else b""
        own = ClientTurn(setup.method, setup.initial, message, data, turn, secret=secret)
        return own._replace(kept=self._state(joined, own, kept)), kept

    def _state(self, joined: _Joined, own: ClientTurn, kept: SavedState | None) -> Tree:
        """The state that a turn begins with."""
        made = own.state()
        if kept is None:
            guess = own._replace(message=unknown_parts(own.message)).state()
            if not tree.finite(guess) and tree.finite(made):
                raise StateError(
                    "the site's state is lost, and what its first state needs was sent only once: "
                    "put back a copy of its folder"
                )
            return made
        try:
            return ordered_like(kept.state, made)
        except BadInput as error:
            raise StateError(f"state '{joined.store.folder}': {error}: use a new id") from None

    def _train(self, packet: Packet, joined: _Joined) -> Packet:
        request, round = digest(packet), packet.number("round")
        if again := joined.store.answered(round, request):
            log.info("round %d: asked again, same answer", round + 1)
            return again
        self.guard.require_willing(packet)
        turn, kept = self._turn(packet, joined, rng.TURN)
        played, rows = kept.played if kept else (), int(joined.local.data.n)
        begun = time.monotonic()
        outcome, taken = turn.play()
        seconds = time.monotonic() - begun
        upload = outcome.upload
        if not all(tree.finite(part) for part in (outcome.state, upload.mean, upload.each)):
            if joined.setup.config.dp_noise:  # that it diverged tells of its rows, too
                self.guard.note(packet, joined.setup.config, taken, {})
            raise Refused("diverged", "training ended in numbers that are not finite: lower lr")
        weight = float(torch.as_tensor(upload.weight))
        said = self._signature(packet) | {"status": "ok", "weight": weight, "n": rows}
        found, scores = self._score_of(joined, outcome.model), Header()
        if packet.header.get("post") and self.guard.tells_scores(packet):
            scores = self._told(joined, found, "post")
        reply = Packet(said | scores, upload_arrays(upload))
        after = SavedState(round, outcome.state, (*played, round))
        self.guard.note(packet, joined.setup.config, taken, scores)
        joined.store.keep(after, kept.round if kept else -1, request, reply)
        sent = {"up": reply.nbytes, "down": packet.nbytes}
        cost = {"bytes": sent, "train_seconds": seconds}
        joined.store.note_score(round + 1, "post", found.value, found.loss, cost)
        log.info("round %d: trained on %d rows", round + 1, rows)
        return reply

    # --- evaluation ---

    def _score_of(self, joined: _Joined, model: Model, *, every_metric: bool = False) -> SiteScore:
        setup, rows = joined.setup, joined.local.rows
        predict, encoder = setup.method.predict, rows.encoder
        return score_model(setup, predict, model, rows.test, encoder, every_metric=every_metric)

    def _told(self, joined: _Joined, found: SiteScore, point: str) -> Header:
        """A model's score in numbers that may leave; nothing of too few test rows.

        The metric on its test rows where it is defined, how many these are, and their mean loss.
        """
        tested = int(joined.local.test.n)
        if tested < self.settings.min_scored:
            return {}
        told = {f"{point}_score": found.value, f"{point}_loss": found.loss}
        rounded = {k: self.settings.rounded(v) for k, v in told.items() if v is not None}
        return {**rounded, "test": self.settings.counted(tested)}

    def _score(self, packet: Packet, joined: _Joined) -> Packet:
        """The score of the model that the site would use now, as the simulation scores it."""
        request, round = digest(packet), packet.number("round")
        if again := joined.store.told(SCORE, round, request):
            return again
        self.guard.require_willing(packet)
        scores: Header = {}
        if self.guard.tells_scores(packet):
            model, taken = self._turn(packet, joined, rng.SCORE)[0].personal()
            found = self._score_of(joined, model)
            scores = self._told(joined, found, "pre")
            joined.store.note_score(round, "pre", found.value, found.loss)
            self.guard.note(packet, joined.setup.config, taken, scores)
        reply = Packet(self._signature(packet) | {"status": "ok"} | scores, {})
        joined.store.keep_told(SCORE, round, request, reply)
        return reply

    def _finish(self, packet: Packet, joined: _Joined) -> Packet:
        """The same, after fine-tuning, and the model is kept."""
        request, round = digest(packet), packet.number("round")
        if again := joined.store.told(FINISH, round, request):
            return again
        self.guard.require_willing(packet)
        turn, kept = self._turn(packet, joined, rng.SCORE)
        setup, local = joined.setup, joined.local
        model, taken = turn.personal(setup.task, setup.config.finetuning())
        found = self._score_of(joined, model, every_metric=True)
        tells = self.guard.tells_scores(packet)
        scores = self._told(joined, found, "pre") if tells else {}
        self.guard.note(packet, joined.setup.config, taken, scores)
        own = OwnPart(
            model,
            found,
            self._general(joined, turn),
            kept.played if kept else (),
            joined.store.own_scores(),
            self.guard.answers.epsilon_in(packet.text("federation")),
        )
        try:
            card = write_model(joined.store.folder, self.settings, setup, local, own)
        except OSError as error:
            raise Refused(
                "disk", f"the site's disk did not take its model: {error.strerror}"
            ) from None
        log.info("done: %s %s, alone %s", card["metric"], card["score"], card["local_score"])
        said = self._signature(packet) | {"status": "ok"} | scores
        if scores:
            said |= self._beside(card)
        reply = Packet(said, {})
        joined.store.keep_told(FINISH, round, request, reply)
        return reply

    def _general(self, joined: _Joined, turn: ClientTurn) -> SiteScore | None:
        """What the global model comes to here, where the method has one beside personal ones."""
        setup, rows = joined.setup, joined.local.rows
        if setup.method.general is None:
            return None
        model = turn.general()
        predict = predict_general(setup.method, setup.task)
        return score_model(setup, predict, model, rows.test, rows.encoder, every_metric=True)

    def _beside(self, card: Mapping[str, Any]) -> Header:
        """What may leave beside a site's own score at the end."""
        share, rows, limits = self.settings.share, card["rows"], self.settings
        said: Header = {part: limits.counted(rows[part]) for part in ("train", "val")}
        if BASELINE in share and card["local_score"] is not None:
            said["local_score"] = limits.rounded(card["local_score"])
            if ERROR in share and card["gain_error"] is not None:
                said["gain_error"] = limits.rounded(card["gain_error"])
        return said
