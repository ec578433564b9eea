"""What is predicted with a model, what its evaluation says, and its export, for the tests."""

import csv
import io
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from tests.support.saved_models import save_as_train_does
from throughline.assembly.evaluation import write_evaluation
from throughline.assembly.inputs import open_input_pipeline, open_inputs, open_stored_pipeline
from throughline.assembly.model import build_models_for
from throughline.config.params import Params, check
from throughline.measurement.evaluation import judge
from throughline.models.inference import TrainedModel, open_trained_model
from throughline.models.serving import export_model
from throughline.prediction.examples import Wanted
from throughline.prediction.table import Counts, write_predictions
from throughline.results.evaluation import Evaluation
from throughline.shared.layout import Layout

ON_DEVICE = {"read": "snapshot", "shuffle": {"kind": "global"}, "postprocess_on": "device"}


def save_untrained(params: Params, layout: Layout) -> Path:
    """Save the model of the configuration `p` with its first weights, as train does in the end."""
    data = open_inputs(params, layout)
    models = build_models_for(params, data)
    for weights in models.full_model.trainable_variables:  # so that classes differ
        weights.assign(tf.random.stateless_normal(weights.shape, [len(weights.path), 7]))
    return save_as_train_does(models, params, data, layout.results("p") / "model.keras")


def predict_rows(model: Path, *paths: Path, **wanted) -> tuple[list[dict[str, str]], Counts]:
    """The lines of the CSV for these paths, and the counts."""
    with open_trained_model(model) as trained:
        return predict_with(trained, *paths, **wanted)


def predict_with(
    trained: TrainedModel, *paths: Path, **wanted
) -> tuple[list[dict[str, str]], Counts]:
    """The same with a model that is open."""
    out = io.StringIO()
    options = {"wanted": Wanted(**wanted), "batch_size": 7, "show_progress": False}
    counts = write_predictions(trained, paths, out, **options)
    return list(csv.DictReader(io.StringIO(out.getvalue()))), counts


def write_evaluation_of(params: Params, layout: Layout, model: Path, out: Path) -> Evaluation:
    """What train writes about the held-out split."""
    data = open_inputs(params, layout)
    models = build_models_for(params, data)
    models.full_model.load_weights(model)
    return write_evaluation(models, params, "p", data, out)


def judge_split(params: Params, layout: Layout, model: Path) -> dict[str, np.ndarray]:
    """What the evaluation finds of each example of the test split."""
    data = open_inputs(params, layout)
    full = keras.saving.load_model(model, compile=False)
    pipeline = open_stored_pipeline(params, "p", data, split="test")
    schema, classes = data.shards.schema, not data.shards.schema.predicts_number
    judged = [judge(full, one, schema, classes=classes) for one in pipeline.dataset()]
    return {name: np.concatenate([one[name] for one in judged]) for name in judged[0]}


def evaluate(params: Params, layout: Layout, model: Path) -> np.ndarray:
    """What the full model says of the test split in its evaluation, in storage order."""
    data = open_inputs(params, layout)
    pipeline = open_input_pipeline(params, "p", data, split="test", purpose="evaluate")
    full = keras.saving.load_model(model, compile=False)
    return np.concatenate([full(inputs, training=False) for inputs, _ in pipeline.dataset()])


def export_file(model: Path, out: Path) -> str:
    with open_trained_model(model) as trained:
        return export_model(trained, out)


def photo_params(folder: Path, **sections) -> Params:
    """Parameters for the photos: resized by the shorter side, then cropped to one size."""
    usual = {
        "data": {"source": "image_folder", "path": str(folder)},
        "preprocess": ["decode", {"resize": {"shorter": 20}}],
        "augment": [{"random_crop": {"height": 16, "width": 16}}, "flip"],
        "postprocess": ["rescale"],
        "batch_size": 8,
        "model": {"name": "mlp", "options": {"width": 8}},
        "pipelines": {"p": ON_DEVICE},
    }
    return check({**usual, **sections})
