"""Damaged files of earlier stages are named; undecodable records are named or left out; a full or
read-only disk ends a stage with one paragraph and leaves what was there.
"""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from tasks.fetch import fetch
from tests.support.made_up import KINDS, folder_of, write_made_up
from tests.support.prepared import snapshot
from tests.support.small_data import data_settings
from throughline.data.columns.index import read_index
from throughline.data.columns.stored import Destination
from throughline.data.ingest import ingest
from throughline.data.manifest import read_manifest, write_manifest
from throughline.data.shards.files import ShardFiles
from throughline.data.shards.index import read_shard_index
from throughline.data.shards.writing import shard
from throughline.pipelines.read.prepared_data import open_prepared_data
from throughline.pipelines.write.snapshot import write_snapshot
from throughline.plan.ops import Decode, Resize
from throughline.settings import ShardSettings, SnapshotSettings
from throughline.shared.errors import CorruptShard, UserError
from throughline.shared.failures import report_user_errors
from throughline.shared.files import digest_blake2b

pytestmark = pytest.mark.integration


MANIFEST = ("manifest.json", "examples.parquet", "rejected.csv", "values.npy")


def shard_again(folder: Path) -> None:
    manifest = replace(read_manifest(folder / "manifest"), folder=folder / "manifest")
    shard(manifest, folder / "again", settings=ShardSettings(writers=1))


# The file, what reads it, and the stage that makes it again.
CASES = (
    *((f"manifest/{name}", shard_again, "ingest") for name in MANIFEST),
    ("shards/index.json", lambda folder: read_shard_index(folder / "shards"), "shard"),
    ("snapshot/index.json", lambda folder: read_index(folder / "snapshot"), "snapshot"),
    ("none/origin.json", lambda folder: fetch("none", folder), "fetch"),
    *(
        (
            kind.path(folder_of(kind, Path())).as_posix(),
            lambda folder, kind=kind: kind.read(folder_of(kind, folder)),
            kind.STAGE.format(name="fast"),
        )
        for kind in KINDS
    ),
)
DAMAGES = {
    "empty": lambda data: b"",
    "without its end": lambda data: data[:-3],
    "noise": lambda data: bytes((byte * 7 + 3) % 256 for byte in range(max(10, len(data)))),
    "nested without end": lambda data: b"[" * 200_000,
    "a list": lambda data: b"[]",
    "null": lambda data: b"null",
    "other keys": lambda data: b'{"other": 1}',
}


@pytest.fixture(scope="module")
def whole(arrays, tmp_path_factory):
    """What all stages write, as far as they write these files; results are made up."""
    folder = shutil.copytree(arrays, tmp_path_factory.mktemp("damaged") / "data")
    shards = folder / "shards"
    snapshot(read_shard_index(shards), shards, folder / "snapshot", preprocess=(Decode(),))
    fetch("none", folder)
    for kind in KINDS:
        write_made_up(kind, folder)
    return folder


@pytest.mark.parametrize(("name", "read", "stage"), CASES, ids=[case[0] for case in CASES])
def test_a_damaged_file_is_named_with_what_makes_it_again(whole, request, name, read, stage):
    read(whole)
    data = (whole / name).read_bytes()
    request.addfinalizer(lambda: (whole / name).write_bytes(data))
    for damage, change in DAMAGES.items():
        (whole / name).write_bytes(change(data))
        with pytest.raises(UserError) as caught:
            read(whole)
        said = str(caught.value)
        assert str(whole / name) in said and f"`dvc repro {stage}`" in said, damage
        assert "\n" not in said and (damage != "empty" or "is empty" in said), damage


PREPROCESS = (Decode(), Resize(height=8, width=8))


@pytest.fixture(scope="module")
def undecodable(photos, tmp_path_factory):
    """A folder of shards, its manifest, and ids and keys of two that no decoder can decode."""
    folder, manifest = tmp_path_factory.mktemp("undecodable"), read_manifest(photos / "manifest")
    examples = manifest.examples.copy()
    victims = examples.loc[examples["split"] == "train"].head(2)
    for number, row in victims.iterrows():
        data = Path(row["uri"]).read_bytes()[:200] + b"\xff\xd9"
        path = folder / f"{number}.jpg"
        path.write_bytes(data)
        found = [str(path), len(data), digest_blake2b(data)]
        examples.loc[number, ["uri", "bytes", "digest"]] = found
    (folder / "manifest").mkdir()
    manifest = replace(manifest, examples=examples, folder=folder / "manifest")
    write_manifest(manifest)
    shard(manifest, folder / "shards", settings=ShardSettings(min_shards=3, writers=1))
    return folder, manifest, dict(zip(victims["id"], victims["key"], strict=True))


