"""A trained model as a function of raw inputs, and as a TensorFlow SavedModel.

Raw inputs are encoded images, arrays, table rows, windows of a series, or texts. TensorFlow Serving
and `tf.saved_model.load` call the signature `serve`. Unless tokens are bytes, tokenizers are ops of
TensorFlow Text, so a program that loads the SavedModel must import `tensorflow_text` first.
"""

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
from throughline.kernels.randomness import find_python_call
from throughline.kernels.resampling import compute_in_tensorflow
from throughline.kernels.tokenizers import open_tokenizer
from throughline.models.inference import InferenceSpec, TrainedModel, gives_probabilities
from throughline.plan.ops import DecodeRaw, Op
from throughline.plan.schema import COLUMNS, Feature, Schema, TableColumns
from throughline.plan.shapes import ops_until_uniform, output_shape, widen_schema
from throughline.plan.text_ops import EndDocument, Tokenize, Truncate
from throughline.shared.errors import UnexpectedFiles, UnsavableModel
from throughline.shared.files import atomic_folder

CLASSES, TARGETS = Path("assets.extra", "classes.txt"), Path("assets.extra", "targets.txt")
Outputs = dict[str, tf.Tensor]


def make_serve_fn(trained: TrainedModel, *, kernels: Any = compute) -> Callable[[Any], Outputs]:
    """Return a function from stored examples to the model's answers.

    The answers are `probabilities` float32 (batch, classes), or (batch, vocabulary) for the token
    after each text, or `values` (batch, targets) or (batch, horizon, targets).

    Examples are images' files or texts (batch,) string, values (batch, *shape) of arrays, tables
    and pixels, or windows (batch, length, columns) of series; images and texts with columns are
    {image: …, columns: (batch, columns) float32}. `kernels` run the ops.
    """
    spec, ops, model = trained.spec, trained.ops, trained.model
    name, several = spec.schema.input.name, spec.schema.table_input is not None
    probabilities = spec.task != "regression" and gives_probabilities(model)
    context = spec.window.tokens if spec.task == "next_token" else None

    def serve(stored: Any) -> Outputs:
        value = stored[name] if several else stored
        if context is not None:
            outputs = _continue_texts(trained, value, kernels, context)
        else:
            value = _preprocess(ops, spec.schema, value, kernels)
            value = _pad(value) if spec.schema.is_text else value
            outputs = model({**stored, name: value} if several else value, training=False)
        outputs = tf.cast(outputs, tf.float32)
        if spec.task == "regression":
            return {"values": outputs}
        return {"probabilities": outputs if probabilities else tf.nn.softmax(outputs)}

    return serve


def make_input_signature(spec: InferenceSpec) -> tf.TensorSpec | dict[str, tf.TensorSpec]:
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
    """Write a SavedModel with the signature `serve` to a new folder, and describe its inputs.

    The signature depends on the input:

    * images: JPEG or PNG files, `serve(image: string (batch,))`
    * texts: `serve(text: string (batch,))`
    * either with columns: `serve({image: …, column: …})`
    * a table: a value per column, `serve({column: float32 or, for categories, string (batch,)})`
    * a series: windows, `serve(features: float32 (batch, length, columns))`
    * arrays: the arrays themselves

    For a server, `_` replaces characters of column names that are not ASCII letters or digits. The
    names of classes or targets are written next to the SavedModel, in the order of the outputs.

    Raises:
      UnexpectedFiles: If `folder` exists.
      UnsavableModel: If an op or a layer calls Python, which a SavedModel cannot contain.
    """
    if folder.exists():
        raise UnexpectedFiles(f"{folder} exists; name another folder with --out, or remove it")
    spec = trained.spec
    archive: Any = keras.export.ExportArchive()  # with the backend TensorFlow
    archive.track(trained.model)
    serve, signature, resources = _make_endpoint(trained)
    for resource in resources:
        archive.track(resource)
    archive.add_endpoint("serve", serve, input_signature=[signature])
    with atomic_folder(folder) as temporary:
        archive.write_out(str(temporary), verbose=False)
        saved = SavedModel.FromString((temporary / "saved_model.pb").read_bytes())
        for graph in saved.meta_graphs:
            if called := find_python_call(graph.graph_def.library):
                raise UnsavableModel(
                    f"the model cannot be exported: {called} calls Python (tf.numpy_function or"
                    " tf.py_function), which a SavedModel cannot contain; write it in TensorFlow"
                    " ops. `python -m tasks.predict` uses the model as it is"
                )
        for path, names in ((CLASSES, spec.classes), (TARGETS, spec.targets)):
            if names:
                (temporary / path).parent.mkdir(exist_ok=True)
                (temporary / path).write_text("".join(f"{name}\n" for name in names))
    if not isinstance(signature, dict):
        return f"{signature.name}: {signature.dtype.name}"
    columns = ", ".join(f"{name} {one.dtype.name}" for name, one in signature.items())
    return f"features: {columns}"


