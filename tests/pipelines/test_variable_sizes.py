"""Images that keep their own sizes in the snapshot and are cut alike when they are read."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from tests.support.small_data import flip_bit
from tests.support.small_pipelines import PRESETS, batches, by_key, prepare_snapshot, same
from tests.support.small_pipelines import pipeline as pipeline_of
from throughline.data.columns.index import column_path, map_column, read_index, verify
from throughline.measurement.equality import digest_examples
from throughline.pipelines.write import snapshot_writer
from throughline.pipelines.write.rows import ShardRows, join_shapes
from throughline.plan.augmentations import Brightness, Flip, Mixup, RandomCrop, RandomResizedCrop
from throughline.plan.ops import CenterCrop
from throughline.results.base import read_value
from throughline.shared.errors import CorruptColumn, ImpossiblePlan
from throughline.shared.files import write_json

pytestmark = pytest.mark.integration

CROP = (RandomCrop(height=20, width=24), Flip())
# A service would need a server and a device an accelerator; both have tests of their own.
CONFIGS = {
    name: config
    for name, config in PRESETS.items()
    if "service" not in config and config.get("snapshot_on") != "device"
}


@pytest.fixture(scope="module")
def data(photos, tmp_path_factory):
    """The photos, decoded and stored in their own sizes, a few rows in a chunk."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(snapshot_writer, "ROWS_BYTES", 5000)
        return prepare_snapshot(photos, tmp_path_factory.mktemp("unlike") / "snapshot", "unlike")


def pipeline(data, config, *, augment=CROP, **more):
    usual = {"postprocess": (), "with_keys": True, "augment": augment}
    return pipeline_of({"unlike": data}, "unlike", **usual, **more, **config)


def test_the_snapshot_holds_every_image_in_its_own_size(data):
    index, folder = data.snapshot, data.snapshot_folder
    image, extent = index.columns[:2]
    assert (image.shape, extent.name) == ((None, None, 3), "image.extent")
    count = index.splits["train"].count
    starts_and_shapes = map_column(folder, "train", extent, count)
    assert len({tuple(shape) for shape in starts_and_shapes[:, 1:].tolist()}) > 10
    assert map_column(folder, "train", image, count).size == index.splits["train"].bytes(image)
    verify(folder, read_index(folder))


@pytest.mark.parametrize("rank", [1, 3])
def test_shapes_take_a_few_bytes_a_row_and_are_read_from_a_note_as_they_were(tmp_path, rank):
    parts = [np.arange(rank * rows, dtype=np.int64).reshape(rows, rank) for rows in (400, 600)]
    rows = ShardRows(chunks=(), moments=(), shapes=join_shapes(parts, rank))
    assert rows.shapes.nbytes == 1000 * rank * 8
    write_json(tmp_path / "note.json", rows)
    again = read_value(ShardRows, tmp_path / "note.json", "snapshot").shapes
    assert again.dtype == np.int64 and np.array_equal(again, rows.shapes)
    write_json(tmp_path / "none.json", ShardRows(chunks=(), moments=()))
    none = read_value(ShardRows, tmp_path / "none.json", "snapshot").shapes
    assert join_shapes([none.reshape(-1, rank)], rank).shape == (0, rank)


@pytest.mark.slow
def test_all_configurations_deliver_the_same_examples(data):
    crop = RandomResizedCrop(height=20, width=24).in_evaluation()
    digests = {
        name: digest_examples(pipeline(data, config, augment=(crop,), in_order=True))
        for name, config in CONFIGS.items()
    }
    assert len({digest.digest for digest in digests.values()}) == 1, digests
    assert digests["naive"].shape == (20, 24, 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "augment",
    [
        (Brightness(), *CROP),  # which a fetch cannot do
        (RandomResizedCrop(height=20, width=24), Flip(), Flip()),
        (RandomResizedCrop(height=40, width=30, method="bilinear"), Brightness()),
        (RandomCrop(height=28, width=33), Flip()),  # larger than most
        (CenterCrop(height=27, width=34),),
    ],
    ids=repr,
)
def test_crops_are_the_same_whoever_makes_them(data, augment):
    expected = by_key(pipeline(data, CONFIGS["naive"], augment=augment))
    for name in ("vectorized", "snapshot"):
        found = by_key(pipeline(data, CONFIGS[name], augment=augment))
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[key], image) for key, image in expected.items()), name


def test_any_step_can_be_started_from(data):
    pipe = pipeline(data, CONFIGS["snapshot"])
    whole = batches(pipe, epochs=2)
    for first in (1, pipe.steps_per_epoch):
        assert same(batches(pipe, first_step=first, epochs=2), whole[first:])


def test_what_cannot_be_done_with_unlike_sizes_is_refused(data):
    with pytest.raises(ImpossiblePlan, match=r"images differ in size.*random_crop"):
        pipeline(data, CONFIGS["optimized"], augment=(Flip(),))
    with pytest.raises(ImpossiblePlan, match=r"mixup needs batches.*put the crop first"):
        pipeline(data, CONFIGS["naive"], augment=(Mixup(classes=3), *CROP))
    with pytest.raises(ImpossiblePlan, match="snapshot_on: variable-size images"):
        pipeline(data, PRESETS["device_resident"])


def test_damage_and_loss_are_named(data, tmp_path):
    shutil.copytree(data.snapshot_folder, tmp_path / "snapshot")
    path = column_path(tmp_path / "snapshot", "train", "image")
    flip_bit(path, -500)
    rows = data.snapshot.splits["train"]
    first = max(chunk.start for chunk in rows.chunks)
    with pytest.raises(
        CorruptColumn, match=f"image.bin: chunk of rows {first} to {rows.count - 1} does not"
    ):
        verify(tmp_path / "snapshot", read_index(tmp_path / "snapshot"))
    content = path.read_bytes()
    path.write_bytes(content[:-64])
    with pytest.raises(
        CorruptColumn, match=f"has {len(content) - 64} bytes, the index says {len(content)}"
    ):
        read_index(tmp_path / "snapshot")
