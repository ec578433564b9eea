"""Small pipelines over prepared data, by name of their configuration, for tests."""

from __future__ import annotations

import numpy as np
from project import ROOT
from ruamel.yaml import YAML

from throughline.data.shards.index import read_shard_index
from throughline.pipelines.input_pipeline import InputPipeline
from throughline.pipelines.read.prepared_data import open_prepared_data
from throughline.pipelines.write.snapshot import snapshot
from throughline.plan.ops import CenterCrop, Decode, Rescale, Resize
from throughline.plan.plan import make_plan, set_storage_order
from throughline.plan.spec import InputSpec
from throughline.plan.training_workers import TrainingWorker
from throughline.settings import PipelineConfig

GLOBAL = {"kind": "global"}
PRESETS = YAML(typ="safe").load((ROOT / "infra" / "presets" / "images.yaml").read_text())[
    "pipelines!"
]
APPROXIMATE = PRESETS.pop("fast_decode")
OTHERS = {
    "snapshot_part": {  # of images alone, so it is no preset
        "read": "snapshot",
        "snapshot": {"fraction": 0.3},
        "shuffle": {"kind": "global"},
        "map": {"parallel": "cores"},
        "prefetch": 2,
    },
    "in_order": {"shuffle": {"kind": "none"}},
    "rewrites": {"graph_rewrites": True},
    "private_threads": {"threads": 2, "map": {"parallel": 2}},
}
CONFIGS = PRESETS | OTHERS
MAPPED = [name for name, config in CONFIGS.items() if config.get("read") == "snapshot"]
PREPROCESS = {
    "arrays": (Decode(),),
    "photos": (Decode(), CenterCrop(height=20, width=24), Resize(height=16, width=18)),
}
BATCH = 16
RESCALE = (Rescale(),)


def prepare_snapshots(folders):
    """Write and open the snapshot of each folder of prepared data, by the kind of its images."""
    opened = {}
    for kind, folder in folders.items():
        snapshot(
            read_shard_index(folder / "shards"),
            folder / "shards",
            folder / "snapshot",
            preprocess=PREPROCESS[kind],
        )
        opened[kind] = open_prepared_data(
            manifest=folder / "manifest",
            shards=folder / "shards",
            snapshot=folder / "snapshot",
            preprocess=PREPROCESS[kind],
        )
    return opened


def pipeline(
    stored,
    kind="arrays",
    *,
    augment=(),
    postprocess=RESCALE,
    seed=3,
    with_keys=False,
    in_order=False,
    address="",
    worker=TrainingWorker(),  # noqa: B008
    **config,
):
    chosen = PipelineConfig(**config)
    spec = InputSpec(
        schema=stored[kind].shards.schema,
        preprocess=PREPROCESS[kind],
        augment=stored[kind].bind_to_data(augment),
        postprocess=stored[kind].bind_to_data(postprocess),
        batch_size=BATCH,
    )
    return InputPipeline(
        plan=make_plan(set_storage_order(chosen) if in_order else chosen, spec),
        data=stored[kind],
        split="train",
        seed=seed,
        with_keys=with_keys,
        service_address=address,
        worker=worker,
    )


def batches(pipe, **extent):
    return [(image.numpy(), label.numpy()) for image, label in pipe.dataset(**extent)]


def same(one, two):
    return len(one) == len(two) and all(
        np.array_equal(a, c) and np.array_equal(b, d)
        for (a, b), (c, d) in zip(one, two, strict=True)
    )
