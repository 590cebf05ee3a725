"""What crosses between coordinator and site: a small header and flat named arrays.

Nothing here needs torch: Flower starts a new process for every message, and that one must be light.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.plain_text import parse_json

if TYPE_CHECKING:
    from flwr.app import RecordDict

PROTOCOL = 1
# of a message
SURVEY, JOIN, TRAIN, SCORE, FINISH = KINDS = ("survey", "join", "train", "score", "finish")
BFLOAT16 = "|bfloat16"  # numpy has no such numbers: they travel as 16 bits, and their name says so
SAID = ("kind", "federation", "plan", "client", "round", "last")  # what makes a request this one

Value: TypeAlias = str | int | float | bool
Header: TypeAlias = dict[str, Value]
Arrays: TypeAlias = dict[str, np.ndarray[Any, Any]]

_HEADER, _ARRAYS = "header", "arrays"
_KINDS = {np.dtype(k) for k in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "bool")}
_LONGEST_NAME = 1024
_LONGEST_ARRAY_HEADER = 1024  # ours have 118 bytes; a long one could exhaust Python's parser
_STYPE = "numpy.ndarray"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Limits(NamedTuple):
    """The most that a packet may hold; more is refused before it is decoded."""

    bytes: int = 2 << 30  # of all arrays together
    arrays: int = 20_000  # how many
    header: int = 64 << 20  # bytes of the header as JSON


LARGEST = 10**12  # whole number in a header


class Packet(NamedTuple):
    """A message or an answer."""

    header: Header  # who asks or answers, for which round, and small numbers
    arrays: Arrays  # by flat name

    def _value(self, name: str, kinds: tuple[type, ...], what: str) -> Any:
        found = self.header.get(name)
        if not isinstance(found, kinds) or isinstance(found, bool):
            raise BadInput(f"header: '{name}' is {found!r}, expected {what}")
        return found

    def text(self, name: str) -> str:
        """A word of the header."""
        return str(self._value(name, (str,), "text"))

    def number(self, name: str) -> int:
        """A whole number of the header, such as an array may hold and a sum may add up."""
        found = int(self._value(name, (int,), "a whole number"))
        if abs(found) > LARGEST:
            raise BadInput(f"header: '{name}' is {str(found)[:24]}, expected at most {LARGEST}")
        return found

    def real(self, name: str) -> float:
        """A finite number of the header."""
        found = self._value(name, (int, float), "a number")
        if not abs(found) <= sys.float_info.max:  # a whole number may be beyond all others
            raise BadInput(f"header: '{name}' is {str(found)[:24]}, expected a finite number")
        return float(found)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(a.nbytes for a in self.arrays.values())


def checked_id(name: str) -> str:
    """A federation's name, if it is safe as a folder's."""
    if not _ID.fullmatch(name):
        raise BadInput(
            f"federation id '{name[:80]}': use letters, digits, '.', '_' and '-', at most 64"
        )
    return name


def digest(packet: Packet) -> str:
    """Tells whether two requests ask for the same."""
    found = hashlib.sha256(
        json.dumps([packet.header.get(k) for k in SAID], sort_keys=True).encode()
    )
    for name in sorted(packet.arrays):
        array = packet.arrays[name]
        found.update(f"{name}|{array.dtype.str}|{array.shape}|".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def site_name(name: str, client: int) -> str:
    """What people call a site: as its file says, or else by its number."""
    return name or f"site-{client}"


def refusal(code: str, detail: str, **more: Value) -> Packet:
    """The answer of one who cannot or will not: why, in a word and in a line."""
    return Packet({"status": "error", "code": code, "detail": detail, **more}, {})


# --- as bytes, for files and sockets on one machine ---


def to_bytes(packet: Packet) -> bytes:
    """A packet as bytes: JSON, then safetensors; nothing that could run."""
    header = json.dumps(packet.header).encode()
    body = save({k: np.ascontiguousarray(v).reshape(v.shape) for k, v in packet.arrays.items()})
    return len(header).to_bytes(8, "big") + header + body


def from_bytes(raw: bytes, limits: Limits = Limits()) -> Packet:
    """The packet that `to_bytes` was given, checked: it may be none, or larger than allowed."""
    size = int.from_bytes(raw[:8], "big")
    if len(raw) < 8 or size > len(raw) - 8:
        raise BadInput("packet: cut off")
    if size > limits.header or len(raw) > limits.bytes + limits.header:
        raise BadInput(f"packet: {len(raw):,} bytes, at most {limits.bytes:,} are allowed")
    try:
        header = parse_json(raw[8 : 8 + size])
        arrays = load(raw[8 + size :])
    except (ValueError, SafetensorError, KeyError) as error:
        raise BadInput(f"packet: cannot be read ({error})") from None
    packet = Packet(_checked_header(header), arrays)
    _check_size(len(arrays), packet.nbytes, limits)
    return packet


def _checked_header(header: Any) -> Header:
    if not isinstance(header, dict) or not all(
        isinstance(k, str) and isinstance(v, (str, int, float, bool)) for k, v in header.items()
    ):
        raise BadInput("header: not a list of names with texts and numbers")
    return header


def _check_size(count: int, total: int, limits: Limits, around: int = 0) -> None:
    """Refuses too many arrays, or too many bytes; `around` are the bytes of each one's header."""
    if count > limits.arrays:
        raise BadInput(f"message: {count:,} arrays, at most {limits.arrays:,} are allowed")
    if total > limits.bytes + around * count:
        raise BadInput(f"message: {total:,} bytes, at most {limits.bytes:,} are allowed")


