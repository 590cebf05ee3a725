"""A client's turn is played in one place, and what it takes comes back as a value."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from fedtailor.core import rng, tree
from fedtailor.core.errors import BadInput
from fedtailor.core.method import ClientCount, Method, Outcome, Upload
from fedtailor.core.rng import Turn
from fedtailor.core.training import Recipe
from fedtailor.core.turn import ClientTurn, received
from fedtailor.methods import METHODS
from tests.methods.worlds import data_of, gap, ragged, same, task_of, turn_of


def telling() -> Method:
    """A method that answers with what it was given."""

    def client(msg: Any, state: Any, data: Any, turn: Turn) -> Outcome:
        return Outcome(state, Upload({"m": msg["m"]}), {"key": turn.key})

    return Method(
        init=lambda clients, initial, key: {},
        send=lambda server, cid, turn: {"m": torch.tensor(1.0)},
        start=lambda msg, initial, key: {"key": key, "first": initial["w"] + msg["m"]},
        client=client,
        receive=lambda server, ids, upload, turn: server,
        personal=lambda msg, state, data, turn: {"key": turn.key, "first": state["first"]},
        predict=lambda model, x: x,
    )


MESSAGE, INITIAL = {"m": torch.tensor(1.0)}, {"w": torch.tensor(2.0)}
KEPT = {"key": torch.tensor(0), "first": torch.tensor(9.0)}


def test_first_contact_makes_the_state_and_later_the_kept_one_counts() -> None:
    method, data, turn = telling(), data_of(ragged(), 0), turn_of(1)
    first, _ = ClientTurn(method, INITIAL, MESSAGE, data, turn).play()
    assert first.state["first"] == 3
    assert first.state["key"] == turn.at_start()
    assert first.model["key"] == turn.at_client().key
    again, _ = ClientTurn(method, INITIAL, MESSAGE, data, turn, kept=KEPT).play()
    assert all(again.state[name] is KEPT[name] for name in KEPT)
    for fresh, expected in ((True, 3), (False, 9)):
        state = ClientTurn(method, INITIAL, MESSAGE, data, turn, KEPT, torch.tensor(fresh)).state()
        assert state["first"] == expected


def test_a_personal_model_has_random_numbers_apart_from_its_fine_tuning() -> None:
    method, data, turn = telling(), data_of(ragged(), 0), turn_of(1)
    before, after = turn.at_client().split()
    model, _ = ClientTurn(method, INITIAL, MESSAGE, data, turn).personal()
    assert model["key"] == before.key
    method = method._replace(finetune=lambda *given: given[2] | {"key": given[4].key})
    tuned, _ = ClientTurn(method, INITIAL, MESSAGE, data, turn).personal(task_of(), Recipe())
    assert tuned["key"] == after.key
    assert tuned["first"] == model["first"] == 3


def test_a_secret_changes_what_a_client_draws() -> None:
    method, data, turn = telling(), data_of(ragged(), 0), turn_of(1)
    open_one, _ = ClientTurn(method, INITIAL, MESSAGE, data, turn).play()
    hidden, _ = ClientTurn(
        method, INITIAL, MESSAGE, data, turn, secret=bytes([0] * 7 + [14] * 9)
    ).play()
    assert hidden.model["key"] == rng.fold(open_one.model["key"], 7)
    assert hidden.state["key"] == open_one.state["key"]  # the first state is the method's affair


@pytest.mark.parametrize("name", ["fedavg", "ditto", "fedala"])
def test_a_turn_has_no_effect_but_its_result(name: str) -> None:
    """The same call gives the same outcome and the same account, also with noise."""
    task = task_of()
    recipe = Recipe(batch=8, dp_clip=1.0, dp_noise=1.0)
    method = METHODS[name](task, recipe=recipe)
    initial, data, turn = task.init(rng.key(0)), data_of(ragged(), 1), turn_of(1)
    server = method.init(_clients(), initial, rng.key(1))
    message = method.send(server, torch.tensor(1), turn)
    one, two = (ClientTurn(method, initial, message, data, turn).play() for _ in range(2))
    assert same(one[0].state, two[0].state)
    assert same(one[0].upload.mean, two[0].upload.mean)
    assert one[1].tolist() == two[1].tolist() != [0, 0, 0]
    assert turn.ledger is None


def test_dicts_that_a_client_changes_are_its_own() -> None:
    """Else clients that are played one after another find in a message what the last one left."""

    def spoilt(*trees: Any) -> None:
        for values in trees:
            values["m"] = torch.tensor(-1.0)
            values.setdefault("deep", {})["new"] = torch.tensor(0)

    def client(msg: Any, state: Any, data: Any, turn: Turn) -> Outcome:
        kept = tree.in_new_dicts(state)
        spoilt(msg, state)
        return Outcome(kept, Upload({"m": msg["m"]}), {})

    def start(msg: Any, initial: Any, key: Any) -> Any:
        spoilt(msg, initial)
        return {"deep": {"own": torch.tensor(3)}}

    def personal(msg: Any, state: Any, data: Any, turn: Turn) -> Any:
        spoilt(msg, state)
        return {"m": torch.tensor(1.0)}

    def finetune(msg: Any, state: Any, *rest: Any) -> Any:
        spoilt(msg, state)
        return {}

    def general(msg: Any, state: Any) -> Any:
        spoilt(msg, state)
        return {}

    method = telling()._replace(
        client=client, start=start, personal=personal, finetune=finetune, general=general
    )
    message, initial = tree.in_new_dicts(MESSAGE), tree.in_new_dicts(INITIAL)
    kept = {"deep": {"own": torch.tensor(3)}}
    for state in (kept, None):
        turn = ClientTurn(method, initial, message, data_of(ragged(), 0), turn_of(1), kept=state)
        assert turn.play()[0].upload.mean["m"] == -1
        turn.personal(task_of(), Recipe())
        turn.general()
        assert same(message, MESSAGE) and same(initial, INITIAL)
    assert list(kept) == ["deep"] and list(kept["deep"]) == ["own"]


def _clients() -> Any:
    return ClientCount.of(torch.tensor([40, 7]))


def test_turns_of_clients_that_share_a_call_are_charged_each_for_its_own() -> None:
    task = task_of()
    method = METHODS["fedavg"](task, recipe=Recipe(batch=8, dp_clip=1.0, dp_noise=1.0))
    initial, world = task.init(rng.key(0)), ragged()
    message = {"params": initial}
    data = world.data(torch.tensor([0, 1]))

    def one(rows: Tensor, n: Tensor, key: Tensor) -> Any:
        mine = data._replace(rows=rows, n=n, val_rows=data.val_rows[0], val_n=data.val_n[0])
        turn = turn_of()._replace(key=key)
        outcome, noisy = ClientTurn(method, initial, message, mine, turn).play()
        return outcome.upload.mean["params"], noisy

    keys = torch.stack([turn_of(c).key for c in (0, 1)])
    params, noisy = vmap(one)(data.rows, data.n, keys)
    assert noisy.tolist() == [[-(-int(n) // 8), 1, min(1, 8 / int(n))] for n in data.n]
    for i in (0, 1):
        turn = turn_of()._replace(key=keys[i])
        alone, row = ClientTurn(method, initial, message, data_of(world, i), turn).play()
        assert gap(tree.index(params, i), alone.upload.mean["params"]) < 1e-5
        assert row.tolist() == noisy[i].tolist()


def test_fine_tuning_is_charged_with_the_model_that_it_begins_with() -> None:
    task = task_of()
    recipe = Recipe(batch=4, dp_clip=1.0, dp_noise=1.0)
    method = METHODS["perfedavg-fo"](task, recipe=recipe)
    initial, data = task.init(rng.key(0)), data_of(ragged(), 1)  # 20 rows
    message, turn = {"params": initial}, turn_of(1)
    _, adapted = ClientTurn(method, initial, message, data, turn).personal()
    _, both = ClientTurn(method, initial, message, data, turn).personal(task, recipe)
    assert adapted.tolist() == [1, 1, 0.2]
    assert both.tolist() == [1 + 5, 1, 0.2]


def test_nobody_asks_for_a_first_state_where_nothing_is_kept() -> None:
    def never(*given: Any) -> Any:
        raise AssertionError("start was asked")

    method, none = telling()._replace(start=never), {"none": {}}
    data, fresh = data_of(ragged(), 0), torch.tensor(True)
    assert ClientTurn(method, INITIAL, MESSAGE, data, turn_of(1), none, fresh).state() is none


STATE = {"n": torch.zeros(2)}


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        (({}, {}), "client returns tuple: return Outcome"),
        (Outcome(STATE, {"m": torch.ones(1)}, {}), "client's upload is of type dict"),  # type: ignore[arg-type]
        (Outcome(None, Upload(), {}), "client's state is of type NoneType: make it a dict"),  # type: ignore[arg-type]
        (Outcome({"n": 1}, Upload(), {}), "client's state: 'n' is of type int: make it a tensor"),
        (Outcome(STATE, Upload({"m": [1.0]}), {}), "client's upload: 'm' is of type list"),
        (Outcome(STATE, Upload({}, 1.0, {"m": 2.0}), {}), "client's upload: 'm' is of type float"),
        (Outcome(STATE, Upload(weight=torch.ones(1)), {}), "its weight has shape (1,): give one"),
        (Outcome(STATE, Upload(weight="a"), {}), "its weight is of type str: give one"),
        (Outcome(STATE, Upload(), None), "client's model is of type NoneType: make it a dict"),
        (Outcome({}, Upload(), {}), "client's state lacks 'n' after a turn"),
        (Outcome(STATE | {"o": {}}, Upload(), {}), "client's state has 'o/' after a turn"),
        (
            Outcome({"n": torch.zeros(3)}, Upload(), {}),
            "'n' is float32 of shape (2,) before a turn and float32 of shape (3,) after",
        ),
        (
            Outcome({"n": torch.zeros(2).long()}, Upload(), {}),
            "'n' is float32 of shape (2,) before a turn and int64 of shape (2,) after",
        ),
    ],
)
def test_what_a_turn_may_not_end_with_is_named(ended: Any, said: str) -> None:
    method = telling()._replace(
        start=lambda msg, initial, key: STATE, client=lambda msg, state, data, turn: ended
    )
    with pytest.raises(BadInput) as error:
        ClientTurn(method, INITIAL, MESSAGE, data_of(ragged(), 0), turn_of(1)).play()
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_autograd_is_off_in_a_turn_and_what_to_do_is_said() -> None:
    def steps(leaf: Tensor) -> None:
        leaf.requires_grad_()
        (leaf * 2).sum().backward()

    def client(msg: Any, state: Any, data: Any, turn: Any) -> Outcome:
        steps(torch.ones(1))
        return Outcome({}, Upload(), {})

    def told(client: Any) -> ClientTurn:
        method = telling()._replace(client=client, start=lambda msg, initial, key: {})
        return ClientTurn(method, INITIAL, MESSAGE, data_of(ragged(), 0), turn_of(1))

    def on(*given: Any) -> Outcome:
        with torch.enable_grad():
            return client(*given)

    with torch.no_grad():
        with pytest.raises(BadInput, match=r"asks autograd for a gradient.*enable_grad"):
            told(client).play()
        assert told(on).play()[0].state == {}
        asking = told(on).method._replace(personal=client)
        with pytest.raises(BadInput, match=r"^personal asks autograd for a gradient"):
            told(on)._replace(method=asking).personal()

    def broken(*given: Any) -> Outcome:
        raise RuntimeError("another reason")

    with pytest.raises(RuntimeError, match="another reason"):
        told(broken).play()


def test_a_first_state_is_made_of_tensors() -> None:
    method = telling()._replace(start=lambda msg, initial, key: {"n": 0})
    with pytest.raises(BadInput, match="start's state: 'n' is of type int: make it a tensor"):
        ClientTurn(method, INITIAL, MESSAGE, data_of(ragged(), 0), turn_of(1)).play()


def test_what_a_general_model_and_an_admitted_upload_may_not_be_is_named() -> None:
    def told(**functions: Any) -> ClientTurn:
        method = telling()._replace(**functions)
        return ClientTurn(method, INITIAL, MESSAGE, data_of(ragged(), 0), turn_of(1), KEPT)

    with pytest.raises(BadInput, match=r"^general's model is of type NoneType: make it a dict"):
        told(general=lambda msg, state: None).general()
    with pytest.raises(BadInput, match=r"^admit returns dict: return the Upload"):
        told(admit=lambda msg, upload: {}).admitted(Upload({}))


def test_the_server_keeps_the_form_of_its_parameters() -> None:
    method = telling()._replace(common="w", receive=lambda server, ids, up, turn: up.mean)
    before, ids = {"w": torch.zeros(3)}, torch.tensor([0])
    with pytest.raises(
        BadInput, match=r"'w' is float32 of shape \(3,\) before a round and .*\(1,\)"
    ):
        received(method, before, ids, Upload({"w": torch.zeros(1)}), turn_of(1))
    after = received(method, before, ids, Upload({"w": torch.ones(3)}), turn_of(1))
    assert after["w"].sum() == 3


def test_a_name_that_no_client_sent_is_told() -> None:
    method = METHODS["fedavg"](task_of())
    with pytest.raises(
        BadInput, match=r"^receive asks for 'params', but clients upload wrong: let"
    ):
        received(method, {"params": {}}, torch.tensor([0]), Upload({"wrong": {}}), turn_of(1))

    def astray(*given: Any) -> Any:
        return {}["gone"]

    with pytest.raises(KeyError, match="gone"):  # its own line says more
        received(method._replace(receive=astray), {}, torch.tensor([0]), Upload({}), turn_of(1))
