"""Sets up a process that trains or measures, and builds the model that fits the stored data."""

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from throughline.assembly.inputs import (
    infer_input_shape,
    make_input_spec,
    make_series_window,
    make_token_window,
)
from throughline.config.params import Params
from throughline.models.builders import Models, Target, build_models
from throughline.models.inference import TOKENIZER, find_spec, read_tokenizer
from throughline.models.table_input import TableInput
from throughline.pipelines.read.prepared_data import PreparedData
from throughline.plan.text_ops import Tokenize
from throughline.plan.training_workers import TrainingWorker
from throughline.settings import EMULATED_MODEL, TrainSettings
from throughline.shared.errors import UnknownModel


def configure_process(settings: TrainSettings, worker: TrainingWorker | None = None) -> None:
    """Set this process's seeds, `train.deterministic` and `train.mixed_precision`."""
    keras.utils.set_random_seed(settings.seed)
    if worker is not None and worker.index:
        tf.random.set_seed(settings.seed + worker.index)  # for draws outside of Keras layers
    if settings.deterministic:
        tf.config.experimental.enable_op_determinism()
    if settings.mixed_precision:
        # float16 would need loss scaling, in each train step and equal in all processes.
        keras.mixed_precision.set_global_policy("mixed_bfloat16")


def build_models_for(params: Params, data: PreparedData) -> Models:
    """Build the model of `params` for the stored inputs, labels and vocabulary.

    Raises:
      UnknownModel: There is no such model, or it does not fit, for example its tokens or columns.
    """
    settings = params.model
    if settings.from_file:
        _check_origin(Path(settings.from_file), params, data)
    if data.snapshot.vocabulary and settings.name != EMULATED_MODEL:
        options = {"vocabulary": data.snapshot.vocabulary, **settings.options}
        settings = settings.model_copy(update={"options": options})
    return build_models(
        settings,
        input_shape=infer_input_shape(params, data),
        dtype=data.shards.schema.input.dtype,
        target=infer_target(params, data),
        postprocess=make_input_spec(params, data, "train").postprocess,
        table=_describe_table_input(data),
    )


def _describe_table_input(data: PreparedData) -> TableInput | None:
    """Return the table columns that the model also sees, with the training split's statistics."""
    feature = data.shards.schema.table_input
    if feature is None:
        return None
    categories = tuple(len(names) for names in feature.columns.categories)
    numbers = np.asarray(data.memmap("train", feature.name), np.float64)
    numbers = numbers[:, : feature.columns.numeric]
    return TableInput(
        mean=(*numbers.mean(axis=0).tolist(), *(0.0 for _ in categories)),
        deviation=(*numbers.std(axis=0).tolist(), *(1.0 for _ in categories)),
        categories=categories,
    )


def _check_origin(path: Path, params: Params, data: PreparedData) -> None:
    """Refuse to fine-tune a model of this program that was trained on other tokens or columns."""
    spec = find_spec(path)
    if spec is None:
        return
    columns, learned = data.shards.schema.columns, spec.schema.columns
    if learned.names and (columns.names, columns.categories) != (learned.names, learned.categories):
        raise UnknownModel(
            f"model.from: {path} was trained on other columns, or on other categories in them; its"
            f" columns: {', '.join(learned.names)}. Select these with data.numeric,"
            " data.categorical and data.ignore, or train without `from`"
        )
    tokenizer = read_tokenizer(path, spec)
    if tokenizer is None:
        return
    op, content = tokenizer
    ours = [one for one in data.bind_to_data(params.preprocess) if isinstance(one, Tokenize)]
    if not any(
        (one.kind, one.lower) == (op.kind, op.lower)
        and (not one.file or Path(one.model).read_bytes() == content)
        for one in ours
    ):
        file = f", model: FILE}}` and `unzip -p {path} {TOKENIZER} > FILE" if content else "}"
        raise UnknownModel(
            f"model.from: {path} was trained with another tokenizer, and its tokens have other"
            f" numbers. Use its tokenizer, `tokenize: {{kind: {op.kind}, lower: {op.lower}{file}`,"
            " or train without `from`"
        )


def infer_target(params: Params, data: PreparedData) -> Target:
    """Return the prediction target: a class, numbers, a series' horizon, or the next token."""
    window = make_series_window(params, data)
    if window is not None:
        column = data.memmap("train", data.shards.schema.input.name)[:, list(window.targets)]
        return _describe_numbers(column, (window.horizon, len(window.targets)))
    if make_token_window(params, data) is not None:
        return Target(kind="next_token", shape=(data.snapshot.vocabulary,))
    if data.shards.schema.predicts_number:
        labels = np.asarray(data.memmap("train", "label"))
        labels = labels.reshape(len(labels), -1)
        return _describe_numbers(labels, labels.shape[1:])
    vectors = any(op.on_labels for op in params.postprocess)
    return Target(kind="soft_labels" if vectors else "class", shape=(len(data.shards.classes),))


def _describe_numbers(values: np.ndarray, shape: tuple[int, ...]) -> Target:
    """Return the target of numbers: mean and scale (1 if constant) of `values` (rows, targets)."""
    values = np.asarray(values, np.float64)
    scale = values.std(axis=0)
    return Target(
        kind="regression",
        shape=shape,
        mean=tuple(values.mean(axis=0).tolist()),
        scale=tuple(np.where(scale > 0, scale, 1.0).tolist()),
    )
