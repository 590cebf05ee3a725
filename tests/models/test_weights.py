"""Weights to begin with, and parameters that stay."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedtailor.core.errors import BadInput
from fedtailor.models.weights import digest_of, freeze, globs_of, load_weights


def net(classes: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, classes))


def test_a_file_and_a_state_dict_are_the_same(tmp_path: Path) -> None:
    given = net()
    save_file(given.state_dict(), tmp_path / "w.safetensors")
    for weights in (
        tmp_path / "w.safetensors",
        str(tmp_path / "w.safetensors"),
        given.state_dict(),
    ):
        made = load_weights(net(), weights)
        assert all(torch.equal(v, made.state_dict()[k]) for k, v in given.state_dict().items())


def test_all_that_does_not_fit_is_listed_in_one_line() -> None:
    weights = net(5).state_dict() | {"more": torch.zeros(1)}
    del weights["0.bias"], weights["1.num_batches_tracked"]  # nobody reads the latter
    with pytest.raises(BadInput) as caught:
        load_weights(net(), weights)
    said = str(caught.value)
    for part in (
        "0.bias is missing",
        "more is not in the network",
        "2.weight is (5, 6) and should be (3, 6)",
        "2.bias is (5,) and should be (3,)",
        "--weights-except",
    ):
        assert part in said
    assert "\n" not in said and "num_batches_tracked" not in said


def test_what_is_left_out_stays_the_network_s_own() -> None:
    given, made = net(5), net()
    before = made[2].weight.clone()
    load_weights(made, given.state_dict(), ["2.*"])
    assert torch.equal(made[0].weight, given[0].weight) and torch.equal(made[2].weight, before)
    with pytest.raises(BadInput, match=r"weights-except 'fc\.\*' fits no name: known: 0\.bias"):
        load_weights(net(), given.state_dict(), ["fc.*"])


def test_no_file_and_a_broken_one(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is no file"):
        load_weights(net(), tmp_path / "none.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"pickle")
    with pytest.raises(BadInput, match=r"cannot be read.*save_file"):
        load_weights(net(), tmp_path / "bad.safetensors")


def test_freezing_by_name() -> None:
    made = freeze(net(), globs_of("0.*, 2.bias"))
    assert [k for k, p in made.named_parameters() if not p.requires_grad] == [
        "0.weight",
        "0.bias",
        "2.bias",
    ]
    with pytest.raises(BadInput, match=r"freeze 'conv\*' fits no name: known: 0\.weight, 0\.bias,"):
        freeze(net(), ["conv*"])


def test_digests_tell_weights_apart(tmp_path: Path) -> None:
    state = net().state_dict()
    same = dict(reversed({k: v.clone() for k, v in state.items()}.items()))
    assert digest_of(state) == digest_of(same)
    same["0.bias"][0] += 1
    assert digest_of(state) != digest_of(same)
    save_file(state, tmp_path / "a.safetensors")
    save_file(same, tmp_path / "b.safetensors")
    assert digest_of(tmp_path / "a.safetensors") != digest_of(str(tmp_path / "b.safetensors"))
