"""Packets and trees: exact on the way there, checked on the way back."""

import numpy as np
import pytest
import torch

from fedtailor.core import wire
from fedtailor.core.errors import BadInput
from fedtailor.federation.protocol.messages import (
    from_arrays,
    like_of,
    spec_of,
    to_arrays,
    unknown_parts,
)
from fedtailor.federation.protocol.packet import (
    Limits,
    Packet,
    digest,
    from_bytes,
    from_records,
    to_bytes,
    to_records,
)

MESSAGE = {
    "params": {"w": torch.randn(2, 3), "b": torch.tensor(0.5), "half": torch.ones(2).half()},
    "short": {"x": torch.tensor([1.5, -2.25], dtype=torch.bfloat16)},
    "flag": torch.tensor([True, False]),
    "count": torch.tensor(3),
    "empty": {},
    "rows": wire.maybe(torch.tensor([True, False]), {"m": torch.ones(2, 2)}),
    "once": wire.maybe(torch.tensor(False), {"o": torch.ones(4)}),
}


def same(a, b):
    from fedtailor.core import tree

    one, two = tree.flatten(a), tree.flatten(b)
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


def through_flower(packet, limits=Limits()):
    pytest.importorskip("flwr", reason="needs flwr: pip install 'fedtailor[flower]'")
    return from_records(to_records(packet), limits)


@pytest.mark.parametrize("way", [lambda p: from_bytes(to_bytes(p)), through_flower])
def test_everything_survives(way):
    sent = Packet({"kind": "train", "round": 3, "weight": 0.1, "post": True}, to_arrays(MESSAGE))
    back = way(sent)
    assert back.header == sent.header and digest(back) == digest(sent)
    whole = from_arrays(back.arrays, like_of(spec_of(MESSAGE)))
    assert same(wire.as_sent(whole), wire.as_sent(MESSAGE))
    assert wire.size(whole) == wire.size(MESSAGE)


def test_only_what_is_there_travels():
    sent = Packet({}, to_arrays(MESSAGE))
    flags = 3  # one byte for each row that may be missing
    assert sent.nbytes == int(wire.size(MESSAGE)) + flags


def test_what_was_not_sent_shows():
    shown = unknown_parts(MESSAGE)
    assert wire.value(shown["once"])["o"].isnan().all()
    assert wire.value(shown["rows"])["m"].isnan().any(1).tolist() == [False, True]
    assert not shown["params"]["w"].isnan().any()


LIKE = {"a": {"w": torch.zeros(2, 2)}, "b": torch.zeros(3, dtype=torch.int64)}
GOOD = {"a/w": np.ones((2, 2), np.float32), "b": np.arange(3)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"a/w": np.ones((2, 3), np.float32)}, "'a/w' is \\(2, 3\\)"),
        ({"a/w": np.ones((2, 2))}, "torch.float64"),
        ({"a/w": np.full((2, 2), np.nan, np.float32)}, "not finite"),
        ({"a/w": np.full((2, 2), np.inf, np.float32)}, "not finite"),
        ({"c": np.ones(1)}, "expected \\['a', 'b'\\]"),
        ({"a": np.ones(1)}, "lies within numbers"),
        ({"a/w/x": np.ones(1)}, "lies within numbers"),
    ],
)
def test_garbage_is_named(change, said):
    torch.set_default_dtype(torch.float32)
    from_arrays(GOOD, LIKE)
    with pytest.raises(BadInput, match=said):
        from_arrays(GOOD | change, LIKE)


def test_a_missing_array_is_named():
    with pytest.raises(BadInput, match="expected \\['a', 'b'\\]"):
        from_arrays({"b": GOOD["b"]}, LIKE)


@pytest.mark.parametrize("way", [lambda p, most: from_bytes(to_bytes(p), most), through_flower])
@pytest.mark.parametrize(("most", "said"), [(Limits(100), "bytes"), (Limits(arrays=1), "arrays")])
def test_limits_hold(way, most, said):
    packet = Packet({}, {"a": np.zeros(5000), "b": np.zeros(1)})
    with pytest.raises(BadInput, match=f"{said}, at most"):
        way(packet, most._replace(header=100))


def test_arrays_that_lie_are_refused():
    pytest.importorskip("flwr", reason="needs flwr: pip install 'fedtailor[flower]'")
    import io

    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    def records(data, stype="numpy.ndarray"):
        array = Array("float32", (1,), stype, data)
        return RecordDict({"arrays": ArrayRecord({"a": array}), "header": ConfigRecord({})})

    def npy(array, shape=None, allow=False):
        out = io.BytesIO()
        np.save(out, array, allow_pickle=allow)
        raw = out.getvalue()
        if shape:
            told = str(array.shape).encode()
            raw = raw.replace(told + b", }" + b" " * (len(shape) - len(told)), shape + b", }")
        return raw

    assert from_records(records(npy(np.ones(1, np.float32)))).arrays["a"] == [1]
    huge = npy(np.ones(1, np.float32), b"(99999999999,)")
    for raw, said in [
        (huge, "says \\(99999999999,\\)"),
        (b"garbage", "no array"),
        (npy(np.array([{}], dtype=object), allow=True), "holds object"),
        (npy(np.ones(1, np.complex64)), "holds complex64"),
    ]:
        with pytest.raises(BadInput, match=said):
            from_records(records(raw))
    with pytest.raises(BadInput, match="no array"):
        from_records(records(npy(np.ones(1)), stype="pickle"))
    with pytest.raises(BadInput, match="expected arrays and header"):
        from_records(RecordDict({}))


def npy_with(header, body=b""):
    """An array in numpy's form, with any header."""
    header = header.ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + body


def header_of(shape):
    return str({"descr": "<f4", "fortran_order": False, "shape": shape}).encode()


@pytest.mark.parametrize(
    "raw",
    [
        npy_with(b"{'descr': '<f4', 'shape': (1,"),
        npy_with(b"'''abc"),
        npy_with(header_of((1,) * 65), b"\0" * 4),
        npy_with(header_of((0, 2**63, 2**63))),
        npy_with(b"-" * 8000 + b"1"),
        npy_with(b"-" * 900 + b"1"),
        npy_with(b"\0"),
        npy_with(b"\xff"),
        npy_with(header_of((1,)), b"\0" * 4)[:50],
    ],
    ids=["bracket", "string", "dimensions", "side", "long", "deep", "null", "letter", "cut"],
)
def test_malformed_arrays_are_refused(raw):
    pytest.importorskip("flwr", reason="needs flwr: pip install 'fedtailor[flower]'")
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    arrays = ArrayRecord({"mean/x": Array("<f4", (1,), "numpy.ndarray", raw)})
    with pytest.raises(BadInput, match="message: 'mean/x' is no array") as told:
        from_records(RecordDict({"arrays": arrays, "header": ConfigRecord({})}))
    assert "\n" not in str(told.value) and len(str(told.value)) < 300


@pytest.mark.parametrize("raw", [b"", b"\0" * 8, b"\xff" * 30, to_bytes(Packet({}, {}))[:-3]])
def test_broken_bytes_are_refused(raw):
    with pytest.raises(BadInput, match="packet"):
        from_bytes(raw)
