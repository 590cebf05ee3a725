"""Commands that run something: run, compare, resume."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fedtailor.cli.reporting import watched
from fedtailor.cli.settings import (
    CONFIG_HELP,
    SET_HELP,
    gather,
    gather_several,
    whole,
    with_settings,
)
from fedtailor.core.errors import BadInput
from fedtailor.runs.stopwatch import Stopwatch, process_age

Set = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help=SET_HELP)]
ConfigFile = Annotated[Path | None, typer.Option("--config", metavar="FILE.toml", help=CONFIG_HELP)]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Where to keep the run (default: a new ./runs/...)."),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite", help="Replace an earlier run in that folder; other files are never removed."
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON on stdout, nothing else there.")
]
Watch = Annotated[
    bool, typer.Option("--watch", help="Show the report in the browser while it goes on.")
]
Track = Annotated[
    str | None,
    typer.Option(
        "--track",
        metavar="TOOL[,TOOL]",
        help="Send every round to tensorboard, mlflow or wandb (pip install 'fedtailor\\[track]').",
    ),
]

SideBySide = Annotated[
    bool,
    typer.Option(
        "--side-by-side/--one-by-one",
        help="Several runs of a method share one program where they can; each ends as if alone.",
    ),
]


@contextmanager
def _importing() -> Iterator[None]:
    """Within, torch may be imported: nobody looks for garbage among it, neither then nor later."""
    first = "torch" not in sys.modules
    if first:  # it has so many objects that this takes a tenth of the import
        gc.disable()
    try:
        yield
    finally:
        if first:
            gc.freeze()
            gc.enable()


def _tracking(track: str | None, folder: Path) -> Any:
    """The tools that are to be told of a run; None if there are none."""
    if track is None:
        return None
    from fedtailor.tracking import Tracking
    from fedtailor.tracking.tools import parse_tools

    return Tracking(parse_tools(track), folder)


def _tracking_again(folder: Path) -> Any:
    """The tools that a run was started with; one that is not to be had here is left out."""
    from fedtailor.tracking import read_tools

    tools = read_tools(folder)
    try:
        return _tracking(",".join(tools), folder) if tools else None
    except BadInput as error:
        sys.stderr.write(f"fedtailor: not tracked from here on: {error}\n")
        return None


Told = Callable[[dict[str, Any], int], None]


class Shown(ExitStack):
    """What is shown of a run or comparison while it goes on: progress, the page, tools.

    Args:
      folder: of the run or comparison.
      tracking: the tools that are told, if any.
      watch: whether its page is shown in the browser.
      kept: what is there still if a client's training diverges.
    """

    def __init__(
        self, folder: Path, tracking: Any, watch: bool, kept: str = "the last good checkpoint"
    ) -> None:
        super().__init__()
        from fedtailor.cli.showing import Live
        from fedtailor.cli.terminal import library_aloud

        self.enter_context(library_aloud())  # also what it says of the data, before a round
        self._folder, self._tracking, self._watch, self._kept = folder, tracking, watch, kept
        self._live = Live()

    def begun(self) -> None:
        """Begins to show what has just got its folder."""
        if self._tracking:
            self._tracking.remember()
        self.show()

    def show(self) -> None:
        """Shows what goes on from here until the end."""
        self.enter_context(watched(self._folder, self._watch))
        self.enter_context(self._live)
        if self._tracking:
            self.enter_context(self._tracking)

    def round_of(self, name: str, folder: Path | None = None, runs_after: int = 0) -> Told:
        """What is to be called with each round of a run."""
        live = self._live.watch(name, folder or self._folder, runs_after)
        if self._tracking is None:
            return live
        note = self._tracking.run(folder or self._folder)

        def both(line: dict[str, Any], rounds: int) -> None:
            live(line, rounds)
            note(line, rounds)

        return both

    def announce(self, method: str, seed: int, done: int, runs: int) -> Told:
        """What is to be called with each round of a comparison's next run."""
        from fedtailor.results.folder import read_planned, run_folder

        several = len(read_planned(self._folder)[1]) > 1
        name = f"[{done + 1}/{runs}] {method}" + (f" seed {seed}" if several else "")
        return self.round_of(name, run_folder(self._folder, method, seed), runs - done - 1)

    def announce_run(self, name: str, folder: Path | None, done: int, runs: int) -> Told:
        """What is to be called with each round of a sweep's next run."""
        return self.round_of(f"[{done + 1}/{runs}] {name}", folder, runs - done - 1)

    def announce_trial(self, name: str, folder: Path, runs_after: int) -> Told:
        """What is to be called with each round of a search's next run."""
        return self.round_of(name, folder, runs_after)

    def beside(self, asked: bool, several: bool) -> bool:
        """Whether runs may go side by side: tools follow one at a time."""
        if self._tracking and asked and several:
            sys.stderr.write("fedtailor: --track follows one run at a time: they go one by one\n")
        return asked and not self._tracking

    def __exit__(self, *raised: Any) -> Literal[False]:
        from fedtailor.core.errors import Interrupted
        from fedtailor.engine import Diverged
        from fedtailor.results.folder import is_finished, resume_command

        super().__exit__(*raised)
        error = raised[1]
        if isinstance(error, Interrupted):
            how = f"go on with: {resume_command(self._folder)}"
            if is_finished(self._folder):  # a run that was stopped in its last round
                how = f"that was its last, and the result is in {self._folder}"
            sys.stderr.write(f"fedtailor: stopped after round {error.round}; {how}\n")
            raise typer.Exit(130)
        if isinstance(error, Diverged):
            raise BadInput(f"{error}; {self._kept} is kept in {self._folder}") from None
        return False


