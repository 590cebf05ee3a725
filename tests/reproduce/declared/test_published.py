"""The forms of a paper's cell."""

from __future__ import annotations

import pytest

from fedtailor.core.errors import BadInput
from fedtailor.reproduce.declared.published import Published, read_published


@pytest.mark.parametrize(
    ("text", "mean", "std", "low", "high"),
    [
        ("97.93±0.05", 97.93, 0.05, None, None),
        (" 97.93 ± 0.05 ", 97.93, 0.05, None, None),
        ("97", 97.0, None, None, None),
        ("-1.5", -1.5, None, None, None),
        (" ∞ ", float("inf"), None, None, None),
        ("64.79 (60.69/68.45)", 64.79, None, 60.69, 68.45),
        ("64.79±0.1 (60.69/68.45)", 64.79, 0.1, 60.69, 68.45),
    ],
)
def test_forms(
    text: str, mean: float, std: float | None, low: float | None, high: float | None
) -> None:
    assert read_published(text) == Published(text.strip(), mean, std, low, high)


def test_a_dash_is_no_cell() -> None:
    assert read_published(" - ") is None


@pytest.mark.parametrize("text", ["", "good", "97.9.3", "97±", "97 (1)", "97%", "∞±1", "-∞", "inf"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"write '97\.93±0\.05'"):
        read_published(text)
