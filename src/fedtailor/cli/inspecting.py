"""Commands that look at something: list, show, inspect, partition, check."""

from __future__ import annotations

import json as as_text
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.markup import escape
from rich.table import Table

from fedtailor.cli.settings import Json, read_pairs, with_settings
from fedtailor.cli.terminal import err, library_aloud, out, print_json, table_of
from fedtailor.cli.terminal import out as console
from fedtailor.core.inputs.plain_text import counted

if TYPE_CHECKING:
    from fedtailor.analysis.description.described import DataDescription


def list_methods(json: Json = False) -> None:
    """List the methods."""
    from fedtailor.methods import KINDS
    from fedtailor.methods.combine import WRAPPERS
    from fedtailor.methods.describe import page

    kinds = {kind: {m: page(f) for m, f in methods.items()} for kind, methods in KINDS.items()}
    if json:
        print_json(
            [
                {
                    "name": name,
                    "kind": kind,
                    "title": p.title,
                    "reference": p.reference,
                    "options": {o.name: o.default for o in p.options},
                }
                for kind, pages in kinds.items()
                for name, p in pages.items()
            ]
        )
        return
    table = table_of("method", "what it does", "options")
    for kind, pages in kinds.items():
        table.add_section()
        table.add_row(f"[bold underline]{kind}[/]")
        for name, p in pages.items():
            table.add_row(f"[bold]{name}[/]", p.title, ", ".join(o.name for o in p.options))
    out.print(table)
    for name, part in WRAPPERS.items():
        out.print(f"METHOD+{name}: {part.title}; for {part.hosts}", markup=False)
    out.print("More: fedtailor show METHOD")


def show(
    method: Annotated[str, typer.Argument(metavar="METHOD", help="Which method.")],
    wire: Annotated[
        bool, typer.Option("--wire", help="Exactly what leaves a site, and who needs it.")
    ] = False,
    json: Json = False,
) -> None:
    """Explain a method: paper, maths, hyper-parameters, what it learns, bytes per round.

    Example: fedtailor show fedala --wire
    """
    if wire:
        _show_wire(method, json)
        return

    from fedtailor.methods.check import tasks_of
    from fedtailor.methods.describe import page
    from fedtailor.methods.find import find
    from fedtailor.methods.footprint import footprint

    factory = find(method)
    found, sizes, tasks = page(factory), footprint(factory), tasks_of(factory)
    if json:
        print_json(
            {
                "name": method,
                "title": found.title,
                "text": found.text,
                "reference": found.reference,
                "deviations": found.deviations,
                "options": [
                    {
                        "name": o.name,
                        "default": o.default,
                        "values": o.values,
                        "tuned_over": o.tried,
                        "meaning": o.meaning,
                    }
                    for o in found.options
                ],
                "tasks": {task: {"learns": not why, "reason": why} for task, why in tasks.items()},
                "footprint": sizes._asdict(),
            }
        )
        return
    out.print(f"[bold]{method}[/]: {found.title}\n")
    out.print(found.text, markup=False)
    out.print(f"\n[bold]Paper[/]: {found.reference}")
    out.print(f"[bold]Deviations[/]: {found.deviations or 'none'}")
    out.print(f"[bold]Learns[/]: {', '.join(task for task, why in tasks.items() if not why)}")
    for task, why in tasks.items():
        if why:
            out.print(f"[bold]Not[/] {task}: {escape(why)}")
    if found.options:
        table = table_of("option", "default", "takes", "tuned over", "meaning")
        for o in found.options:
            row = (f"[bold]{o.name}[/]", str(o.default), o.values, o.tried or "–", o.meaning)
            table.add_row(*row)
        out.print(table)
        example = found.options[0]
        out.print(f"Set with: fedtailor run {method} --set {example.name}={example.default}\n")
    out.print("[bold]In units of one model (Σ)[/], full participation:")
    out.print(f"  down {sizes.down:.4g} Σ and up {sizes.up:.4g} Σ per client and round")
    out.print(f"  kept by a client {sizes.client:.4g} Σ, by the server {sizes.server:.4g} Σ")
    out.print(f"  measured with {sizes.clients} clients and {sizes.parameters:,} parameters")


def _show_wire(method: str, json: bool) -> None:
    from fedtailor.federation.protocol.disclosure import NUMBERS, PROTECTED, what_leaves

    found = what_leaves(method)
    if json:
        print_json(
            {
                "name": method,
                "arrays": [a._asdict() for a in found.arrays],
                "numbers": [dict(zip(("name", "when", "what"), n, strict=True)) for n in NUMBERS],
                "server_needs": found.needs,
                "others_receive": found.reach,
                "parameters": found.parameters,
                "differential_privacy": PROTECTED,
            }
        )
        return
    from fedtailor.cli.federation_view import show_wire

    show_wire(method, found)


