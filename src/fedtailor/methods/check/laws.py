"""What every method must hold: purity, engines that agree, models for all, no look at test rows."""

from __future__ import annotations

import torch

from fedtailor.core import tree, wire
from fedtailor.core.method import Upload
from fedtailor.core.tree import Tree
from fedtailor.core.turn import ClientTurn
from fedtailor.engine.loops.runner import LoopMode
from fedtailor.engine.loops.tracing import can_compile
from fedtailor.methods import METHODS
from fedtailor.methods.check.world import (
    CLIENTS,
    Trial,
    apart,
    came_to,
    copy_of,
    demand,
    everyones_models,
    same,
    toy_federation,
    with_others,
)
from fedtailor.methods.describe import page

LEARNING = 8  # rounds

# likely causes
PADDING = " (likely: rows after the first `data.n` are padding, and one of them counts)"
CONSTANT = " (likely: a host number that changes from call to call; make it a tensor in `given`)"
EVERYBODY = " (likely: `data.x` and `data.y` are everybody's; a client's are `data.x[data.rows]`)"


def check_page(trial: Trial) -> None:
    """it explains itself: a title, a paper, a meaning and a default for every option"""
    found = page(trial.factory)
    demand(bool(found.title), "the docstring has no first line")
    demand(bool(found.reference), "the docstring has no 'Reference:' section")
    silent = [option.name for option in found.options if not option.meaning]
    demand(not silent, f"no meaning in 'Args:' for {', '.join(silent)}")


def check_pure(trial: Trial) -> None:
    """its functions change none of their arguments, and the same call gives the same answer"""
    server, own = trial.one_client()
    before = copy_of(server), copy_of(own.message), copy_of(own.state())
    (first, _), (second, _) = own.play(), own.play()
    own.personal()
    everyone = tree.map(lambda leaf: leaf.new_ones(()), first.upload.mean)
    upload = Upload(first.upload.mean, everyone, tree.stack([first.upload.each]))
    trial.method.receive(server, torch.tensor([2]), upload, own.turn)
    for name, was, now in zip(
        ("server", "message", "state"), before, (server, own.message, own.state()), strict=True
    ):
        demand(same(was, now), f"the {name} was changed by a call")
    for name, one, two in zip(("mean", "weight", "each"), first.upload, second.upload, strict=True):
        equal = same(one, two) if isinstance(one, dict) else bool(one == two)
        demand(equal, f"two equal calls of client gave different uploads ({name})")
    demand(same(first.state, second.state), "two equal calls of client gave different states")
    demand(same(first.model, second.model), "two equal calls of client gave different models")


def check_state(trial: Trial) -> None:
    """a client's state keeps its names, shapes and types"""
    trial.first_turn().play()  # refuses one that does not


def check_wire(trial: Trial) -> None:
    """messages and uploads survive the wire, and their bytes are counted as sent"""
    _, own = trial.one_client()
    upload = own.play()[0].upload
    for name, sent in (("message", own.message), ("mean", upload.mean), ("each", upload.each)):
        back = wire.unpack(wire.pack(sent), sent)
        demand(bool(wire.size(back) == wire.size(sent)), f"{name}: another size after the wire")
        demand(same(wire.as_sent(sent), wire.as_sent(back)), f"{name}: changed by the wire")


def check_engines(trial: Trial) -> None:
    """engines, chunks and the order of clients make no difference (float64, 1e-9)"""
    reference = came_to(trial.play(engine="sequential"))
    far = apart(reference, came_to(trial.played))
    demand(not far, f"all clients at once and one after another differ: {far}{PADDING}")
    trial.demand_speed()
    if trial.engine == "sequential":
        return
    mixed = trial.play(chunk=3, backwards=True)
    far = apart(reference, came_to(mixed))
    mixed.close()
    demand(not far, f"in chunks of 3, in another order, it differs: {far}{PADDING}")


def check_traced(trial: Trial) -> None:
    """steps, scoring and `personal` may be traced and replayed"""
    _replayed(trial, "traced")


def check_compiled(trial: Trial) -> None:
    """steps, scoring and `personal` may be compiled"""
    demand(can_compile(torch.device("cpu")), "there is no C++ compiler here: install g++")
    _replayed(trial, "compiled")


