"""The command that chooses hyper-parameters: tune."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedtailor.cli.running import ConfigFile, Json, Out, Overwrite, Set, Shown, SideBySide
from fedtailor.cli.settings import gather_several, whole, with_settings
from fedtailor.core.errors import BadInput

Search = Annotated[
    str,
    typer.Option(
        "--search",
        metavar="random|grid|bayes",
        help="How settings are found; bayes learns from those before (pip install "
        "'fedtailor\\[tune]').",
    ),
]


def read_over(pairs: list[str] | None) -> dict[str, str]:
    """`--over` as a dict: a name, or a name and what to try of it."""
    found = {}
    for pair in pairs or []:
        name, _, text = pair.partition("=")
        if not name.strip():
            raise BadInput(f"--over '{pair}': write NAME or NAME=LOW..HIGH, e.g. --over lr")
        found[name.strip()] = text.strip()
    return found


@with_settings()
def tune(
    given: dict[str, Any],
    methods: Annotated[
        list[str] | None, typer.Argument(metavar="METHOD ...", help="Methods to tune.")
    ] = None,
    trials: Annotated[
        str, typer.Option("--trials", metavar="N", help="Settings that are tried of each method.")
    ] = "20",
    search: Search = "random",
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over",
            metavar="NAME[=RANGE]",
            help="What to try after the defaults, and nothing else: mu, mu=0.01..1:log, "
            "epochs=1..5, optimizer=sgd,adam. May be given several times. Default: lr and the "
            "ranges in fedtailor show METHOD.",
        ),
    ] = None,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune/--no-prune",
            help="Look after a ninth and a third of the rounds: only the best third goes on.",
        ),
    ] = True,
    target: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="mean|bottom5|worst",
            help="Whose metric on validation rows is made best: the mean over clients, the worst "
            "twentieth, or the worst client.",
        ),
    ] = "mean",
    seeds: Annotated[
        str,
        typer.Option("--seeds", metavar="N", help="Runs of each setting, whose mean counts."),
    ] = "1",
    options: Set = None,
    side_by_side: SideBySide = True,
    config: ConfigFile = None,
    out: Out = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Choose hyper-parameters on validation rows; test rows are never read.

    Tries settings of each method, gives up the poor ones early, and writes the best of each as a
    file that run takes. What you give (--lr 0.1, --set mu=1) stays; the rest is tried. A search
    that was stopped goes on with fedtailor resume, and ends as if it never had been.

    Example: fedtailor tune fedprox ditto --data digits --trials 20 --rounds 30

    Then: fedtailor run --config DIR/chosen/fedprox.toml
    """
    methods, given, pairs = gather_several(methods, given, options, config)
    if not methods:
        raise BadInput("no methods to tune: name at least one (fedtailor list shows them)")
    from fedtailor import api
    from fedtailor.cli.showing import show_tuning
    from fedtailor.results.folder import free_folder
    from fedtailor.runs.tuning.plan import TuningPlan, check_words
    from fedtailor.runs.tuning.search import SearchRules

    check_words(search, target)
    rules: dict[str, Any] = {"trials": whole("trials", trials), "search": search, "prune": prune}
    rules |= {"target": target, "seeds": whole("seeds", seeds)}
    tried = read_over(over)
    plan = TuningPlan(methods, given, pairs, tried, SearchRules(**rules))
    first = next(iter(plan.candidates.values())).config
    name = methods[0].replace(":", ".") if len(methods) == 1 else "methods"
    folder = out or free_folder(f"tune-{name}-{Path(first.data).name}")
    with Shown(folder, None, False, "what was tried") as shown:
        found = api.tune(
            *methods,
            **rules,
            over=tried,
            side_by_side=side_by_side,
            out=folder,
            overwrite=overwrite,
            announce=shown.announce_trial,
            begun=shown.begun,
            options=pairs,
            **given,
        )
    show_tuning(found, folder, json)


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    app.command()(tune)
