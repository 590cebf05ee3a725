"""Rounds on one machine."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedtailor.core import rng, training, tree
from fedtailor.core.data import Data
from fedtailor.core.errors import BadInput
from fedtailor.core.method import Method, Outcome, Upload
from fedtailor.core.rng import Turn
from fedtailor.core.task import Task, classification
from fedtailor.core.training import Recipe
from fedtailor.core.tree import Params, Tree
from fedtailor.engine import ClientData, Diverged, Simulation
from fedtailor.methods import METHODS, ditto, fedavg, fedfomo

pytestmark = pytest.mark.usefixtures("float64")

RECIPE = Recipe(epochs=1, batch=3, lr=0.1)
FEW = ("fedavg", "fedala", "fedfomo", "pfedhn")  # tests/methods covers the rest
STEPPINGS = [("sequential", 1), ("vectorised", 1), ("vectorised", 2), ("vectorised", 4)]


def world(sizes: tuple[int, ...] = (7, 3, 5, 1), val: int = 2) -> ClientData:
    deck = iter(range(1000))
    deal = lambda counts: [np.array([next(deck) for _ in range(k)], dtype=int) for k in counts]
    x = rng.normal(rng.key(0), 200, 4, dtype=torch.float64)
    y = (x[:, 0] + x[:, 1] > 0).long() + (x[:, 2] > 0.5).long()
    parts = [deal(sizes), deal([val] * len(sizes)), deal([3] * len(sizes))]
    return ClientData.of(x, y, *parts)


def make_task() -> Task:
    return classification(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)))


def flat(values: Tree) -> Tensor:
    return torch.cat([torch.zeros(0), *(leaf.flatten().double() for leaf in tree.leaves(values))])


def everyone(simulation: Simulation) -> Tensor:
    return torch.arange(simulation.client_data.clients)


def test_a_round_of_fedavg_by_hand() -> None:
    task, client_data = make_task(), world()
    simulation = Simulation(fedavg(task, recipe=RECIPE), client_data, task, seed=3, chunk=4)
    initial = task.init(rng.key(3, rng.INITIAL))
    assert torch.equal(flat(simulation.server["params"]), flat(initial))
    cohort = torch.tensor([0, 1, 3])
    simulation.step(cohort)

    total, mean = 0, torch.zeros_like(flat(initial))
    for cid in cohort:
        data = client_data.data(cid[None])
        one = data._replace(
            rows=data.rows[0], n=data.n[0], val_rows=data.val_rows[0], val_n=data.val_n[0]
        )
        key = rng.key(3, rng.TURN, 0, int(cid))
        turn = Turn(key, torch.tensor(0), torch.tensor(1)).at_client()
        mean += int(one.n) * flat(training.fit(task, initial, one, turn, RECIPE))
        total += int(one.n)
    torch.testing.assert_close(
        flat(simulation.server["params"]), mean / total, rtol=1e-12, atol=1e-12
    )
    assert simulation.round == 1


@pytest.mark.parametrize("name", FEW)
def test_engines_chunks_and_places_make_no_difference(name: str, tmp_path: Path) -> None:
    task, client_data = make_task(), world()
    ends = []
    for options in (
        {"engine": "sequential"},
        {"chunk": 4},
        {"chunk": 3, "place": "host"},
        {"chunk": 1, "place": "disk", "folder": tmp_path},
    ):
        method = METHODS[name](task, recipe=RECIPE)
        simulation = Simulation(method, client_data, task, rounds=3, **options)  # type: ignore[arg-type]
        for cohort in ([0, 2, 3], [1, 2], [0, 1, 2, 3]):
            simulation.step(torch.tensor(cohort))
        scores = simulation.score()
        kept = {"server": simulation.server, "states": simulation.states.rows}
        ends.append(torch.cat([flat(kept), *scores.test, *scores.val]))
        simulation.close()
    assert list(tmp_path.iterdir()) == []  # files of states on disk are gone
    for other in ends[1:]:
        torch.testing.assert_close(other, ends[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_a_servers_loops_are_run_as_clients_are(engine: str) -> None:
    """Long ones are prepared once, but for the reference, where they stay plain."""
    task = make_task()
    method = METHODS["fedgh"](task, server_epochs=100)
    simulation = Simulation(method, world(), task, engine=engine)
    expected = Simulation(method, world(), task, engine="sequential")
    for _ in range(2):
        for one in (simulation, expected):
            one.step(everyone(one))
    runner = simulation.clients.runner
    assert len(runner._programs) == (engine == "vectorised")
    assert torch.allclose(flat(simulation.server), flat(expected.server), atol=1e-12)
    simulation.close()


def test_the_order_of_a_cohort_does_not_matter() -> None:
    task, client_data = make_task(), world()
    ends = []
    for cohort in ([0, 2, 3], [3, 0, 2]):
        simulation = Simulation(fedfomo(task, recipe=RECIPE), client_data, task, chunk=2)
        report = simulation.step(torch.tensor(cohort))
        simulation.step(torch.tensor(cohort))
        assert report.ids.tolist() == [0, 2, 3]
        ends.append(flat(simulation.server))
    assert torch.equal(*ends)


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
def test_a_client_begins_with_the_first_message_it_gets(engine: str) -> None:
    task = make_task()
    base = fedavg(task, recipe=RECIPE)

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        return base.client(msg, {}, data, turn)._replace(state=state)

    method = base._replace(
        start=lambda msg, initial, key: {"first": msg["params"]},
        client=client,
        personal=lambda msg, state, data, turn: state["first"],
    )
    simulation = Simulation(method, world(), task, engine=engine)
    sent = []
    for cohort in ([0, 1], [1, 2]):
        sent.append(flat(simulation.server))
        simulation.step(torch.tensor(cohort))
    states = simulation.states.get(torch.tensor([1, 2, 3]))
    assert torch.equal(flat(tree.index(states, 0)), sent[0])  # and keeps it
    assert torch.equal(flat(tree.index(states, 1)), sent[1])
    assert float(flat(tree.index(states, 2)).norm()) == 0
    # one that was never met is scored with what it would begin with
    assert torch.equal(flat(dict(simulation.models())[3]), flat(simulation.server))


@pytest.mark.parametrize("chunk", [1, 2, 4])
def test_notes_come_in_the_order_of_those_who_count(chunk: int) -> None:
    task = make_task()
    base = poisoned(task, {1})

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        notes = {"double": 2 * msg["cid"], "pair": torch.stack([data.n, msg["cid"]])}
        return base.client(msg, state, data, turn)._replace(notes=notes)

    simulation = Simulation(base._replace(client=client), world(), task, chunk=chunk)
    report = simulation.step(torch.tensor([3, 0, 1, 2]), on_nan="skip")
    assert report.taken.tolist() == [0, 2, 3]
    assert report.notes["double"].tolist() == [0, 4, 6]
    assert report.notes["pair"].tolist() == [[7, 0], [5, 2], [1, 3]]


def test_clients_with_other_networks() -> None:
    """Two networks that share their first layer: its mean is over all, a head's over its own."""
    build = lambda tail: nn.Sequential(OrderedDict(body=nn.Linear(4, 5), **tail))
    one = classification(lambda: build({"fc": nn.Linear(5, 3)}))
    two = classification(lambda: build({"deep": nn.Linear(5, 5), "top": nn.Linear(5, 3)}))
    shares: list[Tree] = []

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        shares.append(up.weight)
        return {"params": server["params"] | tree.pick(up.mean["params"], server["params"])}

    first = fedavg(one, recipe=RECIPE)._replace(receive=receive)
    body = ("body.weight", "body.bias")
    start_of_two = two.init(rng.key(9))
    second = fedavg(two, recipe=RECIPE)

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        whole = start_of_two | tree.pick(msg["params"], body)
        return second.client({"params": whole}, state, data, turn)

    others = [(second._replace(client=client), two, torch.tensor([1, 3]))]
    ends = []
    for chunk in (1, 4):
        simulation = Simulation(first, world(), one, chunk=chunk, others=others)
        simulation.step(torch.arange(4))
        ends.append(flat(simulation.server))
        assert float(shares[-1]["params"]["body.weight"]) == 1.0
        # 7 + 5 rows have the head, 3 + 1 the other network
        assert float(shares[-1]["params"]["fc.weight"]) == pytest.approx(12 / 16)
        assert float(shares[-1]["params"]["top.bias"]) == pytest.approx(4 / 16)
    torch.testing.assert_close(*ends, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("ids", [[1, 3], [3, 1]])
def test_the_order_of_the_members_of_a_group_does_not_matter(ids: list[int]) -> None:
    task = make_task()
    method = ditto(task, recipe=RECIPE)
    split = Simulation(method, world(), task, others=[(method, task, torch.tensor(ids))])
    whole = Simulation(method, world(), task)
    for simulation in (split, whole):
        for cohort in ([0, 1], [1, 2, 3], [0, 3]):
            simulation.step(torch.tensor(cohort))
    torch.testing.assert_close(split.score().test.loss, whole.score().test.loss)


def test_absentees_stay_as_they_are() -> None:
    task = make_task()
    simulation = Simulation(ditto(task, recipe=RECIPE), world(), task, chunk=2)
    simulation.step(torch.tensor([0, 1]))
    before = simulation.states.get(torch.tensor([0, 1]))
    simulation.step(torch.tensor([1, 2]))
    after = simulation.states.get(torch.tensor([0, 1]))
    assert torch.equal(flat(tree.index(after, 0)), flat(tree.index(before, 0)))
    assert not torch.equal(flat(tree.index(after, 1)), flat(tree.index(before, 1)))
    assert simulation.states.met.tolist() == [True, True, True, False]


def test_scoring_changes_nothing() -> None:
    task = make_task()
    scored, bare = (
        Simulation(ditto(task, recipe=RECIPE), world(), task, chunk=2) for _ in range(2)
    )
    for simulation in (scored, bare):
        for _ in range(2):
            simulation.step(torch.tensor([0, 2]))
            if simulation is scored:
                one = simulation.score(finetune=Recipe(lr=0.5))
                two = simulation.score(finetune=Recipe(lr=0.5))
                assert torch.equal(one.test.loss, two.test.loss)
                list(simulation.models())
    assert torch.equal(flat(scored.server), flat(bare.server))
    assert torch.equal(flat(scored.states.rows), flat(bare.states.rows))
    assert torch.equal(scored.states.met, bare.states.met)


@pytest.mark.parametrize("part", ["test", "train"])
def test_scores_are_those_of_each_clients_model(part: str) -> None:
    task, client_data = make_task(), world()
    simulation = Simulation(ditto(task, recipe=RECIPE), client_data, task, chunk=3)
    simulation.step(torch.tensor([0, 1, 3]))
    scores = simulation.score(part=part)
    models = dict(simulation.models())
    assert sorted(models) == [0, 1, 2, 3]
    for cid, model in models.items():
        for rows, score in (
            (getattr(client_data, part), scores.test),
            (client_data.val, scores.val),
        ):
            begin = int(rows.offset[cid])
            own = rows.flat[begin : begin + int(rows.n[cid])]
            logits = task.predict(model, client_data.x[own])
            right = int((logits.argmax(-1) == client_data.y[own]).sum())
            assert int(score.correct[cid]) == right
            loss = nn.functional.cross_entropy(logits, client_data.y[own], reduction="sum")
            torch.testing.assert_close(score.loss[cid], loss, rtol=1e-10, atol=1e-10)


def test_of_outputs_that_are_no_numbers_none_is_right() -> None:
    task = make_task()
    simulation = Simulation(fedavg(task, recipe=RECIPE), world(), task)
    scores = simulation.score(finetune=Recipe(epochs=3, lr=torch.inf))
    assert not bool(scores.test.loss.isfinite().any())
    assert scores.test.correct.tolist() == [0] * 4


@pytest.mark.parametrize("ids", [[1, 3], [3, 1]])
def test_scores_of_some_clients(ids: list[int]) -> None:
    task = make_task()
    simulation = Simulation(ditto(task, recipe=RECIPE), world(), task, chunk=3)
    simulation.step(everyone(simulation))
    some, whole = simulation.score(torch.tensor(ids)), simulation.score()
    torch.testing.assert_close(some.test.loss, whole.test.loss[sorted(ids)])  # by ascending id


def test_finetuning_trains_each_model_first() -> None:
    task = make_task()
    simulation = Simulation(fedavg(task, recipe=RECIPE), world(), task)
    before = simulation.score(part="train").test.loss
    after = simulation.score(part="train", finetune=Recipe(epochs=20, lr=0.3)).test.loss
    assert bool((after < before).all())


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
@pytest.mark.parametrize(
    ("function", "what"),
    [
        ("init", "server state"),
        ("send", "message"),
        ("receive", "server state"),
        ("personal", "model"),
        ("record", "record"),
    ],
)
def test_what_is_no_tree_of_tensors_is_named(engine: Any, function: str, what: str) -> None:
    task = make_task()
    method = fedavg(task)._replace(**{function: lambda *given: None})
    with pytest.raises(BadInput) as error:
        sim = Simulation(method, world(), task, engine=engine)
        sim.step(torch.arange(4))
        sim.outputs()
        sim.records()
    assert str(error.value).startswith(f"{function}'s {what} is of type NoneType: make it a dict")


def test_a_server_that_asks_autograd_is_told_that_it_is_off() -> None:
    task = make_task()

    def receive(server: Tree, ids: Tensor, upload: Upload, turn: Turn) -> Tree:
        (torch.ones(1).requires_grad_() * 2).sum().backward()
        return server

    sim = Simulation(fedavg(task)._replace(receive=receive), world(), task)
    with pytest.raises(BadInput, match=r"^receive asks autograd for a gradient.*enable_grad"):
        sim.step(torch.arange(4))
    assert sim.round == 0


def test_what_is_no_prediction_is_named() -> None:
    task = make_task()
    sim = Simulation(fedavg(task)._replace(predict=lambda model, x: None), world(), task)  # type: ignore[arg-type,return-value]
    with pytest.raises(BadInput, match="predict gives NoneType for"):
        sim.outputs()


def test_reports() -> None:
    task = make_task()
    size = flat(task.init(rng.key(0))).numel() * 8
    simulation = Simulation(fedavg(task, recipe=RECIPE), world(), task, chunk=2)
    report = simulation.step(torch.tensor([3, 0]), post=True)
    assert report.ids.tolist() == [0, 3] and report.skipped.tolist() == []
    assert report.taken.tolist() == [0, 3] and report.notes == {}
    assert report.noisy.tolist() == [[0, 0, 0]] * 2  # no DP-SGD
    assert report.down.tolist() == report.up.tolist() == [size, size]
    assert report.post is not None and len(report.post.test) == 2
    assert simulation.step(torch.tensor([0])).post is None


NOISE = Recipe(epochs=2, batch=3, lr=0.1, dp_clip=1.0, dp_noise=0.5)


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [  # of clients with 7, 3, 5 and 1 rows
        (NOISE, [6, 2, 4, 2]),
        (replace(NOISE, last="drop"), [4, 2, 2, 0]),
        (replace(NOISE, steps=5), [5, 5, 5, 5]),
        (replace(NOISE, batch=0), [2, 2, 2, 2]),
        (replace(NOISE, batch=0, last="drop"), [2, 2, 2, 2]),
        (replace(NOISE, dp_clip=0.0), [0, 0, 0, 0]),
    ],
    ids=["pad", "drop", "steps", "all rows", "all rows, drop", "off"],
)
def test_noisy_gradients_are_counted(recipe: Recipe, expected: list[int]) -> None:
    task = make_task()
    for engine, chunk in STEPPINGS:
        method = fedavg(task, recipe=recipe)
        simulation = Simulation(method, world(), task, engine=engine, chunk=chunk)
        noisy = simulation.step(torch.tensor([3, 1, 0, 2])).noisy
        assert noisy[:, :2].tolist() == [[batches, min(batches, 1)] for batches in expected]


