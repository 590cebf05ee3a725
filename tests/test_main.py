import subprocess
import sys

from fedtailor import __version__


def _module(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedtailor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_python_m_fedtailor_is_the_command_line() -> None:
    assert _module("--version").stdout == f"fedtailor {__version__}\n"
    wrong = _module("nothing-of-that-name")
    assert wrong.returncode == 2
    assert wrong.stderr.count("\n") == 1
    assert "see python -m fedtailor --help" in wrong.stderr
