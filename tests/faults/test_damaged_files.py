"""A file of an earlier stage that is empty, cut off or another one: one paragraph names it and what
makes it again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tasks.data.columns import read_index
from tasks.data.manifest import read_manifest
from tasks.data.shards import read_shard_index
from tasks.errors import RESULT_KEYS, UserError
from tasks.fetch import fetch
from tasks.files import read_json
from tasks.pipelines.ops import Decode
from tasks.settings import ShardSettings
from tasks.shard import shard
from tasks.snapshot import snapshot


def shard_again(folder: Path) -> None:
    manifest = replace(read_manifest(folder / "manifest"), folder=folder / "manifest")
    shard(manifest, folder / "again", settings=ShardSettings(writers=1))


# The file, what reads it, and the stage that makes it again.
CASES: tuple[tuple[str, Callable[[Path], object], str], ...] = (
    ("manifest/manifest.json", lambda folder: read_manifest(folder / "manifest"), "ingest"),
    ("manifest/examples.parquet", lambda folder: read_manifest(folder / "manifest"), "ingest"),
    ("manifest/rejected.csv", lambda folder: read_manifest(folder / "manifest"), "ingest"),
    ("manifest/values.npy", shard_again, "ingest"),
    ("shards/index.json", lambda folder: read_shard_index(folder / "shards"), "shard"),
    ("snapshot/index.json", lambda folder: read_index(folder / "snapshot"), "snapshot"),
    ("snapshot.json", lambda folder: read_json(folder / "snapshot.json"), "snapshot"),
    (
        "runs/fast/plan.json",
        lambda folder: read_json(folder / "runs" / "fast" / "plan.json"),
        "build@fast",
    ),
    (
        "runs/fast/input.json",
        lambda folder: read_json(folder / "runs" / "fast" / "input.json"),
        "build@fast",
    ),
    (
        "runs/fast/train.json",
        lambda folder: read_json(folder / "runs" / "fast" / "train.json"),
        "train@fast",
    ),
    (
        "runs/fast/run.json",
        lambda folder: read_json(folder / "runs" / "fast" / "run.json"),
        "train@fast",
    ),
    (
        "runs/fast/profile.json",
        lambda folder: read_json(folder / "runs" / "fast" / "profile.json"),
        "profile@fast",
    ),
    ("none/origin.json", lambda folder: fetch("none", folder), "fetch"),
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
    """What all stages write, as far as they write these files; those of a configuration are made
    up.
    """
    folder = tmp_path_factory.mktemp("damaged") / "data"
    shutil.copytree(arrays, folder)
    snapshot(
        read_shard_index(folder / "shards"),
        folder / "shards",
        folder / "snapshot",
        preprocess=(Decode(),),
    )
    fetch("none", folder)
    for name, *_ in CASES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if not (folder / name).exists():
            (folder / name).write_text(
                json.dumps(dict.fromkeys(RESULT_KEYS[Path(name).name], 1.5)) + "\n"
            )
    return folder


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(("name", "read", "stage"), CASES, ids=[case[0] for case in CASES])
def test_a_damaged_file_is_named_with_what_makes_it_again(
    whole, tmp_path, name, read, stage, damage
):
    folder = tmp_path / "data"
    shutil.copytree(whole, folder)
    read(folder)
    (folder / name).write_bytes(DAMAGES[damage]((folder / name).read_bytes()))
    with pytest.raises(UserError) as caught:
        read(folder)
    told = str(caught.value)
    assert str(folder / name) in told and f"`dvc repro {stage}`" in told and "\n" not in told
    assert damage != "empty" or "is empty" in told


@pytest.mark.parametrize("content", OF_ANOTHER_FORM)
@pytest.mark.parametrize("name", RESULT_KEYS)
def test_results_of_another_form_are_named_with_what_makes_them_again(tmp_path, name, content):
    path = tmp_path / "runs" / "fast" / name
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(UserError) as caught:
        read_json(path)
    assert str(path) in str(caught.value) and "run `dvc repro " in str(caught.value)
