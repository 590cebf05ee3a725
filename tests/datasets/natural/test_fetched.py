"""Files in an archive, or with another name at their owner's, fetched from a server here."""

from __future__ import annotations

import hashlib
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedtailor.datasets import load
from fedtailor.datasets.natural import NATURAL
from tests.datasets.datafiles import refusal
from tests.datasets.natural.plays_and_sensors import write_play, write_wisdm


@pytest.fixture
def owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is published on this machine: the play as input.txt, WISDM in an archive."""
    published = tmp_path / "published"
    play = write_play(published, "input.txt")
    arff = write_wisdm(tmp_path / "WISDM_ar_v1.1")
    archive = published / "WISDM_ar_latest.tar.gz"
    with tarfile.open(archive, "w:gz") as out:
        out.add(play, "WISDM_ar_v1.1/readme.txt")
        out.add(arff, f"WISDM_ar_v1.1/{arff.name}")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(published)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name, held in (("shakespeare", play), ("wisdm", arff)):
        known = NATURAL[name]
        address = f"http://127.0.0.1:{server.server_port}/{known.files[0].url.rpartition('/')[2]}"
        md5 = hashlib.md5(held.read_bytes()).hexdigest()
        files = (known.files[0]._replace(url=address, md5=md5),)
        monkeypatch.setitem(NATURAL, name, known._replace(files=files))
    yield published
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("name", ["shakespeare", "wisdm"])
def test_they_are_fetched_once_and_kept_under_their_own_name(owner, tmp_path, name):
    root = tmp_path / "data"
    first = load(name, data_dir=root, hub=True)
    kept = root / name / NATURAL[name].files[0].name
    assert kept.is_file() and len(list(kept.parent.iterdir())) == 2  # the file and its note
    for path in owner.iterdir():
        path.unlink()
    assert load(name, data_dir=root).owners == first.owners
    kept.write_text(kept.read_text() + "\n")
    refusal(lambda: load(name, data_dir=root), "sha256", "fetch it again")


def test_another_file_in_the_archive_is_refused_and_nothing_kept(owner, tmp_path):
    root, archive = tmp_path / "data", owner / "WISDM_ar_latest.tar.gz"

    def refused(*words: str) -> None:
        refusal(lambda: load("wisdm", data_dir=root, hub=True), *words, "yourself")
        assert not list(root.rglob("*.arff"))

    arff = tmp_path / "WISDM_ar_v1.1" / NATURAL["wisdm"].files[0].name
    arff.write_text(arff.read_text() + "1\n")
    with tarfile.open(archive, "w:gz") as out:
        out.add(arff, arff.name)
    refused("md5")
    with tarfile.open(archive, "w:gz") as out:
        out.add(arff, "another.arff")
    refused("holds no WISDM_ar_v1.1_transformed.arff")
    archive.write_bytes(archive.read_bytes()[:60])
    refused("no tar archive")
    archive.write_text("moved")
    refused("no tar archive")
