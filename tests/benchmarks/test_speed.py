"""What the rows of the table of speeds say beside their seconds."""

import json
import sys
from typing import Any

import pytest

from fedtailor.core.task import classification
from fedtailor.models import build
from tests.benchmarks.scripts import load


@pytest.fixture(scope="module")
def speed() -> Any:
    return load("speed")


def _expected(speed: Any, method: str) -> float:
    case = speed.Case(method, "cpu", 0, method)
    task = classification(lambda: build(case.model, case.form))
    found: float = speed.expected(case, task).get("expected")
    return found


def test_passes_over_the_rows_say_how_long_a_round_should_take(speed: Any) -> None:
    found = {name: _expected(speed, name) for name in ("fedavg", "fedproto", "moon", "fml")}
    assert found == pytest.approx({"fedavg": 1, "fedproto": 4 / 3, "moon": 5 / 3, "fml": 2})
    assert _expected(speed, "fedpac") == pytest.approx(2)
    # the gate takes 512 features to 1024, beside convolutions and 1024 -> 512 -> 10
    network = 24**2 * 32 * 25 + 8**2 * 64 * 32 * 25 + 1024 * 512 + 512 * 10
    assert _expected(speed, "fedcp") == pytest.approx(4 / 3 + 512 * 1024 / network)
    assert _expected(speed, "ditto") is None  # nothing was worked out


def test_a_row_is_compared_with_fedavg_on_the_same_work(speed: Any) -> None:
    few = {"name": "a", "work": "fedavg, cnn, 20 clients", "seconds": 1.0, "expected": 1.0}
    many = {"name": "b", "work": "fedavg, cnn, 100 clients", "seconds": 4.0, "expected": 1.0}
    fml = {"name": "c", "work": "fml, cnn, 100 clients", "seconds": 10.0, "expected": 2.0}
    failed = {"name": "d", "failed": "RuntimeError"}
    rows = [failed, few, many, fml]
    assert speed.beside(fml, rows) == {"beside_fedavg": 2.5, "of_expected": 1.25}
    assert speed.beside(few, rows) == {"beside_fedavg": 1.0, "of_expected": 1.0}
    assert speed.beside(fml, [few, fml]) == speed.beside(failed, rows) == {}


def test_rows_by_name_are_played_with_few_clients(
    speed: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """Each row is on disk before the next begins; one that fails takes no other with it."""
    out, seen = tmp_path / "speed.json", []

    def measure(case: Any, device: str, floors: Any) -> dict[str, Any]:
        seen.append((case.name, case.clients, out.exists() and json.loads(out.read_text())["rows"]))
        if case.name == "moon":
            raise RuntimeError("no memory")
        return {"name": case.name, "work": f"{case.method}, cnn", "seconds": 2.0, "expected": 1.0}

    monkeypatch.setattr(speed, "measure", measure)
    words = ["--only", "fedavg-100", "moon", "fml", "--clients", "3", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["speed.py", *words])
    speed.main()
    assert [(name, clients) for name, clients, _ in seen] == [
        ("fedavg-100", 3),
        ("moon", 3),
        ("fml", 3),
    ]
    assert [row["name"] for row in seen[2][2]] == ["fedavg-100", "moon"]
    rows = json.loads(out.read_text())["rows"]
    assert "no memory" in rows[1]["failed"]
    assert rows[2]["beside_fedavg"] == 1.0


def test_an_unknown_row_is_refused(
    speed: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(sys, "argv", ["speed.py", "--only", "fedprot"])
    with pytest.raises(SystemExit):
        speed.main()
    assert "no row fedprot" in capsys.readouterr().err


def test_loop_and_rounds_are_timed_side_by_side(
    speed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole row, in the plain way, which needs no compiler."""
    simulation = speed.simulation
    monkeypatch.setattr(
        speed, "simulation", lambda case, fed, device, way: simulation(case, fed, device, "plain")
    )
    case = speed.Case("fedproto", "cuda", 0, "fedproto", 2, "mlp", timed=(1,), rounds=1)
    row = speed.measure(case, "cpu", {})
    assert row["work"] == "fedproto, mlp, 2 clients"
    assert row["largest_difference"] < 1e-2
    assert row["expected"] == pytest.approx(4 / 3)
