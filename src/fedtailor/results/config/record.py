"""Everything a run depends on, in one record that command line, files and Python share."""

from __future__ import annotations

import hashlib
import json
import typing
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fedtailor.core.options import (
    Count,
    Limit,
    NonNegative,
    Option,
    Search,
    Share,
    Whole,
    option_of,
)
from fedtailor.results.objects import MARK, Objects

if TYPE_CHECKING:
    from fedtailor.core.training import Recipe
    from fedtailor.datasets import ColumnChoices
    from fedtailor.methods import Factory

Seed = Annotated[int, (0, 2**62)]
MOST_SEEDS = 1000  # runs of one method at a time
PATHS = ("data", "data_dir", "partition_file", "weights")  # of settings
WHO_WORKS = ("workers", "address", "worker_gpus")
# where and how quickly a run is played, not what: its result is the same
MERE_PLACE = frozenset(
    {
        "data_dir", "engine", "device", "compile", "compile_limit", "chunk", "states",
        "checkpoint_every", *WHO_WORKS,
    }
)  # fmt: skip

# settings of a run that may be tuned, if they are named; the learning rate always is
TUNABLE = (
    "lr", "epochs", "steps", "batch", "optimizer", "momentum", "weight_decay", "lr_decay",
    "schedule", "clip",
)  # fmt: skip

