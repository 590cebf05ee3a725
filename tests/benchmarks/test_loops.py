"""The loops that FedTailor is timed against do the same work: they end with the same parameters."""

from typing import Any

import numpy as np
import pytest
import torch

from fedtailor.core.form import Form
from fedtailor.core.task import classification
from fedtailor.core.training import Recipe
from fedtailor.engine import ClientData, Simulation
from fedtailor.methods import METHODS
from fedtailor.models import build
from tests.benchmarks.scripts import load

LOOPS = load("loops").LOOPS | load("more_loops").MORE_LOOPS

FORM = Form("image", (1, 4, 4), 4)
SIZES, VALIDATION = (7, 69, 20, 35), (5, 140, 6, 9)  # more than one batch, and short last batches
COHORTS = ([0, 2, 3], [0, 1, 2, 3], [1, 3])  # client 1 joins late
SEED, BATCH, LR = 3, 32, 0.05


@pytest.fixture
def _double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def _world() -> ClientData:
    """Images whose classes can be told apart, so that accuracies and losses do change."""
    draw = np.random.default_rng(0)
    centres = draw.integers(30, 226, (FORM.classes, *FORM.shape))
    labels = draw.integers(0, FORM.classes, sum(SIZES) + sum(VALIDATION))
    noisy = centres[labels] + draw.integers(-120, 120, (len(labels), *FORM.shape))
    x, y = torch.from_numpy(noisy.clip(0, 255).astype(np.uint8)), torch.from_numpy(labels)
    ends = np.cumsum((*SIZES, *VALIDATION))
    parts = np.split(draw.permutation(len(labels)), ends[:-1])
    none = [np.empty(0, dtype=np.int64)] * len(SIZES)
    return ClientData.of(x, y, parts[: len(SIZES)], parts[len(SIZES) :], none)


def _both(
    name: str, model: str, epochs: int, options: dict[str, Any], cohorts: Any = COHORTS
) -> tuple[Any, Simulation, list[dict]]:
    """The loop and the simulation after all rounds, and the states of all clients."""
    world, rounds = _world(), len(cohorts)
    loop = LOOPS[name](
        model, FORM, world, SEED, LR, BATCH, "cpu", options, epochs=epochs, rounds=rounds
    )
    task = classification(lambda: build(model, FORM))
    recipe = Recipe(epochs=epochs, batch=BATCH, lr=LR)
    method = METHODS[name](task, recipe=recipe, **options)
    sim = Simulation(
        method, world, task, seed=SEED, rounds=rounds, engine="vectorised", recipe=recipe
    )
    for number, cohort in enumerate(cohorts):
        loop.round(number, cohort)
        sim.step(torch.tensor(cohort))
    (kept,) = sim.client_states()
    assert kept[0].tolist() == list(range(len(SIZES)))
    states = [_row(kept[1], i) for i in range(len(SIZES))]
    return loop, sim, states


def _row(values: Any, i: int) -> Any:
    return {k: _row(v, i) for k, v in values.items()} if isinstance(values, dict) else values[i]


def _equal(mine: dict, theirs: dict) -> None:
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        torch.testing.assert_close(value, theirs[name], rtol=0, atol=1e-9, msg=name)


def _moved(params: dict, initial: dict) -> bool:
    """Whether training changed every parameter, or there would be nothing to compare."""
    return all((value - initial[name]).abs().max() > 1e-5 for name, value in params.items())


