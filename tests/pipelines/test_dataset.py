"""Every configuration delivers the same examples; order and augmentation are pure functions of seed, epoch and step."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tasks.data.shards import read_shard_index
from tasks.errors import CorruptShard, StaleSnapshot
from tasks.evidence.equality import digest_examples
from tasks.pipelines.dataset import InputPipeline, shuffled
from tasks.pipelines.ops import Brightness, Decode, Flip, Rescale, Resize
from tasks.pipelines.plan import make_plan, without_shuffle
from tasks.pipelines.stored import open_stored
from tasks.settings import PipelineConfig
from tasks.snapshot import snapshot

GLOBAL = {"kind": "global"}
CONFIGS = {
    "naive": {"shuffle": {"kind": "none"}},
    "shuffled": {"shuffle": {"kind": "buffer", "size": 16}},
    "arrays": {"read": "arrays", "prefetch": 2},
    "interleave": {"interleave": {"cycle_length": 3, "block_length": 2, "parallel": "auto"}, "deterministic": False},
    "map_parallel": {"map": {"parallel": "auto"}, "prefetch": "auto"},
    "rewrites": {"rewrites": True},
    "vectorized": {"vectorize": True},
    "cache_memory": {"cache": {"after": "decode"}},
    "cache_disk": {"cache": {"where": "disk", "after": "decode"}},
    "snapshot": {"read": "snapshot", "shuffle": GLOBAL},
    "optimized": {"read": "snapshot", "shuffle": GLOBAL, "map": {"parallel": "cores"}, "prefetch": 2, "finish": "device"},
}
PREPROCESS = {"arrays": (Decode(),), "photos": (Decode(), Resize(height=16, width=18))}
BATCH = 16
RESCALE = (Rescale(),)


@pytest.fixture(scope="module")
def stored(arrays, photos):
    """Both data sets with their snapshots."""
    opened = {}
    for kind, folder in (("arrays", arrays), ("photos", photos)):
        snapshot(read_shard_index(folder / "shards"), folder / "shards", folder / "snapshot", preprocess=PREPROCESS[kind])
        opened[kind] = open_stored(manifest=folder / "manifest", shards=folder / "shards", snapshot=folder / "snapshot", preprocess=PREPROCESS[kind])
    return opened


def pipeline(stored, kind="arrays", *, augment=(), widen=RESCALE, seed=3, with_keys=False, in_order=False, **config):
    chosen = PipelineConfig(**config)
    plan = make_plan(
        without_shuffle(chosen) if in_order else chosen,
        schema=stored[kind].shards.schema,
        preprocess=PREPROCESS[kind],
        augment=augment,
        finish=widen,
        batch_size=BATCH,
    )
    return InputPipeline(plan=plan, stored=stored[kind], split="train", batch_size=BATCH, seed=seed, with_keys=with_keys)


def batches(pipe, *, epoch=0, **extent):
    pipe.epoch.assign(epoch)
    return [(image.numpy(), label.numpy()) for image, label in pipe.dataset(**extent)]


def same(one, two):
    return len(one) == len(two) and all(np.array_equal(a, c) and np.array_equal(b, d) for (a, b), (c, d) in zip(one, two, strict=True))


@pytest.mark.parametrize("kind", ["arrays", "photos"])
def test_all_configurations_deliver_the_same_examples(stored, kind):
    extra = {"files": {"read": "files"}} if kind == "photos" else {}
    digests = {
        name: digest_examples(pipeline(stored, kind, widen=(), with_keys=True, in_order=True, **config)) for name, config in (CONFIGS | extra).items()
    }
    assert len({digest.digest for digest in digests.values()}) == 1, digests
    assert all(digest.examples == stored[kind].shards.examples("train") for digest in digests.values())


def test_a_configuration_that_computes_something_else_has_another_digest(stored):
    right = digest_examples(pipeline(stored, "photos", widen=(), with_keys=True, in_order=True))
    wrong_plan = make_plan(
        PipelineConfig(shuffle={"kind": "none"}), schema=stored["photos"].shards.schema,
        preprocess=(Decode(), Resize(height=16, width=18, method="nearest")), augment=(), finish=(), batch_size=BATCH,
    )  # fmt: skip
    wrong = InputPipeline(plan=wrong_plan, stored=stored["photos"], split="train", batch_size=BATCH, seed=0, with_keys=True)
    assert digest_examples(wrong).digest != right.digest


@pytest.mark.parametrize("name", CONFIGS)
def test_shapes_dtypes_and_cardinality_are_known(stored, name):
    pipe = pipeline(stored, "photos", augment=(Flip(),), **{**CONFIGS[name], "cache": {"after": "resize"} if "cache" in name else None})
    image, label = pipe.dataset().element_spec
    assert image.shape.as_list()[1:] == [16, 18, 3]
    assert image.dtype == (tf.uint8 if name == "optimized" else tf.float32)
    assert label.dtype == tf.int64
    assert pipe.dataset().cardinality().numpy() == pipe.steps == len(batches(pipe))


@pytest.mark.parametrize("name", ["snapshot", "optimized"])
def test_every_epoch_is_another_permutation_of_all_examples(stored, name):
    pipe = pipeline(stored, with_keys=True, **CONFIGS[name])
    keys = [batch["key"] for batch in pipe.dataset(epochs=3).as_numpy_iterator()]
    epochs = [np.concatenate(keys[start : start + pipe.steps]) for start in range(0, 3 * pipe.steps, pipe.steps)]
    assert all(len(set(epoch)) == pipe.examples for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


@pytest.mark.parametrize("name", ["snapshot", "optimized"])
@pytest.mark.parametrize("step", [1, 5, 8, 13])
def test_starting_at_any_step_gives_the_same_rest(stored, name, step):
    pipe = pipeline(stored, augment=(Flip(), Brightness()), **CONFIGS[name])
    assert same(batches(pipe, epochs=2)[step:], batches(pipe, first_step=step, epochs=2))


def test_equal_seeds_give_equal_batches_and_others_do_not(stored):
    for config in (CONFIGS["shuffled"], CONFIGS["snapshot"]):
        one, two, other = (batches(pipeline(stored, augment=(Flip(),), seed=seed, **config)) for seed in (3, 3, 4))
        assert same(one, two)
        assert not same(one, other)


def test_seed_and_epoch_are_a_pair_not_a_sum(stored):
    (one, zero) = (pipeline(stored, seed=seed, **CONFIGS["snapshot"]) for seed in (1, 0))
    assert not same(batches(one), batches(zero, epochs=2)[zero.steps :])


def test_augmentation_is_the_same_whatever_the_configuration(stored):
    def by_key(name, config):
        pipe = pipeline(stored, augment=(Flip(), Brightness()), widen=(), with_keys=True, **config)
        pipe.epoch.assign(2)
        found = list(pipe.dataset(epochs=3).as_numpy_iterator())[-pipe.steps :]
        return {int(key): image.tobytes() for batch in found for key, image in zip(batch["key"], batch["image"], strict=True)}

    expected = by_key("naive", CONFIGS["naive"])
    for name in ("map_parallel", "vectorized", "cache_memory", "snapshot", "interleave"):
        assert by_key(name, CONFIGS[name]) == expected, name


def test_augmentation_differs_from_epoch_to_epoch(stored):
    pipe = pipeline(stored, augment=(Flip(),), **CONFIGS["cache_memory"] | {"shuffle": {"kind": "none"}})
    assert not same(batches(pipe, epoch=0), batches(pipe, epoch=1))
    assert same(batches(pipe, epoch=1), batches(pipe, epoch=1))


def test_a_snapshot_of_other_preprocessing_is_never_read(stored, photos):
    with pytest.raises(StaleSnapshot):
        open_stored(
            manifest=photos / "manifest", shards=photos / "shards", snapshot=photos / "snapshot", preprocess=(Decode(), Resize(height=9, width=9))
        )


def test_a_changed_op_version_makes_a_snapshot_stale(stored, photos, monkeypatch):
    monkeypatch.setattr(Resize, "version", 2)
    with pytest.raises(StaleSnapshot):
        open_stored(manifest=photos / "manifest", shards=photos / "shards", snapshot=photos / "snapshot", preprocess=PREPROCESS["photos"])


def test_a_snapshot_goes_on_after_an_interruption(stored, photos, tmp_path, monkeypatch):
    index = read_shard_index(photos / "shards")
    calls = []

    def stop_at_the_third(*arguments, **values):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*arguments, **values)

    import tasks.snapshot as stage

    real = stage.write_rows
    monkeypatch.setattr(stage, "write_rows", stop_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        snapshot(index, photos / "shards", tmp_path / "snapshot", preprocess=PREPROCESS["photos"])
    assert not (tmp_path / "snapshot").exists()
    calls.clear()
    calls.extend([None] * 10)
    snapshot(index, photos / "shards", tmp_path / "snapshot", preprocess=PREPROCESS["photos"])
    assert len(calls) == 10 + len(index.shards) - 2
    for path in (photos / "snapshot").rglob("*.bin"):
        assert path.read_bytes() == (tmp_path / "snapshot" / path.relative_to(photos / "snapshot")).read_bytes()


def test_a_damaged_shard_stops_the_snapshot_and_is_named(arrays, tmp_path):
    import shutil

    shutil.copytree(arrays / "shards", tmp_path / "shards")
    index = read_shard_index(tmp_path / "shards")
    path = tmp_path / "shards" / index.shards[1].name
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptShard, match=path.name):
        snapshot(index, tmp_path / "shards", tmp_path / "snapshot", preprocess=(Decode(),))
    assert not (tmp_path / "snapshot").exists()


@pytest.mark.parametrize("count", [1, 2, 7, 100, 1001, 54119])
def test_the_shuffle_is_a_bijection(count):
    order = shuffled(tf.range(count, dtype=tf.int64), count=count, seed=5, epoch=tf.constant(3, tf.int64)).numpy()
    assert sorted(order) == list(range(count))


@pytest.mark.parametrize("count", [10, 100, 54119])
def test_the_shuffle_is_a_good_one(count):
    """Uniform places and uncorrelated neighbours; with the cipher's default of 4 rounds 54119 fails both."""
    epochs = 2000 if count < 1000 else 60
    orders = np.stack([shuffled(tf.range(count, dtype=tf.int64), count=count, seed=0, epoch=tf.constant(e, tf.int64)).numpy() for e in range(epochs)])
    bins = min(10, count)
    table = np.zeros((bins, bins))
    for order in orders:
        np.add.at(table, (np.arange(count) * bins // count, order * bins // count), 1)
    freedom = (bins - 1) ** 2
    chi_square = ((table - table.mean()) ** 2 / table.mean()).sum()
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom)
    correlation = np.mean([np.corrcoef(order[:-1], order[1:])[0, 1] for order in orders])
    assert abs(correlation + 1 / (count - 1)) < 5 / np.sqrt(epochs * count)
