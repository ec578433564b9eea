"""A file of an earlier stage that is empty, cut off or another one: one paragraph names it and what
makes it again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tasks.fetch import fetch
from tests.support.made_up import KINDS, folder_of, write_made_up
from throughline.data.columns.index import read_index
from throughline.data.manifest import read_manifest
from throughline.data.shards.index import read_shard_index
from throughline.data.shards.writing import shard
from throughline.pipelines.write.snapshot import snapshot
from throughline.plan.ops import Decode
from throughline.results.base import ResultFile
from throughline.settings import ShardSettings
from throughline.shared.errors import MissingInput, UserError


def shard_again(folder: Path) -> None:
    manifest = replace(read_manifest(folder / "manifest"), folder=folder / "manifest")
    shard(manifest, folder / "again", settings=ShardSettings(writers=1))


def read_result(kind: type[ResultFile], folder: Path) -> ResultFile:
    return kind.read(folder_of(kind, folder))


# The file, what reads it, and the stage that makes it again.
CASES: tuple[tuple[str, Callable[[Path], object], str], ...] = (
    ("manifest/manifest.json", lambda folder: read_manifest(folder / "manifest"), "ingest"),
    ("manifest/examples.parquet", lambda folder: read_manifest(folder / "manifest"), "ingest"),
    ("manifest/rejected.csv", lambda folder: read_manifest(folder / "manifest"), "ingest"),
    ("manifest/values.npy", shard_again, "ingest"),
    ("shards/index.json", lambda folder: read_shard_index(folder / "shards"), "shard"),
    ("snapshot/index.json", lambda folder: read_index(folder / "snapshot"), "snapshot"),
    ("none/origin.json", lambda folder: fetch("none", folder), "fetch"),
    *(
        (
            kind.path(folder_of(kind, Path())).as_posix(),
            partial(read_result, kind),
            kind.STAGE.format(name="fast"),
        )
        for kind in KINDS
    ),
)
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "without its end": lambda data: data[:-3],
    "noise": lambda data: bytes((byte * 7 + 3) % 256 for byte in range(max(10, len(data)))),
    "nested without end": lambda data: b"[" * 200_000,
}
OF_ANOTHER_FORM = ("{}", "[]", "3", "null", '{"other": 1}')


@pytest.fixture(scope="module")
def whole(arrays, tmp_path_factory):
    """What all stages write, as far as they write these files; results are made up."""
    folder = tmp_path_factory.mktemp("damaged") / "data"
    shutil.copytree(arrays, folder)
    snapshot(
        read_shard_index(folder / "shards"),
        folder / "shards",
        folder / "snapshot",
        preprocess=(Decode(),),
    )
    fetch("none", folder)
    for kind in KINDS:
        write_made_up(kind, folder)
    return folder


@pytest.mark.parametrize(("name", "read", "stage"), CASES, ids=[case[0] for case in CASES])
def test_a_damaged_file_is_named_with_what_makes_it_again(whole, tmp_path, name, read, stage):
    folder = tmp_path / "data"
    shutil.copytree(whole, folder)
    read(folder)
    data = (folder / name).read_bytes()
    for damage, change in DAMAGES.items():
        (folder / name).write_bytes(change(data))
        with pytest.raises(UserError) as caught:
            read(folder)
        said = str(caught.value)
        assert str(folder / name) in said and f"`dvc repro {stage}`" in said, damage
        assert "\n" not in said and (damage != "empty" or "is empty" in said), damage


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.FILE)
def test_results_of_another_form_are_named_with_what_makes_them_again(tmp_path, kind):
    path = write_made_up(kind, tmp_path)
    for content in OF_ANOTHER_FORM:
        path.write_text(content)
        with pytest.raises(MissingInput) as caught:
            kind.read(folder_of(kind, tmp_path))
        said = str(caught.value)
        assert str(path) in said and f"run `dvc repro {kind.STAGE.format(name='fast')}`" in said
        assert "\n" not in said, content
