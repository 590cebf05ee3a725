"""What a federation has agreed on: method, network, training, preprocessing.

Made once, by the coordinator; every site checks it before it takes part.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor.core import __version__, rng, tree
from fedtailor.core.data import Counts, Data
from fedtailor.core.errors import BadInput
from fedtailor.core.form import Form
from fedtailor.core.inputs.plain_text import parse_json
from fedtailor.core.inputs.settings_file import check_table, setting
from fedtailor.core.method import ClientCount, Method, Upload
from fedtailor.core.rng import Turn
from fedtailor.core.task import Task
from fedtailor.core.tree import Params, Tree
from fedtailor.core.turn import ClientTurn
from fedtailor.datasets import Encoder
from fedtailor.engine.fold import Fold
from fedtailor.engine.loops.torch_internals import one_client
from fedtailor.federation.protocol.messages import Spec, spec_of
from fedtailor.federation.protocol.packet import PROTOCOL, Limits
from fedtailor.models import MODELS
from fedtailor.results.config import Config, make_config
from fedtailor.runs.build import make_method, make_network, make_players, server_model
from fedtailor.runs.schedule import networks

# Settings that all must share. What concerns a site's data is its own affair.
SHARED = (
    "model", "models", "freeze", "blocks", "augment", "epochs", "steps", "batch", "lr", "optimizer",
    "momentum", "weight_decay", "decay_biases", "lr_decay", "lr_floor", "clip", "last", "dp_clip",
    "dp_noise", "dp_delta", "dp_public", "participation", "rounds", "finetune", "seed", "loss",
    "class_weights", "metric", "max_norm",
)  # fmt: skip
# Settings that a simulation alone can follow.
SIMULATED = (
    "join", "held_out", "weights", "patience", "dropout", "slow", "deadline",
)  # fmt: skip
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """What a federation has agreed on."""

    method: str = setting("its name")
    options: dict[str, Any] = setting("its hyper-parameters that are not the defaults", {})
    settings: dict[str, Any] = setting("of training, those in `SHARED`")
    clients: Annotated[int, (1, 100_000)] = setting("how many sites the federation has")
    dtype: Literal["float32", "float64"] = setting("of all numbers")
    encoder: dict[str, Any] = setting("preprocessing, as JSON")
    message: Spec = setting("what a message to a client looks like", [])
    messages: dict[str, Any] = setting("the same by network, to sites with another one", {})

    def __post_init__(self) -> None:
        if set(self.settings) != set(SHARED):
            raise BadInput(f"settings: it must have exactly {', '.join(SHARED)}")
        self.models()

    def models(self) -> list[tuple[str, Tensor]]:
        """(network, numbers of the sites that have it)."""
        several, one = (str(self.settings[name]) for name in ("models", "model"))
        return networks(several, one, self.clients)

    def network_of(self, client: int) -> str:
        """The network that a site has."""
        return next((name for name, ids in self.models() if client in ids), "")

    def message_to(self, client: int) -> Spec:
        """What a message to a site looks like."""
        found: Spec = self.messages.get(self.network_of(client), self.message)
        return found

    def text(self) -> str:
        """The plan as JSON, always in the same words."""
        whole = {"protocol": PROTOCOL, "version": __version__, **vars(self)}
        return json.dumps(whole, sort_keys=True)

    def fingerprint(self) -> str:
        """Tells whether two plans are the same, however many rounds they have.

        Where these change, a federation goes on, and what was answered in it stays answered.
        """
        apart = replace(self, settings=self.settings | {"rounds": 0})
        return hashlib.sha256(apart.text().encode()).hexdigest()

    @property
    def rounds(self) -> int:
        """How many rounds the federation has."""
        return int(self.settings["rounds"])

    @property
    def seed(self) -> int:
        """Of all random numbers."""
        return int(self.settings["seed"])


def read_plan(text: str) -> TrainingPlan:
    """The plan that `TrainingPlan.text` wrote, checked in form and version."""
    try:
        found = parse_json(text)
    except ValueError as error:
        raise BadInput(f"plan: not JSON ({error})") from None
    if isinstance(found, dict):
        require_version(found.pop("protocol", None), found.pop("version", None))
    return check_table(found, TrainingPlan, "plan")


def require_version(protocol: Any, version: Any) -> None:
    """Refuses whoever speaks another protocol or runs another version: numbers would differ."""
    if protocol != PROTOCOL:
        raise BadInput(
            f"the other side speaks protocol {protocol!r}, this one {PROTOCOL}: "
            "install the same FedTailor on both"
        )
    if version != __version__:
        raise BadInput(
            f"the other side runs FedTailor {version}, this one {__version__}: "
            "install the same version on both"
        )


class Setup(NamedTuple):
    """A plan brought to life."""

    plan: TrainingPlan  # of the federation
    config: Config  # the same as a run's configuration
    encoder: Encoder  # preprocessing
    task: Task  # the network
    method: Method  # what is played
    initial: Params  # the common initial parameters
    # (method, network, numbers of the sites that have it), the server's first
    players: tuple[tuple[Method, Task, Tensor], ...] = ()

    @property
    def networks(self) -> tuple[Task, ...]:
        """Those of all sites, the server's first, where they differ."""
        return tuple(task for _, task, _ in self.players) if self.config.models else ()

    def of(self, client: int) -> Setup:
        """The same as a site plays it, with the network that it has; the server's side stays."""
        method, task, _ = next((p for p in self.players if client in p[2]), self.players[0])
        if task is self.task:
            return self
        server, first = self.method, self.initial
        with in_dtype(self.plan.dtype):
            initial = task.init(rng.key(self.plan.seed, rng.INITIAL))
        return self._replace(
            task=task,
            method=method._replace(
                init=lambda clients, initial, key: server.init(clients, first, key),
                receive=server.receive,
                record=server.record,
            ),
            initial=initial,
            config=replace(self.config, model=self.plan.network_of(client)),
        )

    def turn(self, purpose: int, round: int) -> Turn:
        """A round's turn, with the numbers that the simulation draws; a client's is `.of(id)`."""
        key = rng.key(self.plan.seed, purpose, round)
        return Turn(key, torch.tensor(round), torch.tensor(self.plan.rounds))


