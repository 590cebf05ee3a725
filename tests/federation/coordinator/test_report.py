"""A federation's page, from what sites agreed to share."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedtailor.cli import main
from fedtailor.federation.coordinator.federation_file import read_federation
from fedtailor.federation.coordinator.report import _Told, federation_report, gains_of
from fedtailor.federation.coordinator.store import FINISHED
from fedtailor.results.metrics.named import METRICS
from fedtailor.results.statistics import PairedRows, decide, measure_gains, scoring_of
from fedtailor.results.statistics.variance import variances
from tests.federation.fake import RULES, FakeTransport, coordinator
from tests.federation.trial import Trial


def played(trial: Trial, **rules) -> Path:
    """Plays a trial to its end; returns the coordinator's folder."""
    one = coordinator(trial, FakeTransport(trial), replace(RULES, **rules))
    one.run()
    one.store.ended("1", one.now.round, FINISHED)
    return one.store.folder


def call(*arguments: object) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        main(["federation", "report", *map(str, arguments)])
    return int(ended.value.code or 0)


def numbers_on(page: Path) -> dict:
    text = page.read_text(encoding="utf-8")
    return json.loads(text.split('id="numbers">')[1].split("</script>")[0])


def test_who_took_part_in_fewer_rounds_is_named(tmp_path: Path) -> None:
    """Its model alone was trained in those rounds, too, and more would have made it better."""
    trial = Trial(tmp_path, "fedavg", rounds=3)
    transport = FakeTransport(trial)
    transport.on(1, "train", 1, lambda packet, site: ["lost"])
    one = coordinator(trial, transport)
    one.run()
    one.store.ended("1", one.now.round, FINISHED)
    notes = numbers_on(federation_report(read_federation(trial.federation)))["notes"]
    (said,) = [note for note in notes if note.startswith("Took part in fewer rounds")]
    expected = "Took part in fewer rounds: site-1 (2 of 3; latest failure: round 2: lost). "
    assert said.startswith(expected)


def test_who_has_no_model_is_named_with_the_reason(tmp_path: Path) -> None:
    """A site that its own limits keep out does not come by itself when it is run again."""
    trial = Trial(tmp_path, "fedavg")
    trial.write_site(1, min_rows=1000)
    played(trial)
    (said,) = [
        note
        for note in numbers_on(federation_report(read_federation(trial.federation)))["notes"]
        if note.startswith("Have no model")
    ]
    assert "site-1 (not admitted: rows: the plan has uploads of 38 rows" in said
    assert "lower min_rows in the site's file). When that is mended, run it again." in said


def test_who_was_away_and_comes_back_is_no_longer_missing(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "fedavg")
    transport = FakeTransport(trial)
    transport.gone.add(11)

    def notes() -> str:
        one = coordinator(trial, transport, replace(RULES, wait=0.0))
        one.run()
        one.store.ended("1", one.now.round, FINISHED)
        page = federation_report(read_federation(trial.federation))
        return " ".join(numbers_on(page)["notes"])

    assert "Have no model, and cannot be told of: client 1 (not connected)." in notes()
    trial.write_site(1, min_rows=1000)
    transport.gone.clear()
    transport.restart()
    assert "cannot be told of: site-1 (not admitted: rows: " in notes()
    trial.write_site(1)
    transport.restart()
    assert "Have no model" not in notes()


def test_a_site_of_no_round_has_nothing_to_compare_with(tmp_path: Path) -> None:
    """What it trained alone in no rounds would be the initial model, which is easily beaten."""
    trial = Trial(tmp_path, "fedavg", rounds=2)
    transport = FakeTransport(trial)
    for round in range(2):
        transport.on(1, "train", round, lambda packet, site: ["lost"])
    one = coordinator(trial, transport)
    lines = one.run()
    one.store.ended("1", one.now.round, FINISHED)
    assert "pre_score" in lines[-1]["finished"]["site-1"]
    assert "local_score" not in lines[-1]["finished"]["site-1"]
    folder = tmp_path / "site-1" / "federations" / "trial"
    card = json.loads((folder / "card.json").read_text())
    assert card["played"] == 0 and card["local_score"] is None and card["gain"] is None
    notes = numbers_on(folder / "report" / "report.html")["notes"]
    assert any(note.startswith("The site took part in no round") for note in notes)
    shown = numbers_on(federation_report(read_federation(trial.federation)))
    assert any(
        "site-1 not counted (tells no score of training alone)" in s for s in shown["verdict"]
    )


