"""Tiny ImageNet as it is published: class folders to train on, and a list of classes to test."""

from __future__ import annotations

from pathlib import Path

from fedtailor.core.errors import BadInput
from fedtailor.datasets.formats.images import ImageFolder, image_folder, image_parts
from fedtailor.datasets.parts import SourcePart
from fedtailor.datasets.wording import quoted, reason


def tiny_imagenet(folder: Path, image_size: int | None) -> list[SourcePart]:
    """The layout train/CLASS/images/*.JPEG with val/images named by val_annotations.txt."""
    train = image_folder(folder / "train", inner="images")
    return image_parts([train, _tiny_imagenet_test(folder / "val")], image_size)


def _tiny_imagenet_test(folder: Path) -> ImageFolder:
    notes = folder / "val_annotations.txt"
    found = ImageFolder(quoted(folder), [], [], test=True)
    try:
        lines = notes.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{quoted(notes)} cannot be read ({reason(error)})") from error
    for number, line in enumerate(lines, start=1):
        fields = line.split("\t")
        # A plain name only: the notes must not lead out of the folder.
        if len(fields) < 2 or Path(fields[0]).name != fields[0] or not fields[0]:
            raise BadInput(
                f"{quoted(notes)} line {number} is {quoted(line)}: give file name, tab, class name"
            )
        found.files.append(folder / "images" / fields[0])
        found.classes.append(fields[1])
    if not found.files:
        raise BadInput(f"{quoted(notes)} is empty: give one line per validation image")
    return found