# where FedTailor keeps what the loop has as `server` and as `own` (None: nothing to compare)
SERVER = {
    "fedrep": "shared",
    "pmixfed": "shared",
    "fedfomo": None,
    "pfedla": None,
    "fedproto": None,
    "fedpac": "shared",
    "fedcp": "shared",
}
OWN = {
    "fedavg": None,
    "fedala": ("own",),
    "ditto": ("own",),
    "fedrep": ("personal",),
    "pmixfed": ("own",),
    "plgu-lf": ("theta",),
    "fedfomo": ("cur",),
    "pfedla": None,
    "fedproto": ("own",),
    "fedpac": None,
    "fedcp": ("own",),
    "moon": None,
    "fml": ("own",),
}
CASES = [
    ("fedavg", "cnn", 1, {}),
    ("fedavg", "mlp", 2, {"weighting": "uniform"}),
    ("fedala", "cnn", 1, {}),
    ("fedala", "mlp-2", 1, {"p": 2, "s": 50.0, "threshold": 3e-4, "max_ala_epochs": 14}),
    ("ditto", "cnn", 1, {}),
    ("ditto", "mlp", 1, {"lam": 0.3, "own_epochs": 2}),
    ("fedrep", "cnn", 1, {"head_epochs": 2}),
    ("fedrep", "mlp", 2, {"head_epochs": 3, "head_blocks": 1}),
    ("pmixfed", "cnn", 1, {}),
    ("pmixfed", "mlp-2", 2, {}),
    ("plgu-lf", "cnn", 1, {}),
    ("plgu-lf", "mlp-2", 2, {"D": 2, "rho": 0.2}),
    ("fedfomo", "cnn", 1, {}),
    ("fedfomo", "mlp", 2, {"M": 2}),
    ("pfedla", "cnn", 1, {}),
    ("pfedla", "mlp", 1, {"hn_lr": 0.5, "embed": 7, "hidden": 9, "depth": 2}),
    ("fedproto", "cnn", 1, {}),
    ("fedproto", "mlp-2", 2, {"lam": 4.0, "weighting": "data", "keep": False}),
    ("fedpac", "cnn", 1, {}),
    ("fedpac", "mlp-2", 2, {"lam": 4.0, "head_lr": 0.2, "head_epochs": 2, "weighting": "uniform"}),
    ("fedcp", "cnn", 1, {}),
    ("fedcp", "mlp-2", 2, {"lam": 1.0, "weighting": "uniform"}),
    ("moon", "cnn", 1, {}),
    ("moon", "mlp-2", 2, {"mu": 1.0, "temperature": 0.2, "weighting": "uniform"}),
    ("fml", "cnn", 1, {}),
    ("fml", "mlp-2", 2, {"alpha": 0.3, "beta": 0.8, "weighting": "data"}),
]


@pytest.mark.usefixtures("_double")
@pytest.mark.parametrize(("name", "model", "epochs", "options"), CASES)
def test_loop_ends_with_the_same_parameters(name, model, epochs, options):
    loop, sim, states = _both(name, model, epochs, options)
    where = SERVER.get(name, "params")
    if where:
        _equal(loop.server, sim.server[where])
        assert _moved({k: loop.server[k] for k in loop.server if k in loop.initial}, loop.initial)
    for cid, state in enumerate(states):
        if OWN[name]:
            for key in OWN[name]:
                state = state[key]
            _equal(loop.own[cid], state)
            assert _moved(loop.own[cid], loop.initial)
    more = {
        "fedala": _ala,
        "fedfomo": _fomo,
        "pmixfed": _mix,
        "pfedla": _layers,
        "fedproto": _prototypes,
        "fedpac": _heads,
        "fedcp": _gate,
        "moon": _last,
    }
    if name in more:
        more[name](loop, sim, states)


def _ala(loop, sim, states):
    """The weights of the mixture."""
    for cid, state in enumerate(states):
        _equal(loop.mixing_weights[cid], state["weight"])
        assert (cid in loop.started) == bool(state["started"])
        weights = torch.cat([w.flatten() for w in loop.mixing_weights[cid].values()])
        assert 0 <= weights.min() < weights.max() <= 1


def _fomo(loop, sim, states):
    """What the server passes on, the bases, and what is known of who helps whom."""
    for cid, state in enumerate(states):
        _equal(loop.own[cid], _row(sim.server["models"], cid))
        _equal(loop.base[cid], state["base"])
    torch.testing.assert_close(
        torch.from_numpy(loop.affinity), sim.server["affinity"], rtol=0, atol=1e-9
    )
    assert loop.fresh.tolist() == sim.server["fresh"].tolist()
    assert (np.abs(loop.affinity) > 1e-6).sum() > len(SIZES)  # others did count


def _mix(loop, sim, states):
    """The accuracy that the next round's mixture depends on."""
    torch.testing.assert_close(loop.accuracy, sim.server["accuracy"], rtol=0, atol=1e-12)
    assert 0 < loop.accuracy < 1


