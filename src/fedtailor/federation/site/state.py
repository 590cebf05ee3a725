"""A site's own state on its own disk: what it has learnt, and its latest answer.

Two states are kept: the one that the coordinator is known to have taken, and the newest, of which
that is not yet known. Each request says which round of this site was taken last, so a site whose
answer came too late goes on as if it had not been drawn, as in a simulation; and a request that
comes twice gets the same answer without a second training.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.files import write_atomically
from fedtailor.core.inputs.plain_text import parse_json
from fedtailor.core.tree import Tree
from fedtailor.federation.protocol.lines import Line, append_line, read_lines
from fedtailor.federation.protocol.messages import to_safetensors
from fedtailor.federation.protocol.packet import Limits, Packet, checked_id, from_bytes, to_bytes

INDEX = "state.json"
OWN_SCORES = "scores.jsonl"  # what the site's models came to, a line each: for its own page
FEDERATIONS = "federations"  # folder with one for each
PLAN = "plan.json"  # the one that was agreed to


class StateError(BadInput):
    """The site's state cannot be used or kept."""

    code = "state"  # why a message is refused, in a word


class SavedState(NamedTuple):
    """A state and what goes with it."""

    round: int  # after which it was kept, from 0
    state: Tree  # the method's
    played: tuple[int, ...]  # all rounds that it is the result of


