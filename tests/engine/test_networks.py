"""Any network that PyTorch trains is trained, by every method and engine."""

from __future__ import annotations

from collections.abc import Callable
from logging import WARNING
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtailor.core.form import Form
from fedtailor.core.task import classification
from fedtailor.core.training import Recipe
from fedtailor.core.tree import flatten
from fedtailor.methods import METHODS
from fedtailor.models.text import LSTMText, TransformerText
from tests.methods.worlds import gap, models, play, quick, ragged, simulate

pytestmark = pytest.mark.usefixtures("float64")

FAST = ("fedavg", "ditto", "fedrep", "apfl", "fedfomo")


class Everything(nn.Module):
    """Tokens, an embedding, a recurrent layer, attention with dropout, GroupNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 4, padding_idx=0)
        self.gru = nn.GRU(4, 4, batch_first=True)
        self.attend = nn.MultiheadAttention(4, 2, dropout=0.2, batch_first=True)
        self.norm, self.fc = nn.GroupNorm(2, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.gru(self.embed(x.long().clamp(0, 8)))[0]
        h = h + self.attend(h, h, h, need_weights=False)[0]
        out: Tensor = self.fc(self.norm(h.mean(1)))
        return out


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 5, 2, batch_first=True, bidirectional=True, dropout=0.3)
        self.fc = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.lstm(x[..., None])[0][:, -1])
        return out


class Packed(nn.Module):
    """Lengths on the host: not even the gradient can be transformed."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.fc = nn.LSTM(1, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        long = (x > 0).sum(1).clamp(min=1).cpu()
        packed = nn.utils.rnn.pack_padded_sequence(
            x[..., None], long, batch_first=True, enforce_sorted=False
        )
        out: Tensor = self.fc(self.lstm(packed)[1][0][-1])
        return out


class Branches(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (2 if x.mean().item() > 0 else 1)


class Masks(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + x[x > 0].sum())


class OneHot(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + F.one_hot((x[:, 0] > 0).long(), 4))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.fc = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.second(self.first(x).tanh()))
        return out


MAPS: dict[str, Callable[[], nn.Module]] = {
    "everything": Everything,
    "recurrent": Recurrent,
    "tied": Tied,
    "one-hot": lambda: OneHot(4, 3),
}
DOES_NOT: dict[str, Callable[[], nn.Module]] = {
    "packed": Packed,
    "branches": lambda: Branches(4, 3),
    "masks": lambda: Masks(4, 3),
    "spectral": lambda: nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(4, 6)), nn.Linear(6, 3)
    ),
}


def played(build: Callable[[], nn.Module], method: str = "fedavg", **options: Any) -> Any:
    task = classification(build)
    recipe = Recipe(lr=0.1, batch=5)
    sim = simulate(quick(method, task, recipe), ragged((7, 12, 9)), task, **options)
    play(sim, 1)
    sim.score()
    found = models(sim)
    sim.close()
    return found


@pytest.mark.parametrize(
    "method", [pytest.param(m, marks=[] if m in FAST else [pytest.mark.slow]) for m in METHODS]
)
def test_every_method_trains_such_a_network(method: str, caplog: pytest.LogCaptureFixture) -> None:
    expected = played(Everything, method, engine="sequential")
    assert gap(expected, played(Everything, method)) < 1e-9
    assert not [r for r in caplog.records if r.levelno >= WARNING]


class OfTokens(nn.Module):
    """A named text network of small width, on numbers that become tokens with padding behind."""

    def __init__(self, network: Callable[[Form], nn.Module]) -> None:
        super().__init__()
        self.inner = network(Form("text", (4,), 3, vocabulary=7))

    def forward(self, x: Tensor) -> Tensor:
        tokens = (x.abs() * 2.5).long().clamp(0, 5) + 1
        shown = torch.arange(4) < tokens[:, :1]  # the first token says how long the text is
        out: Tensor = self.inner(tokens * shown)
        return out


TEXT_NETWORKS: dict[str, Callable[[Form], nn.Module]] = {
    "lstm": lambda form: LSTMText(form, width=3, units=5),
    "transformer": lambda form: TransformerText(form, width=4, heads=2, hidden=6),
}


@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedrep", "fedala"])
@pytest.mark.parametrize("name", TEXT_NETWORKS)
def test_text_networks_learn_the_same_one_after_another_and_all_at_once(
    name: str, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    def build() -> nn.Module:
        return OfTokens(TEXT_NETWORKS[name])

    expected = played(build, method, engine="sequential")
    assert gap(expected, played(build, method)) < 1e-9
    assert not [r for r in caplog.records if r.levelno >= WARNING]


class Frozen(nn.Module):
    """A first layer that stays, between others a frozen bias; no method has such names itself."""

    def __init__(self) -> None:
        super().__init__()
        self.below, self.between, self.fc = nn.Linear(4, 6), nn.Linear(6, 5), nn.Linear(5, 3)
        self.below.requires_grad_(False)
        self.between.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.between(self.below(x).tanh()).tanh())
        return out


