"""Two real federations of hospitals, small and natural, as their owners publish them.

Heart Disease (UCI, CC BY 4.0) was collected by four hospitals. TCGA-BRCA (Genomic Data Commons,
open access) are patients with breast cancer from six regions, prepared by FLamby (Ogier du Terrail
et al., NeurIPS 2022), whose split into training and test rows both have as their official one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedtailor.core.errors import BadInput
from fedtailor.datasets.download import PublishedFile
from fedtailor.datasets.formats.cells import numbers
from fedtailor.datasets.formats.delimited import csv_rows
from fedtailor.datasets.formats.tables import RawTable, read_raw_table, times_and_events
from fedtailor.datasets.natural.published import PublishedData
from fedtailor.datasets.source import Array, Source, Table
from fedtailor.datasets.wording import listed, quoted

UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease"
FLAMBY = "https://raw.githubusercontent.com/owkin/FLamby/main/flamby/datasets"
HOSPITALS_MD5 = {
    "cleveland": "2d91a8ff69cfd9616aa47b59d6f843db",
    "hungarian": "22e96bee155b5973568101c93b3705f6",
    "switzerland": "9a87f7577310b3917730d06ba9349e20",
    "va": "4249d03ca7711e84f4444768c9426170",
}
HEART_COLUMNS = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak",
    "slope", "ca", "thal", "num",
)  # fmt: skip
SPARSE = ("slope", "ca", "thal")  # hardly filled in at three of the hospitals
KINDS = ("cp", "restecg")  # codes of a kind, not amounts
REGIONS = ("northeast", "south", "west", "midwest", "europe", "canada")
TRAIN_SHARE, SPLIT_SEED = 0.66, 43  # of FLamby's split


def heart_disease(*paths: Path) -> Source:
    """Who has a heart disease: 740 patients with all values, of four hospitals."""
    names, tables = tuple(HOSPITALS_MD5), [_complete_rows(path) for path in paths]
    rows = np.concatenate(tables)
    columns: dict[str, Array] = dict(zip(HEART_COLUMNS, rows.T, strict=True))
    labels = (columns.pop("num") > 0).astype(np.int64)
    for name in SPARSE:
        del columns[name]
    for name in KINDS:
        columns[name] = columns[name].astype(np.int64).astype(np.str_)
    owner = np.repeat(np.arange(len(names)), [len(t) for t in tables])
    test = np.concatenate([_flamby_test(labels[owner == i]) for i in range(len(names))])
    return Source(
        "heart-disease", "table", Table(columns), labels, ("no disease", "disease"), test, names,
        owner, label="num",
    )  # fmt: skip


def flamby_heart_disease(*paths: Path) -> Source:
    """The same patients with FLamby's 13 inputs: codes one-hot without the first, as numbers."""
    plain = heart_disease(*paths)
    assert isinstance(plain.raw, Table)
    columns = {n: c for n, c in plain.raw.columns.items() if n not in KINDS}
    for name in KINDS:
        codes = plain.raw.columns[name]
        for code in np.unique(codes)[1:]:
            columns[f"{name}_{code}"] = (codes == code).astype(np.float64)
    return Source(
        "flamby-heart-disease", "table", Table(columns), plain.labels, plain.classes,
        plain.official_test, plain.owners, plain.owner, label="num",
    )  # fmt: skip


def _complete_rows(path: Path) -> Array:
    """The rows that lack nothing but the sparse columns, as numbers."""
    places, cells = [], []
    for line, row in csv_rows(path):
        if len(row) != len(HEART_COLUMNS):
            raise BadInput(
                f"{quoted(path)} line {line} has {len(row)} fields, not {len(HEART_COLUMNS)}: "
                "fetch the file again"
            )
        places.append(line)
        cells.append(row)
    found = numbers([cell for row in cells for cell in row])
    if isinstance(found, int):
        at, column = divmod(found, len(HEART_COLUMNS))
        raise BadInput(
            f"{quoted(path)} line {places[at]} has {quoted(cells[at][column])} as "
            f"{HEART_COLUMNS[column]}: fetch the file again"
        )
    rows = found.reshape(len(cells), -1)
    needed = [i for i, name in enumerate(HEART_COLUMNS) if name not in SPARSE]
    complete = rows[~np.isnan(rows[:, needed]).any(axis=1)]
    if not len(complete):
        raise BadInput(f"{quoted(path)} has no row without missing values: fetch the file again")
    return complete


