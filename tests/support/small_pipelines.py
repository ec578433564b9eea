"""Small pipelines over prepared data, by name of their configuration, for tests."""

import numpy as np
import tensorflow as tf

from tests.support.prepared import snapshot
from tests.support.project import ROOT
from throughline.config.params_file import read_yaml
from throughline.data.shards.index import read_shard_index
from throughline.measurement.equality import ExamplesDigest, digest_examples
from throughline.pipelines.input_pipeline import InputPipeline
from throughline.pipelines.read.prepared_data import open_prepared_data
from throughline.plan.ops import CenterCrop, Decode, Rescale, Resize
from throughline.plan.plan import InputSpec, make_plan, set_storage_order
from throughline.plan.training_workers import TrainingWorker
from throughline.settings import PipelineConfig, SnapshotSettings

GLOBAL = {"kind": "global"}
PRESETS = read_yaml(ROOT / "infra" / "presets" / "images.yaml")["pipelines!"]
del PRESETS["fast_decode"]  # which delivers other pixels
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
PREPROCESS = {
    "arrays": (Decode(),),
    "photos": (Decode(), CenterCrop(height=20, width=24), Resize(height=16, width=18)),
    "unlike": (Decode(),),  # photos in their own sizes
}
BATCH = 16
RESCALE = (Rescale(),)


class SnapshotsOf(dict):
    """Prepared data with a snapshot, by the kind of their images; written when it is asked for."""

    def __init__(self, folders):
        super().__init__()
        self.folders = folders

    def __missing__(self, kind):
        folder = self.folders[kind]
        self[kind] = prepare_snapshot(folder, folder / "snapshot", kind)
        return self[kind]


def prepare_snapshot(prepared, out, kind, **settings):
    """Write a snapshot of prepared data into a folder of its own, and open it."""
    shards = prepared / "shards"
    options = {"preprocess": PREPROCESS[kind], "settings": SnapshotSettings(**settings)}
    snapshot(read_shard_index(shards), shards, out, **options)
    return open_snapshot(prepared, out, kind)


def open_snapshot(prepared, out, kind, **more):
    """Prepared data with its snapshot; `more` as `open_prepared_data` takes it."""
    places = {"manifest": prepared / "manifest", "shards": prepared / "shards", "snapshot": out}
    return open_prepared_data(**places, preprocess=PREPROCESS[kind], **more)


def pipeline(
    stored,
    kind="arrays",
    *,
    augment=(),
    postprocess=RESCALE,
    seed=3,
    split="train",
    batch_size=BATCH,
    with_keys=False,
    in_order=False,
    address="",
    worker=TrainingWorker(),  # noqa: B008
    **config,
):
    """A pipeline of a split; `config` is its configuration."""
    chosen = PipelineConfig(**config)
    spec = InputSpec(
        schema=stored[kind].shards.schema,
        preprocess=PREPROCESS[kind],
        augment=stored[kind].bind_to_data(augment),
        postprocess=stored[kind].bind_to_data(postprocess),
        batch_size=batch_size,
    )
    return InputPipeline(
        plan=make_plan(set_storage_order(chosen) if in_order else chosen, spec),
        data=stored[kind],
        split=split,
        seed=seed,
        with_keys=with_keys,
        service_address=address,
        worker=worker,
    )


def batches(pipe, **extent):
    return list(pipe.dataset(**extent).as_numpy_iterator())


def same(one, two):
    return len(one) == len(two) and all(
        np.array_equal(part, other)
        for pair in zip(one, two, strict=True)
        for part, other in zip(*map(tf.nest.flatten, pair), strict=True)
    )


def digest_of_all(pipelines: dict[str, InputPipeline]) -> ExamplesDigest:
    """The digest of the examples of all these pipelines; fails where one delivers others."""
    digests = {name: digest_examples(pipe) for name, pipe in pipelines.items()}
    first = next(iter(digests.values()))
    assert {one.digest for one in digests.values()} == {first.digest}, digests
    return first


def are_permutations(pipe, whole):
    """Whether each epoch of batches with keys has all examples, in an order of its own."""
    keys, steps = [batch["key"] for batch in whole], pipe.steps_per_epoch
    epochs = {
        tuple(np.concatenate(keys[first : first + steps])) for first in range(0, len(keys), steps)
    }
    return len(epochs) == len(keys) / steps and all(
        len(set(epoch)) == len(epoch) == pipe.examples for epoch in epochs
    )
