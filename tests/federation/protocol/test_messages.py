"""Messages are checked before memory is taken for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedtailor.core.errors import BadInput
from fedtailor.core.form import Form
from fedtailor.datasets import Encoder
from fedtailor.federation.coordinator.federation_file import read_federation
from fedtailor.federation.protocol.messages import like_of
from fedtailor.federation.protocol.packet import Limits
from fedtailor.federation.protocol.plan import set_up
from tests.federation.trial import Trial


def test_a_message_takes_no_more_memory_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    small = [["params/w", "float32", [2, 3]], ["round", "int64", []]]
    assert like_of(small, Limits(bytes=32))["params"]["w"].shape == (2, 3)
    with pytest.raises(BadInput, match="2 arrays, more than 1"):
        like_of(small, Limits(arrays=1))
    with pytest.raises(BadInput, match="more than 31 bytes"):
        like_of(small, Limits(bytes=31))
    monkeypatch.setattr(torch, "zeros", lambda *a, **k: pytest.fail("memory was taken"))
    for shape in ([10**5, 10**5], [-1, 4], [10**30]):
        with pytest.raises(BadInput, match="cannot be read"):
            like_of([["params/w", "float32", shape]])


def test_a_network_takes_no_more_memory_than_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan may claim pictures of any size, and a network would be made for them."""
    plan = read_federation(Trial(tmp_path, "fedavg").federation).plan
    wide = Encoder(Form("image", (1, 20_000, 20_000), 3), ("0", "1", "2"))
    monkeypatch.setattr("fedtailor.federation.protocol.plan.make_players", pytest.fail)
    with pytest.raises(BadInput, match=r"network 'mlp' for examples of .* bytes, at most 2,147"):
        set_up(replace(plan, encoder=wide.to_json()))
    several = plan.settings | {"model": "linear", "models": "linear:1,mlp:2"}
    with pytest.raises(BadInput, match=r"network '\w+' for examples of .* bytes, at most 2,147"):
        set_up(replace(plan, encoder=wide.to_json(), settings=several))