def poisoned(task: Task, bad: set[int]) -> Method:
    """FedAvg with a state, where some clients send and keep what is not a number."""
    base = fedavg(task, weighting="uniform", recipe=RECIPE)
    victims = torch.tensor(sorted(bad))

    def send(server: Tree, cid: Tensor, turn: Turn) -> Tree:
        return {"params": server["params"], "cid": cid + 0}

    def start(msg: Tree, initial: Params, key: Tensor) -> Tree:
        return {"seen": torch.zeros(())}

    def client(msg: Tree, state: Tree, data: Any, turn: Turn) -> Outcome:
        done = base.client(msg, {}, data, turn)
        ill = (victims == msg["cid"]).any()
        params = tree.map(lambda p: torch.where(ill, torch.nan, p), done.model)
        each = {"cid": msg["cid"]}
        return Outcome(
            {"seen": state["seen"] + 1},
            Upload({"params": params}, done.upload.weight, each),
            params,
        )

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        assert torch.equal(up.each["cid"], ids)  # rows stand in the order of the ids
        return {"params": up.mean["params"]}

    return base._replace(send=send, start=start, client=client, receive=receive)


@pytest.mark.parametrize("bad", [{1}, {0, 2}, {0, 1, 2}])
@pytest.mark.parametrize(("engine", "chunk"), STEPPINGS)
def test_divergence_stops_and_leaves_the_round_unplayed(
    engine: str, chunk: int, bad: set[int]
) -> None:
    task = make_task()
    simulation = Simulation(poisoned(task, bad), world(), task, engine=engine, chunk=chunk)
    before = flat(simulation.server)
    names = [f"client-{cid}" for cid in sorted(bad)]
    with pytest.raises(Diverged, match=f"^{', '.join(names)} diverged") as caught:
        simulation.step(torch.tensor([0, 1, 2]))
    assert caught.value.clients == names and caught.value.round == 1  # all, not the first chunk's
    assert "\n" not in str(caught.value) and "--lr" in str(caught.value)
    assert torch.equal(flat(simulation.server), before)
    assert simulation.round == 0 and not bool(simulation.states.met.any())


