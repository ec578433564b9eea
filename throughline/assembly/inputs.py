"""Opens the input pipelines that stages need, from parameters and prepared data."""

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
from throughline.plan.plan import InputSpec, make_plan, set_storage_order
from throughline.plan.shapes import choose_token_window, choose_window, output_shape
from throughline.plan.steps import TokenWindow, Window
from throughline.plan.training_workers import TrainingWorker, find_training_worker
from throughline.settings import PipelineConfig, SnapshotPart
from throughline.shared.errors import (
    CorruptShard,
    ImpossiblePlan,
    MissingInput,
    ServiceFailed,
)
from throughline.shared.layout import Layout
from throughline.shared.limits import KEPT_SHARE, available_memory
from throughline.training.replicas import count_training_gpus

Purpose = Literal["train", "evaluate", "compare"]
# Errors of a tf.data dispatcher that was restarted without a journal, to consumers or workers.
FORGOTTEN = re.compile(r"Unknown iteration client id|Iteration id \d+ not found")


def open_inputs(params: Params, layout: Layout) -> PreparedData:
    """Open the data of ingest, shard and snapshot; check that it fits together and `preprocess`."""
    return open_prepared_data(
        manifest=layout.manifest,
        shards=layout.shards,
        snapshot=layout.snapshot,
        preprocess=params.preprocess,
        storage=Storage.of(params.storage, layout),
    )


