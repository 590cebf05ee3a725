"""Networks of text learn from a tiny play, all roles at once as one after another."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fedtailor
from fedtailor.core.form import Form
from fedtailor.models.text import LSTMText, TransformerText
from tests.datasets.natural.plays_and_sensors import write_play

pytestmark = pytest.mark.usefixtures("float64")


def narrow_lstm(form: Form) -> nn.Module:
    """The LSTM with few units: 256 would only take longer to agree."""
    return LSTMText(form, width=4, units=8)


def narrow_transformer(form: Form) -> nn.Module:
    """The transformer with few units, for the same reason."""
    return TransformerText(form, width=8, heads=2, hidden=16)


@pytest.mark.parametrize("model", [f"{__name__}:narrow_lstm", f"{__name__}:narrow_transformer"])
def test_both_engines_learn_the_same_of_a_play(tmp_path, model):
    write_play(tmp_path / "data" / "shakespeare")
    given = {"data": "shakespeare", "data_dir": str(tmp_path / "data"), "model": model}
    given |= {"rounds": 1, "batch": 32, "steps": 1, "lr": 0.05, "metric": "perplexity"}
    at_once, in_turn = (
        fedtailor.run("ditto", **given, engine=engine, out=str(tmp_path / engine))
        for engine in ("vectorised", "sequential")
    )
    for role in ("First Citizen", "JULIET", "ROMEO"):
        theirs = in_turn.model(role).state_dict()
        for name, part in at_once.model(role).state_dict().items():
            torch.testing.assert_close(part, theirs[name], rtol=0, atol=1e-9)
    said = at_once.table()["perplexity"]
    assert (said > 1).all()
