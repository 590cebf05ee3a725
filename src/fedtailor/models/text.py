"""Networks for text."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedtailor.core.errors import BadInput
from fedtailor.core.form import Form

_WIDTH = 32


class FastText(nn.Module):
    """Two linear layers on the mean embedding of a text; token 0 is padding and does not count."""

    def __init__(self, vocabulary: int, width: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.fc1 = nn.Linear(width, width)
        self.fc = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        vectors = self.embedding(tokens)
        present = (tokens != 0).unsqueeze(-1).to(vectors.dtype)
        # a text of nothing but padding has the mean 0
        mean = (vectors * present).sum(-2) / present.sum(-2).clamp(min=1)
        out: Tensor = self.fc(self.fc1(mean))
        return out


class LSTMLayer(nn.Module):
    """One layer of long short-term memory, step by step: [rows, steps, inputs] -> [.., units].

    Written out in plain operations, so that one client and many at once compute the same. The
    forget gates start open (bias 1), everything else as in PyTorch's, with one bias per gate.
    """

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.weight_ih = nn.Parameter(torch.empty(4 * units, inputs))
        self.weight_hh = nn.Parameter(torch.empty(4 * units, units))
        self.bias = nn.Parameter(torch.empty(4 * units))
        for part in self.parameters():
            nn.init.uniform_(part, -(units**-0.5), units**-0.5)
        with torch.no_grad():
            self.bias[units : 2 * units] = 1.0

    def forward(self, x: Tensor) -> Tensor:
        """All hidden states; gates in the order input, forget, cell, output."""
        driven = x @ self.weight_ih.T + self.bias
        hidden = cell = torch.zeros_like(driven[:, 0, : self.weight_hh.shape[1]])
        states = []
        for step in driven.unbind(1):
            take, keep, new, tell = (step + hidden @ self.weight_hh.T).chunk(4, -1)
            cell = keep.sigmoid() * cell + take.sigmoid() * new.tanh()
            hidden = tell.sigmoid() * cell.tanh()
            states.append(hidden)
        return torch.stack(states, 1)


class LSTMText(nn.Module):
    """Stacked LSTM layers over the tokens of a text; the state after its last token is judged."""

    def __init__(self, form: Form, width: int, units: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(form.vocabulary, width)
        self.lstm1 = LSTMLayer(width, units)
        self.lstm2 = LSTMLayer(units, units)
        self.fc = nn.Linear(units, form.outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.lstm2(self.lstm1(self.embedding(tokens)))
        out: Tensor = self.fc(_at_last_token(states, tokens))
        return out


class TokenPlaces(nn.Module):
    """Adds to each token's vector a learnt one for its place."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(length, width))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight[: x.shape[1]]


class TransformerBlock(nn.Module):
    """Self-attention, then two linear layers, each added to what came in normalised."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attend = nn.Linear(width, 3 * width)
        self.join = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)
        self.heads = heads

    def forward(self, x: Tensor, hide: Tensor) -> Tensor:
        """`hide` [rows, 1, 1, tokens] is added to the scores: very low where there is padding."""
        rows, length, width = x.shape
        parts = self.attend(self.norm1(x)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        scores = query @ key.transpose(-1, -2) / (width // self.heads) ** 0.5 + hide
        seen = (scores.softmax(-1) @ value).transpose(1, 2).reshape(rows, length, width)
        x = x + self.join(seen)
        out: Tensor = x + self.fc2(nn.functional.gelu(self.fc1(self.norm2(x))))
        return out


class TransformerText(nn.Module):
    """Transformer blocks over the tokens of a text; what comes of its last token is judged."""

    def __init__(self, form: Form, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(form.vocabulary, width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.places = TokenPlaces(form.shape[0], width)
        self.block1 = TransformerBlock(width, heads, hidden)
        self.block2 = TransformerBlock(width, heads, hidden)
        self.norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width, form.outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.places(self.embedding(tokens))
        # not minus infinity: in a text of nothing but padding all would be hidden
        hide = (tokens == 0).to(x.dtype)[:, None, None, :] * -1e9
        x = self.norm(self.block2(self.block1(x, hide), hide))
        out: Tensor = self.fc(_at_last_token(x, tokens))
        return out


def _at_last_token(states: Tensor, tokens: Tensor) -> Tensor:
    """The states [rows, tokens, width] at each text's last token; 0 where it has none.

    A masked sum, since a gather's gradient is added up in no fixed order on a GPU.
    """
    place = torch.arange(1, tokens.shape[-1] + 1, device=tokens.device)
    last = place == ((tokens != 0) * place).amax(-1, keepdim=True)
    return (states * last.unsqueeze(-1).to(states.dtype)).sum(-2)


def _check_text(form: Form) -> None:
    if form.kind != "text":
        raise BadInput(
            f"takes text, not {form.kind} examples of shape {form.shape}: choose mlp or cnn"
        )
    if form.vocabulary < 2:
        raise BadInput(
            f"takes text with a vocabulary, not of {form.vocabulary} tokens: "
            "count the padding (0) and every token"
        )


def fasttext(form: Form) -> nn.Module:
    """FedALA's fastText of width 32, without a non-linearity between its linear layers.

    3 157 508 parameters on AG News (98 635 tokens, 4 classes).
    """
    _check_text(form)
    return FastText(form.vocabulary, _WIDTH, form.outputs)


def lstm(form: Form) -> nn.Module:
    """The stacked LSTM of LEAF and FedAvg for the next character: width 8, twice 256 units.

    817 872 parameters on LEAF's 80 characters. Reference: Caldas et al., LEAF, 2018,
    https://arxiv.org/abs/1812.01097.
    """
    _check_text(form)
    return LSTMText(form, width=8, units=256)


def transformer(form: Form) -> nn.Module:
    """A small transformer: two blocks of width 64 with 4 heads, normalised first; no dropout.

    113 729 parameters on 80 of 67 tokens and 65 classes.
    """
    _check_text(form)
    return TransformerText(form, width=64, heads=4, hidden=256)
