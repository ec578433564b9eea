"""Fine-tuning: networks and weights from files, last layers that are replaced, layers that stay."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from trainings import params_of, run

from throughline.assembly.inference import inference_ops, make_inference_spec
from throughline.assembly.inputs import open_inputs
from throughline.assembly.model import build_models_for
from throughline.models.builders import Target, build_models
from throughline.models.fine_tuning import NEW_OUTPUT
from throughline.models.inference import save_trained_model
from throughline.settings import ModelSettings
from throughline.shared.errors import UnknownModel


def pretrained(path, *, outputs=7, activation="softmax"):
    """A network of two layers over four numbers in a file, and its first layer's weights."""
    network = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(6, activation="relu", name="features"),
            keras.layers.Dense(outputs, name="logits"),
            keras.layers.Activation(activation, name="probabilities"),
        ]
    )
    if path.name.endswith(".weights.h5"):
        network.save_weights(path)
    else:
        network.save(path)
    return network.get_layer("features").get_weights()


def build(outputs=3, shape=(4,), **settings):
    return build_models(
        ModelSettings.model_validate(settings),
        input_shape=shape,
        dtype="float32",
        target=Target(kind="class", shape=(outputs,)),
        postprocess=(),
    ).network


def test_the_last_layer_is_replaced_where_the_classes_differ(tmp_path, capsys):
    features = pretrained(tmp_path / "other.keras")
    network = build(**{"from": str(tmp_path / "other.keras")})
    assert network.output_shape == (None, 3) and network.layers[-1].name == NEW_OUTPUT
    assert "logits is replaced by a new layer of 3 outputs" in capsys.readouterr().out
    for one, other in zip(network.get_layer("features").get_weights(), features, strict=True):
        np.testing.assert_array_equal(one, other)
    same = build(outputs=7, **{"from": str(tmp_path / "other.keras")})
    assert same.layers[-1].name == "probabilities", "as many outputs: it stays as it is"


def test_layers_are_frozen_by_name_and_patterns(tmp_path):
    pretrained(tmp_path / "other.keras")
    source = {"from": str(tmp_path / "other.keras")}
    frozen = build(**source, freeze=["feat*"])
    assert [len(layer.trainable_weights) for layer in frozen.layers if layer.weights] == [0, 2]
    assert len(build(**source, freeze=["all_but_last"]).trainable_weights) == 2
    with pytest.raises(UnknownModel, match=r"model.freeze: featres is no layer.*features"):
        build(**source, freeze=["featres"])
    with pytest.raises(UnknownModel, match="no layer is left to train"):
        build(**source, freeze=["*"])


def test_weights_of_layers_that_fit_are_loaded(tmp_path, capsys, monkeypatch):
    (tmp_path / "own_layers.py").write_text(
        "import keras\n\n\ndef build(shape, outputs):\n"
        "    return keras.Sequential([keras.Input(shape),"
        " keras.layers.Dense(6, activation='relu', name='features'),"
        " keras.layers.Dense(outputs, name='logits')])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    features = pretrained(tmp_path / "other.weights.h5")
    network = build(name="own_layers:build", weights=str(tmp_path / "other.weights.h5"))
    np.testing.assert_array_equal(network.get_layer("features").get_weights()[0], features[0])
    said = capsys.readouterr().out
    assert "2 of 4 weights are from" in said and "logits/kernel" in said
    assert not any(np.isnan(weight).any() for weight in network.get_weights())
    (tmp_path / "no.weights.h5").write_bytes(b"nothing")
    with pytest.raises(UnknownModel, match=r"model.weights: .*no.weights.h5 cannot be loaded"):
        build(name="own_layers:build", weights=str(tmp_path / "no.weights.h5"))


def test_files_that_do_not_fit_are_refused(tmp_path):
    pretrained(tmp_path / "other.keras")
    with pytest.raises(UnknownModel, match=r"takes inputs of shape \(4,\), these are \(5,\)"):
        build(shape=(5,), **{"from": str(tmp_path / "other.keras")})
    (tmp_path / "no.keras").write_bytes(b"nothing")
    with pytest.raises(UnknownModel, match=r"model.from: .*no.keras cannot be loaded"):
        build(**{"from": str(tmp_path / "no.keras")})
    inputs = keras.Input((4,))
    unsafe = keras.Model(inputs, keras.layers.Lambda(lambda value: value * 2)(inputs))
    unsafe.save(tmp_path / "unsafe.keras")
    with pytest.raises(UnknownModel, match=r"model.from: .*unsafe.keras cannot be loaded"):
        build(outputs=4, **{"from": str(tmp_path / "unsafe.keras")})


@pytest.mark.slow
@pytest.mark.integration
def test_a_model_of_this_program_is_trained_on(layout, tmp_path):
    params = params_of()
    _, weights = run(params, layout, tmp_path / "first")
    data = open_inputs(params, layout)
    models = build_models_for(params, data)
    models.network.set_weights(weights)
    save_trained_model(
        models.full_model,
        tmp_path / "model.keras",
        make_inference_spec(params, "optimized", data, None),
        inference_ops(params, "optimized", data),
    )
    rate = "train.learning_rate=1e-9"
    further = params_of(f"model={{from: '{tmp_path / 'model.keras'}'}}", rate, "train.epochs=1")
    _, after = run(further, layout, tmp_path / "second")
    for one, other in zip(after, weights, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