@with_settings()
def run(
    given: dict[str, Any],
    method: Annotated[
        str | None,
        typer.Argument(
            metavar="METHOD", help="A method (fedtailor list) or package.module:factory."
        ),
    ] = None,
    options: Set = None,
    seeds: Annotated[
        str,
        typer.Option("--seeds", metavar="N", help="So many runs; seeds count up from --seed."),
    ] = "1",
    side_by_side: SideBySide = True,
    config: ConfigFile = None,
    out: Out = None,
    overwrite: Overwrite = False,
    watch: Watch = False,
    track: Track = None,
    json: Json = False,
) -> None:
    """Run one method: every client ends with a model of its own.

    With --seeds N or several rates (--lr 0.01,0.03,0.1), one run for each, in a folder of its own.

    Example: fedtailor run fedala --data digits --clients 20 --partition dirichlet:0.1
    """
    with _importing():
        name, values, hyper = gather(method, given, options, config)
        from fedtailor import api
        from fedtailor.cli.showing import show_result, show_sweep
        from fedtailor.results.config import make_config
        from fedtailor.results.folder import free_folder

    stopwatch = Stopwatch()
    stopwatch.count("importing", process_age())
    rates = str(values.get("lr", "")).split(",")
    number = whole("seeds", seeds)
    if number > 1 or len(rates) > 1:
        from fedtailor.runs.several.sweep import SweepPlan

        if watch:
            raise BadInput("--watch shows one run: leave it out, and say fedtailor watch of a run")
        values = {k: v for k, v in values.items() if k != "lr"}
        rates = [rate.strip() for rate in rates if rate.strip()]
        first = next(iter(SweepPlan(name, number, rates, values, hyper).configs.values()))
        folder = out or free_folder(f"{name.replace(':', '.')}-{Path(first.data).name}-sweep")
        with Shown(folder, _tracking(track, folder), watch, "what was finished") as shown:
            found = api.sweep(
                name,
                seeds=number,
                lr=rates,
                side_by_side=shown.beside(side_by_side, several=True),
                out=folder,
                overwrite=overwrite,
                announce=shown.announce_run,
                begun=shown.begun,
                options=hyper,
                **values,
            )
        show_sweep(found, folder, json)
        return
    made = make_config(name, values, hyper)
    folder = out or free_folder(f"{name.replace(':', '.')}-{Path(made.data).name}-seed{made.seed}")
    with Shown(folder, _tracking(track, folder), watch) as shown:
        result = api.run(
            name,
            out=folder,
            overwrite=overwrite,
            watch=shown.round_of(name),
            begun=shown.begun,
            stopwatch=stopwatch,
            options=hyper,
            **values,
        )
    show_result(result, folder, json)


