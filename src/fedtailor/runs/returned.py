"""What `run`, `compare`, `simulate`, `metrics` return: entries, and what one can do with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fedtailor.core.errors import BadInput, unknown
from fedtailor.core.method import Method
from fedtailor.core.tree import Tree
from fedtailor.methods import Factory
from fedtailor.results.config import make_config
from fedtailor.results.folder import Line, run_folder
from fedtailor.results.kept_metrics import OwnMetric, kept_metrics
from fedtailor.results.objects import Objects, separate
from fedtailor.runs.comparison.play import Histories
from fedtailor.runs.personal import personal_model
from fedtailor.runs.predict import open_model
from fedtailor.runs.prepared import PreparedRun
from fedtailor.runs.run import Runner

if TYPE_CHECKING:
    import pandas

Page = Callable[[Path], Path]  # writes the page of a run's or comparison's folder


def as_frame(rows: Sequence[Mapping[str, Any]], index: Sequence[str] | None = None) -> Any:
    """Rows as a pandas DataFrame."""
    try:
        import pandas
    except ImportError:
        raise BadInput("a table needs pandas: pip install 'fedtailor[frames]'") from None
    return pandas.DataFrame(list(rows), index=index)


def _place(folder: Path | None, what: str) -> Path:
    if folder is None:
        raise BadInput(f"{what} needs the folder of the run, and none was kept: give out=...")
    return folder


def _number(run: PreparedRun, client: str) -> int:
    names = list(run.data.client_data.names)
    if client not in names:
        raise unknown("client", client, names)
    return names.index(client)


def _model_from(folder: Path, client: str, objects: Objects) -> nn.Module:
    """A client's model as a finished run kept it."""
    config, encoder, network, model, constants = open_model(folder, client, objects)
    return personal_model(config, encoder.form, network, model, constants)


def _model_in(run: PreparedRun, client: str) -> nn.Module:
    """A client's model out of a simulation that is still there."""
    ids = torch.tensor([_number(run, client)])
    if run.config.engine == "ray" or run.simulation.place == "disk":
        raise BadInput("the clients' states went with the run: give out=... to keep its models")
    ((_, model),) = run.simulation.models(run.config.finetuning(), ids=ids)
    return personal_model(run.config, run.data.encoder.form, run.networks[client], model)


class RunResult(dict[str, Any]):
    """What a run came to: the entries of `result.json`, and what one can do with them.

    Args:
      found: the entries.
      history: a line for each round.
      page: writes the page of a folder.
      folder: of the run; None if nothing was kept.
      prepared: the run itself, where nothing was kept: its models are there as long as this is.
      objects: that the run was given.
    """

    def __init__(
        self,
        found: Mapping[str, Any],
        history: list[Line],
        page: Page,
        folder: Path | None = None,
        prepared: PreparedRun | None = None,
        objects: Objects = Objects(),
    ) -> None:
        super().__init__(found)
        self.history, self.folder = history, folder
        self._prepared, self._objects, self._page = prepared, objects, page

    def __reduce__(self) -> tuple[Any, ...]:
        """What another process gets of it: not the simulation, nor objects that it was given."""
        return RunResult, (dict(self), self.history, self._page, self.folder)

    def table(self) -> pandas.DataFrame:
        """A row for each client: the run's metric at the end and in the best round, all others.

        Columns are `client`, the metric by its name (`accuracy`, `rmse`, ...), `best`, and the
        others by their names; a value that a client cannot have is empty.
        """
        best, metric = self["best_per_client"], self.get("metric", "accuracy")
        others = {
            name: found["per_client"]
            for name, found in self.get("metrics", {}).items()
            if name != metric
        }
        return as_frame(
            [
                {"client": client, metric: value, "best": best.get(client)}
                | {name: found.get(client) for name, found in others.items()}
                for client, value in self["per_client"].items()
            ]
        )

    def model(self, client: str) -> nn.Module:
        """A client's personal model as an ordinary module, on the CPU and in evaluation mode.

        It takes what the network takes: images from -1 to 1, tables as the run's preprocessing
        left them. `fedtailor.predict` takes raw files.

        Raises:
          BadInput: there is no such client.
        """
        if self.folder is None and self._prepared is not None:
            return _model_in(self._prepared, client)
        return _model_from(_place(self.folder, "a model"), client, self._objects)

    def report(self) -> Path:
        """Writes the page of this run and returns where it lies."""
        return self._page(_place(self.folder, "a report"))


