"""Data as objects: the same source as from files, and one clear line for what does not fit."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

from fedtailor.core.errors import BadInput
from fedtailor.datasets import ColumnChoices, encode, load, source_of
from tests.datasets.datafiles import images, png_bytes, refusal

PATIENTS = pd.DataFrame(
    {
        "age": [31, 64, 58, 40],
        "sex": ["f", "m", None, "f"],
        "label": ["well", "ill", "ill", "well"],
        "site": ["north", "north", "south", "south"],
    }
)


def same(one, other) -> bool:
    """Whether two sources are the same but for the name."""
    tables = hasattr(one.raw, "columns")
    raws = zip(*(s.raw.columns.values() if tables else [s.raw] for s in (one, other)), strict=True)
    return (
        (one.kind, one.classes, one.owners) == (other.kind, other.classes, other.owners)
        and np.array_equal(one.labels, other.labels)
        and np.array_equal(one.owner, other.owner)
        and all(np.array_equal(a, b) for a, b in raws)
    )


class Pictures(Dataset):
    """What torchvision gives without a transform."""

    def __init__(self, pixels, labels):
        self.pixels, self.labels = pixels, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, row):
        return Image.fromarray(self.pixels[row]), int(self.labels[row])


# --- DataFrames ---


def test_a_frame_is_read_as_its_csv_file_is(tmp_path):
    PATIENTS.to_csv(tmp_path / "patients.csv", index=False)
    assert same(source_of(PATIENTS), load(str(tmp_path / "patients.csv")))


def test_a_frame_per_client_is_read_as_a_folder_per_client_is(tmp_path):
    frames = {site: f.drop(columns="site") for site, f in PATIENTS.groupby("site")}
    for site, frame in frames.items():
        (tmp_path / "all" / site).mkdir(parents=True)
        frame.to_csv(tmp_path / "all" / site / "rows.csv", index=False)
    assert same(source_of(frames), load(str(tmp_path / "all")))


def test_columns_are_named_as_for_files():
    frame = PATIENTS.rename(columns={"label": "finding", "site": "where"})
    source = source_of(frame, label="finding", client_column="where", name="patients")
    assert source.owners == ("north", "south") and source.name == "patients"
    assert source.raw.names == ("age", "sex")


def test_columns_of_every_type_that_pandas_has():
    frame = PATIENTS.assign(
        age=pd.array([31, None, 58, 40], dtype="Int64"),
        sex=PATIENTS["sex"].astype("category"),
        smokes=[True, False, True, False],
        weight=[None, 70, 80.5, 60],
        note=pd.array(["a", "b", None, "c"], dtype="string"),
    )
    table = source_of(frame).raw
    assert np.isnan(table.columns["age"][1]) and table.columns["age"][0] == 31
    assert table.columns["sex"].tolist() == ["f", "m", "", "f"]
    assert table.columns["smokes"].tolist() == [1, 0, 1, 0]
    assert table.columns["note"].tolist() == ["a", "b", "", "c"]
    objects = source_of(frame.assign(weight=frame["weight"].astype(object))).raw
    assert np.array_equal(objects.columns["weight"], table.columns["weight"], equal_nan=True)


def test_long_whole_numbers_stay_what_they_are():
    frame = PATIENTS.assign(site=[10**17 + 1, 10**17 + 1, 10**17 + 2, 10**17 + 2])
    assert source_of(frame).owners == ("100000000000000001", "100000000000000002")
    frame["site"] = np.array([2**64 - 1, 2**64 - 1, 2**64 - 2, 2**64 - 2], np.uint64)
    assert source_of(frame).owners == (str(2**64 - 2), str(2**64 - 1))
    for kind in (object, "category"):  # as floats these identities would be one client
        sites = pd.Series([10**17 + 1, 10**17 + 1, 10**17 + 2, 10**17 + 2], dtype=kind)
        assert source_of(frame.assign(site=sites)).owners == (str(10**17 + 1), str(10**17 + 2))


@pytest.mark.parametrize("codes", [[3, 1, 2, 3], [3, 1, None, 3]])
def test_numbers_that_a_frame_calls_categories_are_categories(tmp_path, codes):
    frame = PATIENTS.assign(ward=pd.Categorical(codes))
    named = ["" if code is None else str(code) for code in codes]
    assert source_of(frame).raw.columns["ward"].tolist() == named
    pytest.importorskip("pyarrow")
    frame.to_parquet(tmp_path / "wards.parquet")
    assert same(source_of(frame), load(str(tmp_path / "wards.parquet")))


def test_a_frame_of_texts_and_one_of_image_bytes():
    texts = pd.DataFrame({"text": ["good", "bad"], "label": [1, 0], "user": ["a", "b"]})
    assert source_of(texts).raw == ("good", "bad")
    pixels = images(2, 4, 4)
    coded = pd.DataFrame({"image": [png_bytes(p) for p in pixels], "label": [0, 1]})
    assert np.array_equal(source_of(coded).raw[:, 0], pixels)
    assert source_of(coded, image_size=2).raw.shape == (2, 1, 2, 2)


@pytest.mark.parametrize(
    ("frame", "options", "named"),
    [
        (PATIENTS.iloc[:0], {}, ("no rows", "fill")),
        (PATIENTS.drop(columns="label"), {}, ("no label column", "age")),
        (PATIENTS, {"client_column": "clinic"}, ("clinic", "site")),
        (PATIENTS, {"label": "lable"}, ("lable", "label")),
        (PATIENTS.assign(label=[None, *"abc"]), {}, ("row 1", "no label")),
        (PATIENTS.assign(site=[*"abc", None]), {}, ("row 4", "no client")),
        (PATIENTS.assign(age=[np.inf, 1, 2, 3]), {}, ("'age'", "infinite")),
        (PATIENTS.assign(age=[1, "old", 2, 3]), {}, ("'age'", "float, str", "numbers")),
        (PATIENTS.assign(age=pd.Timedelta("1D")), {}, ("'age'", "Timedelta", "leave it out")),
        (PATIENTS.assign(age=[b"x", b"y", b"z", None]), {}, ("'age'", "empty cells")),
        (PATIENTS.set_axis(["a", "a", "label", "site"], axis=1), {}, ("two columns 'a'",)),
    ],
)
def test_wrong_frames(frame, options, named):
    refusal(lambda: source_of(frame, **options), *named)


def test_wrong_mappings_of_frames():
    lacking = {"a": PATIENTS, "b": PATIENTS.drop(columns="age")}
    assert np.isnan(source_of(lacking).raw.columns["age"][-len(PATIENTS) :]).all()
    strict = ColumnChoices(strict=True)
    refusal(lambda: source_of(lacking, choices=strict), "client 'b'", "age")
    refusal(lambda: source_of({"a": PATIENTS}, client_column="site"), "site", "keys")
    refusal(lambda: source_of({"a": PATIENTS, "b": ([[1.0]], [0])}), "client 'a'", "DataFrame")


def test_pandas_is_not_imported():
    code = (
        "import sys; from fedtailor.datasets import source_of; "
        "source_of({'a': ([[1.0], [2.0]], [0, 1])}); assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# --- arrays ---


def test_tables_in_arrays_tensors_and_lists_are_the_same():
    x, y = np.arange(12.0).reshape(6, 2), np.array([0, 1, 2, 0, 1, 2])
    halves = [slice(0, 3), slice(3, 6)]
    arrays = source_of({i: (x[h], y[h]) for i, h in enumerate(halves)})
    tensors = source_of(
        {
            i: (torch.tensor(x[h], requires_grad=True), torch.tensor(y[h]))
            for i, h in enumerate(halves)
        }
    )
    lists = source_of({i: [x[h].tolist(), y[h].tolist()] for i, h in enumerate(halves)})
    assert same(arrays, tensors) and same(arrays, lists)
    assert arrays.owners == ("0", "1") and arrays.owner.tolist() == [0, 0, 0, 1, 1, 1]
    assert np.array_equal(encode(arrays, np.arange(6), normalise="none")[1], x.astype(np.float32))


def test_tensors_that_numpy_does_not_know():
    x, y = torch.tensor([[0.5, 1.0], [2.0, 4.0]]), [0, 1]
    halved = source_of({"a": (x.bfloat16(), torch.tensor(y).bfloat16())})
    assert same(halved, source_of({"a": (x, y)}))
    refusal(lambda: source_of({"a": (x.to_sparse(), y)}), "client 'a': x", ".to_dense()")


def test_labels_may_be_names_and_need_not_be_the_same_at_every_client():
    source = source_of({"b": ([[1.0], [2.0]], ["x", "y"]), "a": ([[3.0]], np.array(["z"]))})
    assert source.classes == ("x", "y", "z") and source.labels.tolist() == [0, 1, 2]
    assert source.owners == ("a", "b") and source.owner.tolist() == [1, 1, 0]


def test_images_in_every_layout_and_scale_are_the_same():
    grey = images(6, 5, 4)
    grey.flat[:2] = 0, 255
    y = np.arange(6) % 2
    dark = np.zeros_like(grey)  # alone it would not tell its scale
    want = source_of({"a": (grey, y), "b": (dark, y)})
    assert want.raw.dtype == np.uint8 and want.raw.shape == (12, 1, 5, 4)
    for change in (
        lambda x: x[:, None],
        lambda x: x[..., None],
        lambda x: x.astype(np.int64),
        lambda x: x.astype(np.float32),
        lambda x: x / 255,
        lambda x: torch.tensor(x[:, None]).float() / 255,
        lambda x: x / 127.5 - 1,
        lambda x: [torch.tensor(p) for p in x],
    ):
        assert same(want, source_of({"a": (change(grey), y), "b": (change(dark), y)}))
    colour = images(4, 5, 4, 3)
    found = source_of({"a": (colour, [0, 1, 0, 1])}).raw
    assert np.array_equal(found, colour.transpose(0, 3, 1, 2))


def test_texts():
    source = source_of({"a": (["good one", "bad"], [1, 0])})
    assert source.kind == "text" and source.raw == ("good one", "bad")


# --- Datasets ---


def test_datasets_of_tensors_and_of_pictures():
    pixels, y = images(6, 5, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    tensors = TensorDataset(torch.tensor(pixels[:, None]).float() / 255, y)
    want = source_of({"a": (pixels, y)})
    assert same(want, source_of({"a": tensors}))
    assert same(want, source_of({"a": Pictures(pixels, y)}))
    assert same(want, source_of({"a": torch.utils.data.Subset(tensors, range(6))}))


@pytest.mark.parametrize("kind", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("low", [0, -1])
def test_pixels_of_8_bits_stay_and_finer_ones_are_told(kind, low):
    pixels = np.arange(256, dtype=np.uint8).reshape(4, 8, 8)
    given = torch.tensor(pixels) / 255 if low == 0 else torch.tensor(pixels) / 127.5 - 1
    found = source_of({"a": (given.to(kind), [0, 1, 0, 1])})
    assert found.notes == ()
    assert (found.raw[:, 0] == pixels).all()
    finer = source_of({"a": ((given * 0.777).to(kind), [0, 1, 0, 1])})
    (note,) = finer.notes
    assert note.startswith("pixels are rounded to 256 levels; what are no images, give as rows")


def test_signals_are_told_how_to_come():
    with pytest.raises(BadInput, match=r"rows of numbers: x\.reshape\(len\(x\), -1\)"):
        source_of({"a": (np.full((2, 50, 3), 7.5), [0, 1])})


def test_a_dataset_is_read_once():
    class Counting(Pictures):
        reads = 0

        def __getitem__(self, row):
            self.reads += 1
            return super().__getitem__(row)

    counting = Counting(images(4, 5, 4), [0, 1, 0, 1])
    source_of({"a": counting})
    assert counting.reads == 4


class Unreadable(Dataset):
    """Its second row cannot be read."""

    def __len__(self):
        return 2

    def __getitem__(self, row):
        return [(0.0,), 1][row] if row == 0 else 1 / 0


class Iterable(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([])


GOOD = ([[1.0, 2.0], [3.0, 4.0]], [0, 1])
PIXELS = (images(2, 4, 4), [0, 1])


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ([GOOD], ("list", "mapping")),
        ("digits", ("str", "DataFrame")),
        ({}, ("empty", "mapping")),
        ({1: GOOD, "1": GOOD}, ("1, 1", "differ")),
        ({"": GOOD}, ("not empty",)),
        ({"a": GOOD, "b": ([], [])}, ("client 'b'", "no examples", "leave it out")),
        ({"a": GOOD, "b": TensorDataset(torch.zeros(0, 2), torch.zeros(0))}, ("client 'b'",)),
        ({"a": GOOD, "b": ([[1.0]], [0])}, ("client 'b'", "(1,)", "client 'a'", "(2,)")),
        ({"a": ([[1.0, 2.0], [3.0]], [0, 1])}, ("client 'a'", "row 2", "one shape")),
        ({"a": PIXELS, "b": (images(2, 4, 5), [0, 1])}, ("client 'b'", "(4, 5)")),
        ({"a": ([[1.0], [np.nan]], [0, 1])}, ("client 'a'", "x row 2", "nan", "fill it")),
        ({"a": ([[1.0], [np.inf]], [0, 1])}, ("client 'a'", "row 2", "infinite")),
        ({"a": ([[1.0], [2.0]], [0, np.nan])}, ("client 'a'", "y row 2", "nan")),
        ({"a": ([[1.0], [2.0]], [0, 1.5])}, ("client 'a'", "1.5", "--task regression")),
        ({"a": ([[1.0], [2.0]], [0])}, ("client 'a'", "2 examples", "1 labels")),
        (
            {"a": ([[1.0], [2.0]], [[1, 0], [0, 1]])},
            ("client 'a'", "two labels per row", "--task survival"),
        ),
        ({"a": ([[1.0], [2.0]], [0, "x"])}, ("client 'a'", "y mixes text and numbers")),
        ({"a": GOOD, "b": ([[1.0, 2.0]], ["x"])}, ("client 'b'", "text as labels", "numbers")),
        ({"a": PIXELS, "b": (images(2, 4, 4) / 255, [0, 1])}, ("client 'b'", "fractions")),
        ({"a": (images(2, 4, 4) / 2, [0, 1])}, ("client 'a'", "pixels from", "0..1")),
        ({"a": (images(2, 4, 4) / 50 - 2, [0, 1])}, ("client 'a'", "Normalize")),
        ({"a": (images(2, 4, 4, 5), [0, 1])}, ("client 'a'", "1 or 3 channels")),
        ({"a": ([1.0, 2.0], [0, 1])}, ("client 'a'", "(2,)")),
        ({"a": ([[None], [1]], [0, 1])}, ("client 'a'", "object", "DataFrame")),
        ({"a": (np.ma.masked_less([[1.0], [2.0]], 2), [0, 1])}, ("client 'a': x", "masked")),
        ({"a": (3, [0, 1])}, ("client 'a'", "x is of type int")),
        ({"a": (*GOOD, GOOD)}, ("client 'a'", "tuple", "(x, y)")),
        ({"a": np.zeros((4, 2))}, ("client 'a'", "ndarray", "(x, y)")),
        ({"a": {"x": 1}}, ("client 'a'", "dict", "(x, y)")),
        ({"a": Iterable()}, ("client 'a'", "map-style")),
        ({"a": Unreadable()}, ("client 'a'", "row 1", "return (x, y)")),
        ({"a": TensorDataset(torch.zeros(2, 2))}, ("client 'a'", "row 1", "return (x, y)")),
        ({"a": ([[1.0], [2.0]], [0, -1])}, ("client 'a'", "-1", "from 0")),
    ],
)
def test_wrong_objects(data, named):
    refusal(lambda: source_of(data), *named)


def test_a_dataset_that_fails_is_named_with_the_row():
    class Broken(Pictures):
        def __getitem__(self, row):
            raise OSError("no such file: 7.png")

    message = refusal(lambda: source_of({"a": Broken(images(1, 4, 4), [0])}), "client 'a'", "row 1")
    assert "OSError: no such file: 7.png" in message


def test_columns_cannot_be_named_for_arrays():
    refusal(lambda: source_of({"a": GOOD}, label="y"), "--label 'y'", "leave it out")
    refusal(lambda: source_of({"a": GOOD}, image_size=8), "--image-size 8", "table")
