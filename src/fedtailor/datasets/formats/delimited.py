"""Text files of rows: compressed or not, in any usual encoding, with any usual separator."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO

from fedtailor.core.errors import BadInput
from fedtailor.datasets.formats.cells import NEARLY, is_missing
from fedtailor.datasets.wording import quoted, reason

SEPARATORS = (",", ";", "\t", "|")
LOOKED_AT = 50  # rows that must agree on the separator
CHUNK = 1 << 20
NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_WITH_COMMA = re.compile(r"[-+]?(?:\d+|\d{1,3}(?:\.\d{3})+)?,\d+(?:[eE][-+]?\d+)?")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+")
_GROUPED = re.compile(r"[-+]?\d{1,3}(?:\.\d{3})+")
_POINTED = re.compile(r"[-+]?[1-9]\d{0,2}\.\d{3}")
_WITH_POINT = re.compile(r"[-+]?\d*\.\d+(?:[eE][-+]?\d+)?")
_WHOLE = re.compile(r"[-+]?\d+")


def table_ending(path: Path) -> str:
    """What kind of file it is, in lower case; a `.gz` around it does not count.

    Example:
      >>> table_ending(Path("Ward.CSV.gz"))
      '.csv'
    """
    inner = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    return inner.suffix.lower()


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            yield file  # type: ignore[misc]
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadInput(
            f"{quoted(path)} is not a whole gzip file ({reason(error)}): compress it again"
        ) from error
    except OSError as error:
        raise BadInput(f"{quoted(path)} cannot be read ({reason(error)})") from error


def text_encoding(path: Path) -> str:
    """How the file's letters are written: utf-8, utf-16, or else cp1252.

    Raises:
      BadInput: it is no text.
    """
    with _opened(path) as file:
        head = file.read(CHUNK)
        if head.startswith(codecs.BOM_UTF8):
            return "utf-8-sig"
        if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "utf-16"
        if b"\0" in head:
            # a mark is customary but not required: then every other byte of plain text is 0
            even, odd = head[::2].count(0), head[1::2].count(0)
            if not min(even, odd) and 4 * max(even, odd) > len(head):
                return "utf-16-be" if even else "utf-16-le"
            raise BadInput(f"{quoted(path)} is no text (it holds zero bytes): save it as csv")
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            while head:
                decoder.decode(head)
                head = file.read(CHUNK)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return "cp1252"
    return "utf-8"


@contextmanager
def _lines(path: Path, encoding: str) -> Iterator[IO[str]]:
    with _opened(path) as file, io.TextIOWrapper(file, encoding=encoding, newline="") as text:
        yield text


def find_separator(path: Path, encoding: str) -> str:
    """What stands between the fields: what cuts the first rows into the most, all alike.

    Where none cuts them alike, it is what cuts the header into the most.
    """
    widths = {separator: _widths(path, encoding, separator) for separator in SEPARATORS}
    cutting = {s: w for s, w in widths.items() if w and w[0] > 1}
    alike = [s for s, w in cutting.items() if len(set(w)) == 1]
    return max(alike or cutting, key=lambda s: cutting[s][0], default=",")


def _widths(path: Path, encoding: str, separator: str) -> list[int]:
    try:
        with _lines(path, encoding) as file:
            rows = islice(csv.reader(file, delimiter=separator), LOOKED_AT)
            return [len(row) for row in rows if row]
    except (csv.Error, UnicodeDecodeError):
        return []  # whoever reads all rows says where


def csv_rows(
    path: Path, separator: str = ",", encoding: str | None = None
) -> Iterator[tuple[int, list[str]]]:
    """The rows of a csv file with the line each begins on; blank lines are left out."""
    width = 0
    line, end = 1, 0
    encoding = encoding or text_encoding(path)
    try:
        with _lines(path, encoding) as file:
            reader = csv.reader(file, delimiter=separator, strict=True)
            for row in reader:
                line, end = end + 1, reader.line_num
                width = width or len(row)
                if row and len(row) != width:
                    raise BadInput(
                        f"{quoted(path)} line {line} has {len(row)} fields, not {width} as the "
                        f"first line (cut at {NAMES[separator]}): mend the line"
                    )
                if row:
                    yield line, row
    except csv.Error as error:
        raise BadInput(
            f"{quoted(path)} line {end + 1} is not csv ({reason(error)}): mend its quotes"
        ) from error
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{quoted(path)} is neither utf-8 nor {encoding} ({reason(error)}): save it as utf-8"
        ) from error
    if not width:
        raise BadInput(f"{quoted(path)} is empty: fill or remove it")


def with_points(cells: Sequence[str], separator: str) -> list[str] | None:
    """A column's cells with decimal points, if they are numbers with decimal commas; else None.

    Example:
      >>> with_points(["1,5", "2", "1.000,25", ""], ";")
      ['1.5', '2', '1000.25', '']
      >>> with_points(["1,000", "2,500"], ",") is None  # thousands, not fractions
      True
    """
    if not any("," in c for c in cells):
        return None
    stripped = [c.strip() for c in cells]
    written = [c for c in stripped if not is_missing(c)]
    commas = [c for c in written if _WITH_COMMA.fullmatch(c)]
    if not commas or (separator == "," and all(_THOUSANDS.fullmatch(c) for c in commas)):
        return None
    pointed = [c for c in written if _WITH_POINT.fullmatch(c)]
    grouped = any("." in c for c in commas)
    if pointed and not (grouped and all(_GROUPED.fullmatch(c) for c in pointed)):
        return None
    whole = sum(_WHOLE.fullmatch(c) is not None for c in written)
    if len(commas) + len(pointed) + whole < NEARLY * len(written):
        return None
    numeric = (_WITH_COMMA, _GROUPED)
    return [
        c.replace(".", "").replace(",", ".") if any(n.fullmatch(c) for n in numeric) else c
        for c in stripped
    ]


def maybe_thousands(cells: Sequence[str], separator: str) -> bool:
    """Whether a column's points may stand for thousands: in each cell that has any, before three.

    Where commas cut the fields, points are decimal; so they are where a number begins with 0.

    Example:
      >>> [maybe_thousands(cells, ";") for cells in (["950", "1.050"], ["0.950", "1.050"])]
      [True, False]
    """
    pointed = [c.strip() for c in cells if "." in c]
    return separator != "," and bool(pointed) and all(_POINTED.fullmatch(c) for c in pointed)