@with_settings("Data", "Clients")
def partition(
    given: dict[str, Any],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Keep partition.npz, statistics and pictures."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier partition in that folder.")
    ] = False,
    json: Json = False,
) -> None:
    """Divide data among clients: statistics, a picture, and a file to use again.

    Example: fedtailor partition --data digits --partition pathological:2 --out parts
    """
    from fedtailor.core.inputs.files import write_atomically
    from fedtailor.figures.partition import draw_partition
    from fedtailor.partition import save_partition, statistics
    from fedtailor.results.config import make_config
    from fedtailor.results.folder import open_folder
    from fedtailor.runs.data import lay_out, say_what_is_learnt

    config, source, made = lay_out(make_config("local", given, {}))
    with library_aloud():
        say_what_is_learnt(source)
    numbers = statistics(made, source.strata, len(source.strata_names))
    if out is not None:
        open_folder(out, overwrite=overwrite, marks=("statistics.json",), what="partition")
        save_partition(made, out / "partition.npz")
        kept = {"made_by": "FedTailor"} | numbers
        write_atomically(out / "statistics.json", as_text.dumps(kept, indent=1) + "\n")
        for kind in ("png", "svg"):
            draw_partition(made, source.strata, source.strata_names, out / f"partition.{kind}")
    if json:
        print_json(numbers)
        return
    console.print(_partition_table(made.names, numbers, source.strata_names))
    spread = numbers["samples"]
    console.print(
        f"{config.data}, {made.scheme}: {counted(len(made), 'client')}, {spread['min']:g} to "
        f"{spread['max']:g} rows (median {spread['median']:g}); label distance between clients "
        f"{numbers['label_distance']:.2f} of at most 2",
        markup=False,
    )
    if out is not None:
        console.print(f"Kept in {out}; use it with --partition-file {out / 'partition.npz'}")


@with_settings("Data", without=("data", "normalise", "augment"))
def inspect(
    given: dict[str, Any],
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="A known data set, or a path to your own data.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="PAGE.html", help="Write a page as well.")
    ] = None,
    json: Json = False,
) -> None:
    """Look at data before a run: columns, clients, how they are encoded, what looks wrong.

    Example: fedtailor inspect visits.csv --label outcome --client-column site --out visits.html
    """
    from fedtailor.analysis.description.described import describe
    from fedtailor.core.errors import BadInput

    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise BadInput(f"--out '{out}' is no file in a folder that exists: give PAGE.html")
    found = describe(data, **given)
    if out is not None:
        found.write_page(out)
    if json:
        print_json(found.to_json())
        return
    _show_description(found)
    if out is not None:
        console.print(f"Page: {out}", markup=False)


def _show_description(found: DataDescription) -> None:

    rows = found.rows_of_table()
    if rows:
        table = table_of(*rows[0])
        for row in rows:
            table.add_row(*(escape(str(cell)) for cell in row.values()))
        out.print(table)
    learnt = f"{found.task} of {found.label}" if found.label else found.task
    whose = counted(len(found.clients), "client") if found.clients else "no clients"
    out.print(
        f"{found.name}: {counted(found.rows, 'row')} of {found.kind} data, "
        f"{counted(found.inputs, 'input')}, {whose}; {learnt}",
        markup=False,
    )
    for title, counts in (("labels", found.labels), ("clients", found.clients)):
        if counts:
            named = ", ".join(f"{name} ({count:,})" for name, count in list(counts.items())[:12])
            more = f" and {len(counts) - 12} more" if len(counts) > 12 else ""
            out.print(f"{title}: {named}{more}", markup=False)
    for line in found.notes:
        out.print(f"note: {line}", markup=False)
    for line in found.warnings:
        out.print(f"look: {line}", markup=False, style="yellow")


def _partition_table(
    names: tuple[str, ...], numbers: dict[str, Any], classes: tuple[str, ...]
) -> Table:
    table = table_of("client", numbers=("rows", "classes"))
    table.add_column("most of")
    shown = names if len(names) <= 40 else names[:40]
    for i, name in enumerate(shown):
        counts = numbers["class_counts"][i]
        order = sorted(range(len(counts)), key=lambda c: -counts[c])[:3]
        most = ", ".join(f"{classes[c]} ({counts[c]})" for c in order if counts[c])
        held = sum(count > 0 for count in counts)
        table.add_row(escape(name), str(sum(counts)), str(held), escape(most))
    if len(shown) < len(names):
        table.add_row(f"... {len(names) - len(shown)} more", "", "", "")
    return table


def check(
    method: Annotated[
        str, typer.Argument(metavar="METHOD", help="A method, or package.module:factory of yours.")
    ],
    set: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="An option of the method."),
    ] = None,
    engine: Annotated[
        Literal["vectorised", "sequential"],
        typer.Option(help="What to play it with; sequential asks nothing of mapping."),
    ] = "vectorised",
    compiled: Annotated[
        bool, typer.Option("--compiled", help="Compile its steps too: takes a minute or more.")
    ] = False,
    json: Json = False,
) -> None:
    """Check that a method holds what every method must; exit code 1 if it does not."""
    from fedtailor.methods.check import PLAN, WITH_COMPILER, check_method
    from fedtailor.methods.describe import parse_options
    from fedtailor.methods.find import find

    factory = find(method)
    options = parse_options(factory, read_pairs(set))
    with err.status(f"checking {method}..."):
        findings = check_method(
            factory, engine=engine, plan=WITH_COMPILER if compiled else PLAN, **options
        )
    if json:
        print_json([f._asdict() for f in findings])
    else:
        for f in findings:
            mark = "[green]holds[/]" if f.passed else "[red]BROKEN[/]"
            out.print(f"{mark}  {escape(f.check)}")
            if f.detail:
                out.print(f"        {f.detail}", markup=False)
        failed = sum(not f.passed for f in findings)
        out.print(f"{method}: {len(findings) - failed} of {len(findings)} checks hold")
    raise typer.Exit(0 if all(f.passed for f in findings) else 1)


def add_to(app: typer.Typer) -> None:
    """Registers the commands."""
    app.command("list")(list_methods)
    for command in (show, inspect, partition, check):
        app.command()(command)
