"""What of a stream is built once, for every epoch, and after all epochs; test_dataset.py has the
batches.
"""

from __future__ import annotations

import pytest

from throughline.data.encodings.images import image_feature
from throughline.data.encodings.labels import labeled
from throughline.pipelines.epochs import split_by_epochs
from throughline.plan.augmentations import Flip
from throughline.plan.ops import Decode, Resize
from throughline.plan.plan import make_plan
from throughline.plan.spec import InputSpec
from throughline.settings import PipelineConfig

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