def _layers(loop, sim, states):
    """Everybody's models, and the hypernetworks, which did learn."""
    for cid in range(len(SIZES)):
        _equal(loop.own[cid], _row(sim.server["models"], cid))
        assert _moved(loop.own[cid], loop.initial)
        net, mine = _row(sim.server["nets"], cid), loop.weighers[cid]
        parts = {"embed": mine.embed, "heads": mine.heads.weight, "bias": mine.heads.bias}
        theirs = {
            "embed": net["embed"],
            "heads": torch.cat([head["weight"] for head in net["heads"].values()]),
            "bias": torch.cat([head["bias"] for head in net["heads"].values()]),
        }
        layers = [layer for layer in mine.body if hasattr(layer, "weight")]
        for number, layer in enumerate(layers):
            parts |= {f"w{number}": layer.weight, f"b{number}": layer.bias}
            known = net["body"][str(number)]
            theirs |= {f"w{number}": known["weight"], f"b{number}": known["bias"]}
        _equal({k: v.detach() for k, v in parts.items()}, theirs)
    fresh = LOOPS["pfedla"]("mlp", FORM, _world(), SEED, options=vars(loop.option))
    with torch.no_grad():
        begun, learnt = fresh.weighers[3]().mean(0), loop.weighers[3]().mean(0)
    assert (begun - learnt).abs().max() > 1e-6


def _prototypes(loop, sim, states):
    """What clients' features are pulled to; by the end there is something."""
    _equal(loop.server, sim.server)
    assert loop.server["prototypes"].abs().max() > 1e-3
    assert loop.server["seen"].sum() > 1


def _heads(loop, sim, states):
    """Everybody's head, mixed from several, and the prototypes."""
    for cid in range(len(SIZES)):
        _equal(loop.own[cid], _row(sim.server["heads"], cid))
    for name in ("mean_head", "prototypes"):
        mine, theirs = getattr(loop, name), sim.server[name]
        _equal(*({name: v} if isinstance(v, torch.Tensor) else v for v in (mine, theirs)))
    assert loop.seen.tolist() == sim.server["seen"].bool().tolist()
    assert ((sim.server["weights"] > 0).sum(1) > 1).any()
    assert sim.server["weights"].std(0).max() > 1e-3  # not the same mixture for all


def _gate(loop, sim, states):
    """The gate, which is in what the server has, did learn."""
    fresh = LOOPS["fedcp"](loop.model, FORM, _world(), SEED)
    for name in loop.server.keys() - loop.initial.keys():
        assert (loop.server[name] - fresh.server[name]).abs().max() > 1e-7, name


def _last(loop, sim, states):
    """The models that clients' features are kept away from."""
    for cid, state in enumerate(states):
        _equal(loop.own[cid], _row(state["last"], 0))


@pytest.mark.usefixtures("_double")
def test_fedfomo_chooses_the_same_models_of_others():
    """Many rounds with few slots: exploring and choosing by worth, from equal and from learnt."""
    cohorts = [[0, 1, 2, 3], [0, 1, 3]] * 4
    loop, sim, states = _both("fedfomo", "mlp", 1, {"M": 3, "eps0": 0.5}, cohorts)
    _fomo(loop, sim, states)
    for cid, state in enumerate(states):
        _equal(loop.own[cid], state["cur"])


def test_draws_made_beforehand_change_nothing():
    world = _world()
    for name, kind in LOOPS.items():
        prepared, other = (kind("mlp", FORM, world, SEED, LR, BATCH) for _ in range(2))
        prepared.prepare(0, [0, 1])
        for loop in (prepared, other):
            loop.round(0, [0, 1])
        assert prepared.server.keys() == other.server.keys(), name
        for key, value in prepared.server.items():
            assert torch.equal(value, other.server[key])


def test_loops_exist_for_methods_and_refuse_what_they_do_not_do():
    assert set(LOOPS) <= set(METHODS)
    world = _world()
    with pytest.raises(ValueError, match="does not take mix_policy"):
        LOOPS["pmixfed"]("mlp", FORM, world, options={"mix_policy": "random"})
    with pytest.raises(ValueError, match="BatchNorm"):
        LOOPS["fedavg"]("fedbn-cnn", FORM, world)
