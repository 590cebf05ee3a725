"""Commands that use what finished runs kept: metrics, predict."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from fedtailor.cli.settings import Json
from fedtailor.cli.showing import metric_title, metric_value, per_cent, undefined_lines
from fedtailor.cli.terminal import library_aloud, out, print_json, table_of
from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.spreadsheet import csv_text

if TYPE_CHECKING:
    from fedtailor.api import Prediction

OVER = {
    "mean": "mean",
    "std": "std",
    "median": "median",
    "bottom5": "bottom 5 %",
    "top5": "top 5 %",
    "worst": "worst",
    "weighted": "all rows",
    "clients": "have a value",
}
SHOWN_CLIENTS, SHOWN_CLASSES = 40, 10


def _write_csv(path: Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    from fedtailor.core.inputs.files import write_atomically

    try:
        write_atomically(path, csv_text(head, rows))
    except OSError as error:
        raise BadInput(
            f"'{path}' cannot be written ({error.strerror or error}): choose another --csv"
        ) from None


def metrics(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A finished run's or comparison's folder.")
    ],
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            metavar="NAME",
            help="Only this one; may be said several times. Classes: accuracy, balanced-accuracy, "
            "macro-f1, roc-auc, average-precision, sensitivity, specificity, log-loss, "
            "perplexity, brier, calibration-error. Numbers: rmse, mae, r2. Times: concordance.",
        ),
    ] = None,
    best: Annotated[
        bool,
        typer.Option(
            "--best", help="Of the best round by validation rows; else of the final models."
        ),
    ] = False,
    part: Annotated[
        str, typer.Option("--part", metavar="test|val", help="On which rows of each client.")
    ] = "test",
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Also write all of it as a table.")
    ] = None,
    json: Json = False,
) -> None:
    """Every metric of every client and over clients, without running anything again.

    A run keeps what its models said of each row (outputs.safetensors), and metrics are computed
    from that. A client that cannot have a metric (one class only, say) shows "–", with the reason
    below; means are over those that have it. Of several repeats or seeds, means are shown. Metrics
    of your own: fedtailor.metrics(DIR, own=...) in Python.

    Example: fedtailor metrics runs/compare-digits --metric roc-auc --metric brier
    """
    from fedtailor.api import metrics as kept_metrics_of
    from fedtailor.results.metrics.named import positive_note

    found = kept_metrics_of(folder, names or (), best=best, part=part)
    if csv is not None:
        _write_csv(csv, *_metrics_as_rows(found))
    for name in found["unfinished"]:
        sys.stderr.write(f"fedtailor: left out, as it is not finished: {name}\n")
    if json:
        print_json(found)
        return
    for method, of in found["methods"].items():
        out.print(_metrics_title(method, of, found), markup=False)
        out.print(_metrics_table(of))
        for line in undefined_lines({n: m["undefined"] for n, m in of["metrics"].items()}):
            out.print(line, markup=False, soft_wrap=True)
    if note := positive_note(of["metrics"], found["classes"]):
        out.print(note, markup=False, soft_wrap=True)


def _metrics_title(method: str, of: dict[str, Any], found: dict[str, Any]) -> str:
    from fedtailor.results.kept_metrics import PART_WORDS

    rounds = ", ".join(str(number) for number in dict.fromkeys(of["rounds"]))
    which = f"{found['models']} round ({rounds})"
    runs = f", means over {of['runs']} runs" if of["runs"] > 1 else ""
    return f"{method}: {PART_WORDS[found['part']]} rows, {which}{runs}"


def _metrics_table(of: dict[str, Any]) -> Table:
    from fedtailor.results.metrics.named import METRICS

    table = table_of()
    shown = {name: METRICS.get(name) for name in of["metrics"]}
    table.add_column("client", no_wrap=True)
    for name, metric in shown.items():
        table.add_column(metric_title(metric) if metric else escape(name), justify="right")
    clients = list(next(iter(of["metrics"].values()))["per_client"])
    for client in clients[:SHOWN_CLIENTS]:
        values = [of["metrics"][name]["per_client"][client] for name in shown]
        cells = (metric_value(m, v) for m, v in zip(shown.values(), values, strict=True))
        table.add_row(escape(client), *cells)
    if len(clients) > SHOWN_CLIENTS:
        table.add_row(f"... {len(clients) - SHOWN_CLIENTS} more: see --csv", *[""] * len(shown))
    table.add_section()
    for key, words in OVER.items():
        values = [of["metrics"][name].get(key) for name in shown]
        if key == "clients":
            cells = (f"{v:.4g}" if v else "0" for v in values)
        else:
            cells = (metric_value(m, v) for m, v in zip(shown.values(), values, strict=True))
        table.add_row(words, *cells)
    return table


def _metrics_as_rows(found: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Head and rows of a table: first a method's clients, then what they come to."""
    rows, names = [], list(next(iter(found["methods"].values()))["metrics"])
    for method, of in found["methods"].items():
        each = [of["metrics"][name] for name in names]
        for client in each[0]["per_client"]:
            rows.append([method, "client", client, *(m["per_client"][client] for m in each)])
        for key in OVER:
            rows.append([method, "over clients", key, *(m.get(key) for m in each)])
    return ["method", "of", "name", *names], rows


