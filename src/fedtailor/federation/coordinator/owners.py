"""Whose number is whose: a client's number belongs to the node key that first took it."""

from __future__ import annotations

import json
from pathlib import Path

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.files import write_atomically
from fedtailor.core.inputs.plain_text import parse_json, printable
from fedtailor.results.folder import read_note

OWNERS = "owners.json"
HOME = "coordinator/flower"  # Flower's own folder in a project
REGISTERED = "registered"  # folder in Flower's: a mark for each key, with name and place


class NumberOwners:
    """The owners in a coordinator's folder, for the life of a federation.

    Args:
      folder: of the federation.
      keyed: whether a place stands for a key; without keys nobody owns anything.
      registered: folder with a mark for each key that the SuperLink was told of, if it is known.
    """

    def __init__(self, folder: Path, *, keyed: bool = True, registered: Path | None = None) -> None:
        self.path, self.keyed, self.registered = folder / OWNERS, keyed, registered

    def name_of(self, place: int) -> str:
        """What the key at a place was registered as; empty if that is not known."""
        for path in sorted(self.registered.glob("*")) if self.registered else ():
            mark = read_note(path)
            if mark.get("node") == str(place):
                return printable(str(mark.get("name", "")))[:80]
        return ""

    def read(self) -> dict[int, tuple[int, str]]:
        """By client: its place and its name. Read each time, since `release` is another process."""
        try:
            found = parse_json(self.path.read_text(encoding="utf-8")) if self.keyed else {}
            return {int(c): (int(place), str(name)) for c, (place, name) in found.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise BadInput(f"'{self.path}' cannot be read ({error}): put back a copy") from None

    def check(self, client: int, place: int) -> None:
        """Refuses who claims another's number, or has one of its own already."""
        for number, (owner, name) in self.read().items():
            if number == client and owner != place:
                raise BadInput(
                    f"says it is client {client}, the number of '{name}', but its key is another: "
                    f"if '{name}' has a new key, say fedtailor federation replace DIR {name}"
                )
            if number != client and owner == place:
                raise BadInput(
                    f"says it is client {client}, but its key is that of client {number}, "
                    f"'{name}': give client = {number} in its site file"
                )

    def is_held(self, client: int, place: int) -> bool:
        """Whether a number still belongs to a place."""
        return not self.keyed or self.read().get(client, (None,))[0] == place

    def note(self, client: int, place: int, name: str) -> None:
        """Keeps who a number belongs to."""
        if self.keyed:
            self._write(self.read() | {client: (place, name)})

    def release(self, name: str) -> int:
        """Takes a site's number from its key, for the next who joins with it; returns it.

        Raises:
          BadInput: no site of this name has joined.
        """
        owners = self.read()
        number = next((c for c, (_, known) in owners.items() if known == name), None)
        if number is None:
            known = ", ".join(sorted(name for _, name in owners.values())) or "nobody yet"
            raise BadInput(f"no site '{name}' has joined: known are {known}")
        self._write({c: owner for c, owner in owners.items() if c != number})
        return number

    def _write(self, owners: dict[int, tuple[int, str]]) -> None:
        write_atomically(self.path, json.dumps(owners, indent=1), durable=True)