def _make_endpoint(trained: TrainedModel) -> tuple[Callable[..., Outputs], Any, Sequence[Any]]:
    spec, answer = trained.spec, make_serve_fn(trained, kernels=compute_in_tensorflow)
    value, signature = spec.schema.input, make_input_signature(spec)
    columns = spec.schema.columns
    tables = [_make_lookup_table(words) for words in columns.categories]
    opened = [open_tokenizer(op).module for op in trained.ops if isinstance(op, Tokenize)]
    modules = [module for module in opened if module is not None]
    stored, images = value.encoding.storage == "rows", value.encoding.modality == "images"
    first = signature if isinstance(signature, dict) else {}

    def answer_columns(features: dict[str, tf.Tensor]) -> Outputs:
        coded = _code_columns(features, columns, tables)
        return answer({value.name: features[value.name], COLUMNS: coded} if first else coded)

    def decode(file: tf.Tensor) -> tf.Tensor:
        image = tf.io.decode_image(file, channels=value.channels, expand_animations=False)
        return tf.ensure_shape(image, value.shape)

    def answer_files(image: tf.Tensor) -> Outputs:
        kind = tf.TensorSpec(value.shape, tf.uint8)
        return answer(tf.map_fn(decode, image, fn_output_signature=kind))

    if first or (stored and not images and len(value.shape) == 1):  # columns one by one
        kept = {name: one for name, one in first.items() if name != COLUMNS}
        named = {**kept, **_column_signature(columns, taken=kept)}
        return answer_columns, named, [*modules, *tables]
    if stored and images:
        return answer_files, tf.TensorSpec((None,), tf.string, "image"), []
    return answer, signature, modules


def _preprocess(ops: Sequence[Op], schema: Schema, stored: tf.Tensor, kernels: Any) -> tf.Tensor:
    """Run the ops of evaluation: those that need single examples on each, the rest on the batch."""
    ops = [op for op in ops if not isinstance(op, DecodeRaw)]  # inputs are decoded already
    schema = widen_schema(schema, ops)
    uniform = ops_until_uniform(ops, schema)
    single = max(
        len(ops) if uniform is None else uniform,
        max((place for place, op in enumerate(ops, 1) if op.takes == "example"), default=0),
    )
    apply = partial(_apply, feature=schema.input, kernels=kernels)
    values, first = stored, ops[:single]
    if single:
        kind = _describe_example(first, schema)
        values = tf.map_fn(lambda one: apply(first, one, lead=()), stored, fn_output_signature=kind)
    return apply(ops[single:], values, lead=tf.shape(stored)[:1])


def _describe_example(ops: Sequence[Op], schema: Schema) -> tf.TypeSpec:
    dtype = schema.input.dtype
    if not schema.is_text:
        return tf.TensorSpec(output_shape(ops, schema), dtype)
    tokenized = any(isinstance(op, Tokenize) for op in ops)
    return tf.RaggedTensorSpec((None,), dtype) if tokenized else tf.TensorSpec((), tf.string)


def _apply(
    ops: Sequence[Op], value: tf.Tensor, *, feature: Feature, lead: Any, kernels: Any
) -> tf.Tensor:
    nothing = tf.zeros(lead, tf.int64)
    element: Element = {feature.name: value, "label": nothing, "key": nothing}
    epoch = tf.constant(0, tf.int64)
    return apply_ops(ops, element, seed=0, epoch=epoch, kernels=kernels)[feature.name]


def _continue_texts(
    trained: TrainedModel, texts: tf.Tensor, kernels: Any, context: int
) -> tf.Tensor:
    """Return a language model's outputs after texts (batch,), given their last `context` tokens."""
    # The text continues where it ends, so these ops do not apply.
    ops = tuple(op for op in trained.ops if not isinstance(op, EndDocument | Truncate))
    tokens: Any = _preprocess(ops, trained.spec.schema, texts, kernels)
    tokens = tokens[:, -context:]
    outputs = trained.model(_pad(tokens), training=False)
    return tf.gather(outputs, tf.maximum(tokens.row_lengths() - 1, 0), batch_dims=1)


def _pad(tokens: tf.RaggedTensor) -> tf.Tensor:
    """Pad tokens with 0 to (batch, longest) int32, with at least one column."""
    longest = tf.maximum(tokens.bounding_shape(axis=1), 1)
    return tokens.to_tensor(0, shape=tf.stack([tokens.nrows(), longest]))


def _column_signature(
    columns: TableColumns, taken: Collection[str] = ()
) -> dict[str, tf.TensorSpec]:
    signature, taken = {}, {*taken}
    for place, name in enumerate(columns.names):
        # The name for a server: TensorFlow allows ASCII letters and digits only.
        plain = re.sub(r"[^A-Za-z0-9_]", "_", name).lstrip("_") or "column"
        plain = f"{plain}_{place}" if plain in taken else plain
        taken.add(plain)
        kind = tf.float32 if place < columns.numeric else tf.string
        signature[name] = tf.TensorSpec((None,), kind, plain)
    return signature


def _make_lookup_table(words: Sequence[str]) -> Any:
    numbers = tf.range(len(words), dtype=tf.int64)
    numbered = tf.lookup.KeyValueTensorInitializer(tf.constant(words), numbers)
    return tf.lookup.StaticHashTable(numbered, default_value=-1)


def _code_columns(
    features: dict[str, tf.Tensor], columns: TableColumns, tables: Sequence[Any]
) -> tf.Tensor:
    """Make rows (batch, columns) float32 from columns (batch,).

    The graph raises an error for a category that was not in training, and for a number that is not
    finite. NaN, an empty cell, is replaced if the column has a median.
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
