"""Bad input on the command line: one line that helps, exit code 2, and nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from errno import ENOSPC
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import save_file

from fedtailor.cli import main

Refused = Callable[..., str]
SMALL = ["--model", "mlp", "--rounds", "1"]


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Refused:
    """Runs a command that must be refused, and returns the line that it says."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, out: bool = True) -> str:
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(SystemExit) as end:
            main([*arguments, *(["--out", "out"] if out else [])])
        said = capsys.readouterr()
        assert end.value.code == 2
        assert said.out == ""
        assert "Traceback" not in said.err
        assert said.err.startswith("fedtailor: ")
        assert said.err.endswith("\n")
        assert said.err.count("\n") == 1
        assert sorted(tmp_path.rglob("*")) == before, "something was left behind"
        return said.err

    return run


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "fedavgg"], "did you mean 'fedavg'"),
        (["run", "fedavg", "--data", "digit"], "did you mean 'digits'"),
        (["run", "fedavg", "--model", "mpl"], "did you mean 'mlp'"),
        (["run", "fedavg", "--partition", "dirchlet:1"], "did you mean 'dirichlet'"),
        (["run", "fedavg", "--roundz", "3"], "--rounds"),
        (["run", "fedprox", "--set", "muu=1"], "did you mean 'mu'"),
        (["run", "fedavg", "--set", "mu=1"], "unknown option 'mu'"),
        (["run", "fedprox", "--set", "mu"], "name=value"),
        (["run", "fedprox", "--set", "=1"], "name=value"),
        (["run", "fedprox", "--set", "mu=lots"], "lots"),
        (["run", "fedprox", "--set", "mu=-1"], "at least 0"),
        (["run", "fedavg", "--partition", "pathological:11"], "11 classes"),
        (["run", "fedavg", "--partition", "dirichlet:much"], "much"),
        (["run", "fedavg", "--partition", "dirichlet"], "dirichlet"),
        (["run", "fedavg", "--partition", "dirichlet:0"], "alpha"),
        (["run", "fedavg", "--partition", "natural"], "natural"),
        (["run", "fedavg", "--partition-file", "none.npz"], "none.npz"),
        (["run", "fedavg", "--batch", "5000"], "--batch"),
        (["run", "fedavg", "--participation", "0"], "participation"),
        (["run", "fedavg", "--participation", "2"], "from 0 to 1"),
        (["run", "fedavg", "--rounds", "0"], "at least 1"),
        (["run", "fedavg", "--rounds", "three"], "three"),
        (["run", "fedavg", "--lr", "-1"], "at least 0"),
        (["run", "fedavg", "--optimizer", "lion"], "sgd"),
        (["run", "fedavg", "--clients", "5000"], "5000 clients"),
        (["run", "fedavg", "--held-out", "20"], "held out"),
        (["run", "fedavg", "--test", "1"], "test is 1"),
        (["run", "fedavg", "--val", "1"], "val is 1"),
        (["run", "fedavg", "--official-test"], "no test rows"),
        (["run", "fedfomo", "--val", "0"], "raise --val"),
        (["run", "fedavg", "--device", "abacus"], "--device cpu"),
        (["run", "fedavg", "--device", "cuda:99"], "--device cpu"),
        (["run", "fedavg", "--data", "no/such.csv"], "does not exist"),
        (["run", "fedavg", "--data", "mnist", "--data-dir", "nowhere"], "mnist"),
        (["run", "fedavg", "--config", "none.toml"], "none.toml"),
        (["run", "fedavg", "--label", "y"], "--label"),
        (["run", "no.such.module:method"], "no.such"),
        (["run", "math:sqrt"], "math:sqrt"),
        (["run", "fedavg", "--model", "no.such:network"], "no.such"),
        (["run", "fedavg", "--model", "fasttext"], "fasttext"),
        (["run"], "no method"),
        (["compare"], "no methods"),
        (["compare", "fedavgg"], "did you mean 'fedavg'"),
        (["compare", "fedavg", "fedavg"], "twice"),
        (["compare", "fedavg", "--seeds", "0"], "at least 1"),
        (["compare", "fedavg", "--seeds", "two"], "two"),
        (["compare", "fedavg", "--set", "mu=1"], "unknown option"),
        (["compare", "fedavg", "--set", "ditto.lam=1"], "ditto"),
        (["compare", "fedavg", "--partition", "pathological:11"], "11 classes"),
        (["partition", "--partition", "pathological:11"], "11 classes"),
        (["partition", "--data", "digit"], "did you mean 'digits'"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_refused(arguments: list[str], said: str, refused: Refused) -> None:
    assert said in refused(*arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compare", "fedavg", "--model", "mpl"], "did you mean 'mlp'"),
        (["compare", "fedfomo", "--val", "0", "--model", "mlp", "--rounds", "1"], "raise --val"),
    ],
    ids=["model", "val"],
)
def test_a_comparison_is_refused_before_its_folder_is_made(
    arguments: list[str], said: str, refused: Refused
) -> None:
    assert said in refused(*arguments)


