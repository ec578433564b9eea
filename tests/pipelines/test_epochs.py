"""What of a stream is built once, for every epoch, and after all epochs; order and augmentation are
pure functions of seed, epoch and step, wherever one begins.
"""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.support.lanes import slow_but_first
from tests.support.small_pipelines import CONFIGS, are_permutations, batches, pipeline, same
from throughline.data.encodings.images import image_feature
from throughline.data.encodings.labels import labeled
from throughline.pipelines.epochs import split_by_epochs
from throughline.plan.augmentations import Brightness, Flip
from throughline.plan.ops import Decode, Resize
from throughline.plan.plan import make_plan
from throughline.plan.spec import InputSpec
from throughline.settings import PipelineConfig

pytestmark = pytest.mark.integration

SPEC = InputSpec(
    schema=labeled(image_feature()),
    preprocess=(Decode(), Resize(height=8, width=8)),
    augment=(Flip(),),
    postprocess=(),
    batch_size=4,
)


@pytest.mark.parametrize(
    ("config", "once", "per_epoch", "after"),
    [
        ({}, "", "read:shuffled shards → shuffle[auto] → map:parse+decode+resize+flip → batch[4]",
         ""),
        ({"read": "files", "prefetch": 2}, "read:files",
         "shuffle[auto] → map:load+decode+resize+flip → batch[4]", "prefetch[2]"),
        ({"cache": {"after": "decode"}, "prefetch": "auto"},
         "read:shuffled shards → map:parse+decode → cache:memory",
         "shuffle[auto] → map:resize+flip → batch[4]", "prefetch[auto]"),
        ({"read": "files", "cache": {}}, "read:files → map:load+decode+resize → cache:memory",
         "shuffle[auto] → map:flip → batch[4]", ""),
    ],
    ids=["shards", "files", "cached shards", "cached files"],
)  # fmt: skip
def test_sources_and_caches_are_opened_once_and_prefetching_goes_on_across_epochs(
    config, once, per_epoch, after
):
    parts = split_by_epochs(make_plan(PipelineConfig.model_validate(config), SPEC))
    assert [" → ".join(map(str, part)) for part in parts] == [once, per_epoch, after]


# Each begins its epochs in another way: with and without what is opened once, a cache, and an epoch
# that is opened early.
@pytest.mark.parametrize(
    "name",
    [
        *("naive", "cache_memory"),
        *slow_but_first(["shards_global", "save_load", "unordered", "balanced_stream"]),
    ],
)
def test_every_epoch_of_a_stream_is_another_permutation_and_any_can_be_started_from(stored, name):
    pipe = pipeline(stored, augment=(Flip(), Brightness()), with_keys=True, **CONFIGS[name])
    whole, steps = batches(pipe, epochs=2), pipe.steps_per_epoch
    if name != "balanced_stream":
        assert are_permutations(pipe, whole)
    rest = batches(pipe, first_step=steps + 3, epochs=2)
    first = steps + 3 if pipe.plan.seekable else steps  # a stream begins with the epoch of a step
    assert len(rest) == len(whole) - first
    if pipe.plan.deterministic:
        assert same(rest, whole[first:])


@pytest.mark.parametrize(
    "name",
    slow_but_first(["snapshot", "snapshot_window", "snapshot_part", "device_resident", "balanced"]),
)
def test_a_step_of_the_snapshot_is_the_same_wherever_one_begins_and_whoever_gathers_it(
    stored, name
):
    pipe = pipeline(stored, augment=(Flip(), Brightness()), with_keys=True, **CONFIGS[name])
    whole = batches(pipe, epochs=2)
    if name != "balanced":
        assert are_permutations(pipe, whole)
    step = pipe.steps_per_epoch + 1
    assert same(batches(pipe, first_step=step, epochs=2), whole[step:])
    gather = tf.function(pipe.gather_fn())
    assert same([gather(tf.constant(step, tf.int64)) for step in range(len(whole))], whole)


@pytest.mark.parametrize(
    "name", ["naive", *slow_but_first(["snapshot", "cache_memory", "shards_global"])]
)
def test_every_iteration_is_the_next_epoch_where_that_is_asked_for(stored, name):
    pipe = pipeline(stored, augment=(Flip(),), **CONFIGS[name])
    dataset = pipe.epoch_by_epoch()
    assert same([*dataset, *dataset.repeat(2)], batches(pipe, epochs=3))
