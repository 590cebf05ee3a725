"""Shared by all tests."""

import gc
import os
import sys

# Small tensors: more threads only wait for each other, here and in the processes that tests start.
os.environ["OMP_NUM_THREADS"] = "1"
# What one process has compiled, the next one reads: the other worker, and all that tests start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import pytest

sys.dont_write_bytecode = False


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    """Programs that tests trace are kept apart from the user's, by what they start too."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_disks():
    """No test cuts the power: a disk need not have what it was given, but a file must be open."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


@pytest.fixture(scope="module")
def float64():
    """Numbers are float64 in all of a module: `pytestmark = pytest.mark.usefixtures("float64")`."""
    import torch  # late: who hands tests out to workers does without

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def without_pictures(monkeypatch):
    """Comparisons without their pictures, which tests of figures and of the command line see.

    They take more than half of the time of a small comparison.
    """
    from fedtailor import api

    for name in ("comparison_figures", "draw_partition"):
        monkeypatch.setattr(api, name, lambda *args: None)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collecting makes a million things and drops none: nobody looks for garbage among them.

    Neither meanwhile, which takes a fifth of the time, nor later: Flower, Hypothesis and benchmarks
    ask for a look at every message, test or run.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


WENT_WRONG = []  # within pytest itself, here or in a worker


def pytest_internalerror(excrepr):
    WENT_WRONG.append(str(excrepr))


def pytest_unconfigure(config):
    """What went wrong first stands last: a long log is read from its end, or has only that."""
    if WENT_WRONG and not hasattr(config, "workerinput"):
        lines = ["the first error was:", *WENT_WRONG[0].splitlines()[-25:]]
        sys.stderr.write("\n".join(lines) + "\n")  # what called pytest goes on in a line of its own


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="also run tests that take minutes")


# begun among the last, it would keep one worker busy long after the other
LONGEST = "test_the_site_builds_without_a_warning"


def pytest_collection_modifyitems(config, items):
    items.sort(key=lambda item: item.name != LONGEST)
    if config.getoption("--slow"):
        return
    left = [item for item in items if "slow" in item.keywords]
    # not skipped one by one: more than a thousand would be sent to workers and back
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if "slow" not in item.keywords]
