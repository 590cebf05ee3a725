"""How much memory there is, was used and is left, and how to tell that it ran out."""

from __future__ import annotations

import ctypes
import gc
import sys
from contextlib import suppress
from pathlib import Path

import torch

from fedtailor.core import tree
from fedtailor.core.tree import Tree

# PyTorch's words for it: the CPU's allocator has no error of its own, nor have CUDA's libraries
WORDS = ("can't allocate memory", "not enough memory", "out of memory", "status_alloc_failed")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there was not enough memory.

    Example:
      >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes"))
      True
      >>> is_out_of_memory(RuntimeError("shapes differ"))
      False
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(word in text for word in WORDS)


def release_gpu_memory(device: torch.device) -> None:
    """Returns memory that nothing uses any more to a GPU.

    Traced steps refer to themselves in circles. Python looks for these when it has made many
    objects, however much memory of the GPU they hold: run after run, it would fill up.
    """
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


# glibc's names for: return memory to the system from so many free bytes on; take blocks of so many
# bytes from the system alone, which gets them back at once
TRIM_THRESHOLD, MMAP_THRESHOLD, LARGE = -1, -3, 1 << 30


def keep_freed_memory() -> None:
    """Asks the C library to keep memory that was freed, where it can be asked.

    Every round needs the same large blocks. Got from the system anew, each page of them costs a
    fault and is filled with zeros first.
    """
    # another C library, or Windows: nothing is lost but some time
    with suppress(OSError, AttributeError, TypeError):
        library = ctypes.CDLL(None)
        library.mallopt(MMAP_THRESHOLD, LARGE)
        library.mallopt(TRIM_THRESHOLD, LARGE)


def nbytes(rows: Tree) -> int:
    """Bytes of all leaves of a tree."""
    return sum(leaf.numel() * leaf.element_size() for leaf in tree.leaves(rows))


def free_memory(device: torch.device) -> int:
    """Bytes that can still be had on a device; for the CPU, of the machine's memory.

    A process that shares a GPU may have been given a part of its memory only.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        share = torch.cuda.get_per_process_memory_fraction(device)
        return int(min(free, max(0, share * total - torch.cuda.memory_reserved(device))))
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return 4 << 30  # no such file on this system: assume little


def peak_memory(device: torch.device) -> int | None:
    """Most bytes that the process had at a time, on its device; None where nobody says."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        import resource  # late: Windows has no such module
    except ImportError:
        return _peak_on_windows()
    return resident_bytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, sys.platform)


def resident_bytes(maxrss: int, platform: str) -> int:
    """`ru_maxrss` in bytes: macOS counts bytes, other systems kilobytes.

    Example:
      >>> resident_bytes(3, "linux"), resident_bytes(3072, "darwin")
      (3072, 3072)
    """
    return maxrss if platform == "darwin" else maxrss << 10


class _ProcessMemory(ctypes.Structure):
    """PROCESS_MEMORY_COUNTERS of the Windows interface."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("page_faults", ctypes.c_uint32),
        ("peak", ctypes.c_size_t),
        ("others", ctypes.c_size_t * 7),
    )


def _peak_on_windows() -> int | None:
    try:
        kernel = getattr(ctypes, "WinDLL")("kernel32")  # noqa: B009  # other systems have none
        kernel.GetCurrentProcess.restype = ctypes.c_void_p
        ask = kernel.K32GetProcessMemoryInfo
        ask.argtypes = (ctypes.c_void_p, ctypes.POINTER(_ProcessMemory), ctypes.c_uint32)
        found = _ProcessMemory(size=ctypes.sizeof(_ProcessMemory))
        known = ask(kernel.GetCurrentProcess(), ctypes.byref(found), found.size)
    except (AttributeError, OSError):
        return None
    return int(found.peak) if known else None