@with_settings()
def compare(
    given: dict[str, Any],
    methods: Annotated[
        list[str] | None, typer.Argument(metavar="METHOD METHOD ...", help="Methods to compare.")
    ] = None,
    options: Set = None,
    seeds: Annotated[
        str,
        typer.Option("--seeds", metavar="N", help="Runs per method; seeds count up from --seed."),
    ] = "1",
    repeats: Annotated[
        str,
        typer.Option(
            "--repeats",
            metavar="R",
            help="Draw split and seed anew so often: makes small differences known.",
        ),
    ] = "1",
    margin: Annotated[
        float | None,
        typer.Option(
            "--margin",
            metavar="DELTA",
            help="Differences up to here do not matter: 0.01 is a point, the default; for errors "
            "in the label's unit 1 % of its deviation.",
        ),
    ] = None,
    yardsticks: Annotated[
        bool,
        typer.Option(
            "--yardsticks/--no-yardsticks",
            help="Also train one model on all rows in one place, and a linear model alone.",
        ),
    ] = True,
    tune: Annotated[
        str | None,
        typer.Option(
            "--tune",
            metavar="N",
            help="Choose every method's settings among N on validation rows first: the same "
            "effort for all.",
        ),
    ] = None,
    search: Annotated[
        str, typer.Option("--search", metavar="random|grid|bayes", help="How --tune finds them.")
    ] = "random",
    side_by_side: SideBySide = True,
    config: ConfigFile = None,
    out: Out = None,
    overwrite: Overwrite = False,
    watch: Watch = False,
    track: Track = None,
    json: Json = False,
) -> None:
    """Compare methods: same data, same start, same draws; ends with a verdict in words.

    Training alone is always among them: it is what everything is measured against. The verdict
    says helps, harms, no difference or cannot tell, for the method that is best on validation rows.
    With --set, name=value goes to every method that has it, method.name=value to one.

    Example: fedtailor compare fedavg ditto fedala --repeats 5
    """
    if not methods:
        raise BadInput("no methods to compare: name at least one (fedtailor list shows them)")
    with _importing():
        methods, given, pairs = gather_several(methods, given, options, config)
        from fedtailor import api
        from fedtailor.cli.showing import show_summary
        from fedtailor.results.folder import free_folder
        from fedtailor.runs.comparison.plan import ComparisonPlan
        from fedtailor.runs.tuning.plan import check_words

    check_words(search, "mean")
    if tune is None and search != "random":
        raise BadInput(f"search is '{search}' without --tune: give --tune N, e.g. --tune 20")
    number, times = whole("seeds", seeds), whole("repeats", repeats)
    how: dict[str, Any] = {"repeats": times, "margin": margin, "yardsticks": yardsticks}
    how |= {"tune": whole("tune", tune) if tune is not None else 0, "search": search}
    first = next(iter(ComparisonPlan(methods, number, given, pairs, **how).configs.values()))
    folder = out or free_folder(f"compare-{Path(first.data).name}")
    with Shown(folder, _tracking(track, folder), watch, "what was finished") as shown:
        summary = api.compare(
            *methods,
            seeds=number,
            **how,
            side_by_side=shown.beside(side_by_side, several=number * times > 1),
            out=folder,
            overwrite=overwrite,
            announce=shown.announce,
            announce_trial=shown.announce_trial,
            begun=shown.begun,
            options=pairs,
            **given,
        )
    show_summary(summary, folder, json)


def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run's or comparison's folder.")],
    watch: Watch = False,
    json: Json = False,
) -> None:
    """Go on with a run, comparison, sweep or search that was stopped; it ends as if it had not."""
    with _importing():
        from fedtailor import api
        from fedtailor.cli.showing import show_result, show_summary, show_sweep, show_tuning
        from fedtailor.results.folder import is_comparison, is_sweep, is_tuning

    if not folder.is_dir():
        raise BadInput(f"'{folder}' is no folder: name a run's folder")
    swept, tuned = is_sweep(folder), is_tuning(folder)
    several = is_comparison(folder) or swept or tuned
    kept = "what was finished" if several else "the last good checkpoint"
    with Shown(folder, _tracking_again(folder), watch, kept) as shown:
        shown.show()
        found = api.resume(
            folder,
            watch=shown.round_of(folder.name),
            announce=shown.announce,
            announce_run=shown.announce_run,
            announce_trial=shown.announce_trial,
            side_by_side=shown.beside(True, several),
        )
    show = show_sweep if swept else show_summary if several else show_result
    show = show_tuning if tuned else show
    show(found, folder, json)


def add_to(app: typer.Typer) -> None:
    """Registers the commands."""
    for command in (run, compare, resume):
        app.command()(command)
