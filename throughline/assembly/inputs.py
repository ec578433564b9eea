"""Putting the parts together for the stages that need a configuration's input pipeline: build,
train and profile.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

from throughline.config.params import Params
from throughline.data.storage import Storage
from throughline.pipelines.input_pipeline import InputPipeline
from throughline.pipelines.read.prepared_data import PreparedData, open_prepared_data
from throughline.pipelines.service import run_local_service, watch_service
from throughline.pipelines.sizes import estimate_kept_bytes
from throughline.plan.plan import make_plan, set_storage_order
from throughline.plan.shapes import output_shape
from throughline.plan.spec import InputSpec
from throughline.plan.steps import TokenWindow, Window
from throughline.plan.training_workers import TrainingWorker, find_training_worker
from throughline.plan.windows import choose_token_window, choose_window
from throughline.settings import PipelineConfig, SnapshotPart
from throughline.shared.errors import (
    CorruptShard,
    ImpossiblePlan,
    MissingInput,
    ServiceFailed,
)
from throughline.shared.layout import Layout
from throughline.shared.limits import KEPT_SHARE, available_memory
from throughline.training.gpus import count_training_gpus

Purpose = Literal["train", "evaluate", "compare"]
# What a dispatcher without a journal says, to a consumer or to a worker.
FORGOTTEN = re.compile(r"Unknown iteration client id|Iteration id \d+ not found")


def open_inputs(params: Params, layout: Layout) -> PreparedData:
    """Open what ingest, shard and snapshot wrote, checked to belong to these parameters."""
    return open_prepared_data(
        manifest=layout.manifest,
        shards=layout.shards,
        snapshot=layout.snapshot,
        preprocess=params.preprocess,
        storage=Storage.of(params.storage, layout),
    )


def make_input_spec(params: Params, data: PreparedData, purpose: Purpose) -> InputSpec:
    """What is to be computed. train: everything. evaluate: nothing random. compare: the
    preprocessing, and no more than batches need besides.
    """
    augment = data.bind_to_data(params.augment)
    if purpose != "train":
        augment = tuple(steady for op in augment if (steady := op.in_evaluation()) is not None)
    spec = InputSpec(
        schema=data.shards.schema,
        preprocess=data.bind_to_data(params.preprocess),
        augment=augment,
        postprocess=data.bind_to_data(params.postprocess),
        batch_size=params.batch_size,
        window=make_series_window(params, data) or make_token_window(params, data),
    )
    return (
        replace(spec, augment=spec.ops_to_uniform_shape, postprocess=())
        if purpose == "compare"
        else spec
    )


def make_series_window(params: Params, data: PreparedData) -> Window | None:
    """The windows of a time series, None for other data.

    Raises:
      InvalidParams: a target is no column, or a split is shorter than one window.
    """
    shards = data.shards
    if not shards.schema.is_series:
        return None
    steps = {split: shards.examples(split) for split in shards.splits}
    return choose_window(params.window, steps, shards.schema.input.columns.names)


def name_targets(params: Params, data: PreparedData) -> tuple[str, ...]:
    """The numbers that are predicted, by the columns they are in; none where those are classes."""
    schema, window = data.shards.schema, make_series_window(params, data)
    if window is not None:
        return tuple(schema.input.columns.names[column] for column in window.targets)
    return params.data.label_columns if schema.predicts_number else ()


def make_token_window(params: Params, data: PreparedData) -> TokenWindow | None:
    """The windows of text whose next tokens are predicted, None for other data and tasks.

    Raises:
      InvalidParams: a split has fewer tokens than one window.
    """
    if params.window.tokens is None or not data.shards.schema.is_text:
        return None
    tokens = {split: data.tokens(split) for split in data.shards.splits}
    return choose_token_window(params.window.tokens, tokens)


def infer_input_shape(params: Params, data: PreparedData) -> tuple[int | None, ...]:
    """Shape of one example as it reaches the model, before the postprocessing that may happen
    there.
    """
    spec = make_input_spec(params, data, "evaluate")
    return output_shape((*spec.preprocess, *spec.augment), spec.schema, spec.window)


@contextmanager
def explain_read_errors(data: PreparedData, *, shards: bool = True) -> Iterator[None]:
    """Say which record of which shard is damaged, which file is not there, where TensorFlow's
    reader stumbled over one, or that the tf.data service has forgotten what it was at. Where no
    `shards` are read, what the model or an op refuses is not looked for in them.

    Raises:
      CorruptShard, MissingInput, ServiceFailed: instead of TensorFlow's own error.
    """
    import tensorflow as tf

    try:
        yield
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
        suspects = (
            data.shards.shards if shards or isinstance(error, tf.errors.DataLossError) else ()
        )
        here = filter(data.shard_files.is_here, suspects)
        problems = [problem for shard in here for problem in data.find_damage(shard)]
        if not problems:
            raise
        raise CorruptShard("\n".join(problems)) from error
    except tf.errors.NotFoundError as error:
        if FORGOTTEN.search(error.message):
            raise ServiceFailed(
                "the dispatcher of the tf.data service was started again, and keeps no journal of"
                " what it has handed out; start it with --work-dir. The same command goes on from"
                " the last checkpoint"
            ) from error
        missing = error.message.splitlines()[0]
        raise MissingInput(
            f"{missing}\nRun `dvc repro`; workers of a tf.data service on other hosts need the"
            " files at the same paths"
        ) from error


@contextmanager
def open_input_service(config: PipelineConfig) -> Iterator[str]:
    """Address of the tf.data service that a configuration uses, running as long as the block; empty
    where it uses none.

    Raises:
      ServiceFailed: a given dispatcher does not answer, or a local one did not start. A given one
        that is away for long ends this process.
    """
    if config.service is None:
        yield ""
    elif config.service.address:
        with watch_service(config.service.address):
            yield config.service.address
    else:
        with run_local_service(config.service.workers) as address:
            yield address


def open_input_pipeline(
    params: Params,
    name: str,
    data: PreparedData,
    *,
    split: str,
    purpose: Purpose,
    address: str = "",
) -> InputPipeline:
    """The input pipeline of configuration `name` for a split; `address` is that of its tf.data
    service.

    Evaluation reads in storage order, in this process; so does comparing, but the training split
    comes through the service if there is one.

    Raises:
      ImpossiblePlan: a cache would not fit into memory, or several processes would read the same
        stream.
      StaleSnapshot: more of the snapshot is read than it stores.
    """
    config = params.pipelines[name]
    if purpose != "train":
        config = set_storage_order(config)
    if purpose == "evaluate" or split != "train":
        config = config.model_copy(update={"service": None})
    plan = make_plan(config, make_input_spec(params, data, purpose))
    worker = TrainingWorker()
    if purpose != "compare":  # which one process does while the others wait
        worker = training_worker(params)
    if purpose == "evaluate":
        worker = TrainingWorker(on_host=worker.on_host)
    if worker.multiple > 1 and not plan.seekable:
        raise ImpossiblePlan(
            f"pipelines.{name}: batches of a snapshot or of indexed shards can be shared by"
            " processes and cut to a multiple, not those of a stream; use `read: snapshot` or"
            " `indexed_shards`, or train.processes and train.batch_multiple of 1"
        )
    pipeline = InputPipeline(
        plan=plan,
        data=data,
        split=split,
        seed=params.train.seed,
        with_keys=purpose == "compare",
        worker=worker,
        service_address=address,
    )
    check_memory([pipeline])
    worker.check(pipeline.examples, params.batch_size, lanes=config.shuffle.lanes)
    return pipeline


def training_worker(params: Params) -> TrainingWorker:
    """Which of the processes that train together this is; the first, before they are started.

    Raises:
      ImpossiblePlan: TF_CONFIG and the parameters do not agree.
    """
    train = params.train
    return find_training_worker(
        os.environ,
        processes=train.processes,
        batch_multiple=train.batch_multiple,
        gpus=count_training_gpus() if train.processes == "auto" else 0,
    )


def open_exact_pipeline(params: Params, data: PreparedData, *, split: str) -> InputPipeline:
    """The examples of a split as the snapshot holds them, in order, to compare others with."""
    plan = make_plan(_read_stored(data, split), make_input_spec(params, data, "compare"))
    return InputPipeline(plan=plan, data=data, split=split, seed=params.train.seed, with_keys=True)


def open_stored_pipeline(params: Params, data: PreparedData, *, split: str) -> InputPipeline:
    """The examples of a split, in order and with keys, as the full model takes them: from the
    snapshot, without anything random, before the postprocessing.
    """
    spec = make_input_spec(params, data, "evaluate")
    spec = replace(spec, postprocess=tuple(op for op in spec.postprocess if op.on_labels))
    plan = make_plan(_read_stored(data, split), spec)
    return InputPipeline(plan=plan, data=data, split=split, seed=params.train.seed, with_keys=True)


def _read_stored(data: PreparedData, split: str) -> PipelineConfig:
    """What reads all that the snapshot stores of a split, in order."""
    part = SnapshotPart(fraction=data.stored_fraction(split))
    return set_storage_order(PipelineConfig(read="snapshot", snapshot=part))


def check_memory(pipelines: Sequence[InputPipeline]) -> None:
    """Refuse to keep more in memory than there is for this worker, of splits that are kept at once.

    Raises:
      ImpossiblePlan: with the sizes.
    """
    kept = {
        one.split: estimate_kept_bytes(one.plan, one.data, one.split, where="memory")
        for one in pipelines
    }
    needed, available = sum(kept.values()), pipelines[0].worker.share(available_memory())
    if needed > KEPT_SHARE * available:
        which = f"{' and '.join(kept)} split{'s' if len(kept) > 1 else ''}"
        raise ImpossiblePlan(
            f"{pipelines[0].plan}: the {which} would take {needed / 2**30:,.1f} GiB of memory,"
            f" {available / 2**30:,.1f} GiB are available; use `cache: {{where: disk}}` or `read:"
            " snapshot`"
        )