@contextmanager
def in_dtype(name: str) -> Iterator[None]:
    """Within, new tensors have this type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(DTYPES[name])
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _refuse_what_sites_cannot(config: Config, method: Method) -> None:
    if method.donate:
        raise BadInput(
            f"method '{config.method}' gives training rows away, and a site's data stay there: "
            "choose another (fedavg-data with beta=0 is FedAvg)"
        )
    if method.gathered:
        raise BadInput(
            f"method '{config.method}' gathers all training rows in one place, and a site's data "
            "stay there: it is for simulations; choose another"
        )
    for name in SIMULATED:
        if value := getattr(config, name):
            raise BadInput(f"{name} is '{value}': it is for simulations; leave it out")
    if method.leaks:
        raise BadInput("acc_source is 'test': it is for simulations; leave it out")


def _check_network(config: Config, model: str, form: Form, limits: Limits) -> None:
    """Refuses a network that no message could hold, before any memory is taken for it.

    Those that come with us alone: code from elsewhere may not know how to be without numbers.
    """
    if model not in MODELS:
        return
    try:
        with torch.device("meta"):
            size = sum(p.nbytes for p in make_network(config, form, model).state_dict().values())
    except RuntimeError as error:  # sizes that no machine has
        raise BadInput(f"plan: no network '{model}' for {form.shape} ({error})") from None
    if size > limits.bytes:
        raise BadInput(
            f"plan: network '{model}' for examples of {form.shape} has {size:,} bytes, at "
            f"most {limits.bytes:,} are allowed: raise max_bytes if that is meant"
        )


def set_up(plan: TrainingPlan, limits: Limits = Limits()) -> Setup:
    """Network and method of a plan, if its names and values are known and sites can play it."""
    config = make_config(plan.method, plan.settings | {"device": "cpu"}, plan.options)
    encoder = Encoder.from_json(plan.encoder)
    for model in {config.model, *(name for name, _ in plan.models())}:
        _check_network(config, model, encoder.form, limits)
    with in_dtype(plan.dtype):
        players = make_players(config, encoder.form, plan.clients)
        method, task, _ = players[0]
        initial = task.init(rng.key(plan.seed, rng.INITIAL))
    _refuse_what_sites_cannot(config, method)
    return Setup(plan, config, encoder, task, method, initial, tuple(players))


def make_training_plan(config: Config, encoder: Encoder, clients: int) -> TrainingPlan:
    """The plan of a federation; its network must be named, not `auto`.

    Raises:
      BadInput: the method is not for sites.
    """
    plan = TrainingPlan(
        method=config.method,
        options=config.options,
        settings={name: getattr(config, name) for name in SHARED},
        clients=clients,
        dtype="float64" if torch.get_default_dtype() == torch.float64 else "float32",
        encoder=encoder.to_json(),
    )
    setup = set_up(plan)
    _refuse_what_sites_cannot(config, setup.method)
    server = first_server(setup, torch.ones(clients, dtype=torch.int64))
    sent: dict[str, Spec] = {}
    for name, ids in plan.models():
        own, first = setup.of(int(ids[0])), ids[0]
        rows = few_rows(encoder.form, config.batch)
        own.task.try_out(own.initial, rows.x, rows.y)
        turn = setup.turn(rng.TURN, 0).of(first)
        sent[name] = spec_of(own.method.send(server, first, turn))
    model = server_model(setup.config, setup.players)
    plan = replace(
        plan,
        settings=plan.settings | {"model": model},
        message=next(iter(sent.values())),
        messages=sent if config.models else {},
    )
    # what JSON makes of it: tuples are lists there, and fingerprints must agree
    return read_plan(plan.text())


def first_server(setup: Setup, sizes: Tensor) -> Tree:
    """The server's state before the first round."""
    key = rng.key(setup.plan.seed, rng.SERVER)
    with in_dtype(setup.plan.dtype), torch.no_grad():
        return setup.method.init(ClientCount.of(sizes), setup.initial, key)