@pytest.mark.parametrize(("engine", "chunk"), STEPPINGS)
def test_skipping_is_as_if_the_diverged_had_not_been_drawn(engine: str, chunk: int) -> None:
    task = make_task()
    ill = Simulation(poisoned(task, {1, 3}), world(), task, engine=engine, chunk=chunk)
    well = Simulation(poisoned(task, {9}), world(), task, engine=engine, chunk=chunk)
    report = ill.step(torch.tensor([0, 1, 2, 3]), post=True, on_nan="skip")
    well.step(torch.tensor([0, 2]))
    assert report.ids.tolist() == [0, 1, 2, 3] and report.skipped.tolist() == [1, 3]
    assert report.taken.tolist() == [0, 2]
    torch.testing.assert_close(flat(ill.server), flat(well.server), rtol=1e-12, atol=1e-12)
    assert torch.equal(ill.states.met, well.states.met)
    assert torch.equal(ill.states.rows["seen"], well.states.rows["seen"])


def test_a_round_in_which_all_diverge_cannot_be_skipped() -> None:
    task = make_task()
    simulation = Simulation(poisoned(task, {0, 1}), world(), task, chunk=1)
    with pytest.raises(Diverged, match="client-0, client-1"):
        simulation.step(torch.tensor([0, 1]), on_nan="skip")


