"""The model that fits the data: what train and profile both build from parameters and stored
inputs.
"""

from __future__ import annotations

import numpy as np

from throughline.assembly.inputs import (
    infer_input_shape,
    make_input_spec,
    make_series_window,
    make_token_window,
)
from throughline.config.params import Params
from throughline.models import emulation
from throughline.models.builders import Models, Target, build_models
from throughline.pipelines.read.prepared_data import PreparedData


def build_models_for(params: Params, data: PreparedData) -> Models:
    """Build the model that `params` names for the inputs and labels that are stored; one for text
    learns how many tokens there are.
    """
    settings, vocabulary = params.model, data.snapshot.vocabulary
    if vocabulary and settings.name != emulation.EMULATED_MODEL:
        options = {"vocabulary": vocabulary, **settings.options}
        settings = settings.model_copy(update={"options": options})
    return build_models(
        settings,
        input_shape=infer_input_shape(params, data),
        dtype=data.shards.schema.input.dtype,
        target=infer_target(params, data),
        postprocess=make_input_spec(params, data, "train").postprocess,
    )


def infer_target(params: Params, data: PreparedData) -> Target:
    """What is predicted: a class, the number that labels a row, the horizon of a series, or the
    next token of a text.
    """
    window = make_series_window(params, data)
    if window is not None:
        column = data.memmap("train", data.shards.schema.input.name)[:, list(window.targets)]
        return _describe_numbers(column, (window.horizon, len(window.targets)))
    if make_token_window(params, data) is not None:
        return Target(kind="next_token", shape=(data.snapshot.vocabulary,))
    if data.shards.schema.predicts_number:
        return _describe_numbers(np.asarray(data.memmap("train", "label"))[:, None], (1,))
    vectors = any(op.on_labels for op in params.postprocess)
    return Target(kind="soft_labels" if vectors else "class", shape=(len(data.shards.classes),))


def _describe_numbers(values: np.ndarray, shape: tuple[int, ...]) -> Target:
    """Numbers to predict of `shape`, with mean and scale of the training split's `values` (rows,
    targets); those that never change have a scale of 1.
    """
    values = np.asarray(values, np.float64)
    scale = values.std(axis=0)
    return Target(
        kind="regression",
        shape=shape,
        mean=tuple(values.mean(axis=0).tolist()),
        scale=tuple(np.where(scale > 0, scale, 1.0).tolist()),
    )