def test_the_page_has_what_sites_tell_and_names_who_tells_nothing(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "fedala", rounds=3)
    trial.write_site(0, counts="exact", score_digits=0)
    trial.write_site(1, share=[])
    played(trial)
    page = federation_report(read_federation(trial.federation))
    shown = numbers_on(page)
    assert shown["clients"] == ["site-0", "site-1", "site-2"]
    table = {row["method"]: row["per_client"] for row in shown["methods"]}
    cards = [
        json.loads((tmp_path / f"site-{i}" / "federations/trial/card.json").read_text())
        for i in range(3)
    ]
    assert table["fedala"][0] == pytest.approx(cards[0]["score"], abs=1e-6)
    assert table["local"][0] == pytest.approx(cards[0]["local_score"], abs=1e-6)
    assert table["fedala"][1] is None and table["local"][1] is None
    assert table["fedala"][2] == pytest.approx(cards[2]["score"], abs=5e-4)
    # counts as each site lets them leave
    assert shown["rows"]["train"] == [24, None, 30] and cards[2]["rows"]["train"] == 31
    assert shown["rows"]["test"] == [10, None, 10] and cards[2]["rows"]["test"] == 13
    assert any("Tell no scores: site-1." in note for note in shown["notes"])
    assert not any("fewer rounds" in note for note in shown["notes"])
    assert any(
        s == "site-1 not counted (tells no scores): means are over 2." for s in shown["verdict"]
    )
    assert shown["decision"]["clients"] == 2 and shown["decision"]["interval"][0] is not None
    assert shown["client_decisions"][1]["reason"] == "tells no scores"
    # a score of each round, right after training
    assert shown["curves"][1]["round"] == [1, 2, 3] and len(shown["curves"][1]["post"]["mid"]) == 3


def test_the_page_says_which_site_has_which_network(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "fml", models="mlp-2:1,mlp:2", model="linear")
    played(trial)
    shown = numbers_on(federation_report(read_federation(trial.federation)))
    assert shown["networks"] == ["mlp-2", "mlp", "mlp"]
    assert dict(shown["facts"])["Network"] == "mlp-2 (1 client), mlp (2 clients), in common linear"


def test_without_scores_alone_there_is_a_page_and_no_verdict(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "fedavg")
    for i in range(3):
        trial.write_site(i, share=["scores"])
    played(trial)
    shown = numbers_on(federation_report(read_federation(trial.federation)))
    assert [row["method"] for row in shown["methods"]] == ["fedavg"]
    assert shown["decision"] is None and "none tells its score alone" in shown["verdict"][0]


def test_a_site_has_a_page_of_its_own_whatever_it_shares(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "ditto", rounds=3, lr=0.3)
    trial.write_site(1, share=[])
    played(trial)
    own = tmp_path / "site-1" / "federations" / "trial"
    card = json.loads((own / "card.json").read_text())
    shown = numbers_on(own / "report" / "report.html")
    assert shown["clients"] == ["site-1"]
    table = {row["method"]: row["per_client"][0] for row in shown["methods"]}
    found = (card["score"], card["local_score"], card["global_score"])
    assert (table["ditto"], table["local"], table["global"]) == pytest.approx(found, abs=1e-6)
    assert shown["rows"] == {k: [v] for k, v in card["rows"].items()}
    curves = dict(zip([row["method"] for row in shown["methods"]], shown["curves"], strict=True))
    assert curves["ditto"]["round"] == curves["local"]["round"] == [1, 2, 3]
    assert None not in curves["ditto"]["post"]["mid"] and None not in curves["local"]["mean"]["mid"]
    assert shown["decision"]["method"] == "ditto" and shown["decision"]["clients"] == 1
    assert shown["tested"] and shown["class_counts"]  # what no other sees