def frozen_names(found: Any) -> set[str]:
    return {k for k in flatten(found) for name in ("below.", "between.bias") if name in k}


@pytest.mark.parametrize(
    "method", [pytest.param(m, marks=[] if m in FAST else [pytest.mark.slow]) for m in METHODS]
)
def test_every_method_leaves_frozen_parameters_alone(method: str) -> None:
    task = classification(Frozen)
    before = {k: v.clone() for k, v in task.constants.items()}
    assert sorted(before) == ["below.bias", "below.weight", "between.bias"]
    found = []
    for options in ({"engine": "sequential"}, {}):
        made = quick(method, task, Recipe(lr=0.1, batch=5))
        sim = simulate(made, ragged((7, 12, 9)), task, **options)
        play(sim)
        sim.score()
        found.append(models(sim))
        # nobody sees them: they are not sent, kept, or averaged
        assert frozen_names({"server": sim.server, "models": found[-1]}) == set()
        assert frozen_names(sim.states.rows) == set()
    assert gap(*found) < 1e-9
    assert all(torch.equal(before[k], task.constants[k]) for k in before)


def test_frozen_parameters_cost_no_bytes() -> None:
    def bytes_of(build: Callable[[], nn.Module]) -> int:
        task = classification(build)
        sim = simulate(quick("fedavg", task), ragged((7, 9)), task)
        return int(play(sim)[0].up[0])

    def thawed() -> nn.Module:
        return Frozen().requires_grad_(True)

    frozen = 4 * 6 + 6 + 5  # numbers, of 8 bytes each
    assert bytes_of(thawed) - bytes_of(Frozen) == 8 * frozen


def test_tokens_are_whole_numbers() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(12, 3))

    task = classification(build)
    floats = ragged((7, 12, 9))
    tokens = floats._replace(x=(floats.x * 2).long().clamp(0, 8))
    found = []
    for options in ({"engine": "sequential"}, {}, {"loop_mode": "traced"}):
        sim = simulate(quick("fedavg", task, Recipe(lr=0.1, batch=5)), tokens, task, **options)
        play(sim)
        found.append(models(sim))
    assert gap(found[0], found[1]) < 1e-9 and gap(found[0], found[2]) < 1e-9


@pytest.mark.parametrize("build", [Packed, lambda: Branches(4, 3)], ids=["packed", "branches"])
@pytest.mark.parametrize("method", ["fedavg", "fedfomo"])
def test_mapping_within_a_client_is_not_needed_either(
    method: str, build: Callable[[], nn.Module]
) -> None:
    """Of the examples of DP-SGD, and of the models that FedFomo's clients judge."""
    task = classification(build)
    private = {"dp_clip": 1.0, "dp_noise": 0.5} if method == "fedavg" else {}
    recipe = Recipe(lr=0.1, batch=5, **private)  # type: ignore[arg-type]
    found = []
    for engine in ("sequential", "vectorised"):
        sim = simulate(quick(method, task, recipe), ragged((7, 9)), task, engine=engine)
        play(sim, 2)
        found.append(models(sim))
    assert gap(*found) < 1e-9


def test_a_loss_that_cannot_be_mapped() -> None:
    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        each = F.cross_entropy(outputs, labels, reduction="none")
        return each * (2 if float(outputs.detach().sum()) > 1e9 else 1)

    plain = classification(lambda: nn.Linear(4, 3))
    odd = classification(lambda: nn.Linear(4, 3), loss=loss)
    scores = []
    for task in (plain, odd):
        sim = simulate(quick("fedavg", task, Recipe(lr=0.1, batch=5)), ragged((7, 9)), task)
        play(sim)
        scores.append(sim.score().test.loss)
    torch.testing.assert_close(*scores)


@pytest.mark.parametrize("name", [*MAPS, *DOES_NOT])
def test_engines_agree(name: str, caplog: pytest.LogCaptureFixture) -> None:
    build = (MAPS | DOES_NOT)[name]
    expected = played(build, engine="sequential")
    assert not [r for r in caplog.records if r.levelno >= WARNING]
    for loop_mode in ("plain", "traced"):
        caplog.clear()
        assert gap(expected, played(build, loop_mode=loop_mode)) < 1e-9
        said = [r.getMessage() for r in caplog.records if r.levelno >= WARNING]
        if name in MAPS:
            assert said == []
        elif loop_mode == "plain":
            assert said and all("one after another" in line for line in said)
            kind = {"spectral": "_SpectralNorm"}.get(name, name.capitalize())
            assert kind in said[0] and "\n" not in said[0]