RENAMED = {"depths": "models"}  # what earlier versions called a setting
# what 0.1 did not know yet, with the values that mean what it did
SINCE_0_1 = {
    "schedule": ("constant",),
    "loss": ("auto", "cross-entropy"),
    "class_weights": ("none",),
    "metric": ("auto",),
    "metrics": ("",),
    "task": ("auto",),
    "time_column": ("",),
    "event_column": ("",),
    "split_seed": (0,),
    "group_column": ("",),
    "time_column_split": ("",),
    "drop": ("",),
    "only": ("",),
    "types": ("",),
    "strict": (False,),
    "missing": ("",),
    "compile_limit": (600.0,),
    "weights": ("",),
    "weights_except": ("",),
    "weights_digest": ("",),
    "freeze": ("",),
    "decay_biases": ("yes",),
    "dp_public": ("nothing",),
    "max_norm": (0.0,),
    "patience": (0,),
    "dropout": (0.0,),
    "slow": ("",),
    "deadline": (0.0,),
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
    group_column: str = _says(
        "", "Data", "your table's column whose equal rows stay on one side of the split: a patient"
    )
    time_column_split: str = _says(
        "", "Data", "your table's column of times: train on the past, test on what follows"
    )
    drop: str = _says("", "Data", "your table's columns to leave out, with commas")
    only: str = _says("", "Data", "your table's columns to learn from, with commas; no others")
    types: str = _says(
        "",
        "Data",
        "what your table's columns are: NAME=TYPE with commas, a TYPE being number, category, date "
        "or date-mdy (month first)",
    )
    strict: bool = _says(
        False, "Data", "refuse words in a column of numbers instead of reading them as missing"
    )
    image_size: Whole = _says(0, "Data", "resize images to this side; 0 keeps their size")
    missing: str = _says(
        "",
        "Data",
        "what your table's missing numbers become: NAME=HOW with commas, HOW being mean, median, "
        "mean+indicator or median+indicator; else the mean",
    )
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
        "natural, natural:LEAST-ROWS; auto: natural if your data name their clients, else "
        "dirichlet:0.1",
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
    dropout: Share = _says(
        0.0,
        "Federation",
        "chance that a client drawn for a round does not answer, as sites do; they train nothing",
    )
    slow: str = _says(
        "",
        "Federation",
        "clients that are slow: SHARE:FACTOR, e.g. 0.2:4, a fifth of them takes four times as long",
    )
    deadline: NonNegative = _says(
        0.0,
        "Federation",
        "how long a round waits, in times of a normal client: who takes longer (its steps, times "
        "the factor of --slow) is left out of it; 0: for everybody",
    )
    rounds: Count = _says(30, "Federation", "number of rounds")
    join: str = _says(
        "",
        "Federation",
        "clients that come after a round: ROUND:COUNT, with commas, e.g. 10:5",
    )
    max_norm: NonNegative = _says(
        0.0,
        "Federation",
        "largest norm of what an upload moves; the server shortens longer ones; 0: no limit",
    )
    model: str = _says(
        "auto", "Model", "a known model or package.module:factory; auto fits the data"
    )
    weights: str = _says("", "Model", "a safetensors file that the network begins with")
    weights_except: str = _says(
        "", "Model", "names that the file need not fit, as patterns with commas: 'fc.*'"
    )
    weights_digest: str = _says("", "Model", "of the weights; found out", typed=False)
    freeze: str = _says(
        "", "Model", "parameters that stay as they are, as patterns with commas: 'conv1.*,conv2.*'"
    )
    models: str = _says(
        "",
        "Model",
        "clients' networks, where they differ: MODEL:COUNT with commas, e.g. mlp-2:10,mlp:10",
    )
    blocks: Literal["leaf", "coarse"] = _says(
        "leaf", "Model", "what layer-wise methods call a block: single layers, or stages"
    )
    epochs: Count = _says(1, "Training", "passes over a client's rows per round")
    steps: Whole = _says(0, "Training", "if not 0: random batches per round instead of passes")
    batch: Whole = _says(10, "Training", "examples per step; 0: all of a client's rows")
    lr: Annotated[NonNegative, Search(0.001, 0.5, log=True)] = _says(
        0.05, "Training", "learning rate"
    )
    optimizer: Literal["sgd", "adam", "adamw"] = _says("sgd", "Training", "clients' optimiser")
    momentum: Share = _says(0.0, "Training", "momentum of sgd")
    weight_decay: NonNegative = _says(0.0, "Training", "weight decay")
    decay_biases: Literal["yes", "no"] = _says(
        "yes", "Training", "whether weight decay acts on biases, too"
    )
    lr_decay: NonNegative = _says(1.0, "Training", "factor on the learning rate, per round")
    lr_floor: NonNegative = _says(0.0, "Training", "the decayed learning rate stays above this")
    schedule: str = _says(
        "constant",
        "Training",
        "learning rate over rounds: constant, decay:FACTOR, cosine, cosine:FLOOR, "
        "step:ROUNDS:FACTOR, warmup:ROUNDS+OTHER",
    )
    loss: str = _says(
        "auto",
        "Training",
        "what clients make small: cross-entropy, focal:GAMMA; mse, huber:DELTA; cox; auto: the "
        "first of the task's",
    )
    class_weights: str = _says(
        "none",
        "Training",
        "how much rows of a class count in the loss: none (all alike), balanced (all classes "
        "alike, over everyone's training rows), or a number per class with commas",
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
    dp_public: Literal["nothing", "validation"] = _says(
        "nothing", "Privacy", "DP-SGD: rows that need no protection, so that methods may use them"
    )
    finetune: Whole = _says(0, "Evaluation", "epochs of training each model before the final test")
    eval_every: Count = _says(1, "Evaluation", "evaluate after every so many rounds")
    metric: str = _says(
        "auto",
        "Evaluation",
        "what tables, the best round and the verdict go by: accuracy, balanced-accuracy, macro-f1, "
        "roc-auc, average-precision, sensitivity, specificity, log-loss, perplexity, brier, "
        "calibration-error; rmse, mae, r2; concordance; auto: what fits the task and the balance "
        "of classes",
    )
    patience: Whole = _says(
        0,
        "Evaluation",
        "stop when so many evaluated rounds in a row are no better on validation rows; 0: never",
    )
    metrics: str = _says("", "Evaluation", "your own functions of outputs and labels", typed=False)
    seed: Seed = _says(0, "Run", "random seed of initial model, batches and sampling")
    engine: Literal["auto", "sequential", "vectorised", "ray"] = _says(
        "auto",
        "Run",
        "one client after another, all at once, or spread over workers; results are the same",
    )
    device: str = _says("auto", "Run", "cpu, cuda or cuda:N; auto takes a GPU if there is one")
    compile: Literal["auto", "never", "always", "fused"] = _says(
        "auto",
        "Run",
        "compile training steps: faster after 10 to 40 s; fused: own GPU kernels for "
        "convolutions; auto: these or compiled ones in long runs",
    )
    compile_limit: NonNegative = _says(
        600.0, "Run", "seconds that compiling may take in all; then the run goes on without"
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

    def column_choices(self) -> ColumnChoices:
        """What is said of a table's columns."""
        from fedtailor.datasets import make_choices  # late: it needs numpy

        return make_choices(self.drop, self.only, self.types, self.strict, self.missing)

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
        from fedtailor.core.training import Recipe, RunRate

        given = {f.name: getattr(self, f.name) for f in fields(Recipe)}
        given["lr"] = RunRate(self.lr)
        if self.schedule.startswith(MARK):  # without its object nothing is trained
            given["schedule"] = self.objects.schedule or "constant"
        return Recipe(**given)

    def epochs_note(self) -> str:
        """A line for who gave both epochs and the steps that take their place."""
        if not self.steps or self.epochs == 1:
            return ""
        return (
            f"steps is {self.steps}: each training takes so many random batches, "
            f"not {self.epochs} passes (epochs)"
        )

    def finetuning(self) -> Recipe | None:
        """How models are trained before the final test, if they are."""
        return replace(self.recipe(), epochs=self.finetune, steps=0) if self.finetune else None

    def fingerprint(self) -> str:
        """Tells whether two runs are the same run."""
        # who does the work makes no difference, and may be another one when a run is resumed;
        # what 0.1 did not know yet counts where it is used, and what has another name now has its
        # first one here, so that earlier runs are still known
        first = {new: old for old, new in RENAMED.items()}
        kept = {
            first.get(k, k): v
            for k, v in self.values().items()
            if k not in WHO_WORKS and v not in SINCE_0_1.get(k, ())
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