def test_sites_that_train_alone_have_pages_with_nothing_to_compare(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "local")
    played(trial)
    page = federation_report(read_federation(trial.federation))
    for found in (page, tmp_path / "site-0" / "federations" / "trial" / "report" / "report.html"):
        shown = numbers_on(found)
        assert [row["method"] for row in shown["methods"]] == ["local"]
        assert shown["decision"] is None and shown["verdict"][0].startswith("Only training alone")


@pytest.mark.parametrize("metric", ["accuracy", "roc-auc", "log-loss"])
@pytest.mark.parametrize(("sites", "rows", "gain"), [(3, 100, 0.5), (10, 60, 0.25), (10, 60, 0.0)])
def test_shared_numbers_give_the_answer_that_all_rows_give(
    metric: str, sites: int, rows: int, gain: float
) -> None:
    draw, scoring = np.random.default_rng(sites), scoring_of(METRICS[metric])
    paired, told = {}, _Told({}, {}, {}, {})
    short = lambda value: float(f"{value:.3g}")
    for i in range(sites):
        y, noise = draw.integers(0, 2, rows), draw.normal(0, 1, rows)
        alone = 0.6 * (2 * y - 1) + noise
        ours = (0.6 + gain) * (2 * y - 1) + 0.7 * noise + 0.7 * draw.normal(0, 1, rows)
        said = [np.stack([-v, v], 1) for v in (ours, alone)]
        pair = PairedRows(np.arange(rows), y, *said)
        name, weight = f"site-{i}", np.ones(rows)
        paired[name] = [pair]
        error = variances(measure_gains({name: [pair]}, scoring))[0] ** 0.5
        for part, outputs in zip((told.score, told.alone), said, strict=True):
            part[name] = short(float(scoring.function(outputs, y, weight)))
        told.error[name], told.rows[name] = short(error), {"test": rows}
    asked = {"method": "fedavg", "metric": metric}
    exact = decide(paired, scoring, **asked)
    by_row = scoring._replace(per_row=lambda outputs, labels: outputs)
    found = decide(dict.fromkeys(paired, ()), by_row, gains=gains_of(told, metric), **asked)
    assert found.answer == exact.answer and found.speaks_for == exact.speaks_for
    assert found.gain == pytest.approx(exact.gain, abs=1e-3)
    assert found.interval == pytest.approx(
        exact.interval, abs=0.02 if metric == "log-loss" else 0.004
    )
    assert found.p == pytest.approx(exact.p, abs=0.05)


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trial = Trial(tmp_path, "fedavg", where={"listen": "127.0.0.1"})

    def complaint(*arguments: object) -> str:
        assert call(*arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert "holds no federation.toml" in complaint(tmp_path / "nowhere")
    told = complaint(tmp_path, "--insecure")
    assert "'trial' is not finished (round 0 of 2): go on with fedtailor federation run" in told
    assert "site 'site-1' has finished no federation" in complaint(trial.sites[1])
    for i in range(3):
        trial.write_site(i, share=[])
    folder = played(trial)
    told = complaint(tmp_path, "--insecure")
    assert "no site of federation 'trial' shares its scores (share in site.toml)" in told
    assert not (folder / "report").exists()


def test_the_command_writes_both_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trial = Trial(tmp_path, "fedavg")
    pages = [folder / "report" / "report.html" for folder in (
        played(trial), tmp_path / "site-2" / "federations" / "trial"
    )]  # fmt: skip
    pages[1].unlink()
    assert call(tmp_path, "--insecure") == call(trial.sites[2]) == 0
    assert capsys.readouterr().out == "".join(f"Written: {page}\n" for page in pages)
    assert all(page.is_file() for page in pages)
