"""The user's own data.

Four layouts are understood:

- a folder per client: ROOT/CLIENT/CLASS/*.png, or ROOT/CLIENT/ with one table or npz file;
- one table (csv, tsv, parquet, xlsx, ods; csv and tsv also as .gz), with the client in a column
  (or no clients);
- one npz file with x and y (and client), or x_train, y_train, x_test, y_test;
- one folder of class folders, ROOT/CLASS/*.png, without clients. ROOT/train/CLASS/*.png beside
  ROOT/test/CLASS/*.png is this too, with an official test split.

Images are brought to one mode (RGB if any is in colour) and one size: `image_size`, else the size
of the first image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedtailor.core.errors import BadInput
from fedtailor.datasets.features.choices import ColumnChoices, with_file
from fedtailor.datasets.features.typed import FeatureTables, feature_tables, moments_of
from fedtailor.datasets.formats.arrays import npz_parts
from fedtailor.datasets.formats.delimited import table_ending
from fedtailor.datasets.formats.images import (
    EncodedImage,
    image_folder,
    image_parts,
    is_image,
    stacked,
    visible,
)
from fedtailor.datasets.formats.roles import ColumnRoles, NamedColumns, column_roles
from fedtailor.datasets.formats.tables import (
    TABLES,
    Cells,
    RawTable,
    client_names,
    is_table,
    label_names,
    read_raw_table,
    texts,
    times_and_events,
)
from fedtailor.datasets.join import join_parts
from fedtailor.datasets.labels import TaskChoice
from fedtailor.datasets.parts import SourcePart, same_columns
from fedtailor.datasets.source import Array, Source
from fedtailor.datasets.wording import listed, quoted

TABLE_FILES = (*TABLES, ".npz")
TEST_FOLDERS = ("test", "val", "valid", "validation")


def load_own(
    path: Path,
    named: NamedColumns,
    image_size: int | None,
    task: TaskChoice = "auto",
    choices: ColumnChoices = ColumnChoices(),
) -> Source:
    """The data at `path`, a file or a folder."""
    task = task_of_columns(named, task)
    name = path.name or str(path)
    choices = with_file(choices, path)
    if path.is_dir():
        return _load_folder(path, name, named, image_size, task, choices)
    if not path.exists():
        raise BadInput(f"data {quoted(path)} does not exist: give a file or a folder")
    if path.suffix.lower() == ".npz":
        _refuse_columns(named, choices, path)
        return join_parts(name, npz_parts(path), task=task)
    if is_table(path):
        parts = table_parts(
            [read_raw_table(path, choices.drop)], named, [None], image_size, task, choices
        )
        return join_parts(name, parts, task=task)
    raise BadInput(f"data {quoted(path)} is of no known kind: give {listed(TABLE_FILES)}")


def _refuse_columns(named: NamedColumns, choices: ColumnChoices, path: Path) -> None:
    why = f"names a column but {quoted(path)} has none"
    named.refuse(why)
    choices.refuse(why)


def task_of_columns(named: NamedColumns, task: TaskChoice) -> TaskChoice:
    """The task that was asked for; who names a time and an event means survival."""
    if not named.survival or task == "survival":
        return task
    if task != "auto":
        raise BadInput(
            f"task is {task}, but a time or event column is named: leave those out, or use "
            "--task survival"
        )
    return "survival"


def _of_folders(root: Path, task: TaskChoice) -> TaskChoice:
    """The names of folders are classes, even where they are numbers."""
    if task not in ("auto", "classification"):
        raise BadInput(
            f"task is {task}, but the folders in {quoted(root)} name classes: give a table or an "
            "npz file with numbers"
        )
    return "classification"


def _load_folder(
    root: Path,
    name: str,
    named: NamedColumns,
    image_size: int | None,
    task: TaskChoice,
    choices: ColumnChoices,
) -> Source:
    folders = _folders_only(root)
    if any(is_image(p) for f in folders for p in visible(f)):
        _refuse_columns(named, choices, root)
        parts = image_parts([image_folder(root)], image_size, choices.levels)
        return join_parts(name, parts, task=_of_folders(root, task))
    names = {f.name for f in folders}
    if "train" in names and names <= {"train", *TEST_FOLDERS}:
        _refuse_columns(named, choices, root)
        ordered = sorted(folders, key=lambda f: f.name != "train")
        split = [image_folder(f, test=f.name != "train") for f in ordered]
        return join_parts(
            name, image_parts(split, image_size, choices.levels), task=_of_folders(root, task)
        )
    if named.client is not None:
        raise BadInput(
            f"--client-column {quoted(named.client)} is not used with {quoted(root)}, "
            "whose folders are the clients: leave it out"
        )
    if all(p.is_dir() for f in folders for p in visible(f)):
        _refuse_columns(named, choices, root)
        clients = [image_folder(f, owner=f.name) for f in folders]
        return join_parts(
            name, image_parts(clients, image_size, choices.levels), task=_of_folders(root, task)
        )
    parts = _client_tables(folders, named, image_size, task, choices)
    return join_parts(name, parts, task=task)


def _folders_only(root: Path) -> list[Path]:
    found = visible(root)
    folders = [p for p in found if p.is_dir()]
    if not folders:
        raise BadInput(
            f"folder {quoted(root)} holds no folders ({listed(p.name for p in found)}): "
            "give one folder per client or per class, or name one file"
        )
    for path in found:
        if path not in folders:
            raise BadInput(f"{quoted(path)} lies among the data's folders: move it away")
    for folder in folders:
        if not visible(folder):
            raise BadInput(f"folder {quoted(folder)} is empty: fill or remove it")
    return folders


def _client_tables(
    folders: Sequence[Path],
    named: NamedColumns,
    image_size: int | None,
    task: TaskChoice,
    choices: ColumnChoices,
) -> list[SourcePart]:
    files = [_one_table(folder) for folder in folders]
    endings = sorted({_kind_of_file(f) for f in files})
    if len(endings) > 1:
        odd = next(f for f in files if _kind_of_file(f) != _kind_of_file(files[0]))
        raise BadInput(
            f"{quoted(odd)} is {odd.suffix} but {quoted(files[0])} is {files[0].suffix}: "
            "give all clients the same kind of file"
        )
    owners = [folder.name for folder in folders]
    if endings == [".npz"]:
        _refuse_columns(named, choices, folders[0].parent)
        return [
            replace(p, owners=[owner] * len(p.labels))
            for file, owner in zip(files, owners, strict=True)
            for p in npz_parts(file)
        ]
    tables = [read_raw_table(f, choices.drop) for f in files]
    return table_parts(tables, named, owners, image_size, task, choices)


def _kind_of_file(path: Path) -> str:
    """What must be the same for all clients: how a table is written does not matter otherwise."""
    ending = table_ending(path)
    return ".csv" if ending == ".tsv" else ending


def _one_table(folder: Path) -> Path:
    found = visible(folder)
    tables = [p for p in found if p.is_file() and table_ending(p) in TABLE_FILES]
    others = [p.name for p in found if p not in tables]
    if len(tables) != 1 or others:
        raise BadInput(
            f"client folder {quoted(folder)} holds {listed(p.name for p in found)}: give exactly "
            f"one file ({' '.join(TABLE_FILES)}), or class folders of images, as every client has"
        )
    return tables[0]


def table_parts(
    tables: Sequence[RawTable],
    named: NamedColumns,
    owners: Sequence[str | None],
    image_size: int | None,
    task: TaskChoice = "auto",
    choices: ColumnChoices = ColumnChoices(),
) -> list[SourcePart]:
    """The rows of each table; an owner of None means that a column may name the clients.

    Where folders name the clients, a column with a client's usual name is left out.
    """
    lacking: dict[str, tuple[str, ...]] = {}
    as_given = tables
    if choices.lacking or not (choices.strict or choices.agreed):
        tables, lacking = _filled_up(tables, owners)
    roles = column_roles(tables[0], named, task == "survival")
    _require_roles(as_given, roles, named)
    for table in tables[1:]:
        first, unused = tables[0], {*choices.drop}
        if choices.only:
            unused.update(f for f in roles.features if f not in choices.only)
        here, there = ([c for c in t.columns if c not in unused] for t in (first, table))
        same_columns(here, there, first.where, table.where)
    of_features = {n: kind for n, kind in choices.types.items() if n != named.moment}
    found = _raws(tables, roles, image_size, replace(choices, types=of_features))
    notes = (*(n for t in tables for n in t.notes), *found.notes)
    moments: Sequence[Array | None] = [None] * len(tables)
    if named.moment is not None:
        moments, guessed = moments_of(tables, named.moment, choices.types.get(named.moment))
        notes += guessed
    parts = []
    for table, raw, owner, when in zip(tables, found.tables, owners, moments, strict=True):
        if owner is not None:
            names = [owner] * len(table)
        else:
            names = client_names(table, roles.client) if roles.client else []
        if len(roles.labels) == 2:
            labels = times_and_events(table, *roles.labels)
        else:
            labels = label_names(table, roles.labels[0])
        parts.append(
            SourcePart(
                raw,
                labels,
                table.where,
                False,
                names,
                table.places,
                label=roles.labels[0],
                groups=client_names(table, named.group, "group") if named.group else (),
                moments=when,
                levels=found.levels,
                notes=notes,
                readings=tuple(replace(r, lacking=lacking.get(r.name, ())) for r in found.readings),
            )
        )
    return parts


def _require_roles(tables: Sequence[RawTable], roles: ColumnRoles, named: NamedColumns) -> None:
    """Refuses a table without a column that is more than a feature, or with nothing in common."""
    needed = [*roles.labels, *filter(None, (roles.text, named.group, named.moment))]
    for table in tables:
        for name in needed:
            if name not in table.columns:
                has = next(t.where for t in tables if name in t.columns)
                raise BadInput(
                    f"{table.where} lacks column {quoted(name)}, which {has} has: add it there"
                )
    for table in tables[1:]:
        own, first = ({f for f in roles.features if f in t.columns} for t in (table, tables[0]))
        if not own & first:
            same_columns(list(tables[0].columns), list(table.columns), tables[0].where, table.where)


def _filled_up(
    tables: Sequence[RawTable], owners: Sequence[str | None]
) -> tuple[list[RawTable], dict[str, tuple[str, ...]]]:
    """The tables with every column that one of them has, and by column who lacked it."""
    names = list(dict.fromkeys(name for table in tables for name in table.columns))
    lacking = {
        name: tuple(str(o) for t, o in zip(tables, owners, strict=True) if name not in t.columns)
        for name in names
    }
    filled = []
    for table in tables:
        empty: Cells = np.full(len(table), np.nan) if table.typed else [""] * len(table)
        columns = {name: table.columns.get(name, empty) for name in names}
        filled.append(replace(table, columns=columns))
    return filled, {name: who for name, who in lacking.items() if who}


def _raws(
    tables: Sequence[RawTable], roles: ColumnRoles, image_size: int | None, choices: ColumnChoices
) -> FeatureTables:
    if roles.text is not None:
        choices.refuse(f"is not used where the text in {quoted(roles.text)} is all that is read")
        return FeatureTables([texts(table, roles.text) for table in tables])
    if len(roles.features) == 1 and holds_images(tables[0], roles.features[0]):
        pictures = [encoded_images(table, roles.features[0]) for table in tables]
        found = stacked([p for ps in pictures for p in ps], image_size, levels=choices.levels)
        ends = np.cumsum([len(ps) for ps in pictures])
        images = np.split(found.pixels, ends[:-1])
        return FeatureTables(images, (), found.notes, found.levels)
    first = tables[0]
    return feature_tables(
        tables, choices.of(roles.features, tuple(first.columns), first.where), choices
    )


def holds_images(table: RawTable, column: str) -> bool:
    cells = table.columns[column]
    return isinstance(cells, list) and isinstance(cells[0], bytes)


def encoded_images(table: RawTable, column: str) -> list[EncodedImage]:
    """The encoded images in a column of bytes."""
    cells = table.columns[column]
    if not holds_images(table, column):
        raise BadInput(f"{table.where} column {quoted(column)} holds no image bytes")
    return [EncodedImage(table.at(i), c) for i, c in enumerate(cells) if isinstance(c, bytes)]
