"""The model, its input and its metrics fit the data, or are refused before anything runs."""

from __future__ import annotations

import pytest

from tasks.identities import resolve_settings
from tests.support.parameters import document, problems
from throughline.config.model_checks import model_names
from throughline.config.params import check


def test_keras_applications_are_known_without_importing_keras():
    assert {"small_cnn", "mlp", "ResNet50", "MobileNetV2"} <= set(model_names())


@pytest.mark.parametrize(
    ("source", "model"),
    [
        ("image_folder", "small_cnn"), ("table", "mlp"), ("time_series", "mlp"),
        ("text_lines", "text_classifier"),
    ],
)  # fmt: skip
def test_the_model_fits_the_data_unless_it_is_named(source, model):
    pipelines = {"naive": {"shuffle": {"kind": "none"}}}
    changed = {"data": {"source": source, "path": "x"}, "pipelines": pipelines}
    if source == "text_lines":
        changed["preprocess"] = [{"tokenize": {"kind": "bytes"}}]
    found = check({**changed, "model": {"options": {"width": 8}}}).model
    assert (found.name, found.options) == (model, {"width": 8})


def test_a_model_that_scales_its_input_gets_it_unscaled():
    refused = "postprocess: EfficientNetB0 scales its input itself"
    assert refused in problems(model__name="EfficientNetB0")
    assert check(document(model__name="EfficientNetB0", postprocess="[]"))
    within = {"model__name": "MobileNetV3Small"}
    assert check(document(**within))
    within["model__options"] = "{include_preprocessing: true}"
    assert "postprocess: MobileNetV3Small scales its input itself" in problems(**within)


@pytest.mark.parametrize(
    ("source", "monitor", "said"),
    [
        ("image_folder", "val_acuracy", "did you mean val_accuracy?"),
        ("image_folder", "val_mae", "training, which has val_loss, val_accuracy, loss, accuracy"),
        ("time_series", "val_accuracy", "has val_loss, val_mae, loss, mae"),
        ("table", "val_auc", "has val_loss, val_accuracy, val_mae, loss, accuracy, mae"),
        ("table", "val_mae", None),
        ("image_folder", "accuracy", None),
    ],
)
def test_early_stopping_watches_a_metric_there_is(source, monitor, said):
    stopping = {"train__early_stopping": f"{{monitor: {monitor}}}", "data__source": source}
    if said is None:
        assert check(document(**stopping))
    else:
        assert said in problems(**stopping)
    own = {**stopping, "train__metrics": "[auto, {mean: {name: acc}}]"}
    assert check(document(**own)), "which is asked before the first step"


def test_numbers_are_not_divided_by_255_unless_it_is_said():
    found = problems(data__source="table", postprocess="[rescale]")
    assert "postprocess: rescale divides by 255" in found
    assert check(document(data__source="table", postprocess="[{rescale: {scale: 0.01}}]"))


@pytest.mark.parametrize(
    ("source", "model", "postprocess"),
    [
        ("image_folder", "small_cnn", ["rescale"]),
        ("text_folder", "text_classifier", []),
        ("table", "mlp", ["standardize", "categories"]),
    ],
)
def test_what_is_chosen_by_default_is_resolved_in_what_dvc_compares(source, model, postprocess):
    """So that stages run again once `auto` means another model, or the default other ops."""
    document = {"data": {"source": source, "path": "x"}, "pipelines": {"a": {"read": "shards"}}}
    values = resolve_settings(document)
    assert (values["model"]["name"], values["postprocess"]) == (model, postprocess)