def predict(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A finished run's folder.")],
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILES...", help="Images, or tables (csv, npz, parquet), or text."),
    ] = None,
    client: Annotated[
        str | None, typer.Option("--client", metavar="ID", help="Whose model to use.")
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(
            "--csv", metavar="FILE", help="Write a row per example to FILE, with all probabilities."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Use a client's personal model on new examples.

    Says the class with the probability of each, or the value in the label's own unit, or the
    relative risk (2: the event comes twice as often as at 1). New rows are prepared as the client's
    training rows were. A row with a category that training never saw, or a number far outside of
    its range, gets a note: what the model says of it is a guess.

    Example: fedtailor predict runs/demo/runs/fedala-seed0 --client client-03 scan.png
    """
    if not files:
        raise BadInput("no files: name at least one to predict for")
    if client is None:
        raise BadInput("no client: say whose model to use with --client")
    if csv is not None and csv.resolve() in [file.resolve() for file in files]:
        raise BadInput(f"--csv '{csv}' is one of the files to predict for: choose another")
    from fedtailor.api import predict as predict_files

    with library_aloud():
        found = predict_files(folder, client, files)
    if csv is not None:
        _write_csv(csv, *_predictions_as_rows(found))
        sys.stderr.write(f"Written: {csv}\n")
    unusual = sum(bool(p.note) for p in found)
    if unusual:
        sys.stderr.write(
            f"fedtailor: {unusual} of {len(found)} rows have values unlike those of training (see "
            "the notes): do not rely on what is said of them\n"
        )
    if json:
        print_json([_as_json(p) for p in found])
    elif csv is None:
        out.print(_predictions_table(found))


def _as_json(p: Prediction) -> dict[str, Any]:
    """What the task has, and the note."""
    told = p._asdict()
    return {k: v for k, v in told.items() if v not in (None, {})}


def _predictions_as_rows(found: Sequence[Prediction]) -> tuple[list[str], list[list[Any]]]:
    first = found[0]
    if first.label is None:
        kind = "risk" if first.value is None else "value"
        return ["example", kind, "note"], [[p.example, getattr(p, kind), p.note] for p in found]
    head = ["example", "prediction", *(f"probability of {c}" for c in first.probabilities), "note"]
    return head, [[p.example, p.label, *p.probabilities.values(), p.note] for p in found]


def _predictions_table(found: Sequence[Prediction]) -> Table:
    first = found[0]
    head = ["value"] if first.label is None else ["class", "probability %"]
    if first.risk is not None:
        head = ["relative risk"]
    classes = list(first.probabilities)
    each = 2 <= len(classes) <= SHOWN_CLASSES
    table = table_of("example", *head)
    for name in classes if each else ():
        table.add_column(escape(f"{name} %"), justify="right")
    noted = any(p.note for p in found)
    if noted:
        table.add_column("note", style="yellow")
    for p in found:
        if p.label is None:
            said = [metric_value(None, p.value if p.risk is None else p.risk)]
        else:
            said = [escape(p.label), per_cent(p.probability)]
        said += [per_cent(chance) for chance in p.probabilities.values()] if each else []
        table.add_row(escape(p.example), *said, *([escape(p.note)] if noted else []))
    if first.risk is not None:
        table.caption = "of two rows, the one with twice the risk has the event twice as often"
    elif classes and not each:
        table.caption = f"the probabilities of all {len(classes)} classes: --csv or --json"
    return table


def add_to(app: typer.Typer) -> None:
    """Registers the commands."""
    app.command()(metrics)
    app.command()(predict)
