"""Putting the parts together for the stages that need a configuration's input pipeline: build, train and profile."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

import psutil

from tasks.errors import CorruptShard, ImpossiblePlan, InvalidParams, MissingInput
from tasks.layout import Layout
from tasks.params import Params
from tasks.pipelines.dataset import InputPipeline
from tasks.pipelines.mapped import Host
from tasks.pipelines.plan import Plan, Work, in_order, make_plan
from tasks.pipelines.service import check_listens, local_service
from tasks.pipelines.shapes import output_shape
from tasks.pipelines.steps import Keep, Read, Windows
from tasks.pipelines.stored import Stored, open_stored
from tasks.settings import PipelineConfig

Purpose = Literal["train", "evaluate", "compare"]
MEMORY_SHARE = 0.8  # of what is available, that a cache may fill


def open_inputs(params: Params, layout: Layout) -> Stored:
    """Open what ingest, shard and snapshot wrote, checked to belong to these parameters."""
    return open_stored(manifest=layout.manifest, shards=layout.shards, snapshot=layout.snapshot, preprocess=params.preprocess)


def pipeline_spec(params: Params, stored: Stored, purpose: Purpose) -> Work:
    """What is to be computed. train: everything. evaluate: nothing random. compare: the preprocessing, and no more than batches need besides."""
    augment = stored.completed(params.augment)
    if purpose != "train":
        augment = tuple(steady for op in augment if (steady := op.in_evaluation()) is not None)
    work = Work(
        schema=stored.shards.schema,
        preprocess=params.preprocess,
        augment=augment,
        finish=stored.completed(params.finish),
        batch_size=params.batch_size,
        windows=series_windows(params, stored),
    )
    return replace(work, augment=work.aligning, finish=()) if purpose == "compare" else work


def series_windows(params: Params, stored: Stored) -> Windows | None:
    """The windows of a time series, None for other data.

    Raises:
      InvalidParams: a target is no column, or a split is shorter than one window.
    """
    schema, window = stored.shards.schema, params.window
    if schema.payload != "series":
        return None
    unknown = [name for name in window.targets if name not in schema.columns]
    if unknown:
        raise InvalidParams([f"window.targets: {unknown[0]} is not a column; known: {', '.join(schema.columns)}"])
    targets = tuple(schema.columns.index(name) for name in window.targets or schema.columns)
    windows = Windows(length=window.length, horizon=window.horizon, stride=window.stride, targets=targets)
    for split in stored.shards.splits:
        steps = stored.shards.examples(split)
        if windows.count(steps) == 0:
            needed = f"window.length + window.horizon = {window.length + window.horizon}"
            raise InvalidParams(
                [f"window: the {split} split has {steps} time steps, fewer than {needed}; shorten the window or give the split more data"]
            )
    return windows


def input_shape(params: Params, stored: Stored) -> tuple[int, ...]:
    """Shape of one example as it reaches the model, before the finishing that may happen there."""
    work = pipeline_spec(params, stored, "evaluate")
    return output_shape((*work.preprocess, *work.augment), work.schema, work.windows)


@contextmanager
def explain_read_errors(stored: Stored) -> Iterator[None]:
    """Say which record of which shard is damaged, or which file is not there, where TensorFlow's reader stumbled over one.

    Raises:
      CorruptShard, MissingInput: instead of TensorFlow's own error.
    """
    import tensorflow as tf

    try:
        yield
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
        problems = [problem for shard in stored.shards.shards for problem in stored.damage(shard)]
        if not problems:
            raise
        raise CorruptShard("\n".join(problems)) from error
    except tf.errors.NotFoundError as error:
        missing = error.message.splitlines()[0]
        raise MissingInput(f"{missing}\nRun `dvc repro`; workers of a tf.data service on other hosts need the files at the same paths") from error


@contextmanager
def input_service(config: PipelineConfig) -> Iterator[str]:
    """Address of the tf.data service that a configuration uses, running as long as the block; empty where it uses none.

    Raises:
      ServiceFailed: a given dispatcher does not answer, or one's own did not start.
    """
    if config.service is None:
        yield ""
    elif config.service.address:
        check_listens(config.service.address)
        yield config.service.address
    else:
        with local_service(config.service.workers) as address:
            yield address


def input_pipeline(params: Params, name: str, stored: Stored, *, split: str, purpose: Purpose, address: str = "") -> InputPipeline:
    """The input pipeline of configuration `name` for a split; `address` is that of its tf.data service.

    Evaluation reads in storage order, in this process; so does comparing, but through the service if there is one.

    Raises:
      ImpossiblePlan: a cache would not fit into memory, or several hosts would read the same stream.
    """
    config = params.pipelines[name]
    if purpose == "evaluate":
        config = in_order(config).model_copy(update={"service": None})
    plan = make_plan(in_order(config) if purpose == "compare" else config, pipeline_spec(params, stored, purpose))
    _check_memory(plan, stored, split)
    host = host_from_tf_config(os.environ) if purpose == "train" else Host()
    if host.count > 1 and not plan.gathers:
        raise ImpossiblePlan(f"pipelines.{name}: {host.count} hosts can share a snapshot only, not a stream; use `read: snapshot`")
    pipeline = InputPipeline(
        plan=plan,
        stored=stored,
        split=split,
        batch_size=params.batch_size,
        seed=params.train.seed,
        with_keys=purpose == "compare",
        host=host,
        address=address,
    )
    host.check(pipeline.examples, params.batch_size)
    return pipeline


def reference_pipeline(params: Params, stored: Stored, *, split: str) -> InputPipeline:
    """The examples of a split as the snapshot holds them, in order, to compare others with."""
    plan = make_plan(in_order(PipelineConfig(read="snapshot")), pipeline_spec(params, stored, "compare"))
    return InputPipeline(plan=plan, stored=stored, split=split, batch_size=params.batch_size, seed=params.train.seed, with_keys=True)


def host_from_tf_config(environment: Mapping[str, str]) -> Host:
    """Which of several hosts this is, as TF_CONFIG configures tf.distribute: the chief first, then the workers. The only one where it is not set.

    Raises:
      ImpossiblePlan: TF_CONFIG does not say that, so that hosts could train on the same examples.
    """
    text = environment.get("TF_CONFIG") or "{}"
    try:
        config = json.loads(text)
        cluster, task = config.get("cluster", {}), config.get("task", {})
        counts = {kind: len(cluster.get(kind, [])) for kind in ("chief", "worker")}
        others = sorted(kind for kind, hosts in cluster.items() if kind not in counts and hosts)
        kind, index = task.get("type"), task.get("index")
    except (ValueError, AttributeError, TypeError) as error:
        raise ImpossiblePlan(f"TF_CONFIG is not what tf.distribute expects ({error}): {text[:200]}") from error
    if others:
        raise ImpossiblePlan(f"TF_CONFIG: cluster.{others[0]} takes no part in reading a snapshot; name a chief and workers only")
    count = sum(counts.values())
    if count <= 1:
        return Host()
    if kind not in counts or type(index) is not int or not 0 <= index < counts[kind]:
        raise ImpossiblePlan(
            f"TF_CONFIG: task {json.dumps(task)} is none of the {count} hosts of the cluster; each needs its own type (chief or worker) and index"
        )
    return Host(index=index + (counts["chief"] if kind == "worker" else 0), count=count)


def _check_memory(plan: Plan, stored: Stored, split: str) -> None:
    """Refuse to keep more in memory than there is."""
    records = sum(shard.bytes for shard in stored.shards.for_split(split))
    rows = stored.snapshot.bytes(split)
    kept = [rows for step in plan.steps if isinstance(step, Keep) and step.where == "memory"]
    kept += [records for step in plan.steps if isinstance(step, Read) and step.source == "arrays"]
    available = psutil.virtual_memory().available
    if sum(kept) > MEMORY_SHARE * available:
        raise ImpossiblePlan(
            f"{plan}: the {split} split would take {sum(kept) / 2**30:,.1f} GiB of memory, {available / 2**30:,.1f} GiB are available; "
            "use `cache: {where: disk}` or `read: snapshot`"
        )
