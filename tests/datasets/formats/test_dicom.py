"""DICOM files among images."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from PIL import Image

from fedtailor.datasets import ColumnChoices, Encoder, encode, load, read_examples
from tests.datasets.datafiles import images, refusal, write_image

SECRET = "Doe^Jane"


def write_dicom(path, values, *, bits=12, kind="MONOCHROME2", syntax=None, **tags):
    """A file with preamble and file meta, of int or uint values [height, width(, 3)]."""
    pydicom = pytest.importorskip("pydicom")
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = CTImageStorage, generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    file.SOPClassUID, file.SOPInstanceUID = CTImageStorage, meta.MediaStorageSOPInstanceUID
    file.PatientName = SECRET
    file.Rows, file.Columns = values.shape[:2]
    file.SamplesPerPixel = 3 if values.ndim == 3 else 1
    if values.ndim == 3:
        file.PlanarConfiguration = 0
    file.PhotometricInterpretation = kind
    file.BitsAllocated = 8 * values.dtype.itemsize
    file.BitsStored, file.HighBit = bits, bits - 1
    file.PixelRepresentation = int(values.dtype.kind == "i")
    file.PixelData = values.tobytes()
    for name, value in tags.items():
        setattr(file, name, value)
    if syntax == "rle":
        file.compress(pydicom.uid.RLELossless)
    elif syntax is not None:  # says so, whatever the bytes are
        file.PixelData = pydicom.encaps.encapsulate([b"\xff\xd8 no pixels"])
        file["PixelData"].VR = "OB"
        file.file_meta.TransferSyntaxUID = pydicom.uid.UID(syntax)
    path.parent.mkdir(parents=True, exist_ok=True)
    file.save_as(path, enforce_file_format=True)
    return path


def ramp(dtype=np.uint16, top=4095):
    return np.linspace(0, top, 64).round().astype(dtype).reshape(8, 8)


def test_rescaled_files_share_one_range_however_they_are_stored(tmp_path):
    """The same Hounsfield units, stored unsigned, signed and compressed, become the same grey."""
    unsigned, signed = ramp(), ramp(np.int16) - 1024
    ct = {"RescaleSlope": 1, "RescaleIntercept": -1024}
    write_dicom(tmp_path / "ill" / "a.dcm", unsigned, **ct)
    write_dicom(tmp_path / "ill" / "b.DCM", signed.astype(np.int16), bits=16)
    write_dicom(tmp_path / "well" / "c.dcm", unsigned, syntax="rle", **ct)
    write_dicom(tmp_path / "well" / "d.dcm", unsigned // 2, **ct)
    source = load(str(tmp_path))
    assert source.levels == (-1024, 3071) and source.raw.shape == (4, 1, 8, 8)
    (note,) = source.notes
    assert "4 DICOM images are scaled from -1,024 to 3,071, the range that all of them" in note
    want = np.rint(unsigned.astype(float) * 255 / 4095)
    for i in range(3):
        np.testing.assert_array_equal(source.raw[i, 0], want)
    assert source.raw[3].max() == 127

    encoder, x = encode(source, np.arange(4))
    encoder = Encoder.from_json(encoder.to_json())
    assert encoder.levels == (-1024, 3071)
    np.testing.assert_array_equal(read_examples([tmp_path / "well" / "d.dcm"], encoder).x[0], x[3])
    # a federation's range, wider than the site's own
    agreed = ColumnChoices(agreed=True, levels=(-1024, 7166))
    assert load(str(tmp_path), columns=agreed).raw.max() == 128  # half of 255

    png = tmp_path / "new.png"
    write_image(png, images(8, 8))
    refusal(lambda: read_examples([png], encoder), "new.png", "8 bits", "-1,024 to 3,071")


def test_small_values_keep_their_levels(tmp_path):
    """Uptake between 0 and 0.4 is not rounded to whole numbers."""
    write_dicom(tmp_path / "a" / "0.dcm", ramp(), RescaleSlope=0.0001, RescaleIntercept=0)
    write_dicom(tmp_path / "b" / "0.dcm", ramp(), RescaleSlope=0.00005, RescaleIntercept=0)
    source = load(str(tmp_path))
    assert source.levels == pytest.approx((0, 0.4095))
    assert len(np.unique(source.raw[0])) == 64 and source.raw[1].max() in (127, 128)
    encoder = Encoder.from_json(encode(source, np.arange(2))[0].to_json())
    assert encoder.levels == source.levels


def test_monochrome1_is_inverted_within_what_its_bits_hold(tmp_path):
    write_dicom(tmp_path / "a" / "0.dcm", ramp())
    write_dicom(tmp_path / "b" / "0.dcm", 4095 - ramp(), kind="MONOCHROME1")
    write_dicom(tmp_path / "b" / "1.dcm", np.full((8, 8), 4095, np.uint16), kind="MONOCHROME1")
    source = load(str(tmp_path))
    np.testing.assert_array_equal(source.raw[0], source.raw[1])
    assert source.raw[2].max() == 0 and source.levels == (0, 4095)
    assert source.notes[0] == "2 DICOM images are inverted, as MONOCHROME1 asks for"
    ct = {"RescaleSlope": 2, "RescaleIntercept": -1000}
    write_dicom(tmp_path / "a" / "0.dcm", ramp(), **ct)
    write_dicom(tmp_path / "b" / "0.dcm", 4095 - ramp(), kind="MONOCHROME1", **ct)
    write_dicom(tmp_path / "b" / "1.dcm", ramp(), **ct)
    source = load(str(tmp_path))
    np.testing.assert_array_equal(source.raw[0], source.raw[1])
    assert source.levels == (-1000, 7190)


def test_a_modality_table_is_applied(tmp_path):
    pydicom = pytest.importorskip("pydicom")
    table = pydicom.Dataset()
    table.LUTDescriptor, table.ModalityLUTType = [4, 0, 16], "US"
    table["LUTDescriptor"].VR = "US"
    table.add_new("LUTData", "US", [0, 10, 100, 1000])
    values = np.array([[0, 1], [2, 3]], np.uint16)
    write_dicom(tmp_path / "a" / "0.dcm", values, ModalityLUTSequence=[table])
    write_dicom(tmp_path / "b" / "0.dcm", values, ModalityLUTSequence=[table])
    source = load(str(tmp_path))
    assert source.levels == (0, 1000) and source.raw[0].ravel().tolist() == [0, 3, 26, 255]


def test_all_that_cannot_be_read_is_named_together(tmp_path):
    write_dicom(tmp_path / "a" / "good.dcm", ramp())
    write_dicom(tmp_path / "a" / "colour.dcm", images(8, 8, 3), bits=8, kind="RGB")
    write_dicom(tmp_path / "a" / "film.dcm", np.tile(ramp(), (2, 1)), Rows=8, NumberOfFrames=2)
    write_dicom(tmp_path / "a" / "packed.dcm", ramp(), syntax="1.2.840.10008.1.2.4.70")
    write_dicom(tmp_path / "b" / "flat.dcm", ramp(), RescaleSlope=0, RescaleIntercept=0)
    short = write_dicom(tmp_path / "b" / "short.dcm", ramp())
    short.write_bytes(short.read_bytes()[:-40])
    (tmp_path / "b" / "text.dcm").write_text("no image")
    (tmp_path / "b" / "z.png").write_bytes(b"no image")
    said = refusal(
        lambda: load(str(tmp_path)), "7 images cannot be read", "colour.dcm' is not grey (RGB)",
        "film.dcm' holds 2 frames", "packed.dcm' is not a readable", "rescale slope is 0",
        "short.dcm' is not a readable", "text.dcm' is not a readable", "z.png",
    )  # fmt: skip
    assert "good.dcm" not in said and SECRET not in said


def test_images_of_one_depth_may_be_mixed_and_others_are_refused(tmp_path):
    byte = images(8, 8)
    write_dicom(tmp_path / "a" / "0.dcm", byte, bits=8)
    write_image(tmp_path / "b" / "0.png", byte)
    source = load(str(tmp_path))
    assert source.levels is None and not source.notes
    np.testing.assert_array_equal(source.raw[0], source.raw[1])
    deep = write_dicom(tmp_path / "a" / "0.dcm", ramp())
    refusal(lambda: load(str(tmp_path)), "a/0.dcm", "9 to 16 bits", "b/0.png", "8 bits")
    encoder = encode(source, np.arange(2))[0]
    refusal(lambda: read_examples([deep], encoder), "0.dcm", "8 bits")

    Image.fromarray(ramp()).save(tmp_path / "b" / "0.png")
    source = load(str(tmp_path))
    np.testing.assert_array_equal(source.raw[0], source.raw[1])
    assert "2 images of 16 bits" in source.notes[0]
    write_dicom(tmp_path / "a" / "0.dcm", ramp(), RescaleSlope=1, RescaleIntercept=-1024)
    refusal(lambda: load(str(tmp_path)), "a/0.dcm", "scale of its own", "b/0.png", "as .dcm")


def test_what_is_needed_is_said_once(tmp_path, monkeypatch):
    for name in ("a/0.dcm", "a/1.dcm", "b/0.dcm"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pydicom", None)
    said = refusal(lambda: load(str(tmp_path)), "'pydicom'", "pip install 'fedtailor[dicom]'")
    assert said.count("pydicom") == 1


def test_only_what_pixels_need_is_read():
    pytest.importorskip("pydicom")
    from pydicom.datadict import tag_for_keyword

    from fedtailor.datasets.formats.dicom import READ

    tags = [tag_for_keyword(name) for name in READ]
    assert {tag >> 16 for tag in tags if tag is not None} == {0x0028, 0x7FE0} and None not in tags


@pytest.mark.parametrize("levels", [[1], [2, 1], ["0", 1], [0, float("nan")], [True, 2]])
def test_a_range_that_is_none_is_refused(tmp_path, levels):
    write_image(tmp_path / "a" / "0.png", images(8, 8))
    write_image(tmp_path / "b" / "0.png", images(8, 8))
    data = encode(load(str(tmp_path)), np.arange(2))[0].to_json()
    refusal(lambda: Encoder.from_json(data | {"levels": levels}), "levels")


@pytest.mark.parametrize("kind", ["MONOCHROME2", "MONOCHROME1"])
def test_padding_is_no_value(tmp_path, kind):
    """A scanner's −2000 outside of its circle neither sets the range nor counts as dark tissue."""
    scan = ramp(np.int16, 1000)
    padded = scan.copy()
    padded[:2] = -2000
    write_dicom(tmp_path / "ill" / "a.dcm", padded, bits=16, kind=kind, PixelPaddingValue=-2000)
    write_dicom(tmp_path / "well" / "b.dcm", scan, bits=16, kind=kind)
    source = load(str(tmp_path))
    ends = (-1001, -1) if kind == "MONOCHROME1" else (0, 1000)  # −1 − value is the inverse
    assert source.levels == ends
    assert "1 DICOM images have padding around what was scanned" in " ".join(source.notes)
    inner, whole = source.raw[0, 0, 2:], source.raw[1, 0, 2:]
    np.testing.assert_array_equal(inner, whole)
    assert (source.raw[0, 0, :2] == inner.min()).all()


