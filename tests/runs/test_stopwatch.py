"""Where the time goes: phases do not overlap, and a process knows when it was started."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from fedtailor.runs.stopwatch import Stopwatch, process_age


def test_phases_do_not_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    watch = Stopwatch()
    with watch.phase("training"), watch.phase("saving"):  # 10 s of the outer before, 10 after
        pass
    with pytest.raises(ValueError), watch.phase("saving"):  # 10 s, also if it fails
        raise ValueError
    found = watch.seconds()
    assert (found["training"], found["saving"]) == (20, 20)
    assert sum(found.values()) == 40


def test_a_process_knows_its_age() -> None:
    code = "import time; time.sleep(0.3); from fedtailor.runs.stopwatch import process_age as p"
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print(p())"], capture_output=True, text=True, check=True
    )
    took = time.perf_counter() - begun
    if sys.platform == "linux":
        assert 0.28 <= float(done.stdout) <= took + 0.05
    assert process_age() > 0
