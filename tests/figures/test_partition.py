import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib import rc_context
from PIL import Image

from fedtailor.core.errors import BadInput
from fedtailor.figures.partition import draw_partition
from fedtailor.partition import iid, pathological, split_rows


def partition_of(clients, classes):
    labels = np.arange(clients * classes * 4) % classes
    shares = pathological(labels, clients, min(2, classes), seed=0)
    named = [f"client {i}" for i in range(clients)]
    return split_rows(shares, labels, named, seed=0, scheme="pathological:2", val=0), labels


@pytest.mark.parametrize(("clients", "classes"), [(5, 10), (20, 10), (100, 10), (1, 1)])
def test_png_is_a_picture_with_something_on_it(tmp_path, clients, classes):
    partition, labels = partition_of(clients, classes)
    path = tmp_path / "partition.png"
    draw_partition(partition, labels, [str(c) for c in range(classes)], path)
    with Image.open(path) as picture:
        assert 300 < picture.width < 4000
        assert 200 < picture.height < 4000
        colours = np.asarray(picture.convert("RGB")).reshape(-1, 3)
    assert (colours == (0x00, 0x72, 0xB2)).all(axis=1).sum() > 50


def test_of_many_clients_one_in_so_many_is_drawn_and_told(tmp_path):
    partition, labels = partition_of(500, 2)
    path = tmp_path / "partition.svg"
    with rc_context({"svg.fonttype": "none"}):  # letters, not their outlines
        draw_partition(partition, labels, ["no", "yes"], path)
    drawn = path.read_text()
    assert "client: 100 of 500, one in 5" in drawn
    assert "500 clients, 4,000 rows" in drawn
    draw_partition(partition, labels, ["no", "yes"], tmp_path / "partition.png")
    with Image.open(tmp_path / "partition.png") as picture:
        assert picture.width < 4000


def test_svg_is_well_formed_whatever_the_names(tmp_path):
    labels = np.arange(60) % 3
    shares = iid(labels, 2, seed=0)
    partition = split_rows(shares, labels, ["<a&b>", "$x^$"], seed=0, scheme="iid $", val=0)
    path = tmp_path / "partition.SVG"
    draw_partition(partition, labels, ["$\\frac{", "50 $", "a class with a rather long name"], path)
    assert ElementTree.parse(path).getroot().tag.endswith("svg")


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_same_input_same_file(tmp_path, kind):
    partition, labels = partition_of(5, 10)
    paths = [tmp_path / f"{i}.{kind}" for i in range(2)]
    for path in paths:
        draw_partition(partition, labels, [str(c) for c in range(10)], path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_larger_class_has_a_larger_bubble(tmp_path):
    """Blue pixels of a bubble grow with the count, not with its square."""
    labels = np.array([0] * 25 + [1] * 100)
    partition = split_rows([np.arange(125)], labels, ["a"], seed=0, scheme="x", val=0)
    path = tmp_path / "p.png"
    draw_partition(partition, labels, ["small", "large"], path)
    with Image.open(path) as picture:
        blue = (np.asarray(picture.convert("RGB")) == (0x00, 0x72, 0xB2)).all(axis=2)
    chart = blue[:, : int(blue.shape[1] * 0.7)]  # without the legend at the right
    rows = np.flatnonzero(chart.any(axis=1))
    upper, lower = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)
    assert chart[upper].sum() / chart[lower].sum() == pytest.approx(4, rel=0.15)


def test_pyplot_is_not_touched(tmp_path):
    partition, labels = partition_of(5, 10)
    had = "matplotlib.pyplot" in sys.modules
    draw_partition(partition, labels, [str(c) for c in range(10)], tmp_path / "p.png")
    assert ("matplotlib.pyplot" in sys.modules) == had


@pytest.mark.parametrize("name", ["p.pdf", "p", "missing/p.png"])
def test_files_that_cannot_be_written(tmp_path, name):
    partition, labels = partition_of(5, 10)
    with pytest.raises(BadInput) as error:
        draw_partition(partition, labels, [str(c) for c in range(10)], tmp_path / name)
    assert "\n" not in str(error.value)
    assert name in str(error.value)


def test_labels_without_a_name(tmp_path):
    partition, labels = partition_of(5, 10)
    with pytest.raises(BadInput, match="label 9"):
        draw_partition(partition, labels, ["just one"], tmp_path / "p.png")
