"""Figures for papers: they hold the runs' numbers, fit a column, and say what they lack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import rc_context
from PIL import Image

from fedtailor.cli import main
from fedtailor.core.errors import BadInput
from fedtailor.figures import FIGURES, PAPER, FigureOptions, draw, draw_figure
from fedtailor.results.collect import CollectedRuns, collect
from fedtailor.results.mixes import client_class_counts, likeness_order
from fedtailor.results.records import Records
from tests.report import synthetic

NAMES = (
    "score", "loss", "gain", "spread", "communication", "time", "partition", "weights",
    "mixing", "scores",
)  # fmt: skip


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic.make_comparison(tmp_path_factory.mktemp("figures") / "c", seeds=2)


@pytest.fixture(scope="module")
def collection(compared: Path) -> CollectedRuns:
    return collect([compared])


def history(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(row) for row in (folder / "history.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_fits_its_column(name: str, compared: Path, tmp_path: Path) -> None:
    path = draw_figure(name, [compared], out=tmp_path / "it.png")
    with Image.open(path) as picture:
        assert picture.width == pytest.approx(300 * FIGURES[name].width, abs=2)
        darkest, lightest = picture.convert("L").getextrema()
        assert lightest - darkest > 100, "an empty picture"


def test_fonts_are_embedded_and_can_be_edited(compared: Path, tmp_path: Path) -> None:
    made = draw_figure("accuracy", [compared], out=tmp_path / "it.pdf").read_bytes()
    assert b"/FontFile2" in made
    assert b"/Type3" not in made


def test_the_same_runs_give_the_same_file(compared: Path, tmp_path: Path) -> None:
    for kind in ("svg", "pdf"):
        made = [
            draw_figure("accuracy", [compared], out=tmp_path / f"{i}.{kind}").read_bytes()
            for i in (1, 2)
        ]
        assert made[0] == made[1]


def test_lines_are_means_over_seeds_with_their_range(compared: Path, collection: Any) -> None:
    axes = draw("accuracy", collection).axes[0]
    runs = [history(compared / "runs" / f"fedala-seed{seed}") for seed in (0, 1)]
    values = 100 * np.array([[line["pre"]["mean"] for line in run] for run in runs])
    line = next(line for line in axes.lines if line.get_label() == "fedala")
    assert np.allclose(line.get_ydata(), values.mean(axis=0), atol=1e-3)
    band = axes.collections[[line.get_label() for line in axes.lines].index("fedala")]
    heights = band.get_paths()[0].vertices[:, 1]
    assert heights.min() == pytest.approx(values.min(), abs=1e-3)
    assert heights.max() == pytest.approx(values.max(), abs=1e-3)


def test_accuracy_against_bytes(compared: Path, collection: Any) -> None:
    axes = draw("communication", collection).axes[0]
    sent = np.cumsum([sum(x["bytes"].values()) for x in history(compared / "runs/fedala-seed0")])
    lines = {line.get_label(): line for line in axes.lines}
    assert np.allclose(lines["fedala"].get_xdata(), sent / 1e6)
    level = lines["local (0 MB)"].get_ydata()
    assert level[0] == level[1]


def test_gains_are_sorted_and_complete(collection: Any) -> None:
    from fedtailor.results.numbers import rows

    picture = draw("gain", collection)
    wanted = {row["label"]: row for row in rows(collection)}
    assert [axes.get_title() for axes in picture.axes if axes.get_visible()] == list(wanted)[1:]
    for axes in picture.axes[:5]:
        bars = sorted((bar.get_x(), bar.get_height()) for bar in axes.patches)
        found = [height for _, height in bars]
        assert found == sorted(found, reverse=True)
        assert np.allclose(
            found, sorted((100 * g for g in wanted[axes.get_title()]["gain"]), reverse=True)
        )


def test_gains_of_one_method_are_still_over_training_alone(collection: Any) -> None:
    picture = draw("gain", collection, FigureOptions(methods=("fedavg",)))
    assert [axes.get_title() for axes in picture.axes if axes.get_visible()] == ["fedavg"]
    lines = draw("accuracy", collection, FigureOptions(methods=("fedavg",))).axes[0].get_lines()
    assert len(lines) == 1, "elsewhere only what was wanted is shown"
    with pytest.raises(BadInput, match="--method names only training alone"):
        draw("gain", collection, FigureOptions(methods=("local",)))


def test_the_spread_counts_every_client(collection: Any) -> None:
    for axes in draw("spread", collection).axes:
        assert sum(bar.get_height() for bar in axes.patches) == len(collection.clients)


def test_weights_are_the_records_in_cluster_order(compared: Path, collection: Any) -> None:
    picture = draw("weights", collection, FigureOptions(rounds=(2,)))
    shown = picture.axes[0].images[0].get_array()
    found = Records(compared / "runs" / "fedfomo-seed0").read("server/affinity", 2)
    assert found is not None
    order = likeness_order(client_class_counts(collection), len(collection.clients))
    assert np.allclose(shown, found[order][:, order])


def test_several_rounds_stand_side_by_side(collection: Any) -> None:
    picture = draw("weights", collection, FigureOptions(rounds=(1, 5), methods=("fedfomo",)))
    titles = [axes.get_title() for axes in picture.axes if axes.get_title()]
    assert titles == ["fedfomo, round 1", "fedfomo, round 5"]


def test_mixing_degrees_by_block_and_round(compared: Path, collection: Any) -> None:
    shown = draw("mixing", collection).axes[0].images[0].get_array()
    records = Records(compared / "runs" / "pmixfed-seed0")
    for number in (1, 5):
        found = records.read("client/mix_degree", number)
        assert found is not None
        assert np.allclose(shown[:, number - 1], found.mean(axis=0), atol=1e-6)


def test_a_run_that_goes_on_can_be_drawn(tmp_path: Path) -> None:
    folder = synthetic.unfinish(synthetic.make_run(tmp_path / "r", "fedala", rounds=9), 4)
    assert draw_figure("accuracy", [folder], kind="svg") == folder / "figures" / "accuracy.svg"
    (folder / "history.jsonl").write_text("")
    with pytest.raises(BadInput, match="no evaluated round yet"):
        draw_figure("accuracy", [folder])


def test_names_with_dollars_are_no_formulae(tmp_path: Path) -> None:
    folder = synthetic.make_run(tmp_path / "r", "fedavg")
    classes = [r"$\frac$", *map(str, range(1, 10))]
    (folder / "preprocessing.json").write_text(json.dumps({"classes": classes}))
    assert PAPER["text.parse_math"] is False
    draw_figure("partition", [folder], kind="svg", title=r"$\frac$")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gain", "training alone"),
        ("weights", "weights between clients"),
        ("mixing", "mixing degrees"),
        ("scores", "per block"),
        ("acuracy", "did you mean 'accuracy'"),
    ],
)
def test_what_is_lacking_is_told(name: str, said: str, tmp_path: Path) -> None:
    folder = synthetic.make_run(tmp_path / "r", "fedavg")
    with pytest.raises(BadInput, match=said):
        draw_figure(name, [folder])
    assert not (folder / "figures").exists()


def test_a_round_that_was_not_recorded(collection: Any) -> None:
    with pytest.raises(BadInput, match=r"round 7 of fedfomo was not recorded: .* is 5"):
        draw("weights", collection, FigureOptions(rounds=(7,)))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no figure"),
        (["accuracy"], "no folders"),
        (["accuracy", "run", "--width", "0.1"], "width is 0.1"),
        (["accuracy", "run", "--format", "gif"], "unknown format 'gif'"),
        (["accuracy", "run", "--out", "it.svg", "--format", "pdf"], "ends with .svg"),
        (["accuracy", "run", "--out", "it.bmp"], "'it.bmp' ends with .bmp: name a file that ends"),
        (["accuracy", "run", "--out", "it.bmp", "--format", "png"], "ends with .bmp"),
        (["accuracy", "run", "--out", "run"], "is a folder"),
        (["weights", "run", "--round", "one"], "--round is 'one'"),
        (["accuracy", "run", "--method", "fedavgg"], "did you mean 'fedavg'"),
        (["accuracy", "nowhere"], "is no folder"),
    ],
)
def test_bad_wishes_are_told_in_one_line(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    synthetic.make_run(tmp_path / "run", "fedavg")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as end:
        main(["figure", *arguments])
    assert end.value.code == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_the_list_tells_what_each_shows(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["figure", "--list"])
    assert end.value.code == 0
    told = capsys.readouterr().out
    for name, figure in FIGURES.items():
        assert name in told
        assert figure.shows in told
        assert figure.needs in told


@pytest.mark.parametrize("name", ["accuracy", "gain", "spread"])
def test_a_title_lies_upon_nothing(name: str, collection: Any) -> None:
    picture = draw(name, collection, title="A title")
    picture.draw_without_rendering()
    titles = [axes.title for axes in picture.axes] + [picture._suptitle]
    (title,) = [text for text in titles if text is not None and text.get_text() == "A title"]
    for legend in picture.legends:
        assert not title.get_window_extent().overlaps(legend.get_window_extent())


@pytest.mark.parametrize("name", ["score", "communication", "time"])
def test_sixty_methods_are_all_named_and_hide_nothing(name: str, tmp_path: Path) -> None:
    names = ("local", *(f"method-{i}" for i in range(1, 60)))
    many = synthetic.make_comparison(tmp_path / "c", names)
    with rc_context(PAPER):
        picture = draw(name, collect([many]))
        picture.draw_without_rendering()
    (legend,) = picture.legends
    assert len(legend.get_texts()) == 60
    whole, named = picture.bbox, legend.get_window_extent()
    assert whole.y0 <= named.y0 < named.y1 <= whole.y1
    for axes in picture.axes:
        assert not axes.get_window_extent().overlaps(named)
        assert axes.get_window_extent().height > 0.5 * picture.dpi


def test_what_the_gains_are_of_is_not_cut_off(collection: Any) -> None:
    with rc_context(PAPER):
        picture = draw("gain", collection)
        picture.draw_without_rendering()
    words = picture._supylabel.get_window_extent()
    assert picture.bbox.y0 <= words.y0 and words.y1 <= picture.bbox.y1