def _sum(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


class SiteStore:
    """The state of one site in one federation, which has a folder of its own in the site's."""

    def __init__(
        self, folder: Path, federation: str, plan: str, client: int, rows: str = ""
    ) -> None:
        self.folder = folder / FEDERATIONS / checked_id(federation)
        self._whose = {"federation": federation, "plan": plan, "client": client}
        self._rows = rows  # tells the site's rows and their cut from others; empty: not known
        self.folder.mkdir(parents=True, exist_ok=True)

    # --- reading ---

    def _index(self) -> dict[str, Any]:
        path = self.folder / INDEX
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            return {**self._whose, "committed": None, "pending": None}
        except OSError as error:
            raise StateError(f"state '{path}' cannot be read: {error.strerror}") from None
        try:
            text, _, told = raw.decode().rpartition("\n")
            found: dict[str, Any] = parse_json(text)
            sound = told == _sum(text.encode()) and {"committed", "pending"} <= found.keys()
        except (ValueError, AttributeError):
            sound = False
        if not sound:
            raise StateError(f"state '{path}' is broken: put back a copy, or join with a new id")
        for name, value in self._whose.items():
            if found.get(name) != value:
                raise StateError(
                    f"state '{path}' is of another {name} ({str(found.get(name))[:16]}, not "
                    f"{str(value)[:16]}): give the federation a new id"
                )
        if self._rows and found.get("rows", self._rows) != self._rows:
            raise StateError(
                "the site's rows, or how they are cut, are not those that it began with, so rows "
                "that trained might test: put the earlier ones back (data, label, split), or "
                f"remove '{self.folder}' and say begin_again = true in the site's file"
            )
        return found

    def _read(self, name: str, told: str) -> bytes:
        path = self.folder / Path(name).name  # a name, never a path that leads elsewhere
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise StateError(f"state '{path}' cannot be read: {error.strerror}") from None
        if _sum(raw) != told:
            raise StateError(f"state '{path}' is broken: put back a copy, or join with a new id")
        return raw

    def _kept(self, entry: dict[str, Any]) -> SavedState:
        try:
            flat: dict[str, Tensor] = load(self._read(entry["file"], entry["sha256"]))
        except SafetensorError as error:
            raise StateError(f"state '{self.folder / entry['file']}': {error}") from None
        played = tuple(int(r) for r in entry["played"])
        return SavedState(int(entry["round"]), tree.unflatten(flat), played)

    def _told(self, kind: str, round: int, request: str) -> Path:
        return self.folder / f"told-{kind}-{round:06d}-{request[:16]}.packet"

    def told(self, kind: str, round: int, request: str) -> Packet | None:
        """The answer without a new state that this very request got before, if it did."""
        path = self._told(kind, round, request)
        try:
            return from_bytes(path.read_bytes(), Limits())
        except FileNotFoundError:
            return None
        except (OSError, BadInput) as error:
            raise StateError(f"state '{path}' cannot be read ({error}): remove it") from None

    def keep_told(self, kind: str, round: int, request: str, reply: Packet) -> None:
        """Keeps the latest answer of a kind that comes without a new state."""
        path = self._told(kind, round, request)
        try:
            write_atomically(path, to_bytes(reply), durable=True)
        except OSError as error:
            raise self._full(error) from None
        for old in self.folder.glob(f"told-{kind}-*"):
            if old != path:
                old.unlink(missing_ok=True)

    def answered(self, round: int, request: str) -> Packet | None:
        """The answer that this very request to train got before, if it did."""
        entry = self._index()["pending"]
        if not entry or entry["round"] != round or entry["request"] != request:
            return None
        return from_bytes(self._read(entry["reply"], entry["reply_sha256"]), Limits())

    def at(self, last: int, *, begin_again: bool = False) -> SavedState | None:
        """The state after round `last`, which the coordinator took; None before the first (-1).

        With `begin_again` None too where nothing at all is left here.

        Raises:
          StateError: there is none such here.
        """
        index = self._index()
        entries = [e for e in (index["committed"], index["pending"]) if e]
        for entry in entries:
            if entry["round"] == last:
                return self._kept(entry)
        if (last < 0 and not index["committed"]) or (begin_again and not entries):
            return None
        have = ", ".join(str(e["round"] + 1) for e in entries) or "none"
        told = f"round {last + 1}" if last >= 0 else "no round"
        first = "remove it and " * bool(entries)  # it begins again where nothing is left
        raise StateError(
            f"the coordinator knows of {told} of this site, but its state in '{self.folder}' is of "
            f"{have}: put back a copy of that folder, or {first}say begin_again = true in its file"
        )

    def newest(self) -> int:
        """The newest round that this site has a state of; -1 if there is none."""
        index = self._index()
        return max((e["round"] for e in (index["committed"], index["pending"]) if e), default=-1)

    def own_scores(self) -> list[Line]:
        """What was noted of the site's own models, in order."""
        return read_lines(self.folder / OWN_SCORES)

    # --- writing ---

    def note_score(
        self,
        round: int,
        point: Literal["pre", "post"],
        score: float | None,
        loss: float | None,
        cost: Mapping[str, Any] = {},
    ) -> None:
        """Notes what a model of the site came to; rounds count from 1. It stays here."""
        line = {"round": round, "point": point, "score": score, "loss": loss, "cost": cost}
        try:
            append_line(self.folder / OWN_SCORES, line)
        except OSError as error:
            raise self._full(error) from None

    def _write_index(self, index: dict[str, Any]) -> None:
        text = json.dumps(index, indent=1)
        try:
            write_atomically(self.folder / INDEX, f"{text}\n{_sum(text.encode())}", durable=True)
        except OSError as error:
            raise self._full(error) from None

    def _full(self, error: OSError) -> StateError:
        return StateError(
            f"the site's disk did not take its state ('{self.folder}': {error.strerror}): "
            "make room there"
        )

    def keep(self, kept: SavedState, last: int, request: str, reply: Packet) -> None:
        """Keeps a new state beside the one of round `last`, and the answer that goes with it.

        Raises:
          StateError: the disk would not take it; what was there is as it was.
        """
        index = self._index()
        old = [e for e in (index["committed"], index["pending"]) if e and e["round"] == last]
        name = f"state-{kept.round:06d}-{request[:8]}.safetensors"
        answer = f"reply-{kept.round:06d}-{request[:8]}.packet"
        raw, said = to_safetensors(kept.state), to_bytes(reply)
        entry = {
            "round": kept.round,
            "file": name,
            "sha256": _sum(raw),
            "played": list(kept.played),
            "request": request,
            "reply": answer,
            "reply_sha256": _sum(said),
        }
        states = {"committed": old[0] if old else None, "pending": entry}
        index = {**self._whose, **({"rows": self._rows} if self._rows else {}), **states}
        try:
            write_atomically(self.folder / name, raw, durable=True)
            write_atomically(self.folder / answer, said, durable=True)
            self._write_index(index)
        except OSError as error:
            raise self._full(error) from None
        finally:
            self._sweep()

    def _sweep(self) -> None:
        """Removes files that no entry names."""
        try:
            index = self._index()
        except StateError:
            return
        entries = [e for e in (index["committed"], index["pending"]) if e]
        named = {e["file"] for e in entries}
        if index["pending"]:  # of an answer that was taken nobody asks again
            named.add(index["pending"]["reply"])
        for pattern in ("state-*", "reply-*"):
            for path in self.folder.glob(pattern):
                if path.name not in named:
                    path.unlink(missing_ok=True)
