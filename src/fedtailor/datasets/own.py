"""The user's own data.

Four layouts are understood:

- a folder per client: ROOT/CLIENT/CLASS/*.png, or ROOT/CLIENT/ with one csv, parquet or npz file;
- one csv or parquet table, with the client in a column (or no clients);
- one npz file with x and y (and client), or x_train, y_train, x_test, y_test;
- one folder of class folders, ROOT/CLASS/*.png, without clients. ROOT/train/CLASS/*.png beside
  ROOT/test/CLASS/*.png is this too, with an official test split.

Images are brought to one mode (RGB if any is in colour) and one size: `image_size`, else the size
of the first image.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedtailor.core.errors import BadInput
from fedtailor.datasets.formats.arrays import npz_parts
from fedtailor.datasets.formats.images import (
    Picture,
    Shelf,
    is_image,
    parts_of,
    shelf_of,
    stacked,
    visible,
)
from fedtailor.datasets.formats.tables import (
    Roles,
    Sheet,
    Wishes,
    client_names,
    feature_table,
    label_names,
    read_sheet,
    roles_of,
    texts,
)
from fedtailor.datasets.parts import Part, assemble, same_columns
from fedtailor.datasets.source import Raw, Source
from fedtailor.datasets.wording import listed, shown

TABLES = (".csv", ".parquet")
TABLE_FILES = (*TABLES, ".npz")
TEST_FOLDERS = ("test", "val", "valid", "validation")


def load_own(path: Path, wishes: Wishes, image_size: int | None) -> Source:
    """The data at `path`, a file or a folder."""
    name = path.name or str(path)
    if path.is_dir():
        return _load_folder(path, name, wishes, image_size)
    if not path.exists():
        raise BadInput(f"data '{shown(path)}' does not exist: give a file or a folder")
    if path.suffix.lower() == ".npz":
        wishes.refuse(f"names a column but '{shown(path)}' has none")
        return assemble(name, npz_parts(path))
    if path.suffix.lower() in TABLES:
        return assemble(name, sheet_parts([read_sheet(path)], wishes, [None], image_size))
    raise BadInput(f"data '{shown(path)}' is of no known kind: give {listed(TABLE_FILES)}")


def _load_folder(root: Path, name: str, wishes: Wishes, image_size: int | None) -> Source:
    folders = _folders_only(root)
    if any(is_image(p) for f in folders for p in visible(f)):
        wishes.refuse(f"names a column but '{shown(root)}' has none")
        return assemble(name, parts_of([shelf_of(root)], image_size))
    names = {f.name for f in folders}
    if "train" in names and names <= {"train", *TEST_FOLDERS}:
        wishes.refuse(f"names a column but '{shown(root)}' has none")
        ordered = sorted(folders, key=lambda f: f.name != "train")
        shelves = [shelf_of(f, test=f.name != "train") for f in ordered]
        return assemble(name, parts_of(shelves, image_size))
    if wishes.client is not None:
        raise BadInput(
            f"--client-column '{shown(wishes.client)}' is not used with '{shown(root)}', "
            "whose folders are the clients: leave it out"
        )
    if all(p.is_dir() for f in folders for p in visible(f)):
        wishes.refuse(f"names a column but '{shown(root)}' has none")
        return assemble(name, parts_of([_client_shelf(f) for f in folders], image_size))
    return assemble(name, _client_tables(folders, wishes, image_size))


def _folders_only(root: Path) -> list[Path]:
    found = visible(root)
    folders = [p for p in found if p.is_dir()]
    if not folders:
        raise BadInput(
            f"folder '{shown(root)}' holds no folders ({listed(p.name for p in found)}): "
            "give one folder per client or per class, or name one file"
        )
    for path in found:
        if path not in folders:
            raise BadInput(f"'{shown(path)}' lies among the data's folders: move it away")
    for folder in folders:
        if not visible(folder):
            raise BadInput(f"folder '{shown(folder)}' is empty: fill or remove it")
    return folders


def _client_shelf(folder: Path) -> Shelf:
    return shelf_of(folder, owner=folder.name)


def _client_tables(folders: Sequence[Path], wishes: Wishes, image_size: int | None) -> list[Part]:
    files = [_one_table(folder) for folder in folders]
    endings = sorted({f.suffix.lower() for f in files})
    if len(endings) > 1:
        odd = next(f for f in files if f.suffix.lower() != files[0].suffix.lower())
        raise BadInput(
            f"'{shown(odd)}' is {odd.suffix} but '{shown(files[0])}' is {files[0].suffix}: "
            "give all clients the same kind of file"
        )
    owners = [folder.name for folder in folders]
    if endings == [".npz"]:
        wishes.refuse(f"names a column but '{shown(folders[0].parent)}' has none")
        return [
            Part(p.raw, p.labels, p.where, p.test, [owner] * len(p.labels))
            for file, owner in zip(files, owners, strict=True)
            for p in npz_parts(file)
        ]
    return sheet_parts([read_sheet(f) for f in files], wishes, owners, image_size)


def _one_table(folder: Path) -> Path:
    found = visible(folder)
    tables = [p for p in found if p.is_file() and p.suffix.lower() in TABLE_FILES]
    others = [p.name for p in found if p not in tables]
    if len(tables) != 1 or others:
        raise BadInput(
            f"client folder '{shown(folder)}' holds {listed(p.name for p in found)}: give exactly "
            "one csv, parquet or npz file, or class folders of images, as every client has"
        )
    return tables[0]


def sheet_parts(
    sheets: Sequence[Sheet], wishes: Wishes, owners: Sequence[str | None], image_size: int | None
) -> list[Part]:
    """The rows of each sheet; an owner of None means that a column may name the clients.

    Where folders name the clients, a column with a client's usual name is left out.
    """
    roles = roles_of(sheets[0], wishes)
    for sheet in sheets[1:]:
        first = sheets[0]
        same_columns(tuple(first.columns), tuple(sheet.columns), first.where, sheet.where)
    raws = _raws(sheets, roles, image_size)
    parts = []
    for sheet, raw, owner in zip(sheets, raws, owners, strict=True):
        if owner is not None:
            names = [owner] * len(sheet)
        else:
            names = client_names(sheet, roles.client) if roles.client else []
        labels = label_names(sheet, roles.label)
        parts.append(Part(raw, labels, sheet.where, owners=names))
    return parts


def _raws(sheets: Sequence[Sheet], roles: Roles, image_size: int | None) -> Sequence[Raw]:
    if roles.text is not None:
        return [texts(sheet, roles.text) for sheet in sheets]
    if len(roles.features) == 1 and holds_images(sheets[0], roles.features[0]):
        pictures = [pictures_of(sheet, roles.features[0]) for sheet in sheets]
        images = stacked([p for ps in pictures for p in ps], image_size)
        ends = np.cumsum([len(ps) for ps in pictures])
        return np.split(images, ends[:-1])
    return feature_table(sheets, roles.features)


def holds_images(sheet: Sheet, column: str) -> bool:
    cells = sheet.columns[column]
    return isinstance(cells, list) and isinstance(cells[0], bytes)


def pictures_of(sheet: Sheet, column: str) -> list[Picture]:
    """The encoded images in a column of bytes."""
    cells = sheet.columns[column]
    if not holds_images(sheet, column):
        raise BadInput(f"{sheet.where} column '{shown(column)}' holds no image bytes")
    return [Picture(sheet.at(i), c) for i, c in enumerate(cells) if isinstance(c, bytes)]