class ComparisonResult(dict[str, Any]):
    """What a comparison came to: the entries of `summary.json`, and what one can do with them.

    Args:
      found: the entries.
      history: a line for each round of each run, by method and seed.
      page: writes the page of a folder.
      folder: of the comparison; None if nothing was kept.
      objects: that each method's runs were given.
    """

    def __init__(
        self,
        found: Mapping[str, Any],
        history: Histories,
        page: Page,
        folder: Path | None = None,
        objects: dict[str, Objects] | None = None,
    ) -> None:
        super().__init__(found)
        self.history, self.folder = history, folder
        self._objects, self._page = objects or {}, page

    def __reduce__(self) -> tuple[Any, ...]:
        """What another process gets of it: not the objects that it was given."""
        return ComparisonResult, (dict(self), self.history, self._page, self.folder)

    @property
    def decision(self) -> dict[str, Any] | None:
        """The answer on the method that is recommended; None if nothing can be judged.

        Its entries: `answer` (helps, harms, no difference, cannot tell), `method`, `metric`,
        `gain`, `interval`, `p`, `level`, `margin`, `speaks_for`, `reason`, `needed`.
        """
        found: dict[str, Any] | None = self.get("decision")
        return found

    @property
    def clients(self) -> dict[str, dict[str, Any]]:
        """The same for each client by name, corrected for their number."""
        found: dict[str, dict[str, Any]] = self.get("clients", {})
        return found

    def table(self) -> pandas.DataFrame:
        """A row for each method: the metric over clients, the other metrics' means, bytes, seconds.

        `mean`, `weighted`, `std`, `median`, `bottom5`, `top5` and `worst` are of the comparison's
        metric; `better_off` and `worse_off` count clients above and below training alone, by
        chance or not: `clients` says of whom it is established.
        """
        rows = []
        for found in self["table"].values():
            row = {name: value["mean"] for name, value in found["score"].items()}
            row |= {name: value["mean"] for name, value in found.get("metrics", {}).items()}
            row |= {"better_off": found["better_off"], "worse_off": found["worse_off"]}
            row |= {"bytes_up": found["bytes"]["up"], "bytes_down": found["bytes"]["down"]}
            rows.append(row | {"seconds": found["seconds"]})
        return as_frame(rows, index=list(self["table"]))

    def model(self, client: str, method: str, seed: int | None = None) -> nn.Module:
        """A client's personal model by one of the methods; by default of the first seed."""
        if method not in self["methods"]:
            raise unknown("method of this comparison", method, self["methods"])
        number = self["seeds"][0] if seed is None else seed
        if number not in self["seeds"]:
            raise unknown("seed of this comparison", str(number), map(str, self["seeds"]))
        folder = run_folder(_place(self.folder, "a model"), method, number)
        return _model_from(folder, client, self._objects.get(method, Objects()))

    def report(self) -> Path:
        """Writes the page of this comparison and returns where it lies."""
        return self._page(_place(self.folder, "a report"))


class SweepResult(dict[str, Any]):
    """What a sweep came to: the entries of its `summary.json`, and its runs.

    Entries: `method`, `seeds`, `metric`, `settings`, `options`, `chosen` (the learning rate that is
    best on validation rows), and `rates`: of each its `lr`, `score` over seeds, `interval` (95 %,
    for other seeds on the same rows), `val`, `runs`, and why some `failed`.

    Args:
      found: the entries.
      runs: results of those that came to their end, by name.
      folder: of the sweep; None if nothing was kept.
    """

    def __init__(
        self, found: Mapping[str, Any], runs: Mapping[str, RunResult], folder: Path | None = None
    ) -> None:
        super().__init__(found)
        self.runs, self.folder = dict(runs), folder

    def table(self) -> pandas.DataFrame:
        """A row for each learning rate: mean and deviation over seeds, interval, validation."""
        rows = []
        for found in self["rates"]:
            low, high = found["interval"] or (None, None)
            row = {"lr": found["lr"], **(found["score"] or {"mean": None, "std": None})}
            rows.append(row | {"low": low, "high": high, "val": found["val"]})
        return as_frame(rows)


