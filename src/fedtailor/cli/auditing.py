"""The command that measures what a finished run gives away: audit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from fedtailor.cli.landscaping import Device
from fedtailor.cli.settings import Json
from fedtailor.cli.terminal import library_aloud, out, points_shown, print_json, table_of


def _attacks_table(found: dict[str, Any]) -> Table:
    from fedtailor.analysis.audit.page import inversion_rows

    unit = "PSNR in dB" if found["kind"] == "image" else "error in standard deviations"
    table = table_of(
        *("client", "rows", "protection", "state"),
        numbers=("ε", "labels told", "recovered", "nearest", "constant", "noise", "nearer"),
        title=f"Rows rebuilt from uploads ({unit})",
        caption="nearer: of these rows, more was found than the nearest other training row shows",
    )
    for row in inversion_rows(found):
        first = [escape(row["client"]), row["rows"], row["protection"], row["state"]]
        measured = [row[k] for k in ("recovered", "nearest", "constant", "noise", "nearer")]
        if row["words"] or row["note"]:
            measured = [row["words"] or row["note"], "", "", "", ""]
        table.add_row(*first, row["epsilon"], row["labels"], *measured)
    return table


def _members_table(found: dict[str, Any]) -> Table:
    from fedtailor.analysis.audit.page import RATES, membership_rows

    rows = membership_rows(found)
    rates = [(k, words) for k, words in RATES if any(row[k] != "–" for row in rows)]
    table = table_of(
        *("of", "protection", "told by"),
        numbers=("AUC", *(f"found at {words}\nfalse alarms" for _, words in rates), "advantage"),
        title="Who was in the training set",
        caption="AUC 0.5 is guessing; intervals of 95 % over clients and their rows",
    )
    for row in rows:
        measured = [row["auc"], *(row[k] for k, _ in rates), row["advantage"]]
        if row["refused"]:
            measured = [row["refused"], *[""] * (len(measured) - 1)]
        table.add_row(row["model"], row["protection"], row["score"], *measured)
    return table


def audit(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A finished run's folder.")],
    clients: Annotated[
        list[str] | None,
        typer.Option(
            "--client",
            metavar="NAME",
            help="Whose upload is attacked; may be said several times (default: the three clients "
            "with fewest training rows).",
        ),
    ] = None,
    rows: Annotated[
        int,
        typer.Option(
            "--rows", metavar="N", help="Rows that the upload is made of; 0: all, as in the run."
        ),
    ] = 4,
    attack: Annotated[
        str,
        typer.Option(
            "--attack",
            metavar="idlg|geiping|analytic",
            help="L-BFGS on gradients; angle and smoothness by signed Adam, slower; or a first "
            "linear layer read off.",
        ),
    ] = "idlg",
    steps: Annotated[
        int, typer.Option("--steps", metavar="N", help="Of an attempt; 0: idlg 300, geiping 4800.")
    ] = 0,
    restarts: Annotated[
        int,
        typer.Option("--restarts", metavar="N", help="Attempts; the best fit counts."),
    ] = 1,
    tv: Annotated[
        float,
        typer.Option("--tv", metavar="X", help="How alike geiping wants neighbouring pixels."),
    ] = 0.1,
    labels: Annotated[
        str,
        typer.Option(
            "--labels", metavar="known|guessed", help="Known to the attacker, or read off first."
        ),
    ] = "known",
    round: Annotated[
        str,
        typer.Option(
            "--round", metavar="first|last", help="The first round, or one more after the last."
        ),
    ] = "first",
    dp_clip: Annotated[
        float | None,
        typer.Option("--dp-clip", metavar="X", help="With --dp-noise: the clip (default: 1)."),
    ] = None,
    dp_noise: Annotated[
        float | None,
        typer.Option(
            "--dp-noise",
            metavar="X",
            help="Compare with the same upload under DP-SGD with this noise; a run with DP-SGD is "
            "compared with none.",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Of the attacks and the bootstrap.")
    ] = 0,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Measure what a run gives away: rows rebuilt from uploads, and who was in the training set.

    Plays the clients' own turn once more, attacks what they would send, and asks the run's models
    about training and test rows. Writes audit.json and audit.html into the run's folder. Ctrl-C
    keeps what is done.

    Example: fedtailor audit runs/fedavg-digits-seed0 --rows 1 --dp-noise 1
    """
    from fedtailor.api import audit as measure
    from fedtailor.results.folder import AUDIT_PAGE

    with library_aloud(), points_shown("steps") as tell:
        found = measure(
            folder, clients=clients or (), rows=rows, attack=attack, steps=steps,
            restarts=restarts, tv=tv, labels=labels, round=round, dp_clip=dp_clip,
            dp_noise=dp_noise, seed=seed, device=device, tell=tell,
        )  # fmt: skip
    if json:
        print_json(found)
        return
    if found["inversion"]:
        out.print(_attacks_table(found))
    if found["membership"]:
        out.print(_members_table(found))
    for note in found["notes"]:
        out.print(note, markup=False)
    out.print(f"In: {folder / AUDIT_PAGE}", markup=False)


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    app.command()(audit)
