"""Models in files, as train leaves them, of trainings that need not have taken place."""

from pathlib import Path

from throughline.assembly.fingerprint import layer_modules
from throughline.assembly.inference import inference_ops, make_inference_spec
from throughline.config.params import Params
from throughline.data.encodings.arrays import array_feature
from throughline.data.encodings.labels import labeled
from throughline.models.builders import Models
from throughline.models.inference import InferenceSpec, save_trained_model
from throughline.models.model_files import check_savable
from throughline.pipelines.read.prepared_data import PreparedData
from throughline.settings import DataSettings, WindowSettings


def make_spec(source: str = "table", **fields) -> InferenceSpec:
    """How a model is used, of a table of two numbers unless `fields` say something else."""
    usual = {
        "task": "class",
        "schema": labeled(array_feature("numbers", (2,), "float32")),
        "data": DataSettings(source=source, path="unused"),
        "window": WindowSettings(),
        "ops": (),
    }
    return InferenceSpec(**{**usual, **fields})


def save_as_train_does(models: Models, params: Params, data: PreparedData, path: Path) -> Path:
    """Save the model of the configuration `p` with its weights, and with how it is used."""
    path.parent.mkdir(parents=True, exist_ok=True)
    needs = check_savable(models.full_model, sorted(layer_modules(params)))
    spec = make_inference_spec(params, "p", data, needs)
    save_trained_model(models.full_model, path, spec, inference_ops(params, "p", data))
    return path
