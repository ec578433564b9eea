"""The model, its input and its metrics fit the data, or are refused before anything runs."""

import pytest

from tasks.identities import resolve_settings
from tests.support.parameters import document, problems
from throughline.config.params import check
from throughline.shared.layout import STORE_HOME, WORKSPACES


@pytest.mark.parametrize(
    ("source", "model", "postprocess"),
    [
        ("image_folder", "small_cnn", ["rescale"]),
        ("table", "mlp", ["standardize", "categories"]),
        ("time_series", "mlp", ["standardize"]),
        ("text_lines", "text_classifier", []),
    ],
)
def test_model_and_ops_fit_the_data_also_in_what_dvc_compares(source, model, postprocess):
    """So that stages run again once `auto` means another model, or the default other ops."""
    pipelines = {"naive": {"shuffle": {"kind": "none"}}}
    changed = {"data": {"source": source, "path": "x"}, "pipelines": pipelines}
    values = resolve_settings(changed)
    assert (values["model"]["name"], values["postprocess"]) == (model, postprocess)
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


@pytest.mark.parametrize("key", ["from", "weights"])
@pytest.mark.parametrize("outputs", ["runs", "../../../runs"], ids=["own", "of the main project"])
def test_a_model_is_not_trained_on_from_an_output_of_dvc(tmp_path, monkeypatch, key, outputs):
    worktree = tmp_path / WORKSPACES / "wide"
    (worktree / outputs / "p").mkdir(parents=True)
    monkeypatch.chdir(worktree)
    monkeypatch.setenv(STORE_HOME, str(tmp_path))
    file = f"{outputs}/p/model.keras"
    (worktree / file).touch()
    name = {"model__name": "mlp"} if key == "weights" else {}
    said = problems(**{f"model__{key}": file}, **name)
    assert f"model.{key}: {file} is an output of train" in said
    assert f"`cp {file} pretrained.keras`" in said
    (worktree / "pretrained.keras").touch()
    assert check(document(**{f"model__{key}": "pretrained.keras"}, **name))


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
