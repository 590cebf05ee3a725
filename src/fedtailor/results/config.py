"""Everything a run depends on, in one record that command line, files and Python share."""

from __future__ import annotations

import hashlib
import json
import typing
from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fedtailor.core.errors import BadInput, unknown
from fedtailor.core.inputs.settings_file import read_toml
from fedtailor.core.options import Count, Limit, NonNegative, Option, Share, Whole, option_of
from fedtailor.results.folder import CONFIG
from fedtailor.results.objects import MARK, Objects, require
from fedtailor.results.objects import SETTINGS as OBJECT_SETTINGS

if TYPE_CHECKING:
    from fedtailor.core.training import Recipe
    from fedtailor.methods import Factory

Seed = Annotated[int, (0, 2**62)]
LEAST_NOISE = 0.01  # of DP-SGD, as a multiple of the clip
WHO_WORKS = ("workers", "address", "worker_gpus")
# where and how quickly a run is played, not what: its result is the same
MERE_PLACE = frozenset(
    {"data_dir", "engine", "device", "compile", "chunk", "states", "checkpoint_every", *WHO_WORKS}
)


SINCE_0_1 = {  # with defaults
    "schedule": "constant",
    "loss": "cross-entropy",
    "metrics": "",
    "task": "auto",
    "time_column": "",
    "event_column": "",
    "split_seed": 0,
}


def _says(default: Any, panel: str, meaning: str, typed: bool = True) -> Any:
    """A setting; `typed` is False where only Python can give another value."""
    return field(default=default, metadata={"panel": panel, "meaning": meaning, "typed": typed})


