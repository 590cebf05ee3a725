"""How a federation looks in a terminal, and in a pipe."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.progress import TextColumn, TimeElapsedColumn
from rich.table import Table

from fedtailor.cli.showing import in_bytes, metric_title, metric_value, score_note
from fedtailor.cli.terminal import WithBar, err, out, table_of
from fedtailor.core.inputs.plain_text import counted, printable
from fedtailor.federation.coordinator.progress import told_score
from fedtailor.federation.site.scoring import gain_over
from fedtailor.results.metrics.named import METRICS, Metric

if TYPE_CHECKING:
    from fedtailor.federation.protocol.disclosure import Disclosure
    from fedtailor.federation.protocol.plan import TrainingPlan
    from fedtailor.federation.site.inspection import PlanReport


def _signed(metric: Metric, value: float | None) -> str:
    if value is None:
        return "–"
    return ("+" if value >= 0 else "−") + metric_value(metric, abs(value))


class FederationView(WithBar):
    """Progress on stderr: a bar in a terminal, elsewhere a line for all that happens.

    Args:
      name: of the method.
      metric: that sites' models are judged by.
      rounds: in all.
      done: before this run.
    """

    def __init__(self, name: str, metric: str, rounds: int, done: int = 0) -> None:
        super().__init__(
            TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
        )
        self._metric, self._rounds = metric, rounds
        self._task = self._bar.add_task(name, total=rounds, completed=done, note="")

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
        each = [told_score(said, "post") for said in line["sites"].values()]
        found = [score for score in each if score is not None]
        note = f"{taken}/{cohort} sites, {line['seconds']:.1f} s"
        if found:
            note += f", {score_note(self._metric, sum(found) / len(found))}"
        if err.is_terminal:
            self._bar.update(self._task, completed=line["round"], note=note)
        else:
            _plain(f"round {line['round']}/{self._rounds}: {note}")

    def _tell_event(self, event: dict[str, Any]) -> None:
        detail = f": {event['detail']}" if event.get("detail") else ""
        text = printable(f"{event['site']} {event['event']}{detail}")  # sites' own words
        if err.is_terminal:
            err.print(text, markup=False, style="dim" if event["event"] == "joined" else "yellow")
        else:
            _plain(text)


def _plain(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def gains_table(method: str, cards: list[dict[str, Any]]) -> Table:
    """Each site's gain, from the cards that lie at the sites."""
    metric = METRICS[cards[0]["metric"] if cards else "accuracy"]
    caption = f"{metric_title(metric)} on each site's own test rows; a gain is better if positive"
    numbers = (f"with {method}", "alone", "gain", "test rows", "training rows")
    table = table_of("site", numbers=numbers, caption=caption)
    table.add_column("class mix")
    for card in cards:
        mix = sorted(card["class_mix"].items(), key=lambda item: -item[1])
        shown = ", ".join(f"{name}: {count}" for name, count in mix[:4])
        table.add_row(
            escape(card["site"]),
            metric_value(metric, card["score"]),
            metric_value(metric, card["local_score"]),
            _signed(metric, card["gain"]),
            str(card["rows"]["test"]),
            str(card["rows"]["train"]),
            escape(shown + (f", {len(mix) - 4} more" if len(mix) > 4 else "")),
        )
    return table


def finished_table(method: str, metric_name: str, sites: dict[str, Any]) -> Table:
    """What sites told when they had their models; those that share nothing show nothing."""
    metric = METRICS[metric_name]
    caption = f"{metric_title(metric)}, as far as sites tell it; a gain is better if positive"
    numbers = (f"with {method}", "alone", "gain", "test rows")
    table = table_of("site", numbers=numbers, caption=caption)
    for name, said in sites.items():
        here, alone = told_score(said, "pre"), told_score(said, "local")
        gain = gain_over(here, alone, metric_name)
        shown = [metric_value(metric, here), metric_value(metric, alone), _signed(metric, gain)]
        table.add_row(escape(name), *shown, str(said.get("test", "–")))
    return table


def last_round_note(
    metric_name: str, last: dict[str, Any], sites: dict[str, Any], finetune: int
) -> str:
    """Why the last round's number is not the table's; empty if it is, or if there is but one.

    Args:
      metric_name: that sites' models are judged by.
      last: the last round's line of the history.
      sites: what sites told when they had their models.
      finetune: epochs after the last round.
    """
    after = [v for s in last["sites"].values() if (v := told_score(s, "post")) is not None]
    ends = [v for s in sites.values() if (v := told_score(s, "pre")) is not None]
    if not after or not ends:
        return ""
    one, two = (score_note(metric_name, sum(v) / len(v)) for v in (after, ends))
    if one == two and len(after) == len(ends):
        return ""
    tuned = " and fine-tuned" if finetune else ""
    return (
        f"Round {last['round']} had {one}: the mean over {_count(len(after))}, right after "
        "training. The table is of the models that sites keep, made after that round"
        f"{tuned}: {two}, over {_count(len(ends))}."
    )


