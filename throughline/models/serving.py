"""A trained model as a function of what people have: encoded images, rows of a table, windows of a
series, texts; and that function as a TensorFlow SavedModel, for whatever serves it.

Its signature `serve` is what TensorFlow Serving and `tf.saved_model.load` call. The tokenizers are
ops of TensorFlow Text, so a program that loads it needs `import tensorflow_text` first, unless
tokens are bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from throughline.kernels.elements import apply_ops
from throughline.kernels.kernels import Element, compute
from throughline.kernels.resampling import compute_in_tensorflow
from throughline.kernels.tokenizers import open_tokenizer
from throughline.models.inference import InferenceSpec, TrainedModel, gives_probabilities
from throughline.plan.ops import DecodeRaw, Op
from throughline.plan.schema import COLUMNS, Feature, Schema, TableColumns
from throughline.plan.shapes import ops_until_uniform, output_shape, widen_schema
from throughline.plan.text_ops import EndDocument, Tokenize, Truncate
from throughline.shared.errors import UnsavableModel
from throughline.shared.files import atomic_folder

CLASSES, TARGETS = Path("assets.extra", "classes.txt"), Path("assets.extra", "targets.txt")
Outputs = dict[str, tf.Tensor]


def make_serve_fn(trained: TrainedModel, *, kernels: Any = compute) -> Callable[[Any], Outputs]:
    """The function from stored examples to what the model says of them: `probabilities` float32
    (batch, classes), of a language model (batch, vocabulary) of the token after each text; or
    `values` (batch, targets) or (batch, horizon, targets).

    Examples are files (batch,) string of images, values (batch, *shape) of arrays and tables,
    windows (batch, length, columns) of series, or texts (batch,) string; of images and texts with
    columns {image, columns: (batch, columns) float32}. `kernels` run the ops.
    """
    spec, ops, model = trained.spec, trained.ops, trained.model
    name, several = spec.schema.input.name, spec.schema.table_input is not None
    probabilities, context = gives_probabilities(model), _context(spec)

    def serve(stored: Any) -> Outputs:
        value = stored[name] if several else stored
        if context is not None:
            outputs = _continue_texts(trained, value, kernels, context)
        else:
            value = _preprocess(ops, spec.schema, value, kernels)
            value = _pad(value) if spec.schema.is_text else value
            outputs = model({**stored, name: value} if several else value, training=False)
        return _name_outputs(outputs, spec, probabilities=probabilities)

    return serve


def make_input_signature(spec: InferenceSpec) -> tf.TensorSpec | dict[str, tf.TensorSpec]:
    """What `make_serve_fn` takes of a model."""
    value, more = spec.schema.input, spec.schema.table_input
    if value.encoding.storage in ("documents", "files"):
        first = tf.TensorSpec((None,), tf.string, value.name)
        if more is None:
            return first
        columns = tf.TensorSpec((None, *more.shape), more.dtype, COLUMNS)
        return {value.name: first, COLUMNS: columns}
    window = (spec.window.length,) if spec.schema.is_series else ()
    return tf.TensorSpec((None, *window, *value.shape), value.dtype, value.name)


def export_model(trained: TrainedModel, folder: Path) -> str:
    """Write `folder`, a SavedModel with the signature `serve`; returns what that takes.

    Of images it takes JPEG or PNG files, `serve(image: string (batch,))`, of texts `serve(text:
    string (batch,))`, with columns next to them `serve({image: …, column: …})`; of a table a value
    per column, `serve({column: float32 or, of categories, string (batch,)})`, for a server with `_`
    in place of what is no ASCII letter or digit; of a series windows, `serve(features: float32
    (batch, length, columns))`, and of arrays of numbers these.
    Names of classes, or of targets, lie next to it in the order of its outputs.

    Raises:
      UnsavableModel: an op or a layer calls Python, which a SavedModel does not hold.
    """
    spec = trained.spec
    archive: Any = keras.export.ExportArchive()  # of TensorFlow, which is Keras' backend here
    archive.track(trained.model)
    serve, signature, resources = _make_endpoint(trained)
    for resource in resources:
        archive.track(resource)
    archive.add_endpoint("serve", serve, input_signature=[signature])
    with atomic_folder(folder) as temporary:
        archive.write_out(str(temporary), verbose=False)
        _check_without_python(temporary)
        for path, names in ((CLASSES, spec.classes), (TARGETS, spec.targets)):
            if names:
                (temporary / path).parent.mkdir(exist_ok=True)
                (temporary / path).write_text("".join(f"{name}\n" for name in names))
    if not isinstance(signature, dict):
        return f"{signature.name}: {signature.dtype.name}"
    columns = ", ".join(f"{name} {one.dtype.name}" for name, one in signature.items())
    return f"features: {columns}"


def _check_without_python(folder: Path) -> None:
    """Refuse a SavedModel that calls a function of this process, which no other one has."""
    saved = SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    functions = [one for graph in saved.meta_graphs for one in graph.graph_def.library.function]
    calling = [node.name for one in functions for node in one.node_def if "PyFunc" in node.op]
    if calling:
        raise UnsavableModel(
            f"the model cannot be exported: {calling[0].rpartition('/')[0] or calling[0]} calls"
            " Python (tf.numpy_function or tf.py_function), which a SavedModel does not hold; write"
            " it in ops of TensorFlow. `python -m tasks.predict` uses the model as it is"
        )


def _make_endpoint(trained: TrainedModel) -> tuple[Callable[..., Outputs], Any, Sequence[Any]]:
    """The function that is exported, what it takes, and what it needs besides the model."""
    spec, answer = trained.spec, make_serve_fn(trained, kernels=compute_in_tensorflow)
    value, signature = spec.schema.input, make_input_signature(spec)
    columns, modules = spec.schema.columns, _list_tokenizers(trained.ops)
    tables = _make_lookup_tables(columns)
    if isinstance(signature, dict):  # the first input, and columns, which are given one by one
        signature = {
            value.name: signature[value.name],
            **_column_signature(columns, taken={value.name}),
        }
        return (
            lambda features: answer(
                {
                    value.name: features[value.name],
                    COLUMNS: _code_columns(features, columns, tables),
                }
            ),
            signature,
            [*modules, *tables],
        )
    if value.encoding.storage != "rows":
        return answer, signature, modules
    if value.encoding.modality == "images":
        files = tf.TensorSpec((None,), tf.string, "image")
        return lambda image: answer(decode_to_shape(image, value.shape)), files, []
    if len(value.shape) > 1:  # arrays, which are no rows of columns
        return answer, signature, []
    return (
        lambda features: answer(_code_columns(features, columns, tables)),
        _column_signature(columns),
        tables,
    )


def _list_tokenizers(ops: Sequence[Op]) -> list[Any]:
    """What holds the tables of tokens; of bytes there are none."""
    opened = [open_tokenizer(op).module for op in ops if isinstance(op, Tokenize)]
    return [module for module in opened if module is not None]


def decode_to_shape(files: tf.Tensor, shape: Sequence[int | None]) -> tf.Tensor:
    """Images (batch, *shape) uint8 of JPEG or PNG files (batch,), which have that size."""

    def decode(file: tf.Tensor) -> tf.Tensor:
        image = tf.io.decode_image(file, channels=shape[-1], expand_animations=False)
        return tf.ensure_shape(image, shape)

    return tf.map_fn(decode, files, fn_output_signature=tf.TensorSpec(shape, tf.uint8))


def _preprocess(ops: Sequence[Op], schema: Schema, stored: tf.Tensor, kernels: Any) -> tf.Tensor:
    """Run the ops of evaluation: those that need single examples on one after the other, all others
    on the batch.
    """
    ops = [op for op in ops if not isinstance(op, DecodeRaw)]  # these are values already
    schema = widen_schema(schema, ops)
    uniform = ops_until_uniform(ops, schema)
    single = max(
        len(ops) if uniform is None else uniform,
        max((place for place, op in enumerate(ops, 1) if op.takes == "example"), default=0),
    )
    apply = partial(_apply, feature=schema.input, kernels=kernels)
    values = stored
    if single:
        values = tf.map_fn(
            lambda one: apply(ops[:single], one, lead=()),
            stored,
            fn_output_signature=_describe_example(ops[:single], schema),
        )
    return apply(ops[single:], values, lead=tf.shape(stored)[:1])


def _describe_example(ops: Sequence[Op], schema: Schema) -> tf.TypeSpec:
    """What an example is after ops; a text is a string until it is tokenized."""
    dtype = schema.input.dtype
    if not schema.is_text:
        return tf.TensorSpec(output_shape(ops, schema), dtype)
    tokenized = any(isinstance(op, Tokenize) for op in ops)
    return tf.RaggedTensorSpec((None,), dtype) if tokenized else tf.TensorSpec((), tf.string)


def _apply(
    ops: Sequence[Op], value: tf.Tensor, *, feature: Feature, lead: Any, kernels: Any
) -> tf.Tensor:
    """Run ops on the input of an example, `lead` (), or of a batch, whose labels are not known."""
    nothing = tf.zeros(lead, tf.int64)
    element: Element = {feature.name: value, "label": nothing, "key": nothing}
    epoch = tf.constant(0, tf.int64)
    return apply_ops(ops, element, seed=0, epoch=epoch, kernels=kernels)[feature.name]


def _name_outputs(outputs: tf.Tensor, spec: InferenceSpec, *, probabilities: bool) -> Outputs:
    outputs = tf.cast(outputs, tf.float32)
    if spec.task == "regression":
        return {"values": outputs}
    return {"probabilities": outputs if probabilities else tf.nn.softmax(outputs)}


def _continue_texts(
    trained: TrainedModel, texts: tf.Tensor, kernels: Any, context: int
) -> tf.Tensor:
    """Outputs of a language model for texts (batch,), after the last tokens of each, as many as it
    sees: `context`.
    """
    # A text goes on where it ends.
    ops = tuple(op for op in trained.ops if not isinstance(op, EndDocument | Truncate))
    tokens: Any = _preprocess(ops, trained.spec.schema, texts, kernels)
    tokens = tokens[:, -context:]
    outputs = trained.model(_pad(tokens), training=False)
    return tf.gather(outputs, tf.maximum(tokens.row_lengths() - 1, 0), batch_dims=1)


def _context(spec: InferenceSpec) -> int | None:
    """Tokens that a language model sees; None for other models."""
    return spec.window.tokens if spec.task == "next_token" else None


def _pad(tokens: tf.RaggedTensor) -> tf.Tensor:
    """Tokens (batch, longest) int32, padded with 0; one column at least."""
    longest = tf.maximum(tokens.bounding_shape(axis=1), 1)
    return tokens.to_tensor(0, shape=tf.stack([tokens.nrows(), longest]))


def _column_signature(
    columns: TableColumns, taken: Collection[str] = ()
) -> dict[str, tf.TensorSpec]:
    signature, taken = {}, {*taken}
    for place, name in enumerate(columns.names):
        # What a server calls it by: TensorFlow takes names of ASCII letters and digits alone.
        plain = re.sub(r"[^A-Za-z0-9_]", "_", name).lstrip("_") or "column"
        plain = f"{plain}_{place}" if plain in taken else plain
        taken.add(plain)
        kind = tf.float32 if place < columns.numeric else tf.string
        signature[name] = tf.TensorSpec((None,), kind, plain)
    return signature


def _make_lookup_tables(columns: TableColumns) -> list[Any]:
    """The number of each category of a column; −1 for what is none."""
    return [
        tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(
                tf.constant(words), tf.range(len(words), dtype=tf.int64)
            ),
            default_value=-1,
        )
        for words in columns.categories
    ]


def _code_columns(
    features: dict[str, tf.Tensor], columns: TableColumns, tables: Sequence[Any]
) -> tf.Tensor:
    """Rows (batch, columns) float32 of columns (batch,); a category that the training has not seen
    is an error, and so is a number that is not finite, unless NaN, an empty cell, has a median.
    """
    coded = []
    for place, name in enumerate(columns.names):
        column = features[name]
        if name in columns.medians:
            column = tf.where(tf.math.is_nan(column), columns.medians[name], column)
        if place < columns.numeric:
            column = tf.debugging.assert_all_finite(column, f"{name}: missing, or not finite")
        else:
            column = tables[place - columns.numeric].lookup(column)
            unknown = f"{name}: a category that the training has not seen"
            with tf.control_dependencies([tf.debugging.assert_non_negative(column, unknown)]):
                column = tf.identity(column)
        coded.append(tf.cast(column, tf.float32))
    return tf.stack(coded, axis=1)