def _flamby_test(labels: Array) -> Array:
    """Which of a hospital's rows FLamby tests on: drawn by class where each has enough rows."""
    from sklearn.model_selection import train_test_split

    counts = np.bincount(labels, minlength=2)
    by_class = labels if (counts > 2).all() else None
    _, test = train_test_split(
        np.arange(len(labels)),
        test_size=1.0 - TRAIN_SHARE,
        train_size=TRAIN_SHARE,
        random_state=SPLIT_SEED,
        shuffle=True,
        stratify=by_class,
    )
    mask = np.zeros(len(labels), dtype=np.bool_)
    mask[test] = True
    return mask


def tcga_brca(patients_file: Path, split_file: Path) -> Source:
    """How long patients with breast cancer live: 1,088 of six regions, 39 clinical inputs."""
    table = read_raw_table(patients_file)
    split = read_raw_table(split_file)
    where_of = dict(zip(_texts(split, "pid"), _texts(split, "fold2"), strict=True))
    folds = [f"{part}_{i}" for i in range(len(REGIONS)) for part in ("train", "test")]
    for row, fold in enumerate(where_of.values()):
        if fold not in folds:
            raise BadInput(f"{split.at(row)} has fold2 {quoted(fold)}: fetch the file again")
    patients = _texts(table, "pid")
    absent = set(where_of) - set(patients)
    if absent:
        raise BadInput(
            f"{table.where} lacks the patients {listed(sorted(absent))}: fetch the file again"
        )
    _require_columns(table, "T", "E")
    times = times_and_events(table, "T", "E")
    columns = {}
    for name in table.columns:
        if name not in ("pid", "T", "E"):
            found = numbers([str(cell) for cell in table.columns[name]])
            if isinstance(found, int):
                raise BadInput(f"{table.at(found)} has no number as {quoted(name)}: fetch it again")
            columns[name] = found
    # patients that are in no fold are in no published result either
    rows = np.array([i for i, pid in enumerate(patients) if pid in where_of])
    chosen = [where_of[patients[i]] for i in rows]
    test = np.array([fold.startswith("test") for fold in chosen])
    owner = np.array([int(fold[-1]) for fold in chosen], dtype=np.int64)
    return Source(
        "tcga-brca", "table", Table(columns).take(rows), times[rows], (), test, REGIONS, owner,
        task="survival", label="T",
    )  # fmt: skip


def _require_columns(table: RawTable, *names: str) -> None:
    absent = [n for n in names if n not in table.columns]
    if absent:
        raise BadInput(f"{table.where} lacks the columns {listed(absent)}: fetch the file again")


def _texts(table: RawTable, column: str) -> list[str]:
    _require_columns(table, column)
    return [str(cell) for cell in table.columns[column]]


_HEART = tuple(
    PublishedFile(f"processed.{name}.data", f"{UCI}/processed.{name}.data", md5)
    for name, md5 in HOSPITALS_MD5.items()
)
_TCGA = (
    PublishedFile(
        "brca.csv", f"{FLAMBY}/fed_tcga_brca/brca.csv", "989df4ddec084f749d9593146d7ba92f"
    ),
    PublishedFile(
        "train_test_split.csv",
        f"{FLAMBY}/fed_tcga_brca/dataset_creation_scripts/train_test_split.csv",
        "e648057e47463ee7763924d779cd7f2d",
    ),
)
HOSPITALS: Mapping[str, PublishedData] = {
    "heart-disease": PublishedData("heart-disease", ("fedheartdisease",), _HEART, heart_disease),
    "flamby-heart-disease": PublishedData(
        "heart-disease", ("fedheartdisease",), _HEART, flamby_heart_disease
    ),
    "tcga-brca": PublishedData("tcga-brca", ("fedtcgabrca",), _TCGA, tcga_brca),
}
