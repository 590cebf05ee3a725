"""Whether a site answers a request: its owner's agreement, its limits, and what it has answered."""

from __future__ import annotations

import json
from pathlib import Path

from torch import Tensor

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.files import write_atomically
from fedtailor.core.steps.privacy import Spent
from fedtailor.federation.protocol.packet import (
    FINISH,
    JOIN,
    SURVEY,
    TRAIN,
    Header,
    Packet,
    digest,
)
from fedtailor.federation.protocol.plan import TrainingPlan, read_plan
from fedtailor.federation.site.answers import AnswerLog, SentAnswer
from fedtailor.federation.site.limits import COLUMNS, SCORES
from fedtailor.federation.site.plan_check import check_plan
from fedtailor.federation.site.settings import SiteSettings
from fedtailor.federation.site.state import FEDERATIONS, PLAN, StateError
from fedtailor.results.config import Config

PAUSE = "PAUSE"  # while a file of this name lies in the site's folder, nothing is answered
PROPOSED = "proposed-plan.json"  # the latest plan that the owner has not agreed to


class Refused(BadInput):
    """The site will not or cannot do what it was asked; `code` says why in a word."""

    def __init__(self, code: str, detail: str) -> None:
        self.code = code
        super().__init__(detail)


def plan_mark(fingerprint: str) -> str:
    """A plan's fingerprint, as short as in the site's list of answers."""
    return fingerprint[:16]


