"""Images from files and bytes, as uint8 [n, channels, height, width].

Pillow is imported late: only those who use images wait for it.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtailor.core.errors import BadInput
from fedtailor.datasets.parts import SourcePart
from fedtailor.datasets.source import Array
from fedtailor.datasets.wording import quoted, reason

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
GREY_MODES = ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L")
LARGEST_SIDE = 4096

Pixels = NDArray[np.uint8]


class EncodedImage(NamedTuple):
    """An encoded image: where messages say it came from, and its file or its bytes."""

    where: str
    data: Path | bytes


def is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


@contextmanager
def _opened(picture: EncodedImage) -> Iterator[Image.Image]:
    from PIL import Image

    data = picture.data
    try:
        with Image.open(io.BytesIO(data) if isinstance(data, bytes) else data) as image:
            if image.mode == "F":
                raise BadInput(
                    f"{picture.where} holds floating-point pixels: save it with 8 or 16 bits"
                )
            yield image
    except BadInput:
        raise
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise BadInput(
            f"{picture.where} is not a readable image ({reason(error)}): replace or remove it"
        ) from error


def pixels(image: Image.Image, channels: int, size: tuple[int, int]) -> Pixels:
    """One image as uint8 [channels, height, width]; `size` is (width, height)."""
    from PIL import Image

    if image.mode.startswith("I"):
        # 16-bit scans: Pillow would clip them at 255, which makes most of a scan white.
        deep = np.clip(np.asarray(image), 0, 65535).astype(np.uint16)
        image = Image.fromarray((deep >> 8).astype(np.uint8))
    image = image.convert("RGB" if channels == 3 else "L")
    if image.size != size:
        image = image.resize(size, Image.Resampling.BILINEAR)
    array = np.asarray(image, dtype=np.uint8)
    return array.transpose(2, 0, 1) if channels == 3 else array[None]


def stacked(
    pictures: Sequence[EncodedImage],
    image_size: int | None = None,
    *,
    channels: int | None = None,
    size: tuple[int, int] | None = None,
) -> Pixels:
    """All pictures in one array of one mode and one size.

    The mode is RGB if any picture is in colour, else grey. The size (width, height) is
    `image_size` squared, or `size`, or, without either, the size of the first picture.
    """
    check_size(image_size)
    if channels is None:
        channels = 3 if any(_is_colour(p) for p in pictures) else 1
    if image_size is not None:
        size = (image_size, image_size)
    if size is None:
        with _opened(pictures[0]) as first:
            size = first.size
    out = np.empty((len(pictures), channels, size[1], size[0]), dtype=np.uint8)
    for i, picture in enumerate(pictures):
        with _opened(picture) as image:
            out[i] = pixels(image, channels, size)
    return out


def _is_colour(picture: EncodedImage) -> bool:
    with _opened(picture) as image:
        return image.mode not in GREY_MODES


def check_size(image_size: int | None) -> None:
    if image_size is not None and not 1 <= image_size <= LARGEST_SIDE:
        raise BadInput(f"image size {image_size} is out of range: use 1..{LARGEST_SIDE} pixels")


def resized(images: Array, image_size: int) -> Pixels:
    """Every image brought to `image_size` x `image_size`."""
    from PIL import Image

    check_size(image_size)
    if images.shape[2:] == (image_size, image_size):
        return images
    out = np.empty((*images.shape[:2], image_size, image_size), dtype=np.uint8)
    for place in np.ndindex(*images.shape[:2]):
        plane = Image.fromarray(np.ascontiguousarray(images[place]))
        out[place] = plane.resize((image_size, image_size), Image.Resampling.BILINEAR)
    return out


def channels_first(x: Array, where: str) -> Pixels:
    """uint8 [n, c, h, w] from an array that is NHW, NHWC or NCHW.

    The axis of length 1 or 3 holds the channels; if both ends qualify, the first is taken.
    """
    if x.dtype != np.uint8:
        fits = x.size and x.dtype.kind in "iufb" and bool(np.isin(x, np.arange(256)).all())
        if not fits or x.max() <= 1:
            raise BadInput(
                f"{where} holds images as {x.dtype}, not as whole numbers 0..255: "
                "scale them and save them as uint8"
            )
        x = x.astype(np.uint8)
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and x.shape[1] in (1, 3):
        return x
    if x.ndim == 4 and x.shape[3] in (1, 3):
        return np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    raise BadInput(
        f"{where} has shape {x.shape}: give images as [n, h, w], [n, h, w, c] or [n, c, h, w] "
        "with 1 or 3 channels"
    )


def visible(folder: Path) -> list[Path]:
    """What the folder holds, sorted, without hidden files."""
    try:
        return sorted(p for p in folder.iterdir() if not p.name.startswith("."))
    except OSError as error:
        raise BadInput(f"folder {quoted(folder)} cannot be read ({reason(error)})") from error


def image_files(folder: Path) -> list[Path]:
    """The images directly in the folder; anything else that is not hidden is an error."""
    files = visible(folder)
    for path in files:
        if not path.is_file() or not is_image(path):
            raise BadInput(
                f"{quoted(path)} is not an image but lies in an image folder: move it away "
                f"(known endings: {' '.join(SUFFIXES)})"
            )
    if not files:
        raise BadInput(f"class folder {quoted(folder)} holds no images: fill or remove it")
    return files


class ImageFolder(NamedTuple):
    """Image files of one place with the name of each one's class."""

    where: str
    files: list[Path]
    classes: list[str]
    test: bool = False
    owner: str | None = None


def image_folder(
    folder: Path, *, inner: str = "", test: bool = False, owner: str | None = None
) -> ImageFolder:
    """The images of FOLDER/CLASS/*.png, or of FOLDER/CLASS/INNER/*.png."""
    files: list[Path] = []
    classes: list[str] = []
    for class_folder in visible(folder):
        if not class_folder.is_dir():
            raise BadInput(f"{quoted(class_folder)} lies among class folders: move it away")
        found = image_files(class_folder / inner)
        files += found
        classes += [class_folder.name] * len(found)
    if not files:
        raise BadInput(f"{quoted(folder)} holds no class folders: put images in CLASS/ folders")
    return ImageFolder(quoted(folder), files, classes, test, owner)


def image_parts(folders: Sequence[ImageFolder], image_size: int | None) -> list[SourcePart]:
    """Decode the images of all folders in one mode and one size, so that they can be joined."""
    images = stacked([EncodedImage(quoted(p), p) for f in folders for p in f.files], image_size)
    parts, start = [], 0
    for folder in folders:
        rows = slice(start, start + len(folder.files))
        start = rows.stop
        owners = [folder.owner] * len(folder.files) if folder.owner is not None else ()
        labels = np.array(folder.classes)
        parts.append(SourcePart(images[rows], labels, folder.where, folder.test, owners))
    return parts


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
