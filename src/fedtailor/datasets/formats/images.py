"""Images from files and bytes, as uint8 [n, channels, height, width].

Pillow is imported late: only those who use images wait for it.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtailor.core.errors import BadInput
from fedtailor.datasets.formats.dicom import (
    DICOM,
    ODDITIES,
    dicom_image,
    dicom_notes,
    is_dicom,
    need_pydicom,
    refuse_mixed,
)
from fedtailor.datasets.parts import SourcePart
from fedtailor.datasets.source import Array
from fedtailor.datasets.wording import listed, quoted, reason

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (
    ".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm",
    DICOM,
)  # fmt: skip
GREY_MODES = ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L", "F")
LARGEST_SIDE = 4096
FULL: tuple[float, float] = (0, 65535)  # what 16 bits hold
ORIENTATION, SIDEWAYS = 0x0112, range(5, 9)  # of EXIF
NAMED_BROKEN = 12
# what other programs leave in folders, beside what begins with a point
PASSED_OVER = ("thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx", "icon\r")

Pixels = NDArray[np.uint8]
Levels = tuple[float, float]


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
    if isinstance(data, Path) and is_dicom(data):
        yield dicom_image(data, picture.where)
        return
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


def pixels(
    image: Image.Image, channels: int, size: tuple[int, int], levels: Levels = FULL
) -> Pixels:
    """One image as uint8 [channels, height, width], upright.

    Args:
      image: as opened.
      channels: 1 or 3.
      size: (width, height).
      levels: what of an image of more than 8 bits becomes 0 and 255.
    """
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(image)
    if is_deep(image):
        image = Image.fromarray(_eight_bits(image, levels))
    image = image.convert("RGB" if channels == 3 else "L")
    if image.size != size:
        image = image.resize(size, Image.Resampling.BILINEAR)
    array = np.asarray(image, dtype=np.uint8)
    return array.transpose(2, 0, 1) if channels == 3 else array[None]


def is_deep(image: Image.Image) -> bool:
    """Whether it has more than 8 bits: Pillow would clip those at 255, and most would be white."""
    return _is_deep_mode(image.mode)


def _is_deep_mode(mode: str) -> bool:
    return mode.startswith("I") or mode == "F"


def _deep_values(image: Image.Image) -> Array:
    if image.mode == "F":  # of DICOM
        return np.asarray(image)
    values: Array = np.clip(np.asarray(image), *FULL).astype(np.uint16)
    return values


def _eight_bits(image: Image.Image, levels: Levels) -> Pixels:
    deep = _deep_values(image)
    if levels == FULL and image.mode != "F":
        return (deep >> 8).astype(np.uint8)
    low, high = levels
    share = (deep.astype(np.float64) - low) / ((high - low) or 1)
    return np.rint(255 * np.clip(share, 0, 1)).astype(np.uint8)


class StackedImages(NamedTuple):
    """Images in one array."""

    pixels: Pixels  # uint8 [n, channels, height, width]
    levels: Levels | None = None  # what of deep images became 0 and 255; None: there are none
    notes: tuple[str, ...] = ()  # what was done to bring them together


def stacked(
    pictures: Sequence[EncodedImage],
    image_size: int | None = None,
    *,
    channels: int | None = None,
    size: tuple[int, int] | None = None,
    levels: Levels | None = None,
) -> StackedImages:
    """All pictures in one array of one mode and one size, upright.

    The mode is RGB if any picture is in colour, else grey. The size (width, height) is
    `image_size` squared, or `size`, or, without either, the size of the first picture. Those
    of more than 8 bits are scaled from `levels`, or without it from the range that all of them
    hold.

    Raises:
      BadInput: pictures cannot be read; all of them are named.
    """
    check_size(image_size)
    if any(is_dicom(picture.data) for picture in pictures):
        need_pydicom()
    seen = _survey(pictures, levels)
    if channels is None:
        channels = 3 if any(mode not in GREY_MODES for mode in seen.modes) else 1
    named = size is not None or image_size is not None
    if image_size is not None:
        size = (image_size, image_size)
    size = size or seen.first
    out = np.empty((len(pictures), channels, size[1], size[0]), dtype=np.uint8)
    with _all_broken(pictures) as broken:
        for i, picture in enumerate(pictures):
            with broken.noted(), _opened(picture) as image:
                out[i] = pixels(image, channels, size, seen.levels or FULL)
    return StackedImages(out, seen.levels, seen.notes(channels, size, named))


class _Survey(NamedTuple):
    """What pictures are like before they are brought together."""

    first: tuple[int, int]  # size of the first
    sizes: Counter[tuple[int, int]]
    modes: Counter[str]
    turned: int  # how many the camera says to turn
    oddities: Counter[str]  # what was done to how many DICOM images
    levels: Levels | None  # of those with more than 8 bits
    agreed: bool  # whether these were given, and not found

    def notes(self, channels: int, size: tuple[int, int], named: bool) -> tuple[str, ...]:
        """A line for each thing that is not the same everywhere."""
        notes = []
        if len(self.sizes) > 1:
            told = _counted(Counter({f"{w}x{h}": n for (w, h), n in self.sizes.items()}))
            why = "" if named else ", that of the first (else: --image-size)"
            notes.append(
                f"images of {len(self.sizes)} sizes ({told}) become {size[0]}x{size[1]}{why}"
            )
        if len({mode in GREY_MODES for mode in self.modes}) > 1:
            all_ = "colour" if channels == 3 else "grey"
            notes.append(
                f"images of {len(self.modes)} modes ({_counted(self.modes)}) become {all_}"
            )
        if self.turned:
            notes.append(f"{self.turned:,} images are turned upright, as their camera noted")
        notes += dicom_notes(self.oddities)
        if self.levels is not None:
            deep = sum(n for mode, n in self.modes.items() if _is_deep_mode(mode))
            kind = "DICOM images" if "F" in self.modes else "images of 16 bits"
            low, high = self.levels
            whose = "agreed on" if self.agreed else "that all of them hold"
            ends = f"from {low:,} to {high:,}, the range {whose}"
            notes.append(f"{deep:,} {kind} are scaled {ends}, to 8 bits")
        return tuple(notes)


def _counted(counts: Counter[str]) -> str:
    return listed((f"{name}: {n:,}" for name, n in counts.most_common()), 6)


def _survey(pictures: Sequence[EncodedImage], levels: Levels | None) -> _Survey:
    sizes: Counter[tuple[int, int]] = Counter()
    modes: Counter[str] = Counter()
    kinds: dict[tuple[bool, str], str] = {}
    oddities: Counter[str] = Counter()
    turned, first, agreed = 0, (0, 0), levels is not None
    low, high = np.inf, -np.inf
    with _all_broken(pictures) as broken:
        for picture in pictures:
            with broken.noted(), _opened(picture) as image:
                orientation = image.getexif().get(ORIENTATION, 1)
                size = image.size[::-1] if orientation in SIDEWAYS else image.size
                first = first if sizes else size
                turned += orientation in range(2, 9)
                sizes[size] += 1
                modes[image.mode] += 1
                oddities.update(image.info.get(ODDITIES, ()))
                kinds.setdefault((is_dicom(picture.data), image.mode), picture.where)
                if is_deep(image) and levels is None:
                    values = _deep_values(image)
                    low, high = min(low, values.min()), max(high, values.max())
    refuse_mixed(kinds, levels)
    if levels is None and any(_is_deep_mode(mode) for mode in modes):
        levels = (_plain(low), _plain(high))
    return _Survey(first, sizes, modes, turned, oddities, levels, agreed)


def _plain(level: float) -> float:
    return int(level) if level == int(level) else float(level)


class _Broken:
    """Pictures that cannot be read, to be named together."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        try:
            yield
        except BadInput as error:
            self.messages.append(str(error))


