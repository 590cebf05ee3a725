"""How much memory there is, and how to tell that it ran out."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fedtailor.engine import memory
from fedtailor.engine.memory import (
    free_memory,
    is_out_of_memory,
    nbytes,
    peak_memory,
    release_gpu_memory,
    resident_bytes,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (MemoryError(), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_errors(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


def test_what_torch_really_raises_on_a_cpu() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


def test_circles_are_looked_for_before_a_gpu_gets_its_memory_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: done.append("circles"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("memory"))
    release_gpu_memory(torch.device("cpu"))
    assert not done  # the processor's memory is not kept back
    release_gpu_memory(torch.device("cuda"))
    assert done == ["circles", "memory"]


def test_nbytes() -> None:
    state = {
        "own": {"w": torch.zeros(3, 2), "flag": torch.tensor(True)},
        "double": torch.zeros(2, dtype=torch.float64),
        "nothing": torch.zeros(0),
        "none": {},
    }
    assert nbytes(state) == 6 * 4 + 1 + 16 and nbytes({}) == 0


def test_free_memory_is_what_the_machine_has() -> None:
    assert 1 << 20 < free_memory(CPU) < 1 << 46


def test_a_process_that_shares_a_gpu_has_its_part_of_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free, share, own = 900, 1.0, 0
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 1000))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: share)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: own)
    assert free_memory(torch.device("cuda")) == 900
    share, own = 0.5, 100
    assert free_memory(torch.device("cuda")) == 400
    free = 300  # others have taken more than theirs
    assert free_memory(torch.device("cuda")) == 300
    own = 600
    assert free_memory(torch.device("cuda")) == 0


def test_the_process_peak_is_in_bytes_on_every_system() -> None:
    assert resident_bytes(2048, "linux") == 2 << 20
    assert resident_bytes(2 << 20, "darwin") == 2 << 20
    before = peak_memory(CPU)
    held = torch.ones(64 << 20, dtype=torch.uint8)
    after = peak_memory(CPU)
    # torch alone takes more than 64 MiB, and no test machine has a tebibyte
    assert before is not None and after is not None
    assert 64 << 20 < before <= after < 1 << 40
    del held


def test_without_the_systems_help_the_peak_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)
    assert peak_memory(CPU) is None


def test_windows_is_asked_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    class Call:
        argtypes: object = None
        restype: object = None

        def __init__(self, answer: Any) -> None:
            self._answer = answer

        def __call__(self, *arguments: Any) -> Any:
            return self._answer(*arguments)

    def tell(process: int, found: Any, size: int) -> int:
        assert process == -1 and size == ctypes.sizeof(memory._ProcessMemory)
        found._obj.peak = 123 << 20
        return 1

    class Kernel:
        GetCurrentProcess = Call(lambda: -1)
        K32GetProcessMemoryInfo = Call(tell)

    monkeypatch.setitem(sys.modules, "resource", None)
    monkeypatch.setattr(ctypes, "WinDLL", lambda name: Kernel, raising=False)
    assert peak_memory(CPU) == 123 << 20


def test_a_run_is_played_where_there_is_no_unix(tmp_path: Path) -> None:
    """Modules that only Unix has, and files that only Linux has, are not needed to start a run."""
    code = """
import builtins, os, pathlib, sys
for name in ("fcntl", "resource", "pwd", "grp", "termios", "tty", "syslog", "posix_ipc"):
    sys.modules[name] = None
for name in ("fork", "forkpty", "sched_getaffinity", "getuid", "geteuid", "killpg", "setpgid"):
    if hasattr(os, name):
        delattr(os, name)
import fedtailor
package = pathlib.Path(fedtailor.__file__).parent
import importlib
for path in sorted(package.rglob("*.py")):
    name = ".".join(path.relative_to(package.parent).with_suffix("").parts)
    if "/federation/" in path.as_posix() or name.endswith("__main__"):
        continue  # a federation of real sites says in one line that it needs Unix
    if ".triton_" in name:
        continue  # kernels: imported where there is Triton
    importlib.import_module(name)
settings = dict(data="digits", model="mlp", clients=3, rounds=1, states="disk")
assert fedtailor.run("fedavg", out=sys.argv[1], **settings)["peak_memory_bytes"] is None
print("all imported, and played")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout == "all imported, and played\n", done.stderr
