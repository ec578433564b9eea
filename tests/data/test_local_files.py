"""Files that arrive, change or go while ingest reads are named, and not taken for read ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.small_data import data_settings, save_photos
from throughline.data import ingest as stage
from throughline.data.ingest import ingest
from throughline.data.local_files import list_files
from throughline.shared.errors import UnreadableSource


@pytest.fixture
def root(tmp_path) -> Path:
    """Class folders with three files."""
    for name in ("cat/1.jpg", "cat/2.jpg", "bird/owl/3.jpg"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path / "in"


def touch(path: Path) -> None:
    os.utime(path, ns=(0, 1))


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "added": (lambda root: (root / "bird" / "owl" / "4.jpg").touch(), "bird/owl/4.jpg"),
    "of another size": (lambda root: (root / "cat" / "1.jpg").write_text("x"), "cat/1.jpg"),
    "of another time": (lambda root: touch(root / "cat" / "2.jpg"), "cat/2.jpg"),
    "removed": (lambda root: (root / "cat" / "2.jpg").unlink(), "cat/2.jpg"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_until_all_has_been_read_is_named(root, tmp_path, change):
    listed = list_files(root, out=tmp_path / "manifest")
    listed.check_unchanged()
    make, name = CHANGES[change]
    make(root)
    with pytest.raises(UnreadableSource, match=rf"/in/{name}\S* changed while ingest was reading"):
        listed.check_unchanged()
    (root / "more.jpg").touch()
    with pytest.raises(UnreadableSource, match="and 1 more changed"):
        listed.check_unchanged()


def test_what_no_source_reads_and_what_ingest_writes_may_change(root, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (root / "elsewhere").symlink_to(tmp_path / "elsewhere")
    listed = list_files(root, out=root / "manifest")
    (root / "cat" / ".1.jpg.part").touch()
    (tmp_path / "elsewhere" / "4.jpg").touch()
    for name in ("manifest", "manifest.0.partial"):
        (root / name).mkdir()
        (root / name / "examples.parquet").touch()
    listed.check_unchanged()


def test_ingest_refuses_a_file_that_arrives_while_it_reads(tmp_path, monkeypatch):
    """DVC would record it as ingested, and never run ingest for it."""
    root = save_photos(tmp_path / "in", 20, "a", "b", suffix="png")
    settings = data_settings(root)

    def add_afterwards(*arguments, examine=stage.examine):
        found = examine(*arguments)
        (root / "a" / "late.png").write_bytes((root / "a" / "00.png").read_bytes())
        return found

    with monkeypatch.context() as patched:
        patched.setattr(stage, "examine", add_afterwards)
        with pytest.raises(UnreadableSource, match=r"/a/late\.png changed while ingest"):
            ingest(settings, tmp_path / "manifest", inspections=tmp_path / "kept")
    assert not (tmp_path / "manifest").exists()
    manifest = ingest(settings, tmp_path / "manifest", inspections=tmp_path / "kept")
    assert len(manifest.examples) + len(manifest.rejected) == 21
