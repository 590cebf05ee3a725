"""Settings that are the paper's cannot be given along the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedtailor.core.errors import BadInput
from fedtailor.reproduce import reproduce
from fedtailor.reproduce.declared.allowed_settings import ALLOWED_SETTINGS, check_allowed

PAPERS = Path(__file__).parents[1] / "papers"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lr": 0.0}, r"setting 'lr' is 0\.0: the paper says what it is"),
        ({"seed": 3}, "setting 'seed' is 3"),
        ({"devise": "cpu"}, r"unknown setting 'devise': did you mean 'device'\?"),
    ],
)
def test_a_setting_of_the_paper_is_refused_and_nothing_is_written(
    tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    out = tmp_path / "out"
    with pytest.raises(BadInput, match=said):
        reproduce("tiny/fig1", papers=PAPERS, out=out, **given)
    assert not out.exists()


def test_where_and_how_quickly_may_be_given() -> None:
    check_allowed(dict.fromkeys(ALLOWED_SETTINGS))