def test_a_comparison_with_a_seed_that_is_no_number(refused: Refused) -> None:
    assert "abc" in refused("compare", "fedavg", "--seed", "abc")


def test_a_type_without_a_signature_is_no_method(refused: Refused) -> None:
    assert "builtins:dict" in refused("run", "builtins:dict")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["frobnicate"], "frobnicate"),
        (["show"], "METHOD"),
        (["show", "fedalla"], "did you mean 'fedala'"),
        (["check", "fedalla"], "did you mean 'fedala'"),
        (["list", "--jason"], "--json"),
        (["resume", "nowhere"], "nowhere"),
        (["resume", "."], "no run"),
        (["predict", "nowhere"], "no files"),
        (["predict", "nowhere", "x.png"], "--client"),
        (["predict", "nowhere", "x.png", "--client", "a"], "nowhere"),
        (["--frobnicate"], "--frobnicate"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_refused_without_a_folder(arguments: list[str], said: str, refused: Refused) -> None:
    assert said in refused(*arguments, out=False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("roundss = 3", "did you mean 'rounds'"),
        ("rounds = 'many'", "many"),
        ("rounds = 3.5", "3.5"),
        ("rounds =", "TOML"),
        ("[options]\nmu = 1", "unknown option 'mu'"),
        ("rounds = [3]", "rounds"),
    ],
)
def test_config_files(text: str, said: str, refused: Refused) -> None:
    Path("own.toml").write_text(text)
    assert said in refused("run", "fedavg", "--config", "own.toml")


# --- one's own data ---


def table(sizes: dict[str, int]) -> str:
    rows = [f"{c},{i % 5},{i % 3},{'ab'[i % 2]}" for c, n in sizes.items() for i in range(n)]
    Path("own.csv").write_text("\n".join(["client,u,v,label", *rows]) + "\n")
    return "own.csv"


def test_a_client_with_one_row(refused: Refused) -> None:
    said = refused("run", "fedavg", "--data", table({"rich": 30, "poor": 1}))
    assert "'poor' has 1 rows" in said
    assert "remove this client or merge it" in said
    assert "--min-samples" not in said, "natural clients are not drawn"


def test_a_client_with_two_rows(refused: Refused) -> None:
    own = table({"rich": 30, "poor": 2})
    assert "--val 0" in refused("run", "fedavg", "--data", own)
    with pytest.raises(SystemExit) as end:
        main(["partition", "--data", own, "--val", "0"])
    assert end.value.code == 0, "what is advised must help"


def test_a_client_folder_without_rows(refused: Refused) -> None:
    for client in ("rich", "poor"):
        Path("own", client).mkdir(parents=True)
    Path("own/rich/rows.csv").write_text("u,label\n" + "1,a\n2,b\n" * 10)
    assert "poor" in refused("run", "fedavg", "--data", "./own")
    Path("own/poor/rows.csv").write_text("u,label\n")
    assert "poor" in refused("run", "fedavg", "--data", "./own")


def test_a_row_without_a_client(refused: Refused) -> None:
    path = Path(table({"a": 20, "b": 20}))
    path.write_text(path.read_text() + ",1,2,a\n")
    assert "line 42" in refused("run", "fedavg", "--data", "own.csv")


def test_no_label_column(refused: Refused) -> None:
    Path("own.csv").write_text("client,u\na,1\na,2\n")
    assert "--label" in refused("run", "fedavg", "--data", "own.csv")


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 cut off"])
def test_a_broken_npz(content: bytes, refused: Refused) -> None:
    Path("own.npz").write_bytes(content)
    assert "own.npz" in refused("run", "fedavg", "--data", "own.npz")


