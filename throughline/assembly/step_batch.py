"""Rebuilds batches of a training without training: each is a function of (seed, epoch, step)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from throughline.shared.errors import CorruptColumn, CorruptShard, ImpossiblePlan, MissingInput
from throughline.shared.files import digest_blake2b

Batch = Mapping[str, np.ndarray]  # features by name, (batch, …); among them `label` and `key`


@dataclass(frozen=True, kw_only=True)
class StepBatch:
    """The batch of a step, counted from 0 over all epochs.

    Inputs are augmented, not postprocessed. `changed_by` names the ops that changed each example.
    """

    pipeline: InputPipeline
    step: int
    content: Batch
    changed_by: Sequence[Sequence[str]]

    @property
    def digest(self) -> str:
        return digest_batch(self.content)


def find_doubt(pipeline: InputPipeline) -> str | None:
    """Return why the batches of a configuration cannot be rebuilt later; None if they can."""
    if pipeline.plan.service:
        return "the workers of its tf.data service deliver in the order in which they are ready"
    if not pipeline.plan.deterministic:
        return "`deterministic: false` delivers examples in the order in which they are ready"
    return None


def open_training_batches(
    params: Params, name: str, data: PreparedData, *, multiple: int = 1, ops: int | None = None
) -> InputPipeline:
    """Open the training batches of a configuration in one process, with keys, not postprocessed.

    With `ops`, only that many ops of `augment` run; ImpossiblePlan if these make no batch.
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
    parts: list[bytes] = []
    for name, values in sorted(batch.items()):
        parts += [f"{name} {values.dtype} {values.shape}".encode(), values.tobytes()]
    return digest_blake2b(*parts)


def rebuild_batches(
    pipeline: InputPipeline, params: Params, name: str, steps: Iterable[int]
) -> Iterator[StepBatch]:
    """Rebuild the batches of `steps` of configuration `name` from its open training batches.

    Raises:
      ImpossiblePlan: The content of a batch depends on timing.
    """
    if doubt := find_doubt(pipeline):
        raise ImpossiblePlan(f"pipelines.{name}: no batch can be rebuilt, because {doubt}")
    data, multiple = pipeline.data, pipeline.worker.multiple
    feature, augment = data.shards.schema.input.name, [op.name for op in pipeline.plan.spec.augment]
    opened: dict[int, InputPipeline] = {}  # by the number of ops that run
    for count in range(len(augment)):
        with suppress(ImpossiblePlan):  # without later ops, examples differ in shape
            opened[count] = open_training_batches(params, name, data, multiple=multiple, ops=count)
    for step in steps:
        content = read_batch(pipeline, step)
        inputs = {count: read_batch(part, step)[feature] for count, part in opened.items()}
        inputs[len(augment)] = content[feature]
        changed_by = [augment[: min(inputs)] for _ in content[feature]]
        for before, after in pairwise(inputs):
            for ops, one, other in zip(changed_by, inputs[before], inputs[after], strict=True):
                ops += [] if np.array_equal(one, other) else [augment[after - 1]]
        yield StepBatch(pipeline=pipeline, step=step, content=content, changed_by=changed_by)


def check_rows(batch: StepBatch) -> bool:
    """Compare the batch's snapshot rows with the records of the shards from which they were made.

    Returns False if no snapshot is read, rows are time steps, or the shards are compressed.

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
            column, value = data.column(name), np.asarray(data.memmap(split, name))
            if column.ragged:
                begin, *shape = np.asarray(data.memmap(split, column.extent.name))[row]
                value = value[begin : begin + np.prod(shape)].reshape(shape)
            else:
                value = value[row]
            if not np.array_equal(value, made[name], equal_nan=True):
                raise CorruptColumn(
                    f"{name} of row {row:,} of the {split} split differs between"
                    f" {data.snapshot_folder} and {data.shards_folder}; `python -m tasks.verify`"
                    " finds which is damaged"
                )
    return True