@contextmanager
def _all_broken(pictures: Sequence[EncodedImage]) -> Iterator[_Broken]:
    """Within, what cannot be read is noted; in the end all of it is one refusal.

    Where a header is broken, all pictures are decoded, so that nobody mends them one per try.
    """
    broken = _Broken()
    yield broken
    if not broken.messages:
        return
    every = _Broken()
    for picture in pictures:
        with every.noted(), _opened(picture) as image:
            image.load()
    found = every.messages or broken.messages
    if len(found) == 1:
        raise BadInput(found[0])
    shown = "; ".join(found[:NAMED_BROKEN])
    more = f"; and {len(found) - NAMED_BROKEN} more" if len(found) > NAMED_BROKEN else ""
    raise BadInput(f"{len(found)} images cannot be read: {shown}{more}")


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
    """What the folder holds, sorted, without what is hidden or what other programs leave there."""
    try:
        return sorted(
            p
            for p in folder.iterdir()
            if not p.name.startswith(".") and p.name.lower() not in PASSED_OVER
        )
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


def image_parts(
    folders: Sequence[ImageFolder], image_size: int | None, levels: Levels | None = None
) -> list[SourcePart]:
    """Decode the images of all folders in one mode and one size, so that they can be joined."""
    pictures = [EncodedImage(quoted(p), p) for f in folders for p in f.files]
    images, levels, notes = stacked(pictures, image_size, levels=levels)
    parts, start = [], 0
    for folder in folders:
        rows = slice(start, start + len(folder.files))
        start = rows.stop
        owners = [folder.owner] * len(folder.files) if folder.owner is not None else ()
        labels = np.array(folder.classes)
        parts.append(
            SourcePart(
                images[rows], labels, folder.where, folder.test, owners, notes=notes, levels=levels
            )
        )
    return parts
