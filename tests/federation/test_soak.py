"""How the soak counts what was lost."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

soak = pytest.importorskip("soak")


def write(folder, rounds, latest, taken=(0, 1)):
    lines = [{"round": r, "taken": list(taken), "cohort": [0, 1]} for r in rounds]
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "latest.json").write_text(json.dumps({"round": latest}))
    return folder


@pytest.mark.parametrize(
    ("rounds", "latest", "taken", "expected"),
    [
        ([1, 2, 3], 3, (0, 1), 0),
        ([1, 3], 3, (0, 1), 1),  # one is missing
        ([1, 2, 2, 3], 3, (0, 1), 1),  # one is there twice
        ([1, 2], 4, (0, 1), 2),  # the checkpoint knows of more
        ([1, 2], 2, (0,), 2),  # fewer sites than agreed
    ],
)
def test_what_counts_as_lost(tmp_path, rounds, latest, taken, expected):
    assert soak.lost(write(tmp_path, rounds, latest, taken), {1, 2}, 2) == expected


def test_failures_are_counted_by_kind():
    assert soak.kind_of("no answer in 20 s") == "no answer"
    assert soak.kind_of("Flower: Node Unavailable (code 5)") == "Node Unavailable"
    assert soak.kind_of("state: the coordinator knows of round 3") == "state"


def test_memory_of_nobody():
    assert soak.memory_of(2**22) == {} and soak.resident(2**22) == 0
