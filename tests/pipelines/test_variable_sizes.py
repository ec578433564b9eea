"""Images that keep their own sizes in the snapshot and are cut alike when they are read."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from lanes import slow_but_first
from small_pipelines import BATCH, MAPPED, PRESETS

from throughline.data.columns.index import column_path, map_column, read_index, verify
from throughline.data.shards.index import read_shard_index
from throughline.measurement.equality import digest_examples
from throughline.pipelines.input_pipeline import InputPipeline
from throughline.pipelines.read.prepared_data import PreparedData, open_prepared_data
from throughline.pipelines.write import snapshot_writer
from throughline.pipelines.write.snapshot import snapshot
from throughline.plan.augmentations import Brightness, Flip, Mixup, RandomCrop, RandomResizedCrop
from throughline.plan.ops import CenterCrop, Decode, Rescale
from throughline.plan.plan import make_plan, set_storage_order
from throughline.plan.spec import InputSpec
from throughline.settings import PipelineConfig
from throughline.shared.errors import CorruptColumn, ImpossiblePlan

PREPROCESS = (Decode(),)
pytestmark = pytest.mark.integration

CROP = (RandomCrop(height=20, width=24), Flip())
# A service would need a server and a device an accelerator; both have tests of their own.
CONFIGS = {
    name: config
    for name, config in PRESETS.items()
    if "service" not in config and config.get("snapshot_on") != "device"
}


@pytest.fixture(scope="module")
def stored(photos, tmp_path_factory):
    """The photos, decoded and stored in their own sizes."""
    return store(photos, tmp_path_factory.mktemp("unlike"), chunk_bytes=1 << 25)


@pytest.fixture(scope="module")
def stored_in_many_chunks(photos, tmp_path_factory):
    """The same, a few rows in a chunk."""
    return store(photos, tmp_path_factory.mktemp("unlike"), chunk_bytes=5000)


def store(photos, folder, *, chunk_bytes) -> PreparedData:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(snapshot_writer, "ROWS_BYTES", chunk_bytes)
        snapshot(
            read_shard_index(photos / "shards"),
            photos / "shards",
            folder / "snapshot",
            preprocess=PREPROCESS,
        )
    return open_prepared_data(
        manifest=photos / "manifest",
        shards=photos / "shards",
        snapshot=folder / "snapshot",
        preprocess=PREPROCESS,
    )


def pipeline(stored, config, *, augment=CROP, postprocess=(), in_order=False) -> InputPipeline:
    chosen = PipelineConfig(**config)
    spec = InputSpec(
        schema=stored.shards.schema,
        preprocess=PREPROCESS,
        augment=augment,
        postprocess=postprocess,
        batch_size=BATCH,
    )
    plan = make_plan(set_storage_order(chosen) if in_order else chosen, spec)
    return InputPipeline(plan=plan, data=stored, split="train", seed=3, with_keys=True)


def by_key(pipe) -> dict[int, np.ndarray]:
    return {
        int(key): image
        for batch in pipe.dataset().as_numpy_iterator()
        for key, image in zip(batch["key"], batch["image"], strict=True)
    }


def test_the_snapshot_holds_every_image_in_its_own_size(stored_in_many_chunks):
    index = stored_in_many_chunks.snapshot
    image, extent = index.columns[:2]
    assert (image.shape, extent.name) == ((None, None, 3), "image.extent")
    count = index.splits["train"].count
    starts_and_shapes = map_column(stored_in_many_chunks.snapshot_folder, "train", extent, count)
    assert len({tuple(shape) for shape in starts_and_shapes[:, 1:].tolist()}) > 10
    assert map_column(
        stored_in_many_chunks.snapshot_folder, "train", image, count
    ).size == index.splits["train"].bytes(image)
    verify(stored_in_many_chunks.snapshot_folder, read_index(stored_in_many_chunks.snapshot_folder))


@pytest.mark.slow
@pytest.mark.parametrize(
    "crop",
    [RandomResizedCrop(height=20, width=24).in_evaluation(), CenterCrop(height=20, width=24)],
    ids=repr,
)
def test_all_configurations_deliver_the_same_examples(stored, crop):
    digests = {
        name: digest_examples(pipeline(stored, config, augment=(crop,), in_order=True))
        for name, config in CONFIGS.items()
    }
    assert len({digest.digest for digest in digests.values()}) == 1, digests
    assert next(iter(digests.values())).shape == (20, 24, 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "augment",
    [
        CROP,
        (Brightness(), *CROP),  # which a fetch cannot do
        (RandomResizedCrop(height=20, width=24), Flip(), Flip()),
        (RandomResizedCrop(height=40, width=30, method="bilinear"), Brightness()),
        (RandomCrop(height=28, width=33), Flip()),  # larger than most
        (CenterCrop(height=27, width=34),),
    ],
    ids=repr,
)
def test_random_crops_are_the_same_whoever_makes_them(stored, augment):
    expected = by_key(pipeline(stored, CONFIGS["naive"], augment=augment))
    for name in ("vectorized", "snapshot", "optimized"):
        found = by_key(pipeline(stored, CONFIGS[name], augment=augment))
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[key], image) for key, image in expected.items()), name


@pytest.mark.parametrize("name", slow_but_first([name for name in MAPPED if name in CONFIGS]))
def test_any_step_can_be_started_from(stored, name):
    pipe = pipeline(stored, CONFIGS[name], postprocess=(Rescale(),))
    whole = list(pipe.dataset(epochs=2).as_numpy_iterator())
    for first in (1, pipe.steps_per_epoch - 1, pipe.steps_per_epoch + 1):
        rest = list(pipe.dataset(first_step=first, epochs=2).as_numpy_iterator())
        assert len(rest) == len(whole) - first
        assert all(
            np.array_equal(one["image"], other["image"])
            for one, other in zip(rest, whole[first:], strict=True)
        )


def test_what_cannot_be_done_with_unlike_sizes_is_refused(stored):
    with pytest.raises(ImpossiblePlan, match=r"images differ in size.*random_crop"):
        pipeline(stored, CONFIGS["optimized"], augment=(Flip(),))
    with pytest.raises(ImpossiblePlan, match=r"mixup needs batches.*put the crop first"):
        pipeline(stored, CONFIGS["naive"], augment=(Mixup(classes=3), *CROP))
    with pytest.raises(ImpossiblePlan, match="snapshot_on: variable-size images"):
        pipeline(stored, PRESETS["device_resident"])


def test_damage_and_loss_are_named(stored_in_many_chunks, tmp_path):
    shutil.copytree(stored_in_many_chunks.snapshot_folder, tmp_path / "snapshot")
    path = column_path(tmp_path / "snapshot", "train", "image")
    data = bytearray(path.read_bytes())
    data[-500] ^= 1
    path.write_bytes(data)
    rows = stored_in_many_chunks.snapshot.splits["train"]
    first = max(chunk.start for chunk in rows.chunks)
    with pytest.raises(
        CorruptColumn, match=f"image.bin: chunk of rows {first} to {rows.count - 1} does not"
    ):
        verify(tmp_path / "snapshot", read_index(tmp_path / "snapshot"))
    path.write_bytes(data[:-64])
    with pytest.raises(
        CorruptColumn, match=f"has {len(data) - 64} bytes, the index says {len(data)}"
    ):
        read_index(tmp_path / "snapshot")


def test_an_interrupted_snapshot_goes_on_and_writes_the_same(
    stored_in_many_chunks, photos, tmp_path, monkeypatch
):
    shards = read_shard_index(photos / "shards")
    real, seen = snapshot_writer.write_shard, []

    def dies_at_the_third(writing, shard, start):
        seen.append(shard.name)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return real(writing, shard, start)

    monkeypatch.setattr(snapshot_writer, "write_shard", dies_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        snapshot(shards, photos / "shards", tmp_path / "snapshot", preprocess=PREPROCESS)
    began, finished = len(seen), len(list(tmp_path.glob("snapshot.*.partial/.done-*")))
    assert finished >= 1
    index = snapshot(shards, photos / "shards", tmp_path / "snapshot", preprocess=PREPROCESS)
    assert (
        len(seen) - began == sum(len(shards.for_split(split)) for split in shards.splits) - finished
    ), "what was finished is not done again"
    for split in index.splits:
        for column in index.columns:
            mine, other = (
                column_path(folder, split, column.name).read_bytes()
                for folder in (tmp_path / "snapshot", stored_in_many_chunks.snapshot_folder)
            )
            assert mine == other
    assert (index.key, index.columns) == (
        stored_in_many_chunks.snapshot.key,
        stored_in_many_chunks.snapshot.columns,
    )
    assert sorted(path.name for path in (tmp_path / "snapshot" / "train").iterdir()) == [
        "image.bin",
        "image.extent.bin",
        "key.bin",
        "label.bin",
    ]
