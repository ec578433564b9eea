"""Of columns in an object store a process fetches the rows that it reads, and no others."""

# ruff: noqa: F811 - fixtures are imported
from __future__ import annotations

import os

import numpy as np
import pytest

from tests.support.small_data import flip_bit
from tests.support.small_pipelines import batches, pipeline, same
from tests.support.stored_snapshots import (  # noqa: F401
    arrays_in_store,
    open_stored,
    put,
    small_pieces,
    write,
)
from throughline.data.columns.index import column_path, find_span
from throughline.diagnosis.op_costs import measure_costs
from throughline.plan.augmentations import RandomCrop
from throughline.plan.training_workers import TrainingWorker
from throughline.settings import PipelineConfig
from throughline.shared.errors import CorruptColumn


@pytest.mark.slow
def test_processes_fetch_the_rows_of_their_lanes_alone(
    photos, tmp_path, bucket_url, small_pieces, proxy
):
    write(photos, tmp_path / "files", kind="unlike")
    write(photos, tmp_path / "put", bucket_url, kind="unlike")

    def reading(name, cache, index):
        """What one of two processes reads of a snapshot."""
        data = open_stored(photos, tmp_path / name, bucket_url, tmp_path / cache, kind="unlike")
        return pipeline(
            {"unlike": data},
            "unlike",
            read="snapshot",
            shuffle={"kind": "lanes", "lanes": 4},
            augment=(RandomCrop(height=6, width=6),),
            worker=TrainingWorker(index=index, count=2),
        )

    for index in (0, 1):
        found, expected = (
            batches(reading(name, f"cache{index}", index)) for name in ("put", "files")
        )
        assert same(found, expected), "no row is a hole"
    data = reading("files", "none", 0).data
    column, rows = data.input_column, data.snapshot.splits["train"]
    got = sum(size for _, path, size in proxy.requests if f"/train/{column.name}/" in path)
    spans = [
        find_span(tmp_path / "files", "train", column, chunk, rows.count) for chunk in rows.chunks
    ]
    largest = max(end - begin for begin, end in spans)
    assert 0 <= got - rows.bytes(column) <= 4 * largest
    proxy.requests.clear()
    for index in (0, 1):
        assert reading("put", f"cache{index}", index).reader.variables
    assert not proxy.requests


def test_rows_of_a_region_are_fetched_and_no_others(put, proxy):
    whole, data = put("other"), put()
    images = np.asarray(whole.memmap("train", "image"))
    proxy.requests.clear()
    sizes = set()
    for rows in ((0, 1), (0, len(images) // 2), (len(images) // 2, len(images))):
        first, stop = rows
        found = data.for_rows(rows).memmap("train", "image")
        assert found.shape == images.shape and np.array_equal(found[first:stop], images[first:stop])
        sizes.add(sum(size for _, path, size in proxy.requests if "/train/image/" in path))
        proxy.requests.clear()
    assert max(sizes) < images.nbytes and len(sizes) > 1


def test_a_region_that_was_damaged_since_is_named(put):
    data = put().for_rows((4, 9))
    data.memmap("train", "image")
    fetched = put().fetched
    fetched.verify_regions()
    path = column_path(data.columns_folder, "train", "image")
    flip_bit(path, 5 * data.input_column.stride)
    with pytest.raises(CorruptColumn, match=r"rows-4-9/train/image.bin .* rows \d+ to \d+\); del"):
        fetched.verify_regions()


def test_rows_that_are_there_already_are_not_fetched_again(put, proxy):
    data = put()
    images = np.array(data.memmap("train", "image"))
    proxy.requests.clear()
    assert np.array_equal(data.for_rows((3, 9)).memmap("train", "image"), images)
    assert not proxy.requests


def test_rows_that_are_there_already_are_used_where_no_hard_link_can_be_made(
    put, proxy, small_disk
):
    data = put()
    images = np.array(data.memmap("train", "image"))
    proxy.requests.clear()
    region = data.for_rows((3, 9))
    region.columns_folder.symlink_to(small_disk)  # which a file elsewhere can have no name in
    assert np.array_equal(region.memmap("train", "image"), images)
    assert not proxy.requests
    assert column_path(small_disk, "train", "image").is_symlink()
    column_path(data.columns_folder, "train", "image").unlink()
    again = put().for_rows((3, 9)).memmap("train", "image")
    assert np.array_equal(again[3:9], images[3:9]), "fetched, since the link leads nowhere"


def test_a_column_that_was_cut_off_since_is_fetched_again(put):
    data = put()
    images = np.array(data.memmap("train", "image"))
    path = column_path(data.columns_folder, "train", "image")
    os.truncate(path, images.nbytes // 2)
    rows = put().for_rows((3, 9)).memmap("train", "image")
    assert np.array_equal(rows[3:9], images[3:9]), "not from what is left of the whole"
    assert np.array_equal(put().memmap("train", "image"), images)
    assert path.stat().st_size == images.nbytes


LANES = {"read": "snapshot", "shuffle": {"kind": "lanes", "lanes": 4}}


@pytest.mark.slow
def test_costs_are_measured_on_the_rows_of_a_process_alone(put, proxy):
    data = put()
    shared = pipeline({"arrays": data}, worker=TrainingWorker(index=1, count=2), **LANES)
    assert shared.reader.variables, "as training has them"
    proxy.requests.clear()
    costs = measure_costs(shared, PipelineConfig(**LANES))
    assert costs.read_us["snapshot"] > 0
    fetched = {path.split("/")[5] for _, path, _ in proxy.requests if "/index/" not in path}
    assert fetched <= {"key"}, "which training does not read"
    assert not column_path(data.columns_folder, "train", "image").exists()


def test_one_process_with_all_lanes_fetches_what_all_others_read(put, proxy):
    data = put()
    assert pipeline({"arrays": data}, **LANES).reader.variables
    assert column_path(data.columns_folder, "train", "image").exists()
    proxy.requests.clear()
    put().memmap("train", "image")
    assert not proxy.requests
