"""How to tell that memory ran out, whatever ran out of it, and how to get it back."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress

import torch

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


def give_back(device: torch.device) -> None:
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
    with suppress(OSError, AttributeError):  # another C library: nothing is lost but some time
        library = ctypes.CDLL(None)
        library.mallopt(MMAP_THRESHOLD, LARGE)
        library.mallopt(TRIM_THRESHOLD, LARGE)