def make_input_spec(params: Params, data: PreparedData, purpose: Purpose) -> InputSpec:
    """Return the input to compute: for `train` with all ops, for `evaluate` without random ones.

    For `compare`, return only the preprocessing and the ops that give examples one shape.
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
    if purpose == "compare":
        return replace(spec, augment=spec.ops_to_uniform_shape, postprocess=())
    return spec


def make_series_window(params: Params, data: PreparedData) -> Window | None:
    """Return the windows of a time series; None for other data.

    Raises:
      InvalidParams: A target is not a column, or no window fits into a split.
    """
    shards = data.shards
    if not shards.schema.is_series:
        return None
    steps = {split: shards.examples(split) for split in shards.splits}
    names = shards.schema.input.columns.names
    return choose_window(params.window, steps, names, cuts=shards.cuts)


def name_targets(params: Params, data: PreparedData) -> tuple[str, ...]:
    """Return the columns of the numbers to predict; empty for classes and next tokens."""
    schema, window = data.shards.schema, make_series_window(params, data)
    if window is not None:
        return tuple(schema.input.columns.names[column] for column in window.targets)
    return params.data.label_columns if schema.predicts_number else ()


def make_token_window(params: Params, data: PreparedData) -> TokenWindow | None:
    """Return the windows of text for predicting next tokens; None for other data and tasks.

    Raises:
      InvalidParams: A split has fewer tokens than one window.
    """
    if params.window.tokens is None or not data.shards.schema.is_text:
        return None
    tokens = {split: data.tokens(split) for split in data.shards.splits}
    return choose_token_window(params.window.tokens, tokens)


def infer_input_shape(params: Params, data: PreparedData) -> tuple[int | None, ...]:
    """Return the shape of an example as the model takes it, before postprocessing."""
    spec = make_input_spec(params, data, "evaluate")
    return output_shape((*spec.preprocess, *spec.augment), spec.schema, spec.window)


@contextmanager
def explain_read_errors(data: PreparedData, *, shards: bool = True) -> Iterator[None]:
    """Replace tf.data's errors by CorruptShard, MissingInput or ServiceFailed that explain them.

    Without `shards`, shards are not checked after an InvalidArgumentError: models raise it, too.
    """
    import tensorflow as tf

    try:
        yield
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
        suspected = shards or isinstance(error, tf.errors.DataLossError)
        here = filter(data.shard_files.is_here, data.shards.shards if suspected else ())
        problems = [problem for shard in here for problem in data.find_damage(shard)]
        if not problems:
            raise
        raise CorruptShard("\n".join(problems)) from error
    except tf.errors.NotFoundError as error:
        if FORGOTTEN.search(error.message):
            raise ServiceFailed(
                "the dispatcher of the tf.data service was restarted, and has no journal of its"
                " earlier work; start it with --work-dir. The same command continues from the last"
                " checkpoint"
            ) from error
        missing = error.message.splitlines()[0]
        raise MissingInput(
            f"{missing}\nRun `dvc repro`; workers of a tf.data service on other hosts need the"
            " files at the same paths"
        ) from error


@contextmanager
def open_input_service(config: PipelineConfig) -> Iterator[str]:
    """Yield the address of the configuration's tf.data service, or "" if it uses none.

    A local service runs as long as the block.

    Raises:
      ServiceFailed: A given dispatcher does not answer, or a local one did not start. A given
        dispatcher that is away for long ends this process.
    """
    service = config.service
    if service is None:
        yield ""
    elif service.address:
        with watch_service(service.address):
            yield service.address
    else:
        with run_local_service(service.workers) as address:
            yield address


def open_input_pipeline(
    params: Params,
    name: str,
    data: PreparedData,
    *,
    split: str = "train",
    purpose: Purpose = "train",
    address: str = "",
) -> InputPipeline:
    """Open the input pipeline of configuration `name`; `address` is that of its tf.data service.

    Purposes other than `train` do not shuffle: they read in storage order, or by length in batches
    of similar lengths. Only the training split uses the service, and not to `evaluate`.

    Raises:
      ImpossiblePlan: The plan is impossible, or does not fit memory, data or processes.
      StaleSnapshot: The configuration reads more of the snapshot than it stores.
    """
    config = params.pipelines[name]
    if purpose != "train":
        config = set_storage_order(config)
    if purpose == "evaluate" or split != "train":
        config = config.model_copy(update={"service": None})
    plan = make_plan(config, make_input_spec(params, data, purpose))
    # One process compares while the others wait.
    worker = TrainingWorker() if purpose == "compare" else training_worker(params)
    if purpose == "evaluate":
        worker = TrainingWorker(on_host=worker.on_host)
    if worker.multiple > 1 and not plan.seekable:
        raise ImpossiblePlan(
            f"pipelines.{name}: batches of a stream cannot be shared by processes or cut to a"
            " multiple; use `read: snapshot` or `read: indexed_shards`, or set train.processes and"
            " train.batch_multiple to 1"
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
    """Return this process's place among the training processes: the first, before they start.

    Raises:
      ImpossiblePlan: TF_CONFIG and the parameters contradict each other.
    """
    train = params.train
    return find_training_worker(
        os.environ,
        processes=train.processes,
        batch_multiple=train.batch_multiple,
        gpus=count_training_gpus() if train.processes == "auto" else 0,
    )


def open_exact_pipeline(params: Params, data: PreparedData, *, split: str) -> InputPipeline:
    """Open a split as the snapshot stores it, in order, to compare other pipelines with."""
    spec = make_input_spec(params, data, "compare")
    return _open_in_order(params, data, split, spec)


def open_stored_pipeline(
    params: Params, name: str, data: PreparedData, *, split: str
) -> InputPipeline:
    """Open a split in order, with keys, as input of configuration `name`'s full model.

    The pipeline reads the snapshot, or decodes as the configuration does if that is approximate.
    """
    spec = make_input_spec(params, data, "evaluate")
    spec = replace(spec, postprocess=tuple(op for op in spec.postprocess if op.on_labels))
    decode = params.pipelines[name].decode
    decoded = PipelineConfig(read="shards", decode=decode) if decode.approximate else None
    return _open_in_order(params, data, split, spec, decoded)


def _open_in_order(
    params: Params,
    data: PreparedData,
    split: str,
    spec: InputSpec,
    config: PipelineConfig | None = None,
) -> InputPipeline:
    """Open a split in order, with keys; without a configuration, as the snapshot stores it."""
    part = SnapshotPart(fraction=data.stored_fraction(split))
    plan = make_plan(
        set_storage_order(config or PipelineConfig(read="snapshot", snapshot=part)), spec
    )
    return InputPipeline(plan=plan, data=data, split=split, seed=params.train.seed, with_keys=True)


def check_memory(pipelines: Sequence[InputPipeline]) -> None:
    """Check that the data kept by all pipelines fits into `KEPT_SHARE` of this worker's memory.

    Raises:
      ImpossiblePlan: It does not; the message gives both sizes.
    """
    needed = sum(
        estimate_kept_bytes(one.plan, one.data, one.split, where="memory") for one in pipelines
    )
    available = pipelines[0].worker.share(available_memory())
    if needed > KEPT_SHARE * available:
        which = " and ".join(one.split for one in pipelines) + " split" + "s" * (len(pipelines) > 1)
        raise ImpossiblePlan(
            f"{pipelines[0].plan}: the {which} would take {needed / 2**30:,.1f} GiB of memory, but"
            f" may take {KEPT_SHARE * available / 2**30:,.1f} GiB ({KEPT_SHARE:.0%} of what is"
            " available); use `cache: {where: disk}` or `read: snapshot`"
        )
