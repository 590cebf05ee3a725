"""What hostile clients of the benchmark do, and to whom."""

from typing import Any

import pytest
import torch

from fedtailor.core import tree
from fedtailor.core.method import Upload
from fedtailor.core.uploads.moves import averaged, moved, norm_of
from fedtailor.engine import ClientData
from fedtailor.methods.find import find
from tests.benchmarks.scripts import load
from tests.methods.worlds import HALF, one_number, play, rows_of, simulate

HOSTILE = torch.tensor([1])


@pytest.fixture(scope="module")
def attacks() -> Any:
    return load("attacks")


def images() -> ClientData:
    rows = [[0, 1], [2, 3]]
    x = torch.arange(8 * 16, dtype=torch.uint8).view(8, 1, 4, 4)
    test = [torch.tensor(r).numpy() + 4 for r in rows]
    own = [torch.tensor(r).numpy() for r in rows]
    return ClientData.of(x, torch.arange(8) % 3, own, own, test)


def test_wrong_labels_are_those_of_hostile_clients_training_rows(attacks: Any) -> None:
    before, after = images(), attacks.with_hostile_rows(images(), HOSTILE, "label flip", 3)
    assert (before.y != after.y).nonzero().flatten().tolist() in ([2], [3], [2, 3])
    assert after.y[2:4].tolist() == [2 - before.y[2], 2 - before.y[3]]


def test_a_back_door_is_a_second_copy_with_trigger_and_target(attacks: Any) -> None:
    after = attacks.with_hostile_rows(images(), HOSTILE, "backdoor", 3)
    assert after.train.each()[0].tolist() == [0, 1]
    assert after.train.each()[1].tolist() == [2, 3, 8, 9]
    assert after.y[8:].tolist() == [attacks.TARGET] * 2
    assert (after.x[8:, :, -2:, -2:] == after.x[2:4].max()).all()
    assert torch.equal(after.x[8:, :, :2], after.x[2:4, :, :2])
    assert torch.equal(after.x[:8], images().x)


@pytest.mark.parametrize("rule", ["", "+median"])
@pytest.mark.parametrize("attack", ["sign flip", "backdoor", "noise"])
def test_what_a_hostile_client_sends(attack: str, rule: str, attacks: Any) -> None:
    """From w = 0 the honest one goes to 1; the hostile one learnt 4 and sends something else."""
    task, seen = one_number(), []
    host = find(f"fedavg{rule}")(task, recipe=HALF)
    method = attacks.with_hostile_clients(host, HOSTILE, attack)

    def admit(sent: tree.Tree, upload: Upload) -> Upload:
        seen.append(float(norm_of(moved({"params": {"w": torch.zeros(())}}, averaged(upload)))))
        return upload

    sim = simulate(method._replace(admit=admit), rows_of([[2.0], [8.0]]), task, engine="sequential")
    play(sim)
    assert seen[0] == pytest.approx(1.0)
    factor = {"sign flip": attacks.FLIPPED, "backdoor": attacks.BOOST}.get(attack)
    if factor:
        assert seen[1] == pytest.approx(abs(factor) * 4)
    else:
        assert seen[1] > 0 and seen[1] != pytest.approx(4.0)


def test_intervals_are_students(attacks: Any) -> None:
    """Of 1 and 3: 2 ± 12.706 √2/√2."""
    assert attacks.interval([1.0, 3.0]) == [2.0, pytest.approx(12.7062, abs=1e-3)]
    assert attacks.interval([1.0]) == [1.0, None]