# --- as Flower's records ---


def named_file(config: object, key: str) -> Path:
    """The TOML file that an entry of Flower's configuration must name."""
    if not isinstance(config, str) or not config:
        raise BadInput(f"{key} is {config!r}: give the path of its TOML file")
    return Path(config)


def to_records(packet: Packet) -> RecordDict:
    """A packet as Flower's records."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    arrays = {k: Array(np.ascontiguousarray(v).reshape(v.shape)) for k, v in packet.arrays.items()}
    return RecordDict({_ARRAYS: ArrayRecord(arrays), _HEADER: ConfigRecord(dict(packet.header))})


def from_records(records: RecordDict, limits: Limits = Limits()) -> Packet:
    """The packet that Flower brought, checked: it may be none of ours, or larger than allowed."""
    from flwr.app import ArrayRecord, ConfigRecord

    if set(records) != {_HEADER, _ARRAYS}:
        raise BadInput(f"message: has records {sorted(records)}, expected arrays and header")
    arrays, header = records[_ARRAYS], records[_HEADER]
    if not isinstance(arrays, ArrayRecord) or not isinstance(header, ConfigRecord):
        raise BadInput("message: records of other kinds than arrays and settings")
    _check_size(len(arrays), sum(len(a.data) for a in arrays.values()), limits, 1024)
    if sum(len(v) for v in header.values() if isinstance(v, str)) > limits.header:
        raise BadInput(f"header: more than {limits.header:,} bytes")
    found = {}
    for name, array in arrays.items():
        if not name or len(name) > _LONGEST_NAME or array.stype != _STYPE:
            raise BadInput(f"message: '{name[:80]}' is no array of numbers")
        found[name] = _read_array(array.data, name)
    packet = Packet(_checked_header(dict(header)), found)
    _check_size(len(found), packet.nbytes, limits)
    return packet


def _read_array(data: bytes, name: str) -> np.ndarray[Any, Any]:
    """An array in numpy's own form, whose header may lie about what follows."""
    try:
        return _decoded(data)
    except BadInput as error:
        raise BadInput(f"message: '{name}' {error}") from None
    except Exception as error:  # the header is read as Python is: any of its errors may come
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise BadInput(f"message: '{name}' is no array ({said})") from None


def _decoded(data: bytes) -> np.ndarray[Any, Any]:
    stream = io.BytesIO(data)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }[np.lib.format.read_magic(stream)]
    shape, fortran, kind = read(stream, max_header_size=_LONGEST_ARRAY_HEADER)
    if kind not in _KINDS:
        raise BadInput(f"holds {kind}, expected plain numbers")
    begin = stream.tell()
    if min(shape, default=0) < 0 or prod(shape) * kind.itemsize != len(data) - begin:
        raise BadInput(f"says {tuple(shape)} {kind} but holds {len(data) - begin:,} bytes")
    flat = np.frombuffer(data, dtype=kind, offset=begin)
    return flat.reshape(shape, order="F" if fortran else "C")


def envelope_bytes(records: RecordDict, packet: Packet) -> int:
    """Bytes that Flower adds to the arrays: names, types, header (not HTTP and TLS)."""

    def whole(part: Any) -> int:
        return len(part.deflate()) + sum(whole(c) for c in (part.children or {}).values())

    return whole(records) - packet.nbytes