@pytest.mark.parametrize(("engine", "chunk"), STEPPINGS)
def test_uploads_that_all_weigh_nothing_have_no_mean(engine: str, chunk: int) -> None:
    """It was a model of zeros, and nobody was told."""
    task = make_task()
    base = fedavg(task, recipe=RECIPE)

    def client(msg: Tree, state: Tree, data: Any, turn: Turn) -> Outcome:
        done = base.client(msg, state, data, turn)
        return done._replace(upload=done.upload._replace(weight=1.0 * (data.n > 3)))

    method = base._replace(client=client)
    simulation = Simulation(method, world(), task, engine=engine, chunk=chunk)
    simulation.step(torch.tensor([0, 1]))  # of 7 and 3 rows
    before = flat(simulation.server)
    with pytest.raises(BadInput, match="round 2: the weights of all uploads are 0"):
        simulation.step(torch.tensor([1, 3]))
    assert torch.equal(flat(simulation.server), before) and simulation.round == 1


@pytest.mark.parametrize(("engine", "chunk"), STEPPINGS)
@pytest.mark.parametrize("ill", [-2.0, float("nan")])
def test_an_upload_may_not_weigh_less_than_nothing(engine: str, chunk: int, ill: float) -> None:
    """It was a mean that lies outside of all uploads, or the message that training diverged."""
    task = make_task()
    base = fedavg(task, recipe=RECIPE)

    def client(msg: Tree, state: Tree, data: Any, turn: Turn) -> Outcome:
        done = base.client(msg, state, data, turn)
        weight = torch.where(data.n > 3, ill, done.upload.weight)
        return done._replace(upload=done.upload._replace(weight=weight))

    method = base._replace(client=client)
    simulation = Simulation(method, world(), task, engine=engine, chunk=chunk)
    before = flat(simulation.server)
    with pytest.raises(BadInput, match=f"round 1: the weight of an upload is {ill:g}: let"):
        simulation.step(torch.tensor([0, 1]))
    assert torch.equal(flat(simulation.server), before) and simulation.round == 0