def take(folder, manifest, settings):
    names = dict(zip(manifest.examples["key"], manifest.examples["id"], strict=True))
    shards, out = folder / "shards", Destination(folder=folder / "snapshot")
    options = {"preprocess": PREPROCESS, "settings": settings, "names": lambda: names}
    return write_snapshot(read_shard_index(shards), ShardFiles(folder=shards), out, **options).index


def test_the_example_of_a_record_that_cannot_be_decoded_is_named_and_too_many_stop_it(undecodable):
    folder, manifest, victims = undecodable
    said = r"train-0000.*: record \d+ \(example (.*)\) cannot be decoded: .*; repair or remove the"
    with pytest.raises(CorruptShard, match=said) as caught:
        take(folder, manifest, SnapshotSettings())
    assert re.search(said, str(caught.value))[1] in victims
    assert not (folder / "snapshot").exists()
    with pytest.raises(CorruptShard, match=r"2 of 60 examples cannot be read, 3.33%; .* 1.00%"):
        take(folder, manifest, SnapshotSettings(on_corrupt="skip", max_corrupt_fraction=0.01))


@pytest.mark.slow
def test_records_that_cannot_be_decoded_are_left_out_where_that_is_wished(undecodable, capsys):
    folder, manifest, victims = undecodable
    take(folder, manifest, SnapshotSettings(on_corrupt="skip", max_corrupt_fraction=0.1))
    said = capsys.readouterr().out
    assert all(f"(example {victim}) cannot be decoded" in said for victim in victims)
    assert "examples dropped: 2" in said
    places = {name: folder / name for name in ("manifest", "shards", "snapshot")}
    stored = open_prepared_data(**places, preprocess=PREPROCESS)
    expected = {*manifest.for_split("train")["key"]} - {*victims.values()}
    assert {*stored.memmap("train", "key").tolist()} == {*stored.files("train").keys} == expected
    assert stored.shards.examples("train") == len(expected)
    assert not [problem for one in stored.shards.shards for problem in stored.find_damage(one)]


def ended_with(capsys, work) -> str:
    """What a command that ends with exit code 2 says."""
    with pytest.raises(SystemExit) as ended, report_user_errors():
        work()
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.fixture
def large(tmp_path):
    """Settings of two megabytes that nothing compresses."""
    noise = np.random.default_rng(0).integers(0, 256, (2000, 30, 30), np.uint8)
    np.savez(tmp_path / "large.npz", x=noise, y=np.arange(2000) % 3)
    return data_settings(tmp_path / "large.npz", "arrays")


def test_a_full_disk_is_reported_and_leaves_the_earlier_manifest(
    small_disk, array_settings, large, capsys
):
    ingest(array_settings, small_disk / "manifest")
    said = ended_with(capsys, lambda: ingest(large, small_disk / "manifest"))
    assert "DiskFull: no space is left" in said
    assert len(read_manifest(small_disk / "manifest").examples) == 200
    (partial,) = small_disk.glob("manifest.*.partial")
    shutil.rmtree(partial)


def test_a_full_disk_ends_the_shard_stage_however_many_threads_write(
    small_disk, large, tmp_path, capsys
):
    manifest = ingest(large, tmp_path / "manifest")
    settings = ShardSettings(min_shards=3, writers=2, compression="none")
    said = ended_with(capsys, lambda: shard(manifest, small_disk / "shards", settings=settings))
    assert said.startswith("DiskFull: no space is left")


def cache_on(folder):
    data = tf.data.Dataset.range(40).map(lambda _: tf.zeros((1 << 20,), tf.uint8))
    assert [*data.cache(str(folder / "cache"))]


def keep_checkpoint_on(folder):
    keras.Sequential([keras.Input((1000,)), keras.layers.Dense(1000)]).save(folder / "model.keras")


def write_parquet_on(folder):
    pd.DataFrame({"x": np.random.default_rng(0).random(1 << 20)}).to_parquet(folder / "x.parquet")


@pytest.mark.parametrize("work", [cache_on, keep_checkpoint_on, write_parquet_on])
def test_a_full_disk_below_a_library_is_reported(small_disk, capsys, work):
    assert ended_with(capsys, lambda: work(small_disk)).startswith("DiskFull: no space is left")


def test_a_read_only_disk_is_reported(small_disk, array_settings, capsys):
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    said = ended_with(capsys, lambda: ingest(array_settings, small_disk / "manifest"))
    assert said.startswith(f"ReadOnlyDisk: the file system is read-only, {small_disk}")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "error", [OSError("something else"), RuntimeError("No space left on device")]
)
def test_other_errors_keep_their_traceback(error):
    with pytest.raises(type(error)), report_user_errors():
        raise error
