"""Folders and files are put into a bucket as ingest reads them, or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tasks.upload import upload
from tests.support.skips import need
from throughline.shared.errors import DataNotFound, InvalidParams, UnexpectedFiles
from throughline.shared.object_store import open_store

NOBODY = 65534
FILES = {"cats/1.jpg": b"one", "cats/2.jpg": b"two", "dogs/1.jpg": b"three"}


@pytest.fixture
def folder(tmp_path):
    for name, data in {**FILES, ".hidden/1.jpg": b"x", "cats/.DS_Store": b"x"}.items():
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "photos"


def read_all(url: str) -> dict[str, bytes]:
    store = open_store(url)
    return {one.name: store.read(one.name) for one in store.list()}


def test_a_folder_or_a_file_is_put_into_a_bucket(folder, bucket_url):
    assert upload(folder, f"{bucket_url}/all") == f"3 objects, 0.0 MiB, in {bucket_url}/all"
    assert read_all(f"{bucket_url}/all") == FILES
    upload(folder / "cats" / "1.jpg", f"{bucket_url}/one.jpg")
    assert open_store(bucket_url).read("one.jpg") == b"one"
    upload(folder / "cats" / "2.jpg", f"{bucket_url}/some/")
    upload(folder / "cats" / "2.jpg", f"{bucket_url}/")
    assert read_all(f"{bucket_url}/some") == {"2.jpg": b"two"}
    assert open_store(bucket_url).read("2.jpg") == b"two"


def test_a_link_counts_as_the_folder_that_it_leads_to(folder, bucket_url):
    (folder / "dogs").rename(folder / ".store")
    (folder / "dogs").symlink_to(".store")
    upload(folder, bucket_url)
    assert read_all(bucket_url) == FILES


@pytest.mark.parametrize("case", ["outside", "file outside", "twice", "broken", "pipe", "name"])
def test_what_ingest_would_not_read_is_refused_before_anything_is_put(folder, bucket_url, case):
    bad = folder / "birds"
    if case == "outside":
        bad.symlink_to("/usr")
    elif case == "file outside":
        bad.symlink_to("/etc/passwd")
    elif case == "twice":
        bad.symlink_to("cats")
    elif case == "name":
        bad.mkdir()
        Path(os.fsdecode(os.fsencode(bad) + b"/\xff.png")).write_bytes(b"1")
    elif case == "broken":
        bad.symlink_to("nowhere")
    else:
        os.mkfifo(bad)
    with pytest.raises(UnexpectedFiles, match="photos/birds"):
        upload(folder, bucket_url)
    assert not read_all(bucket_url)


def test_a_link_counts_as_the_file_that_it_leads_to(folder, bucket_url):
    (folder / "dogs" / "1.jpg").rename(folder / ".one")
    (folder / "dogs" / "1.jpg").symlink_to("../.one")
    upload(folder, bucket_url)
    assert read_all(bucket_url) == FILES


def test_what_this_user_may_not_read_is_refused_before_anything_is_put(bucket_url):
    need("root")
    assert not read_all(bucket_url), "with all that this imports"
    with tempfile.TemporaryDirectory() as name:
        folder, hidden = Path(name), Path(name, "dogs.jpg")
        folder.chmod(0o755)
        for path in (folder / "cats.jpg", hidden):
            path.write_bytes(b"x")
        hidden.chmod(0)
        os.seteuid(NOBODY)
        try:
            for source in (folder, hidden):
                with pytest.raises(
                    UnexpectedFiles, match=r"dogs\.jpg cannot be read: Permission d"
                ):
                    upload(source, f"{bucket_url}/x")
        finally:
            os.seteuid(0)
    assert not read_all(bucket_url)


def test_what_is_not_there_and_what_is_no_bucket_is_refused(folder, tmp_path, bucket_url):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataNotFound, match="nowhere is no file"):
        upload(tmp_path / "nowhere", bucket_url)
    with pytest.raises(DataNotFound, match="empty has no files"):
        upload(tmp_path / "empty", bucket_url)
    with pytest.raises(InvalidParams, match="found ftp://"):
        upload(folder, "ftp://host/x")
