"""A method's factory by its name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedtailor import methods
from fedtailor.core.errors import BadInput
from fedtailor.methods.find import find


def test_methods_by_name() -> None:
    assert find("fedavg") is methods.fedavg
    assert find("fedtailor.methods.regularised.ditto:ditto") is methods.ditto


def test_a_factory_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_method_for_test.py").write_text(
        "def mine(task, *, k=1):\n    return task\n\ndef other(x):\n    return x\n\nnumber = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert find("own_method_for_test:mine")("a task") == "a task"  # type: ignore[comparison-overlap]
    for wrong in ("other", "number"):
        with pytest.raises(BadInput, match="factory"):
            find(f"own_method_for_test:{wrong}")


@pytest.mark.parametrize(
    "name",
    [
        "fedavgg",
        "",
        "no.such.module:factory",
        "fedtailor.methods:nothing",
        ":fedavg",
        "fedtailor.methods:",
        "..methods:fedavg",
    ],
)
def test_methods_that_are_not_there(name: str) -> None:
    with pytest.raises(BadInput) as caught:
        find(name)
    line = str(caught.value)
    assert "\n" not in line and f"'{name}'" in line


@pytest.mark.parametrize(
    "text", ["def mine(task:\n", "1 / 0\n", "raise RuntimeError('two\\nlines')\n"]
)
def test_a_module_that_cannot_be_imported(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_method_for_test.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BadInput) as caught:
        find("broken_method_for_test:mine")
    line = str(caught.value)
    assert "\n" not in line and "'broken_method_for_test:mine'" in line


def test_a_callable_without_a_signature_is_no_factory() -> None:
    with pytest.raises(BadInput):
        find("builtins:dict")


# ------------------------------------------------------------------------- in the working directory

OWN = "from {helper} import K\n\ndef mine(task, *, k: int = K):\n    return k\n"


def test_a_module_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a module of its own beside it; the path is as before, whatever happens."""
    (tmp_path / "here_for_test.py").write_text(OWN.format(helper="beside_for_test"))
    (tmp_path / "beside_for_test.py").write_text("K = 4\n")
    (tmp_path / "broken_here_for_test.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    before = list(sys.path)
    assert find("here_for_test:mine")(None) == 4  # type: ignore[comparison-overlap]
    with pytest.raises(BadInput, match="ZeroDivisionError"):
        find("broken_here_for_test:mine")
    assert sys.path == before


def test_a_package_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder_for_test"
    folder.mkdir()
    (folder / "inner.py").write_text("def mine(task):\n    return 5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    assert find("folder_for_test.inner:mine")(None) == 5  # type: ignore[comparison-overlap]


def test_nothing_else_is_imported_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file named as an installed module does not stand in for it, nor when ours is not there."""
    for name in ("fractions", "wave"):  # of the standard library
        (tmp_path / f"{name}.py").write_text("raise AssertionError('imported by chance')\n")
    (tmp_path / "careful_for_test.py").write_text(
        "import wave\n\ndef mine(task):\n    return wave.__name__\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    monkeypatch.delitem(sys.modules, "wave", raising=False)
    assert find("careful_for_test:mine")(None) == "wave"  # type: ignore[comparison-overlap]
    with pytest.raises(BadInput, match="no attribute 'mine'"):
        find("fractions:mine")
    with pytest.raises(BadInput, match=r"No module named 'absent_for_test'.*in this folder"):
        find("absent_for_test:mine")
