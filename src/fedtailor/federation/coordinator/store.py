"""What the coordinator keeps on its disk: the server's state, the history, and what went wrong."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load

from fedtailor.core import __version__, tree
from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.files import remove_parts, write_atomically
from fedtailor.core.inputs.plain_text import parse_json
from fedtailor.core.tree import Tree
from fedtailor.federation.protocol.lines import Line, append_line, read_lines
from fedtailor.federation.protocol.messages import ordered_like, to_safetensors
from fedtailor.federation.protocol.packet import checked_id
from fedtailor.results.lock import is_locked, try_lock

LATEST, HISTORY, EVENTS, STOP = "latest.json", "history.jsonl", "events.jsonl", "STOP"
LOCK = "LOCK"
WITHOUT_VERSION = "0.1.0"  # its checkpoints do not name their version
FINISHED, STOPPED, FAILED = ENDS = ("finished", "stopped", "failed")  # events of `all` at the end
NOT_ADMITTED = "not admitted"  # event of a site that cannot join
FAILED_IN = "failed in"  # and of what: event of a site whose answer is missing or does not count
NO_ANSWER = "has not answered"  # event of one that is connected, and silent when asked to join


class ServerCheckpoint(NamedTuple):
    """Where a federation stands."""

    round: int  # how many rounds are done
    server: Tree  # the server's state
    last: list[int]  # for each client, the latest round in which its upload was taken; -1 for none
    sizes: list[int]  # training rows of each client, as told when the federation began


class CoordinatorStore:
    """The coordinator's folder for one federation.

    Args:
      folder: of all federations.
      federation: its id.
      plan: the fingerprint of what was agreed on.
      rounds: how many it has by now; 0 if that does not matter.
    """

    def __init__(self, folder: Path, federation: str, plan: str, rounds: int = 0) -> None:
        self.folder, self.rounds = folder / checked_id(federation), rounds
        self._whose = {"federation": federation, "plan": plan}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"folder '{self.folder}' cannot be made: {error.strerror}") from None

    @property
    def stop_asked(self) -> bool:
        """Whether somebody put a stop file into the folder."""
        return (self.folder / STOP).exists()

    @contextmanager
    def played(self, patience: float = 0.0) -> Iterator[None]:
        """Within, nobody else plays this federation; ends with this process, however that ends.

        Whoever does so already has `patience` seconds to leave off, as the app of a coordinator
        that was killed does when it notices.
        """
        with (self.folder / LOCK).open("a") as held:
            until = time.monotonic() + patience
            while try_lock(held.fileno()) is False:
                if time.monotonic() >= until:
                    name = self.folder.name
                    raise BadInput(f"another run plays federation '{name}' now: stop it first")
                time.sleep(0.2)
            remove_parts(self.folder)
            yield

    def save(self, now: ServerCheckpoint) -> None:
        """Writes a checkpoint: at any moment the old or the new one is whole."""
        raw = to_safetensors(now.server)
        name = f"server-{now.round:06d}.safetensors"
        latest = {
            **self._whose,
            "version": __version__,
            "round": now.round,
            "rounds": self.rounds,
            "last": now.last,
            "sizes": now.sizes,
            "file": name,
            "sha256": hashlib.sha256(raw).hexdigest(),
        }
        write_atomically(self.folder / name, raw, durable=True)
        write_atomically(self.folder / LATEST, json.dumps(latest, indent=1), durable=True)
        for old in self.folder.glob("server-*"):
            if old.name != name:
                old.unlink(missing_ok=True)

    def load(self, like: Tree) -> ServerCheckpoint | None:
        """The latest checkpoint, if it is whole and ours; None if there is none yet."""
        found = read_latest(self.folder)
        if found is None:
            return None
        check_version(self.folder)
        path = self.folder / LATEST
        try:
            whose = {name: found[name] for name in self._whose}
            file = self.folder / Path(str(found["file"])).name
            raw = file.read_bytes()
            sound = hashlib.sha256(raw).hexdigest() == found["sha256"]
            server = tree.unflatten(load(raw)) if sound else {}
            last, sizes = ([int(v) for v in found[k]] for k in ("last", "sizes"))
            checkpoint = ServerCheckpoint(int(found["round"]), server, last, sizes)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise BadInput(f"checkpoint '{path}' cannot be read ({error})") from None
        if not sound:
            raise BadInput(f"checkpoint '{file}' was changed: put back a copy")
        if whose != self._whose:
            raise BadInput(
                f"'{self.folder}' holds a federation with other settings: undo the change, or give "
                "the new one another id"
            )
        if self.rounds:
            check_rounds(self.folder, self.rounds)
        try:
            return checkpoint._replace(server=ordered_like(server, like))
        except BadInput as error:
            raise BadInput(f"checkpoint '{file}': {error}: give a new id") from None

    def history(self) -> list[Line]:
        """The rounds so far."""
        return read_lines(self.folder / HISTORY)

    def forget_after(self, round: int) -> None:
        """Removes lines of rounds that will be played again."""
        kept = [line for line in self.history() if line.get("round", 0) <= round]
        text = "".join(json.dumps(line) + "\n" for line in kept)
        write_atomically(self.folder / HISTORY, text, durable=True)

    def note(self, line: Line) -> None:
        """Adds a round to the history."""
        append_line(self.folder / HISTORY, line)

    def event(self, round: int, site: str, what: str, detail: str = "") -> None:
        """Says what happened to whom; rounds count from 1."""
        append_line(self.folder / EVENTS, _happened(round, site, what, detail))

    def ended(self, run: str, round: int, how: str, detail: str = "") -> None:
        """Says how a run ended, one of `ENDS`; who follows another one (`run`) is not meant."""
        append_line(self.folder / EVENTS, _happened(round, "all", how, detail) | {"run": run})


def _happened(round: int, site: str, what: str, detail: str) -> Line:
    now = int(1000 * time.time()) / 1000
    said: Line = {"time": now, "round": round, "site": site, "event": what}
    return said | ({"detail": detail[:2000]} if detail else {})


def read_latest(folder: Path) -> Line | None:
    """What the latest checkpoint says of itself; None if the federation has not begun."""
    path = folder / LATEST
    if not path.exists():
        return None
    try:
        found: Line = parse_json(path.read_text(encoding="utf-8"))
        return found | {"round": int(found["round"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"checkpoint '{path}' cannot be read ({error}): put back a copy") from None


def check_rounds(folder: Path, rounds: int) -> None:
    """Refuses fewer rounds than were played: they cannot be taken back."""
    played = (read_latest(folder) or {"round": 0})["round"]
    if rounds < played:
        raise BadInput(
            f"rounds is {rounds}, but '{folder.name}' has played {played}: give {played} or more "
            "in federation.toml, or begin anew with another id"
        )


def check_version(folder: Path) -> None:
    """Refuses a federation that another version began: what all agreed on names the version."""
    found = read_latest(folder) or {"version": __version__}
    version = found.get("version", WITHOUT_VERSION)
    if version != __version__:
        raise BadInput(
            f"'{folder}' was begun with FedTailor {version}, this is {__version__}: finish it with "
            f"{version} here and at the sites, or begin anew with another id in federation.toml"
        )


def is_played(folder: Path) -> bool:
    """Whether a coordinator plays the federation of this folder at this moment."""
    return bool(is_locked(folder / LOCK))