def _count(sites: int) -> str:
    return "one site" if sites == 1 else f"{sites} sites"


def show_status(found: dict[str, Any]) -> None:
    """A federation's status as text."""
    playing = "playing" if found["playing"] else "not playing"
    listens = "listens" if found["listens"] else "does NOT listen"
    out.print(
        f"{found['id']}: {found['method']}, round {found['round']} of {found['rounds']}, "
        f"{playing}; coordinator {listens} at {found['address']}",
        markup=False,
    )
    metric = METRICS[found["metric"]]
    columns = ("site", "connected", "last round", metric_title(metric), "upload", "odd", "failures")
    table = table_of(*columns, "latest failure")
    words = {True: "yes", False: "no", None: "–"}
    for site in found["sites"]:
        table.add_row(
            escape(site["name"]),
            words[site["connected"]],
            str(site["last"] or "–"),
            metric_value(metric, site["score"]),
            "–" if site["norm"] is None else f"{site['norm']:.3g}",
            str(site["odd"]),
            str(site["failures"]),
            escape(site["why"]),
        )
    out.print(table)
    for line in found["latest"]:
        failed = f", without {', '.join(line['failed'])}" if line["failed"] else ""
        out.print(
            f"round {line['round']}: {len(line['taken'])} of "
            f"{counted(len(line['cohort']), 'site')} in {line['seconds']:.1f} s{failed}",
            markup=False,
        )
    sent = found["bytes"]
    out.print(
        f"{in_bytes(sent['up'])} up, {in_bytes(sent['down'])} down; around them "
        f"{in_bytes(sent['envelope_up'])} up, {in_bytes(sent['envelope_down'])} down"
    )
    for line in found["warnings"]:
        out.print(f"Warning: {line}", markup=False, style="yellow")
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
    table = table_of("array", "shape", "type", "bytes", "the server needs")
    for a in found.arrays:
        size = "x".join(str(side) for side in a.shape) or "one number"
        need = "the mean" if a.needed == "mean" else "each site's"
        table.add_row(escape(a.name), size, a.type, f"{a.bytes:,}", need)
    if not found.arrays:
        table.add_row("none", "", "", "0", "nothing")
    table.add_row("together", "", "", f"{found.bytes:,}", "")
    out.print(table)
    numbers = table_of("number", "when", "what")
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
    _say_who_learns(found)
    out.print(PROTECTED, markup=False)
    out.print("Rows, labels, states and personal models stay at the site.")


def _say_who_learns(found: Disclosure) -> None:
    """Who receives what of an upload, and what it may tell them."""
    from fedtailor.federation.protocol.disclosure import REACHES, SEEN_BY_COORDINATOR

    receive, learn = REACHES[found.reach]
    if found.arrays:
        out.print(f"[bold]The coordinator[/] {SEEN_BY_COORDINATOR}")
    out.print(f"[bold]Other sites[/] receive {receive}; they could learn {learn}.")


def _networks(plan: TrainingPlan) -> str:
    model, several = (str(plan.settings[name]) for name in ("model", "models"))
    if not several:
        return model
    common = "" if model in (name for name, _ in plan.models()) else f" and {model} in common"
    return f"{several} (in the order of sites){common}"


def show_plan(found: PlanReport, own: bool) -> None:
    """What a plan asks of a site, as text; `own`: of the site whose limits these are."""
    plan, leaves = found.plan, found.leaves
    out.print(
        f"{plan.method} with {_networks(plan)}, {counted(plan.rounds, 'round')}, "
        f"{counted(plan.clients, 'site')} (plan {plan.fingerprint()[:16]})",
        markup=False,
    )
    if leaves is None:
        out.print("It is code from elsewhere, which is not run to be looked at.")
    else:
        names = ", ".join(array.name for array in leaves.arrays) or "nothing"
        out.print(
            f"[bold]Leaves[/] about {counted(found.uploads, 'time')}: {escape(names)}; "
            f"{in_bytes(leaves.bytes)} each time, {in_bytes(found.uploads * leaves.bytes)} in all. "
            f"At least {in_bytes(found.down)} come each time."
        )
        if found.rows is not None:
            out.print(f"An upload rests on {found.per_upload} of {found.rows} training rows.")
        _say_who_learns(leaves)
        if found.epsilon is not None:
            out.print(f"[bold]DP-SGD[/]: at least ε = {found.epsilon:.2f} after all rounds.")
        elif not plan.settings["dp_noise"]:
            out.print("[bold]Without noise[/]: nothing is proven about what could be learnt.")
        out.print(f"Numbers that leave beside: fedtailor show {plan.method} --wire", markup=False)
    if found.trouble:
        out.print(f"Its rows are not known: {found.trouble}", markup=False, style="yellow")
    whose = "this site's limits" if own else "the usual limits"
    table = table_of("the plan has", whose, "")
    for check in found.checks:
        what = f"[red]refused[/]: {escape(check.cure)}" if check.cure else "within"
        table.add_row(escape(check.plan), escape(check.limit), what)
    out.print(table)
