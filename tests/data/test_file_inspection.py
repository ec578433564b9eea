"""What a worker of a cluster cannot read is no reject where the stage itself can read it."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from throughline.data.encodings.base import FileInfo, Root, StoredFile
from throughline.data.file_inspection import FileInspection
from throughline.data.inspection_cache import InspectionCache
from throughline.data.sources import ExampleFile, Rejected
from throughline.shared.engine import use_engine
from throughline.shared.errors import EngineFailed

INFO = {"bytes": 4, "digest": "digest", "shape": (1, 2, 3)}


def inspect_in(process: int, stored: StoredFile, converted: Path) -> FileInfo:
    """Read a file in this process; any other lacks its folder."""
    seen = stored if os.getpid() == process else replace(stored, path=stored.path / "elsewhere")
    seen.read(lambda *_: None)
    return FileInfo(path=stored.path, **INFO)


def find(folder: Path, process: int) -> FileInfo | Rejected:
    """What is found in a file that `process` alone can read."""
    path = folder / "a" / "x.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"1234")
    root = Root(folder)
    inspection = FileInspection(
        inspect=partial(inspect_in, process),
        cache=InspectionCache(None, root=root, key=""),
        root=root,
        converted=folder,
    )
    file = ExampleFile(id="a/x.jpg", path=path, label="a")
    (finding,) = inspection.inspect_all([file], verify=False)
    return finding


def test_what_this_process_cannot_read_is_rejected(tmp_path):
    assert isinstance(find(tmp_path, os.getpid()), FileInfo)
    finding = find(tmp_path, -1)
    assert isinstance(finding, Rejected)
    assert (finding.id, finding.reason) == ("a/x.jpg", "cannot be read: Not a directory")


@pytest.mark.slow
def test_what_a_worker_alone_cannot_read_names_its_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    node = os.uname().nodename
    with use_engine(workers=1):
        with pytest.raises(EngineFailed, match=rf"worker at {node} .*x\.jpg cannot be read: Not a"):
            find(tmp_path / "in", os.getpid())
        finding = find(tmp_path / "in", -1)
    assert isinstance(finding, Rejected), "nobody can read it"