def test_pickles_are_not_opened(refused: Refused) -> None:
    np.savez("own.npz", x=np.array([{"a": 1}] * 4, dtype=object), y=np.zeros(4))
    assert "Python objects" in refused("run", "fedavg", "--data", "own.npz")


@pytest.mark.parametrize("wrong", [-1, 2.5, np.nan])
def test_a_label_out_of_range(wrong: float, refused: Refused) -> None:
    y = np.arange(40.0) % 2
    y[7] = wrong
    np.savez("own.npz", x=np.ones((40, 2)), y=y if wrong != -1 else y.astype(int))
    assert "own.npz" in refused("run", "fedavg", "--data", "own.npz", "--clients", "2")


def test_labels_and_examples_of_unequal_number(refused: Refused) -> None:
    np.savez("own.npz", x=np.ones((40, 2)), y=np.arange(39) % 2)
    assert "39" in refused("run", "fedavg", "--data", "own.npz", "--clients", "2")


# --- folders ---


@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_folder_below_a_file(command: str, refused: Refused) -> None:
    Path("file").touch()
    said = refused(command, "fedavg", *SMALL, "--out", "file/run", out=False)
    assert "cannot be written" in said


@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]])
@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_folder_with_something_else(command: str, overwrite: list[str], refused: Refused) -> None:
    Path("thesis").mkdir()
    Path("thesis/chapter.tex").write_text("years of work")
    said = refused(command, "fedavg", *SMALL, "--out", "thesis", *overwrite, out=False)
    assert "thesis" in said
    assert Path("thesis/chapter.tex").read_text() == "years of work"


def test_a_file_as_a_folder(refused: Refused) -> None:
    Path("file").write_text("x")
    assert "file" in refused("run", "fedavg", *SMALL, "--out", "file", "--overwrite", out=False)


def test_a_partition_takes_nothing_else_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("thesis").mkdir()
    Path("thesis/partition.npz").touch()
    Path("thesis/chapter.tex").write_text("years of work")
    with pytest.raises(SystemExit):
        main(["partition", "--out", "thesis"])
    assert Path("thesis/chapter.tex").exists()


def test_a_partition_that_is_there_already(
    refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["partition", "--clients", "5", "--out", "parts"])
    assert end.value.code == 0
    capsys.readouterr()
    said = refused("partition", "--clients", "5", "--out", "parts", out=False)
    assert "'parts' holds an earlier partition: choose another --out, or say --overwrite" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = " + "[" * 50_000, "nested too deeply"),
        ("rounds = 1" + "0" * 5000, "not valid TOML"),
        ("rounds = 1" + "0" * 400, "rounds"),
    ],
)
def test_absurd_settings_are_one_line(
    refused: Refused, tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "c.toml").write_text(f'method = "fedavg"\n{text}\n')
    assert said in refused("run", "--config", "c.toml")


def test_a_clients_name_is_one_line(refused: Refused, tmp_path: Path) -> None:
    rows = "".join(f'"a\x1b[2J",{i},{i % 2}\nb,{i},{i % 2}\n' for i in range(30))
    (tmp_path / "d.csv").write_text(f"site,x,y\n{rows}")
    said = refused("run", "fedavg", "--data", "d.csv", "--label", "y", "--client-column", "site")
    assert "client 'a\\x1b[2J'" in said


@pytest.mark.parametrize("at", ["models", "checkpoint", "result.json", "history.jsonl"])
def test_a_full_disk_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    at: str,
) -> None:
    """And what was there before is still there: the run goes on when there is room."""
    monkeypatch.chdir(tmp_path)
    run = ["run", "fedavg", "--model", "mlp", "--rounds", "2", "--clients", "2", "--out", "out"]

    def full(path: Path) -> None:
        if at in str(path):
            raise OSError(ENOSPC, "No space left on device", str(path))

    real = Path.open

    def opening(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if set(mode) & set("wa+"):
            full(path)
        return real(path, mode, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", opening)
        patch.setattr(
            "fedtailor.results.storage.save_file",
            lambda tensors, path: (full(path), save_file(tensors, path)),
        )
        with pytest.raises(SystemExit) as end:
            main(run)
    said = capsys.readouterr().err
    assert end.value.code == 2 and "Traceback" not in said
    assert "No space left on device" in said.splitlines()[-1]
    with pytest.raises(SystemExit) as end:
        main(["resume", "out"])
    assert end.value.code == 0 or "nothing to resume" in capsys.readouterr().err