def test_padding_may_be_a_range_and_lack_its_sign(tmp_path):
    values = ramp(np.int16, 1000)
    values[0, :4] = [-2000, -1999, -1990, -2000]
    write_dicom(
        tmp_path / "ill" / "a.dcm", values, bits=16,
        PixelPaddingValue=-2000, PixelPaddingRangeLimit=-1990,
    )  # fmt: skip
    write_dicom(tmp_path / "well" / "b.dcm", ramp(np.int16, 1000), bits=16)
    assert load(str(tmp_path)).levels == (0, 1000)
    blank = np.full((8, 8), -2000, np.int16)
    write_dicom(tmp_path / "well" / "c.dcm", blank, bits=16, PixelPaddingValue=-2000)
    refusal(lambda: load(str(tmp_path)), "c.dcm", "nothing but padding")


def test_a_range_that_was_agreed_on_is_called_so(tmp_path):
    for name in ("a", "b"):
        write_dicom(tmp_path / name / "x.dcm", ramp(), bits=12)
    agreed = ColumnChoices(agreed=True, levels=(0, 8000))
    (note,) = load(str(tmp_path), columns=agreed).notes
    assert "from 0 to 8,000, the range agreed on, to 8 bits" in note
    assert "that all of them hold" in load(str(tmp_path)).notes[0]