def few_rows(form: Form, batch: int) -> Data:
    """A handful of made-up rows, enough for every kind of layer."""
    count = 4 * max(min(batch, 8), 2)
    shape = (count, *form.shape)
    if form.kind == "image":
        x = torch.arange(count).view(-1, 1, 1, 1).expand(shape).to(torch.uint8)
    elif form.kind == "text":
        x = torch.arange(count).view(-1, 1).expand(shape) % max(form.vocabulary, 1)
    else:
        x = torch.linspace(-1, 1, count).view(-1, 1).expand(shape)
    rows, n, val_n = torch.arange(count), torch.tensor(count), torch.tensor(4)
    counts = Counts(n[None], val_n[None])
    numbers = torch.linspace(-1, 1, count)
    y = {
        "classification": rows % max(form.classes, 1),
        "regression": numbers,
        "survival": torch.stack([numbers + 2, (rows % 2).to(numbers.dtype)], dim=1),
    }[form.task]
    return Data(x, y, rows, n, rows[:4], val_n, counts)


def example_method(setup: Setup) -> Method:
    """The plan's method with a short training without noise."""
    short = replace(setup.config, epochs=1, steps=0, batch=min(setup.config.batch, 8), dp_clip=0.0)
    made = make_method(replace(short, dp_noise=0.0), setup.task, setup.networks)
    whole = setup.method
    return made._replace(init=whole.init, receive=whole.receive, record=whole.record)


def example_upload(setup: Setup, server: Tree) -> Upload:
    """What an upload looks like: found by playing one client's turn on a handful of rows."""
    first = torch.tensor(0)
    with in_dtype(setup.plan.dtype), torch.no_grad():
        message = setup.method.send(server, first, setup.turn(rng.TURN, 0).of(first))
    return _upload_on(setup, message)


def _upload_on(setup: Setup, message: Tree) -> Upload:
    """What a client uploads that got this message and has a handful of rows."""
    with in_dtype(setup.plan.dtype), torch.no_grad(), one_client():
        turn = setup.turn(rng.TURN, 0).of(torch.tensor(0))
        data = few_rows(setup.encoder.form, setup.config.batch)
        own = ClientTurn(example_method(setup), setup.initial, message, data, turn)
        return own.play()[0].upload


def try_message(setup: Setup, message: Tree) -> None:
    """Sees that a site can train on messages of the form that the plan says, before it joins.

    Raises:
      BadInput: it cannot.
    """
    try:
        _upload_on(setup, message)
    except MemoryError:
        raise
    except Exception as error:  # shapes and names that do not fit fail in their own ways
        why = str(error) if isinstance(error, BadInput) else type(error).__name__
        raise BadInput(
            f"plan: method '{setup.plan.method}' cannot train on messages of its form ({why}): "
            "is its code at the coordinator that of the site?"
        ) from None


class _Watched(Tensor):
    """A number that notices whether anything is computed from it."""

    used = False
    plain: Tensor  # the same, and what is computed goes by it

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for arg in args:
            if isinstance(arg, _Watched):
                arg.used = True
        given = [arg.plain if isinstance(arg, _Watched) else arg for arg in args]
        return func(*given, **(kwargs or {}))


def goes_by_rounds(setup: Setup) -> bool:
    """Whether what is played in a round depends on how many there are: found by playing one."""
    method, data = example_method(setup), few_rows(setup.encoder.form, setup.config.batch)
    server = first_server(setup, torch.ones(setup.plan.clients, dtype=torch.int64))
    plain = torch.tensor(setup.plan.rounds)
    rounds = plain.as_subclass(_Watched)
    rounds.plain = plain
    turn, first, fold = setup.turn(rng.TURN, 1)._replace(rounds=rounds), torch.tensor(0), Fold()
    with in_dtype(setup.plan.dtype), torch.no_grad():
        message = method.send(server, first, turn.of(first))
        own = ClientTurn(method, setup.initial, message, data, turn.of(first))
        outcome, _ = own.play()
        own._replace(kept=outcome.state).personal()
        sent = outcome.upload
        fold.add(tree.map(lambda p: p[None], sent.mean), torch.as_tensor(sent.weight)[None])
        upload = Upload(fold.mean(), fold.share(), tree.stack([sent.each]))
        with suppress(BadInput):  # some rules need more than one
            method.receive(server, first[None], upload, turn)
    return rounds.used


def weighs_all_alike(example: Upload) -> bool:
    """Whether a method's uploads weigh 1 whatever rows there are; the example has several."""
    return float(example.weight) == 1.0
