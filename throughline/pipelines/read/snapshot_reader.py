"""Reads the memory-mapped snapshot: a batch is a gather of rows, whose numbers are computed.

The columns are variables over the files' memory mappings. Opening them takes neither time nor
memory, whatever their size; the operating system caches them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import tensorflow as tf

from throughline.data.columns.index import column_path, read_ahead
from throughline.kernels.augmentations import draw_crops
from throughline.kernels.elements import (
    apply_ops,
    random_stream,
    select_outputs,
    split_tokens,
    split_window,
)
from throughline.kernels.kernels import Element, compute
from throughline.kernels.resampling import compute_on_device
from throughline.pipelines.order.epoch_order import EpochOrder
from throughline.pipelines.order.packed_batches import PackedBatches
from throughline.pipelines.read.prepared_data import PreparedData
from throughline.pipelines.read.row_fetching import (
    FetchFn,
    join_rows,
    make_crop_fn,
    make_decode_fn,
)
from throughline.pipelines.read.sequence_batches import (
    Columns,
    StepOrder,
    fetch_packed,
    fetch_padded,
)
from throughline.plan.schema import COLUMNS
from throughline.plan.steps import Gather, TokenWindow, Window

# Columns, step, rows (batch,) → ready batch.
BatchFn = Callable[[Columns, tf.Tensor, tf.Tensor], Element | tuple]
GatherFn = Callable[[tf.Tensor], Element | tuple]  # step → ready batch


@dataclass(frozen=True, kw_only=True)
class SnapshotReader:
    """One split of a snapshot, read as a plan's `gather` says, in this `order`.

    The first `stored` rows come from its columns, the others from the shards. Steps are int64,
    counted over all epochs; rows are int64 indices into the split.
    """

    data: PreparedData
    split: str
    gather: Gather
    order: StepOrder
    stored: int
    seed: int
    with_keys: bool

    @cached_property
    def variables(self) -> Mapping[str, tf.Variable]:
        """The columns of batches: memory-mapped, or copied to the device if the split lives there.

        On a GPU they are variables, too: TensorFlow gathers rows of uint8 variables there, but not
        of uint8 tensors.
        """
        column, others = self.data.input_column, self._features[1:]
        values = (column.name, column.extent.name) if column.ragged else (column.name,)
        if isinstance(self.gather.window, TokenWindow):
            values, others = (column.name,), ()
        first = dict.fromkeys(values if self.stored or self._all_stored else (), self.stored)
        with tf.init_scope():  # outside of any function that is being traced
            return {
                name: self._map_variable(name, rows)
                for name, rows in {**first, **dict.fromkeys(others)}.items()
            }

    def _map_variable(self, name: str, rows: int | None) -> tf.Variable:
        """Return a column, or its first rows, over its memory mapping or on the device.

        A graph holds only a handle to a variable; tensors in a graph are copied when it is
        rewritten.
        """
        data = self._own_data
        values = np.asarray(data.memmap(self.split, name, rows=rows))
        read_ahead(column_path(data.columns_folder, self.split, name), values.nbytes)
        with tf.device("CPU:0"):
            tensor = tf.experimental.dlpack.from_dlpack(values.__dlpack__())
            variable = tf.Variable(tensor, trainable=False, name=name)
        if self.gather.on == "host":
            return variable
        return tf.Variable(variable, trainable=False, name=name)

    @cached_property
    def _own_data(self) -> PreparedData:
        """The data, restricted to this worker's own lanes, if there are any."""
        order = self.order
        if not isinstance(order, EpochOrder) or self.gather.window:
            return self.data
        reads_all = order.region == (0, order.count)
        return self.data if reads_all else self.data.for_rows(order.region)

    @property
    def _all_stored(self) -> bool:
        return self.stored == self.data.snapshot.splits[self.split].count

    @property
    def _features(self) -> Sequence[str]:
        """The features of an example before any op, the input first."""
        label = () if self.gather.window else ("label",)
        drawn = any(op.random or op.crops for op in self.gather.ops)
        key = ("key",) if self.with_keys or drawn else ()
        schema = self.data.shards.schema
        columns = (COLUMNS,) if schema.table_input else ()
        return (schema.input.name, *columns, *label, *key)

    def columns(self) -> Columns:
        return {name: tf.convert_to_tensor(variable) for name, variable in self.variables.items()}

    def make_gather_fn(self) -> GatherFn:
        """Return the function from a step (scalar int64, over all epochs) to its batch."""
        # Make the variables here: within a tf.distribute strategy's scope they would be copied.
        make_batch, variables = self.make_batch_fn(), self.variables

        def gather(step: tf.Tensor) -> Element | tuple:
            columns = self.columns() if self.gather.on == "host" else variables
            return make_batch(columns, step, self.order.rows(step[None])[0])

        return gather

    def make_batch_fn(self) -> BatchFn:
        """Return the function from columns, a step (scalar) and its rows (batch,) to the batch."""
        gather, order, fetch = self.gather, self.order, self.make_fetch_fn()
        feature = self.data.shards.schema.input.name

        def make_batch(columns: Columns, step: tf.Tensor, rows: tf.Tensor) -> Element | tuple:
            epoch = step // order.steps_per_epoch
            rows = order.trim(rows, step)
            if isinstance(order, EpochOrder):
                examples = fetch(columns, rows, epoch)
            elif isinstance(order, PackedBatches):
                examples = fetch_packed(columns, feature, rows, order.plan.row_length)
            else:
                examples = fetch_padded(columns, feature, rows, length=order.length(step))
            batch = apply_ops(
                gather.ops[gather.example_op_count :],
                examples,
                seed=self.seed,
                epoch=epoch,
                first_op_position=gather.example_op_count,
                kernels=compute_on_device if gather.on == "device" else compute,
            )
            return select_outputs(batch, self.data.shards.schema, with_keys=self.with_keys)

        return make_batch

    def make_fetch_fn(self) -> FetchFn:
        """Return the function from columns, rows (batch,), stored or not, and epoch to examples."""
        if self._all_stored:
            return self._make_stored_fetch_fn()
        decode = make_decode_fn(
            self.data, self.split, self.gather, features=self._features, seed=self.seed
        )
        if self.stored == 0:
            return decode
        return join_rows(self.stored, self._make_stored_fetch_fn(), decode)

    def _make_stored_fetch_fn(self) -> FetchFn:
        if self.gather.fetched_ops:
            return self._make_crop_fetch_fn()
        ops = self.gather.ops[: self.gather.example_op_count]
        if not ops:
            return lambda columns, rows, epoch: self._fetch(columns, rows)

        def change(columns: Columns, row: tf.Tensor, epoch: tf.Tensor) -> Element:
            return apply_ops(ops, self._fetch_one(columns, row), seed=self.seed, epoch=epoch)

        one = tf.function(change, autograph=False)
        scalar = tf.TensorSpec((), tf.int64)
        specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, self.columns())
        outputs = one.get_concrete_function(specs, scalar, scalar).structured_outputs
        uniform = tf.nest.map_structure(tf.TensorSpec.from_tensor, outputs)
        return lambda columns, rows, epoch: tf.map_fn(
            lambda row: one(columns, row, epoch), rows, fn_output_signature=uniform
        )

    def _make_crop_fetch_fn(self) -> FetchFn:
        """Return a function that reads only the box of each image that the first op crops."""
        ops, column = self.gather.fetched_ops, self.data.input_column
        crop = make_crop_fn(self._own_data, self.split, ops[0])

        def fetch(columns: Columns, rows: tf.Tensor, epoch: tf.Tensor) -> Element:
            others = {name: values for name, values in columns.items() if name != column.name}
            examples = _gather(others, rows)
            sizes = (
                tf.cast(examples.pop(column.extent.name)[:, 1:3], tf.int32)
                if column.ragged
                else tf.constant(column.shape[:2], tf.int32)
            )
            draws = [
                random_stream(op, position, seed=self.seed, epoch=epoch)
                for position, op in enumerate(ops)
            ]
            with tf.name_scope(ops[0].name):
                boxes = draw_crops(ops, sizes, examples.get("key", rows), draws)
                return {**examples, column.name: crop(rows, boxes)}

        return fetch

    def _fetch_one(self, columns: Columns, row: tf.Tensor) -> Element:
        """Return the example in `row` (scalar); a ragged column's value is a slice, not a copy."""
        column = self.data.input_column
        if not column.ragged:
            return _gather(columns, row)
        others = {name: values for name, values in columns.items() if name != column.name}
        example = _gather(others, row)
        offset = example.pop(column.extent.name)
        value = tf.reshape(
            tf.slice(columns[column.name], offset[:1], [tf.reduce_prod(offset[1:])]), offset[1:]
        )
        # Tokens are stored narrower.
        value = tf.cast(value, self.data.shards.schema.input.dtype)
        return {**example, column.name: tf.ensure_shape(value, column.shape)}

    def _fetch(self, columns: Columns, rows: tf.Tensor) -> Element:
        """Return the examples in `rows` (batch,); tokens (batch, longest) are padded with 0."""
        window, column = self.gather.window, self.data.input_column
        if window is None:
            return (
                fetch_padded(columns, column.name, rows)
                if column.ragged
                else _gather(columns, rows)
            )
        if isinstance(window, TokenWindow):
            places = (rows * window.length)[:, None] + tf.range(window.length + 1, dtype=tf.int64)
            return split_tokens(tf.gather(columns["text"], places)) | {"key": rows}
        starts = self._number_windows(window, rows) * window.stride
        places = starts[:, None] + tf.range(window.size, dtype=tf.int64)
        time_steps = tf.gather(columns["features"], places)
        examples = split_window(time_steps, window.length, window.targets)
        return examples | ({"key": tf.gather(columns["key"], starts)} if "key" in columns else {})

    def _number_windows(self, window: Window, rows: tf.Tensor) -> tf.Tensor:
        """Return the numbers (batch,) of windows; `rows` count only those that cross no cut."""
        if not window.cuts_of(self.split):
            return rows
        runs = window.list_runs(self.split, self.data.shards.examples(self.split))
        firsts, counts = np.transpose(np.asarray(runs, np.int64))
        ends = np.cumsum(counts)
        run = tf.searchsorted(tf.constant(ends), rows, side="right")
        return rows + tf.gather(tf.constant(firsts - ends + counts), run)


def _gather(columns: Columns, rows: tf.Tensor) -> Element:
    return {name: tf.gather(values, rows) for name, values in columns.items()}
