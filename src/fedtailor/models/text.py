"""Networks for text."""

from __future__ import annotations

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


def fasttext(form: Form) -> nn.Module:
    """FedALA's fastText of width 32, without a non-linearity between its linear layers.

    3 157 508 parameters on AG News (98 635 tokens, 4 classes).
    """
    if form.kind != "text":
        raise BadInput(
            f"takes text, not {form.kind} examples of shape {form.shape}: choose mlp or cnn"
        )
    if form.vocabulary < 2:
        raise BadInput(
            f"takes text with a vocabulary, not of {form.vocabulary} tokens: "
            "count the padding (0) and every token"
        )
    return FastText(form.vocabulary, _WIDTH, form.outputs)