def _replayed(trial: Trial, loop_mode: LoopMode) -> None:
    if trial.engine == "sequential":
        return
    fast = trial.play(loop_mode=loop_mode)
    trial.demand_speed()
    far = apart(came_to(trial.played), came_to(fast))
    demand(not far, f"with {loop_mode} steps it differs: {far}{CONSTANT}")
    said = [sim.outputs().test.double() for sim in (trial.played, fast)]
    far = apart({"outputs": said[0]}, {"outputs": said[1]})
    fast.close()
    demand(not far, f"{loop_mode}, models say something else: {far}{CONSTANT}")


def check_absent(trial: Trial) -> None:
    """clients that are absent, and evaluation, change nothing"""
    sim = trial.at(trial.played, copy_of)
    before = copy_of(sim.states.rows)
    sim.outputs()
    demand(same(before, sim.states.rows), "evaluation changed a client's state")
    cohort = torch.tensor([0, 3])
    sim.step(cohort)
    others = torch.tensor([i for i in range(CLIENTS) if i not in (0, 3)])
    untouched = same(tree.index(before, others), tree.index(sim.states.rows, others))
    demand(untouched, "a round changed the state of a client that did not take part")


def check_personal(trial: Trial) -> None:
    """everyone has a model that predicts, whoever took part, and in evaluation mode"""
    for cid, model in trial.begun.models():
        x = trial.client_data.x[:5]
        logits = trial.method.predict(model, x)
        shape = tuple(logits.shape)
        demand(shape == (5, trial.width), f"client {cid}: outputs of shape {shape}")
        demand(bool(logits.isfinite().all()), f"client {cid}: logits that are not finite")
        alone = torch.cat([trial.method.predict(model, one[None]) for one in x])
        demand(
            bool(torch.allclose(alone, logits, atol=1e-9)),
            f"client {cid}: a prediction depends on what else is in the batch (training mode?)",
        )


def check_no_leak(trial: Trial) -> None:
    """neither test rows nor those of other clients have any influence on what a client learns"""
    client_data = toy_federation(trial.task.kind, other_test=True)
    demand(
        same(came_to(trial.played), came_to(trial.play(client_data=client_data))),
        f"other test rows gave another result{EVERYBODY}",
    )
    _, own = trial.one_client()
    x, y, rows, n, val_rows, val_n = own.data[:6]
    mine = torch.cat([rows[: int(n)], val_rows[: int(val_n)]])
    strangers = torch.ones(len(x), dtype=torch.bool).index_fill(0, mine, False).nonzero()[:, 0]
    x, y = with_others(x, y, strangers)
    elsewhere = own._replace(data=own.data._replace(x=x, y=y))
    far = apart(_turn_of(own), _turn_of(elsewhere))
    demand(not far, f"with other rows of other clients a turn ends otherwise: {far}{EVERYBODY}")


def _turn_of(own: ClientTurn) -> Tree:
    """All that a client's turn ends with, and the model that it would use before."""
    out = own.play()[0]
    weight = torch.as_tensor(out.upload.weight)
    sent = {"mean": out.upload.mean, "each": out.upload.each, "weight": weight}
    return {"state": out.state, "upload": sent, "model": out.model, "before": own.personal()[0]}


def check_learns(trial: Trial) -> None:
    """the loss on training rows falls"""
    before = trial.play(rounds=0).score(part="train").test.loss.sum()
    longer = trial.play(rounds=LEARNING) if trial.played.rounds < LEARNING else trial.played
    after = longer.score(part="train").test.loss.sum()
    demand(bool(after < before), f"from {float(before):.3f} to {float(after):.3f}")


def check_not_disabled(trial: Trial) -> None:
    """with its defaults it is neither FedAvg nor training alone (unless it is one of them)"""
    mine = everyones_models(trial.played)
    for name in ("fedavg", "local"):
        if trial.factory is not METHODS[name]:
            theirs = trial.yardstick(name)
            equal = all(isinstance(mine[i], dict) and same(mine[i], theirs[i]) for i in mine)
            demand(not equal, f"every client ends with exactly the model of {name}")