class Largest(TorchDispatchMode):
    """The largest tensor that any operation makes, views of what is there aside."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.bytes = max(self.bytes, leaf.untyped_storage().nbytes())
        return out


def test_ten_thousand_clients_cost_a_chunk_of_models_and_no_more() -> None:
    clients, chunk = 10_000, 64
    task = classification(lambda: nn.Sequential(nn.Linear(2, 60), nn.ReLU(), nn.Linear(60, 2)))
    x = rng.normal(rng.key(0), 2 * clients, 2)
    rows = list(np.arange(2 * clients).reshape(clients, 2))
    empty = [np.array([], dtype=int)] * clients
    client_data = ClientData.of(x, (x[:, 0] > 0).long(), rows, empty, rows)
    model = flat(task.init(rng.key(0))).numel() * 8

    method = fedavg(task, recipe=Recipe(batch=2))
    simulation = Simulation(method, client_data, task, chunk=chunk)
    assert simulation.states.rows == {}
    before = flat(simulation.server)
    with Largest() as largest:
        report = simulation.step(torch.arange(clients))
        scores = simulation.score(torch.arange(0, clients, 10))
    assert len(report.ids) == clients and int(report.up.sum()) == clients * model
    assert not torch.equal(flat(simulation.server), before)
    assert len(scores.test.correct) == clients // 10
    # a chunk of models, or a list of ids; by far not a model per client
    assert chunk * model / 4 < largest.bytes < max(2 * chunk * model, 64 * clients)
    assert largest.bytes < clients * model / 10


def test_a_chunk_is_chosen_where_none_is_given() -> None:
    task = make_task()
    assert Simulation(fedavg(task), world(), task).chunk == 4
    assert Simulation(fedavg(task), world(), task, chunk=99).chunk == 4
    for chunk in (0, 1, 3, 99):  # one after another
        assert Simulation(fedavg(task), world(), task, engine="sequential", chunk=chunk).chunk == 1


@pytest.mark.parametrize("name", FEW)
def test_the_seed_decides_everything(name: str) -> None:
    task, client_data = make_task(), world()

    def play(seed: int) -> Tensor:
        simulation = Simulation(METHODS[name](task, recipe=RECIPE), client_data, task, seed=seed)
        torch.manual_seed(int(torch.randint(1000, ())))  # the global generator has no say
        for _ in range(2):
            simulation.step(everyone(simulation))
        return simulation.score().test.loss

    assert torch.equal(play(1), play(1))
    assert not torch.equal(play(1), play(2))


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
def test_clients_without_validation_rows(engine: str) -> None:
    task = make_task()
    simulation = Simulation(fedavg(task, recipe=RECIPE), world(val=0), task, engine=engine)
    simulation.step(everyone(simulation), post=True)
    assert simulation.score().val.correct.tolist() == [0] * 4


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
def test_a_client_without_training_rows_has_no_part_in_the_mean(engine: str) -> None:
    task = make_task()
    ends = []
    for cohort in ([0, 1, 2], [0, 1]):
        method = fedavg(task, recipe=RECIPE)
        simulation = Simulation(method, world((4, 3, 0)), task, engine=engine, chunk=1)
        simulation.step(torch.tensor(cohort))
        ends.append(flat(simulation.server))
    torch.testing.assert_close(*ends)
