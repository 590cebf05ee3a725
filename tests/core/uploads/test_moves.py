"""What a server makes of one upload when it comes."""

from __future__ import annotations

import pytest
import torch
from torch.func import vmap

from fedtailor import BadInput
from fedtailor.core.method import Upload
from fedtailor.core.uploads.moves import (
    averaged,
    collected,
    limited_move,
    moved,
    norm_of,
    with_averaged,
)


def test_what_would_be_averaged_is_found_wherever_it_is() -> None:
    plain = Upload({"w": torch.tensor(1.0)}, 3.0, {"loss": torch.tensor(2.0)})
    apart = collected(plain)
    assert apart.mean == {} and apart.weight == 1.0
    assert averaged(plain) == averaged(apart) == {"w": torch.tensor(1.0)}
    for upload in (plain, apart):
        other = with_averaged(upload, {"w": torch.tensor(5.0)})
        assert averaged(other) == {"w": torch.tensor(5.0)}
        assert other.each.keys() == upload.each.keys() and other.weight == upload.weight


def test_an_upload_without_a_mean_cannot_be_collected() -> None:
    with pytest.raises(BadInput, match="nothing that is averaged"):
        collected(Upload(each={"model": torch.ones(2)}))


def test_a_difference_is_taken_where_the_same_was_sent() -> None:
    """Another shape under the same name is another thing."""
    sent = {"params": {"a": torch.ones(2), "b": torch.ones(3)}, "control": torch.ones(2)}
    now = {
        "params": {"a": torch.full((2,), 3.0), "b": torch.full((2,), 4.0)},
        "change": torch.full((2,), 7.0),
    }
    found = moved(sent, now)
    assert found["params"]["a"].tolist() == [2.0, 2.0]
    assert found["params"]["b"].tolist() == [4.0, 4.0]
    assert found["change"].tolist() == [7.0, 7.0]


def test_running_statistics_have_no_say_in_the_norm() -> None:
    values = {"params": {"w": torch.tensor([3.0, 4.0]), "norm.running_var": torch.tensor([100.0])}}
    assert norm_of(values, ["norm.running_var"]) == 5.0
    assert norm_of({"w": torch.full((4,), 1e30)}) == pytest.approx(2e30)  # squares overflow


def test_a_long_move_is_shortened_by_hand() -> None:
    """(3, 4) is 5 long: a fifth of it is 1. Running statistics go a fifth of their way."""
    sent = {"w": torch.tensor([1.0, 1.0]), "var": torch.tensor(10.0)}
    now = {"w": torch.tensor([4.0, 5.0]), "var": torch.tensor(0.0)}
    found = limited_move(sent, now, 1.0, ["var"])
    assert found["w"].tolist() == pytest.approx([1.6, 1.8])
    assert found["var"].tolist() == pytest.approx(8.0)  # between two variances, so none below 0


@pytest.mark.parametrize("bound", [5.0, 6.0, torch.inf])
def test_a_short_move_stays_to_the_last_bit(bound: float) -> None:
    sent, now = {"w": torch.tensor([0.1, 0.1])}, {"w": torch.tensor([3.1, 4.1])}
    assert torch.equal(limited_move(sent, now, bound, ())["w"], now["w"])


def test_no_move_is_no_division_by_zero() -> None:
    sent = {"w": torch.ones(2)}
    assert limited_move(sent, sent, 0.5, ())["w"].tolist() == [1.0, 1.0]


def test_it_may_be_mapped_over_clients() -> None:
    sent = {"w": torch.zeros(2)}
    now = {"w": torch.tensor([[3.0, 4.0], [0.3, 0.4]])}
    found = vmap(lambda w: limited_move(sent, {"w": w}, 1.0, ())["w"])(now["w"])
    assert found.tolist() == [pytest.approx([0.6, 0.8]), pytest.approx([0.3, 0.4])]