class MetricsResult(dict[str, Any]):
    """Metrics of finished runs, by method: what `fedtailor metrics --json` prints.

    Entries: `task`, `metric` (that the runs went by), `part`, `models` (`last` or `best`),
    `unfinished`, and `methods`: of each its `runs`, `rounds` and `metrics`.
    """

    def table(self) -> pandas.DataFrame:
        """A row for each method and client, with a column for each metric."""
        rows = []
        for method, found in self["methods"].items():
            each = {name: of["per_client"] for name, of in found["metrics"].items()}
            for client in next(iter(each.values())):
                values = {name: of[client] for name, of in each.items()}
                rows.append({"method": method, "client": client} | values)
        return as_frame(rows)

    def summary(self) -> pandas.DataFrame:
        """A row for each method and metric: mean, deviation, worst and so on over clients.

        `weighted` is over all rows of all clients together, `clients` says how many have a value.
        """
        rows = []
        for method, found in self["methods"].items():
            for name, of in found["metrics"].items():
                numbers = {k: v for k, v in of.items() if k not in ("per_client", "undefined")}
                rows.append({"method": method, "metric": name} | numbers)
        return as_frame(rows)


@dataclass(frozen=True)
class SimulatedRound:
    """One round of a simulation, and a look at everything as it is after it.

    Attributes:
      round: its number, from 1.
      cohort: names of the clients that took part.
      line: what the history says of it.
    """

    round: int
    cohort: list[str]
    line: Line
    _run: PreparedRun

    @property
    def score(self) -> float | None:
        """Mean over clients of the run's metric on test rows; None if not evaluated."""
        return self.line["pre"].get("mean") if "pre" in self.line else None

    @property
    def server(self) -> Tree:
        """What the server keeps, as the method named it."""
        return self._run.simulation.server

    def state(self, client: str) -> Tree:
        """What a client keeps to itself; empty before it first took part."""
        return self._run.simulation.state(_number(self._run, client))

    def model(self, client: str) -> nn.Module:
        """A client's personal model as it is now, as an ordinary module."""
        return _model_in(self._run, client)


def simulated_rounds(runner: Runner) -> Iterator[SimulatedRound]:
    """Plays a run's rounds one at a time; it keeps no files."""
    names = runner.data.client_data.names
    try:
        while runner.simulation.round < runner.config.rounds and not runner.impatient:
            line = runner.play_round()
            runner.progress.history.append(line)
            cohort = [names[i] for i in line["cohort"]]
            yield SimulatedRound(line["round"], cohort, line, runner)
    finally:
        runner.simulation.close()


def simulate(
    method: str | Factory | Method, *, options: dict[str, Any] | None = None, **settings: Any
) -> Iterator[SimulatedRound]:
    """Plays rounds one at a time, to look at server and clients in between; keeps no files.

    Args:
      method, options, settings: as for `fedtailor.run`.

    Raises:
      BadInput: it cannot be run so; told before the first round.

    Example:
      >>> for report in simulate("fedavg", model="mlp", clients=5, rounds=2):
      ...     print(report.round, len(report.cohort), sorted(report.server))
      1 5 ['params']
      2 5 ['params']
    """
    name, named, objects = separate(method, settings)
    return simulated_rounds(Runner(make_config(name, named, options or {}, objects)))


def metrics(
    folder: str | Path,
    names: Sequence[str] = (),
    *,
    best: bool = False,
    part: str = "test",
    own: Mapping[str, OwnMetric] | None = None,
) -> MetricsResult:
    """Every metric of every client and over clients, of finished runs: nothing is run again.

    Args:
      folder: of a run or a comparison; over repeats and seeds, means are given.
      names: of metrics (see `fedtailor metrics --help`); all that the task has if none is named.
      best: of the models of the best round (by validation rows); else of the final ones.
      part: `test` or `val` rows.
      own: metrics of your own by name, beside these: functions (outputs, labels) -> number of one
        client's rows. Outputs are [rows, K]: logits, or one number in the label's unit, or a log
        risk. What a function raises is the reason why that client has no value.

    Raises:
      BadInput: the folder holds no finished run, it is of a version that kept no outputs (before
        0.3), or a metric does not fit the task.

    Example:
      >>> from tempfile import TemporaryDirectory
      >>> import fedtailor
      >>> with TemporaryDirectory() as folder:
      ...     done = fedtailor.run("local", model="mlp", clients=3, rounds=1, out=folder)
      ...     found = metrics(folder, ["accuracy", "log-loss"])
      >>> of_local = found["methods"]["local"]["metrics"]
      >>> list(of_local), round(of_local["accuracy"]["mean"] - done["accuracy"]["mean"], 5)
      (['accuracy', 'log-loss'], 0.0)
    """
    several = [names] if isinstance(names, str) else names
    return MetricsResult(kept_metrics(Path(folder), several, best=best, part=part, own=own))
