"""DICOM files: one grey image each, in the values that its scanner meant.

pydicom is imported late, and asked for what pixels need alone: no name, no date and no private
tag of a patient is parsed.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedtailor.core.errors import BadInput
from fedtailor.datasets.source import Array
from fedtailor.datasets.wording import one_line, optional, reason

if TYPE_CHECKING:
    from PIL import Image

DICOM = ".dcm"
READ = [
    "BitsAllocated", "BitsStored", "Columns", "HighBit", "ModalityLUTSequence", "NumberOfFrames",
    "PhotometricInterpretation", "PixelData", "PixelPaddingRangeLimit", "PixelPaddingValue",
    "PixelRepresentation", "RescaleIntercept", "RescaleSlope", "Rows", "SamplesPerPixel",
]  # fmt: skip
ODDITIES = "oddities"  # in an image's `info`: what was done to it, of these
INVERTED, PADDED = "inverted", "padded"
EIGHT, SIXTEEN, SCALED = "8 bits", "9 to 16 bits", "a scale of its own"


def is_dicom(data: Path | bytes) -> bool:
    return isinstance(data, Path) and data.suffix.lower() == DICOM


def need_pydicom() -> Any:
    return optional("pydicom", f"reading {DICOM} files", "dicom")


def dicom_image(path: Path, where: str) -> Image.Image:
    """The image in a file, bright where its values are high.

    The mode says what the values are: "L" 8 bits and "I;16" 9 to 16 bits, both as stored; "F"
    anything else, such as the Hounsfield units of a CT, which may be negative.

    Raises:
      BadInput: the file does not hold one grey image, or it cannot be decoded.
    """
    from PIL import Image

    pydicom = need_pydicom()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is odd but readable is read
            file = pydicom.dcmread(path, specific_tags=READ)
            _check_one_grey(file, where)
            padding = _padding(file)
            values = _values(file, padding)
    except BadInput:
        raise
    except Exception as error:  # a broken file makes the reader fail in any way
        raise BadInput(
            f"{where} is not a readable DICOM image ({reason(error)}): replace or remove it"
        ) from error
    image = Image.fromarray(values)
    done = {INVERTED: _is_inverted(file), PADDED: bool(padding.any())}
    image.info[ODDITIES] = [oddity for oddity, is_so in done.items() if is_so]
    return image


def dicom_notes(counts: Mapping[str, int]) -> list[str]:
    """What was done to how many images, a line each."""
    said = {
        INVERTED: "are inverted, as MONOCHROME1 asks for",
        PADDED: "have padding around what was scanned: it becomes their darkest value",
    }
    return [f"{counts[o]:,} DICOM images {words}" for o, words in said.items() if counts.get(o)]


def _check_one_grey(file: Any, where: str) -> None:
    if "PixelData" not in file:
        raise BadInput(f"{where} holds no pixels of whole numbers: replace or remove it")
    frames = int(file.get("NumberOfFrames") or 1)
    if frames != 1:
        raise BadInput(f"{where} holds {frames} frames: save each as a file of its own")
    kind = str(file.get("PhotometricInterpretation"))
    if kind not in ("MONOCHROME1", "MONOCHROME2") or file.SamplesPerPixel != 1:
        raise BadInput(f"{where} is not grey ({one_line(kind)}): save it in grey, or as PNG")


def _is_inverted(file: Any) -> bool:
    return bool(file.PhotometricInterpretation == "MONOCHROME1")


def _padding(file: Any) -> Array:
    """Which pixels were put around what was scanned, and are no values."""
    stored = file.pixel_array
    if (value := file.get("PixelPaddingValue")) is None:
        return np.zeros(stored.shape, dtype=np.bool_)
    limit = file.get("PixelPaddingRangeLimit")
    # some files have them without the sign of their pixels
    ends = [int(np.array(int(v)).astype(stored.dtype)) for v in (value, limit) if v is not None]
    padding: Array = (stored >= min(ends)) & (stored <= max(ends))
    if padding.all():
        raise ValueError("it holds nothing but padding")
    return padding


def _values(file: Any, padding: Array) -> Array:
    from pydicom.pixels.processing import apply_modality_lut

    stored, bits, signed = file.pixel_array, int(file.BitsStored), bool(file.PixelRepresentation)
    values = apply_modality_lut(stored, file).astype(np.float64)
    if _is_inverted(file):
        # Within what the bits can hold, not what this file holds: a level means the same in all.
        ends = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        held = apply_modality_lut(np.array(ends, dtype=stored.dtype), file)
        values = held.astype(np.float64).sum() - values
    values[padding] = values[~padding].min()
    if not np.isfinite(values).all():
        raise ValueError("rescale slope or intercept is not finite")
    if signed or _is_rescaled(file) or bits < 8 or bits > 16:
        return values.astype(np.float32)
    return values.astype(np.uint8 if bits == 8 else np.uint16)


def _is_rescaled(file: Any) -> bool:
    if file.get("ModalityLUTSequence"):
        return True
    if "RescaleSlope" not in file or "RescaleIntercept" not in file:
        return False  # they hold only together
    slope, intercept = float(file.RescaleSlope), float(file.RescaleIntercept)
    if slope == 0:
        raise ValueError("rescale slope is 0")
    return (slope, intercept) != (1, 0)


def refuse_mixed(kinds: Mapping[tuple[bool, str], str], levels: tuple[float, float] | None) -> None:
    """Refuse DICOM files beside images of which one level would not mean the same.

    Args:
      kinds: where to find one for each (whether it is DICOM, mode) that there is.
      levels: what others agreed on, if they did.
    """
    scaled = levels is not None and (levels[0] < 0 or any(v != int(v) for v in levels))
    for (dicom, mode), where in kinds.items():
        if levels is not None and scaled and not (dicom and _depth(mode) != EIGHT):
            raise BadInput(
                f"{where} holds {_depth(mode)}, but the range agreed on, {levels[0]:,} to "
                f"{levels[1]:,}, is one of DICOM files: give it as {DICOM} in that range"
            )
        for (other_dicom, other), beside in kinds.items():
            # the values of two DICOM files are those of one scale, however they are stored
            joined = other_dicom and EIGHT not in (_depth(mode), _depth(other))
            if dicom and _depth(mode) != _depth(other) and not joined:
                raise BadInput(
                    f"{where} is DICOM of {_depth(mode)}, but {beside} has {_depth(other)}: their "
                    f"levels do not mean the same, so give all images as {DICOM}, in one depth"
                )


def _depth(mode: str) -> str:
    return SCALED if mode == "F" else SIXTEEN if mode.startswith("I") else EIGHT