@dataclass(frozen=True)
class Config:
    """What a run depends on. `auto` values are replaced by what was chosen when the run starts."""

    method: str
    data: str = _says("digits", "Data", "a known data set, or a path to your own data")
    data_dir: str = _says(
        "", "Data", "where known data sets lie (else $FEDTAILOR_DATA, else ./data)"
    )
    hub: bool = _says(
        False, "Data", "fetch a missing data set from the Hugging Face hub or its owner"
    )
    task: Literal["auto", "classification", "regression", "survival"] = _says(
        "auto", "Data", "what is learnt: a class, a number, or a time until an event"
    )
    label: str = _says("", "Data", "your table's label column")
    time_column: str = _says("", "Data", "your table's column of times, for survival")
    event_column: str = _says(
        "", "Data", "your table's column that has 1 where the event came, 0 where it was not seen"
    )
    client_column: str = _says("", "Data", "your table's column that names the client of a row")
    text_column: str = _says("", "Data", "your table's text column")
    image_size: Whole = _says(0, "Data", "resize images to this side; 0 keeps their size")
    normalise: Literal["auto", "own", "pooled", "federated", "none"] = _says(
        "auto",
        "Data",
        "whose training rows scale numbers: the client's own (auto), all clients' rows pooled, "
        "all clients' sums, or nobody's",
    )
    augment: Literal["none", "crop-flip"] = _says(
        "none", "Data", "change training images at random while training"
    )
    clients: Whole = _says(0, "Clients", "number of clients; 0: 20, or as many as your data name")
    partition: str = _says(
        "auto",
        "Clients",
        "who has which rows: iid, dirichlet:ALPHA, pathological:CLASSES, shards:CLASSES, "
        "noniid1:CLASSES, noniid2:DOMINANT,RATIO, ring:CLASSES, relatives:CLASSES, latent:GROUPS, "
        "natural; auto: natural if your data name their clients, else dirichlet:0.1",
    )
    partition_file: str = _says("", "Clients", "take a partition saved earlier instead")
    partition_seed: Seed = _says(0, "Clients", "random seed of the partition, apart from --seed")
    split_seed: Seed = _says(
        0, "Clients", "if not 0: draws train, val and test anew; who has which rows stays"
    )
    min_samples: Count = _says(20, "Clients", "least rows of a client (dirichlet)")
    test: Share = _says(0.25, "Clients", "share of a client's rows for testing")
    val: Share = _says(0.2, "Clients", "share of the other rows for validation")
    official_test: bool = _says(
        False, "Clients", "test on the data set's own test rows instead of a share of all rows"
    )
    held_out: Whole = _says(0, "Clients", "clients that never train, for cold start")
    permute_targets: bool = _says(
        False, "Clients", "validate and test each client on another one's rows"
    )
    participation: Share = _says(1.0, "Federation", "share of the clients that train in a round")
    rounds: Count = _says(30, "Federation", "number of rounds")
    join: str = _says(
        "",
        "Federation",
        "clients that come after a round: ROUND:COUNT, with commas, e.g. 10:5",
    )
    model: str = _says(
        "auto", "Model", "a known model or package.module:factory; auto fits the data"
    )
    depths: str = _says(
        "", "Model", "clients with other networks: MODEL:COUNT with commas, e.g. mlp-2:10,mlp:10"
    )
    blocks: Literal["leaf", "coarse"] = _says(
        "leaf", "Model", "what layer-wise methods call a block: single layers, or stages"
    )
    epochs: Count = _says(1, "Training", "passes over a client's rows per round")
    steps: Whole = _says(0, "Training", "if not 0: random batches per round instead of passes")
    batch: Whole = _says(10, "Training", "examples per step; 0: all of a client's rows")
    lr: NonNegative = _says(0.05, "Training", "learning rate")
    optimizer: Literal["sgd", "adam", "adamw"] = _says("sgd", "Training", "clients' optimiser")
    momentum: Share = _says(0.0, "Training", "momentum of sgd")
    weight_decay: NonNegative = _says(0.0, "Training", "weight decay")
    lr_decay: NonNegative = _says(1.0, "Training", "factor on the learning rate, per round")
    lr_floor: NonNegative = _says(0.0, "Training", "the decayed learning rate stays above this")
    schedule: str = _says(
        "constant",
        "Training",
        "learning rate over rounds: constant, decay:FACTOR, cosine, cosine:FLOOR, "
        "step:ROUNDS:FACTOR, warmup:ROUNDS+OTHER",
    )
    loss: str = _says(
        "cross-entropy", "Training", "what clients make small, or your own function", typed=False
    )
    clip: NonNegative = _says(0.0, "Training", "largest gradient norm; 0: no limit")
    last: Literal["pad", "wrap", "drop"] = _says(
        "pad", "Training", "a short last batch: use it as it is, fill it up, or drop it"
    )
    dp_clip: Limit = _says(
        0.0, "Privacy", "DP-SGD: largest norm of one example's gradient; 0: no DP-SGD"
    )
    dp_noise: NonNegative = _says(
        0.0, "Privacy", "DP-SGD: noise, in units of --dp-clip; 1 is customary"
    )
    dp_delta: Share = _says(1e-5, "Privacy", "DP-SGD: the δ that ε is reported for")
    finetune: Whole = _says(0, "Evaluation", "epochs of training each model before the final test")
    eval_every: Count = _says(1, "Evaluation", "evaluate after every so many rounds")
    metrics: str = _says("", "Evaluation", "your own functions of outputs and labels", typed=False)
    seed: Seed = _says(0, "Run", "random seed of initial model, batches and sampling")
    engine: Literal["auto", "sequential", "vectorised", "ray"] = _says(
        "auto",
        "Run",
        "one client after another, all at once, or spread over workers; results are the same",
    )
    device: str = _says("auto", "Run", "cpu, cuda or cuda:N; auto takes a GPU if there is one")
    compile: Literal["auto", "never", "always"] = _says(
        "auto", "Run", "compile training steps: faster after 10 to 40 s; auto: in long runs"
    )
    precision: Literal["fp32", "tf32", "bf16"] = _says(
        "tf32", "Run", "of matrix products in training; tf32 concerns GPUs only"
    )
    chunk: Whole = _says(0, "Run", "clients that share the device at a time; 0: what fits")
    states: Literal["auto", "device", "host", "disk"] = _says(
        "auto", "Run", "where client states are kept between rounds"
    )
    on_nan: Literal["stop", "skip"] = _says(
        "stop", "Run", "a client that diverges stops the run, or is left out of the round"
    )
    checkpoint_every: Whole = _says(
        0, "Run", "rounds between checkpoints; 0: as often as costs little"
    )
    keep_path: Whole = _says(
        0, "Run", "keep the models of so many clients at evaluated rounds, for trajectories"
    )
    workers: Whole = _says(0, "Workers", "workers of --engine ray; 0: one per GPU, or one per core")
    address: str = _says(
        "", "Workers", "a running Ray cluster, e.g. auto or HOST:6379; else one is started here"
    )
    worker_gpus: NonNegative = _says(
        1.0, "Workers", "GPUs that each worker takes; below 1, workers share one"
    )
    options: dict[str, Any] = field(default_factory=dict)
    objects: Objects = field(default_factory=Objects, compare=False, repr=False)

    def values(self) -> dict[str, Any]:
        """Everything that a file can keep, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "objects"}

    def factory(self) -> Factory:
        """What makes the method."""
        from fedtailor.methods.find import find  # late: it needs torch

        return self.objects.factory() or find(self.method)

    @property
    def home(self) -> str:
        """The device of server and data: workers bring their own."""
        return "cpu" if self.engine == "ray" else self.device

    def recipe(self) -> Recipe:
        """How clients train."""
        from fedtailor.core.training import Recipe

        given = {f.name: getattr(self, f.name) for f in fields(Recipe)}
        if self.schedule.startswith(MARK):  # without its object nothing is trained
            given["schedule"] = self.objects.schedule or "constant"
        return Recipe(**given)

    def fingerprint(self) -> str:
        """Tells whether two runs are the same run."""
        # who does the work makes no difference, and may be another one when a run is resumed;
        # what 0.1 did not know yet counts where it is used, so that its runs are still known
        kept = {
            k: v for k, v in self.values().items() if k not in WHO_WORKS and SINCE_0_1.get(k) != v
        }
        text = json.dumps(kept, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


@cache
def settings() -> dict[str, tuple[Option, Field[Any]]]:
    """Every setting but method and options, with what it takes."""
    hints = typing.get_type_hints(Config, include_extras=True)
    out = {}
    for entry in fields(Config):
        option = None
        if entry.default is not MISSING:
            meaning = entry.metadata["meaning"]
            option = option_of(entry.name, hints[entry.name], entry.default, meaning)
        if option is not None:
            out[entry.name] = (option, entry)
    return out


def _make_absolute(values: dict[str, Any]) -> None:
    """Paths as they are from any folder, so that a run can be repeated and resumed from there."""
    from fedtailor.datasets import KNOWN

    for name in ("data", "data_dir", "partition_file"):
        value = values.get(name, "")
        known = name == "data" and (value in KNOWN or not Path(value).exists())
        known |= value.startswith(MARK)
        if value and not known:
            values[name] = str(Path(value).resolve())


def make_config(
    method: str,
    given: dict[str, Any],
    options: dict[str, Any],
    objects: Objects = Objects(),
    using: Sequence[str] = OBJECT_SETTINGS,
) -> Config:
    """A checked configuration.

    Args:
      method: name of the method, or package.module:factory.
      given: settings by name; the others keep their defaults.
      options: the method's hyper-parameters by name.
      objects: what those names stand for that are marks, see `objects.separate`.
      using: which objects must be there.

    Raises:
      BadInput: something is unknown or out of range.
    """
    from fedtailor.methods.describe import parse_options  # late: they need torch
    from fedtailor.methods.find import find

    require({"method": method} | given, objects, using)
    known = settings()
    for name in given:
        if name not in known:
            raise unknown("setting", name, known)
    values = {name: known[name][0].parse(value) for name, value in given.items()}
    _make_absolute(values)
    factory = objects.factory() or find(method)
    config = Config(method, **values, options=parse_options(factory, options), objects=objects)
    _check_names(config)
    if config.participation == 0:
        raise BadInput("participation is 0: nobody would train; give a share above 0, up to 1")
    if config.test in (0, 1) and not config.official_test:
        raise BadInput(f"test is {config.test:g}: give a share between 0 and 1")
    if config.dp_noise and not config.dp_clip:
        raise BadInput(f"dp-noise is {config.dp_noise:g} without --dp-clip: give one, e.g. 1.0")
    if 0 < config.dp_noise < LEAST_NOISE:
        raise BadInput(
            f"dp-noise is {config.dp_noise:g}, which protects nobody: give at least "
            f"{LEAST_NOISE:g}, or 0 for clipping alone"
        )
    if config.dp_noise and config.dp_clip == inf:
        raise BadInput("dp-clip is inf, so no noise would be enough: give a finite --dp-clip")
    if config.dp_clip and not 0 < config.dp_delta < 1:
        raise BadInput(f"dp-delta is {config.dp_delta:g}: give a number between 0 and 1, e.g. 1e-5")
    if config.engine != "ray":
        for name in WHO_WORKS:
            if getattr(config, name) != known[name][0].default:
                flag = name.replace("_", "-")
                raise BadInput(
                    f"{flag} is {getattr(config, name)}, but engine is '{config.engine}': "
                    "it is for --engine ray"
                )
    elif config.worker_gpus == 0:
        raise BadInput("worker-gpus is 0: give a share above 0, or --device cpu for no GPU at all")
    if config.val == 1:
        raise BadInput("val is 1: nothing would be left to train on; give a share below 1")
    return config


def read_config(path: Path) -> tuple[str | None, dict[str, Any], dict[str, Any]]:
    """(method, settings, options) from a TOML file, not yet checked."""
    found = read_toml(path, "config")
    known = [*settings(), "method", "options"]
    for name, value in found.items():
        if name not in known:
            guess = unknown("setting", name, known)
            raise BadInput(f"config '{path}': {guess}")
        if isinstance(value, dict) != (name == "options"):
            raise BadInput(
                f"config '{path}': '{name}' must be a {'table' if name == 'options' else 'value'}"
            )
    options = found.pop("options", {})
    method = found.pop("method", None)
    if method is not None and not isinstance(method, str):
        raise BadInput(f"config '{path}': method is {method!r}: give its name in quotes")
    return method, found, options


def _check_names(config: Config) -> None:
    """Refuses what is no schedule, and names of functions that only Python can give."""
    from fedtailor.core.schedules import parse_schedule

    if not config.schedule.startswith(MARK):
        parse_schedule(config.schedule)
    if config.loss != "cross-entropy" and not config.loss.startswith(MARK):
        raise BadInput(f"loss is '{config.loss}': leave it out, or give a function from Python")
    if config.metrics and not config.metrics.startswith(MARK):
        raise BadInput(f"metrics is '{config.metrics}': give functions from Python, by name")
    if config.depths and config.objects.model is not None:
        raise BadInput(f"depths is '{config.depths}', but model is an object: name a model")


def config_of(
    folder: Path,
    objects: Objects = Objects(),
    *,
    using: Sequence[str] = OBJECT_SETTINGS,
    **changed: Any,
) -> Config:
    """The configuration that a run's folder was made with.

    Args:
      folder: of the run.
      objects: those that the run was started with, if there were any.
      using: which of them are needed.
      changed: settings that are to be others.
    """
    path = folder / CONFIG
    method, given, options = read_config(path)
    if method is None:
        raise BadInput(f"'{path}' names no method: it was changed")
    return make_config(method, given | changed, options, objects, using)


def as_toml(value: Any) -> str:
    """A setting's value as TOML."""
    # JSON's words for text, numbers and truth are TOML's too, but for infinity
    if isinstance(value, float) and value in (inf, -inf):
        return "inf" if value > 0 else "-inf"
    return json.dumps(value, ensure_ascii=False)


def write_config(config: Config, version: str) -> str:
    """The configuration as TOML, complete: it reruns the run."""
    values = config.values()
    options = values.pop("options")
    lines = [
        f"# FedTailor {version}. Run it again: fedtailor run --config config.toml",
        *(f"{name} = {as_toml(value)}" for name, value in values.items()),
        "",
        "[options]",
        *(f"{name} = {as_toml(value)}" for name, value in options.items()),
    ]
    return "\n".join(lines) + "\n"
