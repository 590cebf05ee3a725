"""How a federation looks in a terminal, and in a pipe."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich import box
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fedtailor.cli.showing import err, in_bytes, out, per_cent

if TYPE_CHECKING:
    from fedtailor.federation.protocol.disclosure import Disclosure


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:+.2f}"


class FederationView:
    """Progress on stderr: a bar in a terminal, elsewhere a line for all that happens.

    Args:
      name: of the method.
      rounds: in all.
      done: before this run.
    """

    def __init__(self, name: str, rounds: int, done: int = 0) -> None:
        self._rounds = rounds
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=err,
        )
        self._task = self._bar.add_task(name, total=rounds, completed=done, note="")

    def __enter__(self) -> FederationView:
        if err.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if err.is_terminal:
            self._bar.stop()

    def say(self, what: str) -> None:
        """What is being done now."""
        if err.is_terminal:
            self._bar.update(self._task, note=what)
        else:
            _plain(what)

    def tell(self, line: dict[str, Any]) -> None:
        """A line of the history, or an event."""
        if "event" in line:
            self._tell_event(line)
            return
        taken, cohort = len(line["taken"]), len(line["cohort"])
        found = [s["post_accuracy"] for s in line["sites"].values() if "post_accuracy" in s]
        note = f"{taken}/{cohort} sites, {line['seconds']:.1f} s"
        if found:
            note += f", accuracy {per_cent(sum(found) / len(found))} %"
        if err.is_terminal:
            self._bar.update(self._task, completed=line["round"], note=note)
        else:
            _plain(f"round {line['round']}/{self._rounds}: {note}")

    def _tell_event(self, event: dict[str, Any]) -> None:
        detail = f": {event['detail']}" if event.get("detail") else ""
        text = f"{event['site']} {event['event']}{detail}"
        if err.is_terminal:
            err.print(text, markup=False, style="dim" if event["event"] == "joined" else "yellow")
        else:
            _plain(text)


def _plain(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def gains_table(method: str, cards: list[dict[str, Any]]) -> Table:
    """Each site's gain, from the cards that lie at the sites."""
    table = Table(box=box.SIMPLE_HEAD, caption="accuracy in % on each site's own test rows")
    table.add_column("site")
    for column in (f"with {method}", "alone", "gain", "test rows", "training rows"):
        table.add_column(column, justify="right")
    table.add_column("class mix")
    for card in cards:
        mix = sorted(card["class_mix"].items(), key=lambda item: -item[1])
        shown = ", ".join(f"{name}: {count}" for name, count in mix[:4])
        table.add_row(
            escape(card["site"]),
            per_cent(card["accuracy"]),
            per_cent(card["local_accuracy"]),
            _signed(card["gain"]),
            str(card["rows"]["test"]),
            str(card["rows"]["train"]),
            escape(shown + (f", {len(mix) - 4} more" if len(mix) > 4 else "")),
        )
    return table


def finished_table(method: str, sites: dict[str, Any]) -> Table:
    """What sites told when they had their models; those that share nothing show nothing."""
    table = Table(box=box.SIMPLE_HEAD, caption="accuracy in %, as far as sites tell it")
    table.add_column("site")
    for column in (f"with {method}", "alone", "gain", "test rows"):
        table.add_column(column, justify="right")
    for name, said in sites.items():
        here, alone = said.get("pre_accuracy"), said.get("local_accuracy")
        gain = None if here is None or alone is None else here - alone
        rows = str(said.get("test", "–"))
        table.add_row(escape(name), per_cent(here), per_cent(alone), _signed(gain), rows)
    return table


def show_status(found: dict[str, Any]) -> None:
    """A federation's status as text."""
    playing = "playing" if found["playing"] else "not playing"
    listens = "listens" if found["listens"] else "does NOT listen"
    out.print(
        f"{found['id']}: {found['method']}, round {found['round']} of {found['rounds']}, "
        f"{playing}; coordinator {listens} at {found['address']}",
        markup=False,
    )
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("site", "connected", "last round", "accuracy %", "failures", "latest failure"):
        table.add_column(column)
    words = {True: "yes", False: "no", None: "–"}
    for site in found["sites"]:
        table.add_row(
            escape(site["name"]),
            words[site["connected"]],
            str(site["last"] or "–"),
            per_cent(site["accuracy"]),
            str(site["failures"]),
            escape(site["why"]),
        )
    out.print(table)
    for line in found["latest"]:
        failed = ", ".join(line["failed"]) or "nobody"
        out.print(
            f"round {line['round']}: {len(line['taken'])} of {len(line['cohort'])} sites in "
            f"{line['seconds']:.1f} s, without {failed}",
            markup=False,
        )
    sent = found["bytes"]
    out.print(
        f"{in_bytes(sent['up'])} up, {in_bytes(sent['down'])} down; around them "
        f"{in_bytes(sent['envelope_up'])} up, {in_bytes(sent['envelope_down'])} down"
    )
    if found["ended"]:
        out.print(f"Last run {found['ended']}", markup=False)


def show_wire(method: str, found: Disclosure) -> None:
    """What leaves a site for a method, as text."""
    from fedtailor.federation.protocol.disclosure import FORM, NUMBERS, PROTECTED, REFERENCE

    shape = "x".join(str(side) for side in FORM.shape)
    out.print(
        f"What leaves a site with {method}, per round. Example: {REFERENCE} on {shape} images, "
        f"{FORM.classes} classes, {found.parameters:,} parameters.",
        markup=False,
    )
    table = Table("array", "shape", "type", "bytes", "the server needs", box=box.SIMPLE_HEAD)
    for a in found.arrays:
        size = "x".join(str(side) for side in a.shape) or "one number"
        need = "the mean" if a.needed == "mean" else "each site's"
        table.add_row(escape(a.name), size, a.type, f"{a.bytes:,}", need)
    if not found.arrays:
        table.add_row("none", "", "", "0", "nothing")
    table.add_row("together", "", "", f"{sum(a.bytes for a in found.arrays):,}", "")
    out.print(table)
    numbers = Table("number", "when", "what", box=box.SIMPLE_HEAD)
    for row in NUMBERS:
        numbers.add_row(*row)
    out.print(numbers)
    if found.each:
        out.print(
            f"[bold]One by one[/]: the server of {method} computes with each site's "
            f"{escape(', '.join(sorted({n.split('/')[1] for n in found.each})))}; no secure "
            "aggregation could hide a single site from it."
        )
    elif found.arrays:
        out.print(
            "[bold]As a mean[/]: the server needs no single upload, only their weighted mean. "
            "Today it still receives each one, over TLS, and could look: Flower has secure "
            "aggregation in its legacy interface only."
        )
    out.print(PROTECTED, markup=False)
    out.print("Rows, labels, states and personal models stay at the site.")
