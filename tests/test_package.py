"""The package as a stranger meets it: quick to import, complete, and it answers to --help."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import fedtailor
from fedtailor.cli import main

SOURCE = Path(fedtailor.__file__).parent
SCRIPT = Path(sys.executable).with_name("fedtailor")
COMMANDS = (
    *("run", "compare", "resume", "list", "show", "partition", "check", "predict", "report"),
    *("figure", "watch", "landscape", "trajectory", "reproduce", "federation"),
)

# Whatever imports torch fails at once: no clock is needed to see that nothing does.
BLOCKED = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "sklearn", "matplotlib"):
            raise AssertionError(f"{name} was imported")

sys.meta_path.insert(0, Refuse())
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


def test_import_needs_no_torch() -> None:
    found = python(BLOCKED + "import fedtailor; print(fedtailor.__version__)")
    assert (found.returncode, found.stdout.strip()) == (0, fedtailor.__version__), found.stderr


def test_the_block_blocks() -> None:
    assert "torch was imported" in python(BLOCKED + "import fedtailor; fedtailor.METHODS").stderr


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"]], ids=" ".join)
def test_help_needs_no_torch(arguments: list[str]) -> None:
    found = python(BLOCKED + f"from fedtailor.cli import main; main({arguments})")
    assert found.returncode == 0, found.stderr
    assert "fedtailor" in found.stdout


def test_the_console_script_answers() -> None:
    found = subprocess.run([SCRIPT, "--help"], capture_output=True, text=True, timeout=60)
    assert found.returncode == 0
    assert found.stderr == ""
    for command in COMMANDS:
        assert command in found.stdout


def test_every_public_name_is_there() -> None:
    for name in fedtailor.__all__:
        assert getattr(fedtailor, name) is not None
    assert set(fedtailor.__all__) <= set(dir(fedtailor))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="frobnicate"):
        _ = fedtailor.frobnicate


def test_every_module_lies_in_a_package_of_its_own_layer() -> None:
    files = {path.name for path in SOURCE.iterdir() if path.is_file()}
    assert files == {"__init__.py", "__main__.py", "api.py", "py.typed"}
    for folder in {path.parent for path in SOURCE.rglob("*.py")}:
        assert (folder / "__init__.py").is_file(), f"{folder} is no package"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert not end.value.code
    assert capsys.readouterr().out.strip() == f"fedtailor {fedtailor.__version__}"


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_every_command_explains_itself(
    command: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main([command, flag])
    assert not end.value.code
    said = capsys.readouterr()
    assert "Usage:" in said.out
    assert said.err == ""


def test_the_help_of_run_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    from fedtailor.results.config import settings

    with pytest.raises(SystemExit):
        main(["run", "--help"])
    said = capsys.readouterr().out
    for name, (_, field) in settings().items():
        flag = f"--{name.replace('_', '-')}"[:12]  # a narrow terminal cuts long names
        assert (flag in said) == field.metadata["typed"], flag


def test_without_arguments_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code in (0, 2)
    said = capsys.readouterr()
    assert "compare" in said.out + said.err
    assert "Traceback" not in said.err
