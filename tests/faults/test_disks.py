"""A full or read-only disk ends a stage with one paragraph and leaves what was there."""

import resource
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from tests.support.lanes import slow_but_first
from tests.support.small_data import data_settings
from throughline.data.ingest import ingest
from throughline.data.manifest import read_manifest
from throughline.data.shards.writing import shard
from throughline.settings import ShardSettings
from throughline.shared.failures import report_user_errors
from throughline.shared.files import write_json

pytestmark = pytest.mark.integration


def ended_with(capsys, work) -> str:
    """What a command that ends with exit code 2 says."""
    with pytest.raises(SystemExit) as ended, report_user_errors():
        work()
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_a_full_disk_is_reported_and_leaves_the_earlier_manifest(
    small_disk, array_settings, tmp_path, capsys
):
    ingest(array_settings, small_disk / "manifest")
    noise = np.random.default_rng(0).integers(0, 256, (2000, 30, 30), np.uint8)
    np.savez(tmp_path / "big.npz", x=noise, y=np.arange(2000) % 3)
    settings = data_settings(tmp_path / "big.npz", "arrays")
    said = ended_with(capsys, lambda: ingest(settings, small_disk / "manifest"))
    assert "DiskFull: no space is left" in said
    assert len(read_manifest(small_disk / "manifest").examples) == 200
    (partial,) = small_disk.glob("manifest.*.partial")
    shutil.rmtree(partial)


@pytest.mark.parametrize("compression", slow_but_first(["none", "gzip"]))
def test_a_full_disk_ends_the_shard_stage_however_many_threads_write(
    small_disk, tmp_path, capsys, compression
):
    draw = np.random.default_rng(0)
    for number in range(16):
        path = tmp_path / "in" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = draw.integers(0, 256, (400, 500, 3), np.uint8)
        Image.fromarray(noise).save(path, compress_level=0)
    manifest = ingest(data_settings(tmp_path / "in"), tmp_path / "manifest")
    settings = ShardSettings(min_shards=3, writers=2, compression=compression)
    said = ended_with(capsys, lambda: shard(manifest, small_disk / "shards", settings=settings))
    assert said.startswith("DiskFull: no space is left")


def cache_on(folder):
    import tensorflow as tf

    data = tf.data.Dataset.range(40).map(lambda _: tf.zeros((1 << 20,), tf.uint8))
    for _ in data.cache(str(folder / "cache")):
        pass


def keep_checkpoint_on(folder):
    import keras

    keras.Sequential([keras.Input((1000,)), keras.layers.Dense(1000)]).save(folder / "model.keras")


def write_parquet_on(folder):
    pd.DataFrame({"x": np.random.default_rng(0).random(1 << 20)}).to_parquet(folder / "x.parquet")


def write_values_on(folder):
    write_json(folder / "values.json", [0] * (1 << 19))


@pytest.mark.parametrize("work", [cache_on, keep_checkpoint_on, write_parquet_on])
def test_a_full_disk_below_a_library_is_reported(small_disk, capsys, work):
    assert ended_with(capsys, lambda: work(small_disk)).startswith("DiskFull: no space is left")


@pytest.mark.parametrize("work", [keep_checkpoint_on, write_parquet_on, write_values_on])
def test_a_file_that_may_not_be_so_large_is_reported(tmp_path, capsys, work):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
        try:
            work(tmp_path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    said = ended_with(capsys, limited)
    assert said.startswith("DiskFull: the file is larger than allowed here") and "ulimit -f" in said


def test_a_read_only_disk_is_reported(small_disk, array_settings, capsys):
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    said = ended_with(capsys, lambda: ingest(array_settings, small_disk / "manifest"))
    assert said.startswith(f"ReadOnlyDisk: the file system is read-only, {small_disk}")
    assert said.count("\n") == 1
    said = ended_with(capsys, lambda: write_json(small_disk / "x.json", {}))
    assert said.startswith("ReadOnlyDisk")


@pytest.mark.parametrize(
    "error", [OSError("something else"), RuntimeError("No space left on device")]
)
def test_other_errors_keep_their_traceback(error):
    with pytest.raises(type(error)), report_user_errors():
        raise error
