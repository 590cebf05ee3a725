"""How long runs will take: operations counted, speed remembered, times in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedtailor.core.errors import Interrupted
from fedtailor.core.form import Form
from fedtailor.reproduce.playing import estimate
from fedtailor.results.config import make_config


@pytest.fixture(autouse=True)
def no_trace_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_operations_by_hand() -> None:
    # a linear layer a x b takes 2ab operations
    mlp = estimate._count("mlp", Form("image", (1, 8, 8), 10))
    assert mlp == pytest.approx(2 * (64 * 200 + 200 * 10))
    given = {"model": "mlp", "clients": 10, "batch": 0, "rounds": 5, "test": 0.5, "val": 0.0}
    config = make_config("fedavg", given, {})
    rows = 1797 / 2
    expected = mlp * 5 * (3 * 10 * round(rows / 10) + 2 * rows)
    assert estimate.operations(config) == pytest.approx(expected)


def test_a_batch_norm_without_statistics_is_counted_down_to_a_single_pixel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = Form("image", (3, 16, 16), 10)
    assert estimate._count("mobilenet", small) > 1e6
    monkeypatch.setattr(estimate, "COUNTED", 1)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        estimate._count("mobilenet", small)


def test_an_estimate_stops_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(model: str, form: Form) -> float:
        raise TypeError("a network of somebody's own")

    monkeypatch.setattr(estimate, "forward_operations", breaks)
    assert estimate.operations(make_config("fedavg", {"model": "mlp"}, {})) is None
    assert estimate.seconds([make_config("fedavg", {"model": "mlp"}, {})], "cpu") is None


def test_a_speed_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "_measure", lambda device: 5e9)
    assert not estimate.is_measured("cpu")
    assert estimate.speed.__wrapped__("cpu") == 5e9
    assert estimate.is_measured("cpu")
    monkeypatch.setattr(estimate, "_measure", lambda device: 7e9)
    assert estimate.speed.__wrapped__("cpu") == 5e9
    kept = tmp_path / "fedtailor" / "estimates.json"
    assert list(json.loads(kept.read_text()).values()) == [5e9]
    kept.write_text("[broken")
    assert not estimate.is_measured("cpu")
    assert estimate.speed.__wrapped__("cpu") == 7e9


def test_ctrl_c_while_measuring_is_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*given: object, **settings: object) -> None:
        raise Interrupted(None, 1)

    monkeypatch.setattr("fedtailor.api.run", pressed)
    with pytest.raises(KeyboardInterrupt):
        estimate._measure("cpu")


def test_times_in_words() -> None:
    told = [estimate.in_words(s) for s in (0.2, 90, 7200, 86400 * 1234, None)]
    assert told == ["~1 s", "~1.5 min", "~2.0 h", "~1,200 d", "?"]
