"""What a site tells of its columns, and what it does not."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from fedtailor.core.errors import BadInput
from fedtailor.datasets import load
from fedtailor.federation.protocol.survey import ToldColumn, read_survey, survey_of

ROWS = 40


@pytest.fixture
def told(tmp_path: Any) -> Any:
    """A table with a category of 3 rows, a number in 4 rows, a column without any value."""
    lines = ["age,rare,ward,seen,empty,ill"]
    for row in range(ROWS):
        ward = "odd" if row < 3 else "ab"[row % 2]
        rare = str(row) if row % 10 == 0 else ""
        lines.append(f"{20 + row / 2},{rare},{ward},2024-01-{1 + row % 28:02d},,{row % 2}")
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(lines) + "\n")
    source = load(str(path), label="ill")
    train = np.arange(ROWS)
    return survey_of(source, train, min_rows=16, min_category=5)


def column(told: Any, name: str) -> ToldColumn:
    return next(c for c in told.columns if c.name == name)


def test_sums_leave_but_no_rare_category_and_no_sum_of_few_values(told: Any) -> None:
    age = 20 + np.arange(ROWS) / 2
    assert column(told, "age").sums.rows == ROWS
    assert column(told, "age").sums.total == pytest.approx(age.sum())
    assert column(told, "age").sums.squares == pytest.approx(((age - age.mean()) ** 2).sum())
    assert column(told, "rare").kind == "number" and column(told, "rare").sums.rows == 0
    assert column(told, "ward").values == ("a", "b")
    assert column(told, "seen").kind == "date" and column(told, "seen").reads == "date"
    assert column(told, "empty").kind == "empty"
    assert told.classes == ("0", "1") and told.task == "classification"
    assert "odd" not in told.text() and '"20.5"' not in told.text()


def test_of_a_label_too_sums_of_few_values_stay(tmp_path: Any) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("age,dose\n" + "".join(f"{20 + row},{row / 8}\n" for row in range(ROWS)))
    source = load(str(path), label="dose", task="regression")
    target = [
        survey_of(source, np.arange(rows), min_rows=16, min_category=5).target for rows in (15, 16)
    ]
    assert [sums and sums.rows for sums in target] == [0, 16]
    assert target[0] == (0, 0.0, 0.0)


def test_what_is_written_is_read_back(told: Any) -> None:
    assert read_survey(told.text()) == told


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "film"}, "film"),
        ({"columns": 3}, "'columns'"),
        ({"columns": [{}]}, "lacks the keys"),
        ({"more": 1}, "more"),
        ({"target": [1, 2]}, "no sums"),
        ({"target": [-1, 2.0, 3.0]}, "no number of rows"),
        ({"target": [1, 2.0, -3.0]}, "'squares'"),
        ({"target": [10**15, 2.0, 3.0]}, "no number of rows"),
        ({"target": [1, "x", 3.0]}, "finite number"),
        ({"levels": [1]}, "'levels'"),
        ({"words": []}, "'words'"),
        ({"words": {"a": -1}}, "no number of rows"),
        ({"shape": [0, 8]}, "'shape'"),
    ],
)
def test_what_is_no_survey_is_refused(told: Any, change: dict[str, Any], said: str) -> None:
    found = json.loads(told.text()) | change
    with pytest.raises(BadInput, match=said):
        read_survey(json.dumps(found))
    with pytest.raises(BadInput, match="not JSON"):
        read_survey("{")


def test_a_column_named_twice_is_refused(told: Any) -> None:
    found = json.loads(told.text())
    found["columns"] *= 2
    with pytest.raises(BadInput, match="named twice"):
        read_survey(json.dumps(found))


def test_of_texts_frequent_words_leave_and_of_images_their_size(tmp_path: Any) -> None:
    texts = [f"fever {'rareword' if row == 0 else 'cough'} fever" for row in range(20)]
    lines = ["note,ill", *(f"{text},{row % 2}" for row, text in enumerate(texts))]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    source = load(str(tmp_path / "t.csv"), label="ill", text="note")
    found = survey_of(source, np.arange(20), min_rows=1, min_category=5)
    assert found.kind == "text" and found.words == {"fever": 40, "cough": 19}
    np.savez(tmp_path / "i.npz", x=np.zeros((20, 1, 6, 5), np.uint8), y=np.arange(20) % 2)
    source = load(str(tmp_path / "i.npz"))
    found = survey_of(source, np.arange(20), min_rows=1, min_category=5)
    assert (found.kind, found.shape) == ("image", (1, 6, 5))
    assert read_survey(found.text()) == found
