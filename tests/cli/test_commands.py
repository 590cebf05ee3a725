"""The commands themselves: what they print, keep and return."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedtailor.cli import main
from fedtailor.methods import METHODS, check
from fedtailor.methods.check import laws
from fedtailor.results.config import make_config, read_config

SMALL = ["--model", "mlp", "--clients", "4", "--rounds", "2", "--batch", "150"]


@pytest.fixture
def cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    """Runs a command in a folder of its own; (stdout, stderr), the exit code being as expected."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, code: int = 0) -> tuple[str, str]:
        with pytest.raises(SystemExit) as end:
            main(list(arguments))
        said = capsys.readouterr()
        assert (end.value.code or 0) == code, said.err
        assert "Traceback" not in said.err
        return said.out, said.err

    return run


GARBAGE = """
import gc, sys
from fedtailor.cli import main
assert "torch" not in sys.modules
try:
    main(sys.argv[1:])
except SystemExit as end:
    print(end.code, gc.isenabled(), gc.get_freeze_count() > 50_000)
"""


@pytest.mark.parametrize(("method", "code"), [("fedavg", 0), ("nosuch", 2)])
def test_what_a_run_imports_is_never_looked_through_for_garbage_and_all_else_is(
    method: str, code: int, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", GARBAGE, "run", method, *SMALL, "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == f"{code} True True"


def table(path: Path, clients: tuple[str, ...], huge: str = "") -> Path:
    draw = np.random.default_rng(0)
    rows = ["client,a,b,label"]
    for client in clients:
        for i in range(24):
            a, b = (draw.normal(size=2) + 3 * (i % 2)) * (1e30 if client == huge else 1)
            rows.append(f'"{client}",{a:.4g},{b:.4g},{("no", "yes")[i % 2]}')
    path.write_text("\n".join(rows) + "\n")
    return path


# --- run ---


def test_run_prints_a_table_and_where_it_lies(cli: Any) -> None:
    out, err = cli("run", "fedavg", *SMALL, "--out", "here")
    assert "fedavg" in out
    assert "bottom 5 %" in out
    assert "Results: here" in out
    assert "round 2/2" in err
    assert Path("here/result.json").exists()


def test_run_without_out_takes_a_new_folder_each_time(cli: Any) -> None:
    for _ in range(2):
        cli("run", "local", *SMALL)
    assert sorted(p.name for p in Path("runs").iterdir()) == [
        "local-digits-seed0",
        "local-digits-seed0-2",
    ]


def test_run_json_is_the_result(cli: Any) -> None:
    out, _ = cli("run", "fedavg", *SMALL, "--out", "here", "--json")
    assert json.loads(out) == json.loads(Path("here/result.json").read_text())


def test_several_seeds_and_rates_are_several_runs(cli: Any) -> None:
    out, err = cli("run", "fedavg", *SMALL, "--seeds", "2", "--lr", "0.05, 0.1", "--out", "here")
    assert "best on validation rows: --lr" in out and "95 %" in out and "here/summary.json" in out
    assert "[4/4] fedavg-lr0.1-seed1: round 2/2" in err
    assert len(list(Path("here/runs").glob("*/report.html"))) == 4
    result = json.loads(Path("here/runs/fedavg-lr0.1-seed1/result.json").read_text())
    assert result["seed"] == 1 and result["side_by_side"] == 4
    again, _ = cli("resume", "here", "--json")
    assert json.loads(again) == json.loads(Path("here/summary.json").read_text())
    _, err = cli("run", "fedavg", *SMALL, "--lr", "0.1,x", "--out", "there", code=2)
    assert "'x'" in err and not Path("there").exists()
    _, err = cli("run", "fedavg", *SMALL, "--seeds", "2", "--watch", code=2)
    assert "--watch shows one run" in err
    _, err = cli("watch", "here", "--no-open", code=2)
    assert "watch one of the runs in" in err
    cli("run", "local", *SMALL, "--seeds", "2", "--one-by-one")
    place = Path("runs/local-digits-sweep/runs/local-seed1/result.json")
    assert json.loads(place.read_text())["side_by_side"] == 1


def test_a_config_file_and_options_that_go_first(cli: Any) -> None:
    cli("run", "fedprox", *SMALL, "--set", "mu=0.3", "--out", "one")
    cli("run", "--config", "one/config.toml", "--out", "two")
    one, two = (read_config(Path(f, "config.toml")) for f in ("one", "two"))
    assert one == two
    assert one[2] == {"mu": 0.3}
    cli("run", "--config", "one/config.toml", "--lr", "0.7", "--set", "mu=0.4", "--out", "three")
    method, given, options = read_config(Path("three/config.toml"))
    assert method == "fedprox"
    assert given == one[1] | {"lr": 0.7}
    assert options == {"mu": 0.4}


def test_a_config_of_another_method_lends_its_settings_only(cli: Any) -> None:
    cli("run", "fedprox", *SMALL, "--set", "mu=0.3", "--out", "one")
    cli("run", "fedavg", "--config", "one/config.toml", "--out", "two")
    method, given, options = read_config(Path("two/config.toml"))
    assert method == "fedavg"
    assert options == {}
    assert given["clients"] == 4
    made = make_config(str(method), given, options)
    assert made.rounds == 2


@pytest.mark.usefixtures("without_pictures")
def test_compare_takes_the_options_of_its_config(cli: Any) -> None:
    cli("run", "fedprox", *SMALL, "--set", "mu=0.3", "--out", "one")
    given = ("--config", "one/config.toml", "--no-yardsticks")
    out, _ = cli("compare", "fedprox", *given, "--out", "two", "--json")
    found = json.loads(out)
    assert found["settings"]["clients"] == 4
    assert found["table"]["fedprox"]["options"]["mu"] == 0.3


def test_flags_can_be_switched_off(cli: Any) -> None:
    cli("run", "local", *SMALL, "--permute-targets", "--out", "one")
    assert read_config(Path("one/config.toml"))[1]["permute_targets"] is True
    cli("run", "--config", "one/config.toml", "--no-permute-targets", "--out", "two")
    assert read_config(Path("two/config.toml"))[1]["permute_targets"] is False


def test_overwrite(cli: Any) -> None:
    cli("run", "local", *SMALL, "--out", "here")
    _, err = cli("run", "fedavg", *SMALL, "--out", "here", code=2)
    assert "--overwrite" in err
    assert "fedtailor resume here" in err
    cli("run", "fedavg", *SMALL, "--out", "here", "--overwrite")
    assert json.loads(Path("here/result.json").read_text())["method"] == "fedavg"


def test_a_tilde_is_the_home_folder_also_after_an_equals_sign(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shells leave `--out=~/pp` as it is, and a folder called ~ is one that people remove."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    cli("partition", "--data", "digits", "--clients", "4", "--out=~/pp")
    assert (tmp_path / "home" / "pp" / "partition.npz").exists()
    assert not Path("~").exists()


def test_divergence_is_bad_input_and_names_client_and_round(cli: Any, tmp_path: Path) -> None:
    data = table(tmp_path / "own.csv", ("calm", "wild"), huge="wild")
    arguments = ["--data", str(data), "--normalise", "none", "--rounds", "2", "--out", "here"]
    out, err = cli("run", "fedavg", *arguments, code=2)
    assert out == ""
    last = err.splitlines()[-1]
    assert last.startswith("fedtailor: wild diverged")
    assert "round" in last
    assert "--on-nan skip" in last
    assert "here" in last
    assert Path("here/checkpoint/latest.json").exists()
    out, err = cli("run", "fedavg", *arguments, "--on-nan", "skip", "--overwrite", "--json")
    assert json.loads(out)["skipped"] == {"1": ["wild"], "2": ["wild"]}
    assert "left out (diverged): wild" in err


def test_a_huge_learning_rate_stops_the_run(cli: Any) -> None:
    _, err = cli("run", "fedavg", *SMALL, "--lr", "1e30", "--out", "here", code=2)
    assert "client-0" in err
    assert "lower --lr" in err
    cli("run", "fedavg", *SMALL, "--lr", "1e30", "--on-nan", "skip", "--out", "there", code=2)


def test_a_method_of_ones_own(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_methods.py").write_text(
        '"""Mine."""\nfrom fedtailor.methods import fedavg\n\n\n'
        "def mine(task, *, strength: float = 1.0, recipe=None):\n"
        '    """Mine.\n\n    Args:\n      strength: of it.\n\n    Reference: me.\n    """\n'
        "    return fedavg(task, recipe=recipe)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    arguments = ["run", "my_methods:mine", *SMALL, "--set", "strength=2", "--out", "here", "--json"]
    out, _ = cli(*arguments)
    found = json.loads(out)
    assert (found["method"], found["options"]) == ("my_methods:mine", {"strength": 2.0})
    cli("resume", "here")
    monkeypatch.setattr(check, "PLAN", {"dense": (laws.check_page, laws.check_not_disabled)})
    out, _ = cli("check", "my_methods:mine", "--json", code=1)
    broken = [f for f in json.loads(out) if not f["passed"]]
    assert broken
    assert all("exactly the model of fedavg" in f["detail"] for f in broken)


# --- compare and resume ---


def test_compare(cli: Any) -> None:
    out, err = cli("compare", "fedavg", *SMALL, "--seeds", "2", "--out", "here")
    assert "± " in out
    assert "than alone" in out
    assert "[1/8] local seed 0" in err
    assert {p.name for p in Path("here/runs").iterdir()} == {
        f"{m}-seed{s}" for m in ("local", "centralised", "linear", "fedavg") for s in (0, 1)
    }


@pytest.mark.usefixtures("without_pictures")
def test_compare_and_resume_json(cli: Any) -> None:
    given = (*SMALL, "--set", "fedavg.weighting=uniform", "--no-yardsticks")
    out, _ = cli("compare", "fedavg", *given, "--json")
    found = json.loads(out)
    folder = Path("runs/compare-digits")
    assert found == json.loads((folder / "summary.json").read_text())
    assert found["table"]["fedavg"]["options"]["weighting"] == "uniform"
    again, _ = cli("resume", str(folder), "--json")
    assert json.loads(again) == found


def test_resuming_a_finished_run(cli: Any) -> None:
    cli("run", "local", *SMALL, "--out", "here")
    before = {p.name: p.read_bytes() for p in Path("here/models").iterdir()}
    result = Path("here/result.json").read_bytes()
    out, _ = cli("resume", "here", "--json")
    assert json.loads(out)["rounds"] == 2
    assert Path("here/result.json").read_bytes() == result  # its time is the run's own
    assert {p.name: p.read_bytes() for p in Path("here/models").iterdir()} == before


def test_resume_refusals_are_one_line(cli: Any) -> None:
    cli("run", "local", *SMALL, "--out", "here")
    path = Path("here/config.toml")
    path.write_text(path.read_text().replace("rounds = 2", "rounds = 3"))
    out, err = cli("resume", "here", code=2)
    assert out == ""
    assert err.startswith("fedtailor: ")
    assert err.count("\n") == 1
    assert "changed" in err


# --- list, show, partition, check ---


def test_help_names_the_extra_for_tracking(cli: Any) -> None:
    """Brackets are markup there unless they are told not to be."""
    out, _ = cli("run", "--help")
    assert "fedtailor[track]" in "".join(out.split())


def test_list(cli: Any) -> None:
    out, _ = cli("list")
    assert all(name in out for name in METHODS)
    found = json.loads(cli("list", "--json")[0])
    assert [entry["name"] for entry in found] == list(METHODS)
    assert all(entry["title"] and entry["reference"] for entry in found)


@pytest.mark.parametrize("method", ["fedavg", "fedala", "local"])
def test_show(method: str, cli: Any) -> None:
    out, _ = cli("show", method)
    assert "Paper" in out
    found = json.loads(cli("show", method, "--json")[0])
    assert found["name"] == method
    sent = 0 if method == "local" else 1
    assert found["footprint"]["up"] == found["footprint"]["down"] == sent


def test_show_says_what_a_method_learns_and_why_not_the_rest(cli: Any) -> None:
    out, _ = cli("show", "fedphp")
    assert "Learns: classification\n" in out
    assert "Not survival: its distillation" in out
    found = json.loads(cli("show", "fedphp", "--json")[0])["tasks"]
    assert {task: told["learns"] for task, told in found.items()} == {
        "classification": True,
        "regression": False,
        "survival": False,
    }
    assert "class probabilities" in found["regression"]["reason"]


def test_partition(cli: Any) -> None:
    arguments = ["--partition", "pathological:2", "--clients", "6"]
    out, _ = cli("partition", *arguments, "--out", "parts")
    assert "6 clients" in out
    for kind in ("npz", "png", "svg"):
        assert Path(f"parts/partition.{kind}").stat().st_size > 0
    with Image.open("parts/partition.png") as picture:
        picture.load()
    numbers = json.loads(cli("partition", *arguments, "--json")[0])
    kept = json.loads(Path("parts/statistics.json").read_text())
    assert kept == {"made_by": "FedTailor"} | numbers
    assert all(sum(c > 0 for c in counts) <= 2 for counts in numbers["class_counts"])
    out, _ = cli(
        "run", "local", "--partition-file", "parts/partition.npz",
        "--model", "mlp", "--rounds", "1", "--out", "here", "--json",
    )  # fmt: skip
    assert json.loads(out)["clients"] == 6


def test_check_json_and_exit_code(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "PLAN", {"dense": (laws.check_page, laws.check_personal)})
    found = json.loads(cli("check", "local", "--json")[0])
    assert found
    assert all(entry["passed"] for entry in found)


def test_check_takes_options_and_an_engine(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With λ = 0 Ditto's models are those of training alone."""
    monkeypatch.setattr(check, "PLAN", {"dense": (laws.check_not_disabled,)})
    assert "1 of 1 checks hold" in cli("check", "ditto", "--engine", "sequential")[0]
    out, _ = cli("check", "ditto", "--set", "lam=0", code=1)
    assert "exactly the model of local" in out
    assert "[dense]" in out
    assert "unknown option 'lamb'" in cli("check", "ditto", "--set", "lamb=0", code=2)[1]


# --- names with a meaning for terminals ---


@pytest.mark.parametrize("command", ["run", "compare", "partition"])
def test_client_names_are_not_markup(command: str, cli: Any, tmp_path: Path) -> None:
    data = table(tmp_path / "own.csv", ("[/x]", "[red]b", "c"))
    if command == "partition":
        out, _ = cli("partition", "--data", str(data))
        assert "[red]b" in out
    else:
        method = "local" if command == "run" else "fedavg"
        cli(command, method, "--data", str(data), "--rounds", "1", "--out", "here")


def test_skipped_clients_are_not_markup(cli: Any, tmp_path: Path) -> None:
    data = table(tmp_path / "own.csv", ("[/x]", "calm"), huge="[/x]")
    _, err = cli(
        "run", "fedavg", "--data", str(data), "--normalise", "none", "--rounds", "1",
        "--on-nan", "skip", "--out", "here",
    )  # fmt: skip
    assert "[/x]" in err


def test_clients_that_were_held_out_are_told(cli: Any, tmp_path: Path) -> None:
    data = table(tmp_path / "own.csv", ("[/x]", "calm", "mild"))
    out, _ = cli(
        "run", "fedavg", "--data", str(data), "--held-out", "1", "--rounds", "1", "--out", "here"
    )
    assert "– held out, so never trained: [/x]; means count" in out
    out, _ = cli(
        "run", "fedavg", "--data", str(data), "--participation", "0.1", "--rounds", "1",
        "--out", "there",
    )  # fmt: skip
    assert "– in no round that counts, so never trained: " in out


@pytest.mark.usefixtures("without_pictures")
def test_lonely_clients_are_not_markup(cli: Any, tmp_path: Path) -> None:
    """The verdict names clients that are better off alone; here both are, their rules opposite."""
    rows = ["client,a,label"]
    for client in ("[/x]", "[/y]"):
        rows += [f"{client},{i % 2},{'ab'[(i + (client == '[/x]')) % 2]}" for i in range(80)]
    (tmp_path / "own.csv").write_text("\n".join(rows) + "\n")
    told = ("--rounds", "20", "--out", "here", "--no-yardsticks")
    out, _ = cli("compare", "fedavg", "--data", "./own.csv", *told)
    assert "Better off alone, beyond chance in the rows" in " ".join(out.split())
    assert "[/x]" in out or "[/y]" in out


# --- one's own data ---


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Two hospitals with two classes each: dark and bright pictures."""
    draw = np.random.default_rng(0)
    root = tmp_path / "scans"
    for hospital in ("North General", "St. Mary"):
        for label, light in (("dark", 40), ("bright", 200)):
            folder = root / hospital / label
            folder.mkdir(parents=True)
            for i in range(12):
                pixels = draw.normal(light, 10, size=(8, 8)).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    return root


def test_folders_of_pictures(cli: Any, pictures: Path) -> None:
    out, _ = cli("run", "fedavg", "--data", str(pictures), "--rounds", "10", "--json")
    found = json.loads(out)
    assert found["partition"] == "natural"
    assert set(found["per_client"]) == {"North General", "St. Mary"}
    folder = str(next(Path("runs").iterdir()))
    files = [str(pictures / "St. Mary" / label / "0.png") for label in ("dark", "bright")]
    out, _ = cli("predict", folder, "--client", "St. Mary", *files, "--json")
    assert [entry["label"] for entry in json.loads(out)] == ["dark", "bright"]
    out, _ = cli("predict", folder, "--client", "North General", *files)
    assert "0.png" in out
    assert "bright" in out


def test_a_table_with_a_client_column(cli: Any, tmp_path: Path) -> None:
    data = table(tmp_path / "own.csv", ("../x", "/etc/y", "z"))
    out, _ = cli("run", "fedavg", "--data", str(data), "--rounds", "8", "--out", "here", "--json")
    found = json.loads(out)
    assert (found["partition"], found["clients"]) == ("natural", 3)
    assert set(found["per_client"]) == {"../x", "/etc/y", "z"}
    assert len(list(Path("here/models").iterdir())) == 3
    assert not Path("here/x.safetensors").exists()
    assert {p.name for p in tmp_path.iterdir()} == {"own.csv", "here"}
    Path("new.csv").write_text("a,b\n0,0\n3,3\n")
    for client in ("../x", "z"):
        out, _ = cli("predict", "here", "--client", client, "new.csv", "--json")
        assert [entry["label"] for entry in json.loads(out)] == ["no", "yes"]
    _, err = cli("predict", "here", "--client", "zz", "new.csv", code=2)
    assert "did you mean 'z'" in err
