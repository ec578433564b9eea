"""Rebuilds the batch of one training step, without training: it is a function of (seed, epoch,
step).
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import tensorflow as tf

from throughline.assembly.inputs import make_input_spec
from throughline.config.params import Params
from throughline.kernels.elements import process_record
from throughline.pipelines.input_pipeline import InputPipeline
from throughline.pipelines.read.prepared_data import PreparedData
from throughline.pipelines.read.row_fetching import open_record_table
from throughline.plan.ops import Parse
from throughline.plan.plan import make_plan
from throughline.plan.schema import COLUMNS
from throughline.plan.shapes import resolve_decode
from throughline.plan.training_workers import TrainingWorker
from throughline.results.receipt import SampleBatch
from throughline.shared.errors import CorruptColumn, CorruptShard, ImpossiblePlan, MissingInput
from throughline.shared.files import digest_blake2b

Batch = Mapping[str, np.ndarray]  # features by name, (batch, …); among them `label` and `key`


@dataclass(frozen=True, kw_only=True)
class StepBatch:
    """The batch of a step, counted from 0 over all epochs.

    Inputs are augmented, but not postprocessed; labels are as the model takes them. `changed_by`
    has the names of the ops of `augment` that changed each example.
    """

    pipeline: InputPipeline
    step: int
    content: Batch
    changed_by: Sequence[Sequence[str]]

    @property
    def digest(self) -> str:
        return digest_batch(self.content)


def find_doubt(pipeline: InputPipeline) -> str | None:
    """Return why the batches of a configuration cannot be known afterwards; None if they can."""
    plan = pipeline.plan
    if plan.service:
        return "the workers of its tf.data service deliver in the order in which they are ready"
    if not plan.deterministic:
        return "`deterministic: false` delivers examples in the order in which they are ready"
    return None


def open_training_batches(
    params: Params, name: str, data: PreparedData, *, multiple: int = 1, ops: int | None = None
) -> InputPipeline:
    """Open the training batches of a configuration in one process, with keys.

    Inputs are not postprocessed. With `ops`, only that many ops of `augment` run.

    Raises:
      ImpossiblePlan: Such batches cannot be made.
    """
    spec = make_input_spec(params, data, "train")
    on_labels = tuple(op for op in spec.postprocess if op.on_labels)
    spec = replace(spec, augment=spec.augment[:ops], postprocess=on_labels)
    config = params.pipelines[name].model_copy(update={"snapshot_on": "host"})
    return InputPipeline(
        plan=make_plan(config, spec),
        data=data,
        split="train",
        seed=params.train.seed,
        with_keys=True,
        worker=TrainingWorker(batch_multiple=multiple),
    )


def read_batch(pipeline: InputPipeline, step: int) -> Batch:
    """Return the batch of a step; a stream is read from the start of its epoch on."""
    epoch, within = divmod(step, pipeline.steps_per_epoch)
    batches = pipeline.dataset(first_step=step, epochs=epoch + 1)
    batches = batches if pipeline.plan.seekable else batches.skip(within)
    return {name: value.numpy() for name, value in next(iter(batches)).items()}


def digest_batch(batch: Batch) -> str:
    """Return a digest of the names, types, shapes and bytes of a batch."""
    return digest_blake2b(
        *(
            part
            for name, values in sorted(batch.items())
            for part in (f"{name} {values.dtype} {values.shape}".encode(), values.tobytes())
        )
    )


def rebuild_batch(pipeline: InputPipeline, params: Params, name: str, step: int) -> StepBatch:
    """Rebuild the batch of a step of the configuration `name`, whose training batches are open.

    Raises:
      ImpossiblePlan: The content of a batch depends on timing.
    """
    if doubt := find_doubt(pipeline):
        raise ImpossiblePlan(f"pipelines.{name}: no batch can be rebuilt, because {doubt}")
    data, multiple = pipeline.data, pipeline.worker.multiple
    augment = [op.name for op in pipeline.plan.spec.augment]
    feature = data.shards.schema.input.name
    stages: list[tuple[int, np.ndarray]] = []  # inputs after so many ops
    for count in range(len(augment)):
        with suppress(ImpossiblePlan):  # without later ops, examples differ in shape
            part = open_training_batches(params, name, data, multiple=multiple, ops=count)
            stages.append((count, read_batch(part, step)[feature]))
    content = read_batch(pipeline, step)
    stages.append((len(augment), content[feature]))
    changed_by = [augment[: stages[0][0]] for _ in content[feature]]
    for (_, before), (count, after) in pairwise(stages):
        for ops, one, other in zip(changed_by, before, after, strict=True):
            ops += [] if np.array_equal(one, other) else [augment[count - 1]]
    return StepBatch(pipeline=pipeline, step=step, content=content, changed_by=changed_by)


def take_sample(pipeline: InputPipeline, steps: int) -> SampleBatch | None:
    """Return the first batch of the last of `steps` steps' epochs; None if it depends on timing."""
    if find_doubt(pipeline):
        return None
    first = (steps - 1) // pipeline.steps_per_epoch * pipeline.steps_per_epoch
    return SampleBatch(step=first, digest=digest_batch(read_batch(pipeline, first)))


def check_rows(batch: StepBatch) -> bool:
    """Compare the batch's rows of the snapshot with the records of the shards they were made from.

    Returns False if there is nothing to compare: no snapshot is read, or rows are time steps, or
    the shards are compressed.

    Raises:
      CorruptColumn, CorruptShard: A row differs; a record is damaged.
    """
    pipeline, data, split = batch.pipeline, batch.pipeline.data, batch.pipeline.split
    if pipeline.plan.window or not pipeline.plan.gather or pipeline.order is None:
        return False
    try:
        table = open_record_table(data, split)
    except MissingInput:
        return False
    step = tf.constant(batch.step, tf.int64)
    drawn = pipeline.order.trim(pipeline.order.rows(step[None])[0], step).numpy()
    rows, schema = np.unique(drawn[drawn >= 0]), data.shards.schema
    features = [schema.input.name, *([COLUMNS] if schema.table_input else []), "label", "key"]
    ops = (Parse.of(schema), *resolve_decode(data.bind_to_data(data.preprocess), schema))
    prepare = tf.function(lambda record: process_record(ops, record), autograph=False)
    stored = data.snapshot.splits[split].rows(data.input_column)
    try:
        records = table.read(rows)
    except ValueError as error:
        raise CorruptShard(f"{error}; `python -m tasks.verify` finds all damage") from error
    for row, record in zip(rows.tolist(), records, strict=True):
        made = prepare(tf.constant(record))
        for name in features[row >= stored :]:
            if not np.array_equal(_read_row(data, split, name, row), made[name], equal_nan=True):
                raise CorruptColumn(
                    f"{name} of row {row:,} of the {split} split differs between"
                    f" {data.snapshot_folder} and {data.shards_folder}; `python -m tasks.verify`"
                    " finds which is damaged"
                )
    return True


def _read_row(data: PreparedData, split: str, name: str, row: int) -> np.ndarray:
    column = data.column(name)
    values = np.asarray(data.memmap(split, name))
    if not column.ragged:
        return values[row]
    begin, *shape = np.asarray(data.memmap(split, column.extent.name))[row]
    return values[begin : begin + np.prod(shape)].reshape(shape)
