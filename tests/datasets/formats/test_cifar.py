"""CIFAR's pickled batches: what they hold is read, what they ask for is not done."""

from __future__ import annotations

import os
import pickle
import tarfile

import numpy as np
import pytest

from fedtailor.datasets import load
from fedtailor.datasets.known import CIFAR10, CIFAR100
from tests.datasets.datafiles import batch, cifar10_files, images, refusal, write_tar


@pytest.mark.parametrize("packed", [True, False])
def test_cifar10_batches(tmp_path, packed):
    files = cifar10_files()
    if packed:
        write_tar(tmp_path / "cifar-10-python.tar.gz", {**files, "readme.html": b"<html>"})
    else:
        (tmp_path / "cifar-10-batches-py").mkdir()
        for name, data in files.items():
            (tmp_path / "cifar-10-batches-py" / name).write_bytes(data)
    source = load("cifar10", data_dir=tmp_path)
    assert source.raw.shape == (60, 3, 32, 32) and source.classes == CIFAR10
    np.testing.assert_array_equal(source.raw[20].ravel(), batch(10, 2)[b"data"][0])
    assert source.official_test.tolist() == [False] * 50 + [True] * 10
    assert source.labels[:10].tolist() == list(range(10))
    assert sorted(p.name for p in tmp_path.iterdir()) == (
        ["cifar-10-python.tar.gz"] if packed else ["cifar-10-batches-py"]
    ), "nothing may be extracted"


def test_cifar100_takes_the_fine_labels(tmp_path):
    for name in ("train", "test", "meta"):
        held = batch(10, 1, b"fine_labels") | {b"coarse_labels": [0] * 10}
        path = tmp_path / "cifar100" / "cifar-100-python" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(held, protocol=2))
    source = load("cifar100", data_dir=tmp_path)
    assert source.labels.tolist() == 2 * list(range(10)) and source.classes == CIFAR100


def test_a_batch_pickled_by_python_2_and_old_numpy(tmp_path):
    """Protocol 0 with byte strings and the old module name, as the published files have."""
    data = images(2, 3072)
    rows = b"".join(b"\\x%02x" % byte for byte in data.tobytes())
    pickled = (
        b"(dp1\nS'data'\ncnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"
        b"(I1\n(I2\nI3072\ntcnumpy\ndtype\n(S'u1'\nI0\nI1\ntR(I3\nS'|'\nNNNI-1\nI-1\nI0\ntb"
        b"I00\nS'" + rows + b"'\ntbsS'labels'\n(lp2\nI4\naI7\nas."
    )
    for name in cifar10_files():
        path = tmp_path / "cifar10" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(pickled)
    source = load("cifar10", data_dir=tmp_path)
    np.testing.assert_array_equal(source.raw[:2].reshape(2, -1), data)
    assert source.labels[:2].tolist() == [4, 7]


class Malicious:
    def __init__(self, target):
        self.target = str(target)

    def __reduce__(self):
        return os.mkdir, (self.target,)


@pytest.mark.parametrize("packed", [True, False])
def test_a_malicious_batch_is_refused_and_does_not_run(tmp_path, packed):
    victim = tmp_path / "pwned"
    bad = pickle.dumps({b"data": Malicious(victim), b"labels": [0]}, protocol=2)
    files = {**cifar10_files(), "data_batch_3": bad}
    if packed:
        write_tar(tmp_path / "cifar10.tar.gz", files)
    else:
        (tmp_path / "cifar10").mkdir()
        for name, data in files.items():
            (tmp_path / "cifar10" / name).write_bytes(data)
    refusal(lambda: load("cifar10", data_dir=tmp_path), "data_batch_3", "mkdir", "refused")
    assert not victim.exists()
    pickle.loads(bad)  # noqa: S301 - proves that the test's pickle would have run
    assert victim.exists()


@pytest.mark.parametrize(
    "name", [b"numpy\nload", b"builtins\neval", b"numpy.core.multiarray\nscalar", b"posix\nsystem"]
)
def test_other_names_in_a_batch_are_refused(tmp_path, name):
    files = {**cifar10_files(), "test_batch": b"c" + name + b"\n."}
    write_tar(tmp_path / "cifar10.tar.gz", files)
    word = name.decode().split("\n")[1]
    refusal(lambda: load("cifar10", data_dir=tmp_path), "test_batch", word)


def test_a_batch_may_call_for_latin_bytes_only(tmp_path):
    """`_codecs.encode` reaches every codec of Python, so the real one is never handed out."""
    call = b"c_codecs\nencode\n(Vabc\nVutf-7\ntR."
    write_tar(tmp_path / "cifar10.tar.gz", {**cifar10_files(), "test_batch": call})
    refusal(lambda: load("cifar10", data_dir=tmp_path), "test_batch", "utf-7")


def test_links_in_an_archive_are_not_followed(tmp_path):
    write_tar(tmp_path / "cifar10.tar.gz", {})
    with tarfile.open(tmp_path / "cifar10.tar.gz", "w:gz") as archive:
        for name in cifar10_files():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(link)
    refusal(lambda: load("cifar10", data_dir=tmp_path), "lacks data_batch_1")


@pytest.mark.parametrize(
    ("held", "word"),
    [
        ([1, 2], "list"),
        ({b"labels": [1]}, "'data'"),
        ({b"data": np.zeros((1, 10), np.uint8), b"labels": [1]}, "10 bytes"),
        ({b"data": np.zeros((1, 3072), np.uint8), b"labels": ["cat"]}, "'labels'"),
        ({b"data": np.zeros((1, 3072), np.uint8), b"labels": [1, 2]}, "2 labels"),
        ({b"data": np.zeros((1, 3072), np.uint8), b"labels": [11]}, "'11'"),
    ],
)
def test_wrong_batches(tmp_path, held, word):
    files = {**cifar10_files(), "data_batch_2": pickle.dumps(held, protocol=2)}
    write_tar(tmp_path / "cifar10.tar.gz", files)
    refusal(lambda: load("cifar10", data_dir=tmp_path), "data_batch_2", word)


def test_broken_batches_and_archives(tmp_path):
    files = cifar10_files()
    write_tar(tmp_path / "cifar10.tar.gz", {**files, "test_batch": files["test_batch"][:99]})
    refusal(lambda: load("cifar10", data_dir=tmp_path), "test_batch", "fetch")
    write_tar(tmp_path / "cifar10.tar.gz", {k: v for k, v in files.items() if k[-1] != "4"})
    refusal(lambda: load("cifar10", data_dir=tmp_path), "lacks data_batch_4")
    whole = (tmp_path / "cifar10.tar.gz").read_bytes()
    (tmp_path / "cifar10.tar.gz").write_bytes(whole[: len(whole) // 2])
    refusal(lambda: load("cifar10", data_dir=tmp_path), "cifar10.tar.gz", "archive")
