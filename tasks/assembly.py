"""Putting the parts together for the stages that need a configuration's input pipeline: build, train and profile."""

from __future__ import annotations

from typing import Literal

from tasks.params import Params
from tasks.pipelines.dataset import InputPipeline
from tasks.pipelines.plan import make_plan, without_shuffle
from tasks.pipelines.stored import Stored, open_stored
from tasks.stage import Layout

Purpose = Literal["train", "evaluate", "compare"]


def open_inputs(params: Params, layout: Layout) -> Stored:
    """Open what ingest, shard and snapshot wrote, checked to belong to these parameters."""
    return open_stored(manifest=layout.manifest, shards=layout.shards, snapshot=layout.snapshot, preprocess=params.preprocess)


def input_pipeline(params: Params, name: str, stored: Stored, *, split: str, purpose: Purpose) -> InputPipeline:
    """The input pipeline of configuration `name` for a split.

    train: everything. evaluate: in storage order, without augmentation. compare: also without finishing, and with keys.
    """
    config = params.pipelines[name]
    plan = make_plan(
        config if purpose == "train" else without_shuffle(config),
        schema=stored.shards.schema,
        preprocess=params.preprocess,
        augment=params.augment if purpose == "train" else (),
        finish=() if purpose == "compare" else params.finish,
        batch_size=params.batch_size,
    )
    return InputPipeline(plan=plan, stored=stored, split=split, batch_size=params.batch_size, seed=params.train.seed, with_keys=purpose == "compare")