class Guard:
    """Stands before all that a site does for others."""

    def __init__(self, settings: SiteSettings) -> None:
        self.settings = settings
        self.answers = AnswerLog(settings.folder)

    def require_unpaused(self) -> None:
        """Refuses everything while the site is paused."""
        if (self.settings.folder / PAUSE).exists():
            raise Refused("paused", f"the site is paused: its owner may remove the file {PAUSE}")

    def _keep(self, path: Path, text: str) -> None:
        try:
            write_atomically(path, text, durable=True)
        except OSError as error:
            raise Refused("disk", f"the site's disk: {error.strerror}") from None

    def require_survey(self, packet: Packet) -> None:
        """Refuses to tell columns, unless the owner agreed to it."""
        federation, limits = packet.text("federation"), self.settings
        if COLUMNS not in limits.share:
            raise Refused(
                "columns",
                "the site tells no sums and categories of its columns: its owner may add "
                f'"{COLUMNS}" to share in its site file, or agree on an example (init --like)',
            )
        if limits.min_noise or limits.max_epsilon:
            raise Refused(
                "privacy",
                "sums of columns leave without noise, and the site has min_noise or max_epsilon: "
                "agree on an example (init --like)",
            )
        if self._pinned(federation):
            raise Refused(
                "agreement", f"the site has joined '{federation}', and tells columns before that"
            )
        most = limits.max_answers
        if most and self.answers.answers >= most:
            raise Refused(
                "round", f"the site answers {most} times in all (max_answers), and has done so"
            )

    def note_survey(self, packet: Packet) -> None:
        """Writes down that columns are about to be told."""
        told = SentAnswer(packet.text("federation"), "", SURVEY, 0, digest(packet)[:16])
        self.answers.add(told)

    def _pinned(self, federation: str) -> str | None:
        """The plan that a federation was joined with, if the site takes part in it at all."""
        only = self.settings.federations
        if only and federation not in only:
            raise Refused(
                "agreement",
                f"the site takes part in {', '.join(only)} alone (federations), not in "
                f"'{federation}': name it in the site's file, if its owner agrees",
            )
        self.answers.refresh()
        pinned = self.answers.pinned.get(federation)
        others = sorted(self.answers.pinned)
        if not only and pinned is None and others:
            # whoever has the coordinator could go on for ever under new ids
            raise Refused(
                "agreement",
                f"the site's file names no federations, so it takes part in its first alone, "
                f"'{others[0]}', not in '{federation}': name both, if its owner agrees: "
                f"federations = {json.dumps([*others, federation])}",
            )
        return pinned

    def require_pin(self, federation: str, fingerprint: str, text: str = "") -> bool:
        """Whether a federation was joined with this plan before; another one is refused.

        One with another number of rounds alone is not another, but an owner who wants to be asked
        first is asked again. The plan is kept beside the refusal: `fedtailor federation accept`
        agrees to it.
        """
        pinned = self._pinned(federation)
        same = pinned == plan_mark(fingerprint)
        if same and not (text and self.settings.ask_first and text != self._accepted(federation)):
            return True
        if pinned is None and not (text and self.settings.ask_first):
            return False
        if text:
            if read_plan(text).fingerprint() != fingerprint:
                raise Refused("plan", "the plan is not the one that its fingerprint is of")
            proposed = json.dumps({"federation": federation, "plan": text})
            self.settings.folder.mkdir(parents=True, exist_ok=True)
            self._keep(self.settings.folder / PROPOSED, proposed)
        why = "the site joined with another plan"
        if same or not pinned:
            why = "the site's owner is asked first" + same * ", also about more rounds"
        raise Refused(
            "agreement",
            f"{why}, and this one ({plan_mark(fingerprint)}) was not agreed to: at the site, see "
            "it with fedtailor federation inspect, then say fedtailor federation accept SITE.toml",
        )

    def _accepted(self, federation: str) -> str:
        """The plan that a federation was joined with, as the site keeps it; empty if it is lost."""
        try:
            path = self.settings.folder / FEDERATIONS / federation / PLAN
            return path.read_text(encoding="utf-8")
        except OSError:
            return ""

    def pin(self, federation: str, fingerprint: str) -> None:
        """Keeps the plan that a federation is joined with: from now on no other one will do."""
        self.answers.add(SentAnswer(federation, plan_mark(fingerprint), JOIN, -1, ""))

    def require_limits(
        self, plan: TrainingPlan, rows: int | None = None, of_class: int | None = None
    ) -> None:
        """Only what the site agreed to, and before anything of the plan is brought to life."""
        for found in check_plan(self.settings, plan, rows, self.settings.client, of_class):
            if found.cure:
                raise Refused(found.code, found.line)

    def require_willing(self, packet: Packet) -> None:
        """Refuses what is beyond the site's limits, and a second request for an answered round."""
        round, kind, limits = packet.number("round"), packet.text("kind"), self.settings
        whose = (packet.text("federation"), plan_mark(packet.text("plan")))
        newest, request = self.answers.newest(*whose, kind)
        # of an equal request no answer was kept here, and so none was sent
        if round < newest or (round == newest and request != digest(packet)[:16]):
            raise Refused(
                "answered",
                f"{kind} of round {round + 1} or a later one was answered, and each is answered "
                "once, since two answers may undo what noise hides: to begin anew, give the "
                "federation another id",
            )
        played = self.answers.rounds
        more = (*whose, round) not in played
        most = limits.max_rounds
        if kind == TRAIN and most and len(played) + more > most:
            raise Refused(
                "round", f"the site plays at most {most} rounds (max_rounds), and has played them"
            )
        most = limits.max_answers
        if kind != FINISH and most and self.answers.answers >= most:
            raise Refused(
                "round", f"the site answers {most} times in all (max_answers), and has done so"
            )

    def require_counted(self, packet: Packet) -> None:
        """Refuses where answers that the coordinator took are not in the list that ε is made of."""
        whose = (packet.text("federation"), plan_mark(packet.text("plan")))
        newest, _ = self.answers.newest(*whose, TRAIN)
        last = packet.number("last")
        if last > newest:
            raise StateError(
                f"the coordinator has the site's answer of round {last + 1}, and "
                f"'{self.answers.path}', which its ε is counted from, ends before: put back a "
                "copy that has it, or give the federation another id"
            )

    def note(self, packet: Packet, config: Config, taken: Tensor, scores: Header) -> None:
        """Writes down what is about to be answered, unless it is beyond the site's ε."""
        answer = SentAnswer(
            packet.text("federation"), plan_mark(packet.text("plan")), packet.text("kind"),
            packet.number("round"), digest(packet)[:16], bool(scores),
            Spent.of(taken.tolist()), config.dp_noise, config.dp_delta,
        )  # fmt: skip
        most = self.settings.max_epsilon
        if most and config.dp_clip and self.answers.epsilon(answer) > most:
            raise Refused(
                "privacy", f"this would bring the site's ε above {most:g}, its limit (max_epsilon)"
            )
        self.answers.add(answer)

    def tells_scores(self, packet: Packet) -> bool:
        """Whether an answer to this may tell scores."""
        kind, limits, answers = packet.text("kind"), self.settings, self.answers
        if SCORES not in limits.share:
            return False
        if kind == FINISH and limits.max_answers and answers.answers >= limits.max_answers:
            return False  # the site still gets its model
        last = answers.last_scored(packet.text("federation"), plan_mark(packet.text("plan")), kind)
        return last is None or packet.number("round") - last >= limits.score_every
