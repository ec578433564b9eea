"""Fine-tuning: networks and weights from files, last layers that are replaced, layers that stay."""

import keras
import numpy as np
import pytest

from tests.support.saved_models import make_spec
from throughline.data.encodings.labels import labeled
from throughline.data.encodings.texts import text_feature
from throughline.models.builders import Target, build_models
from throughline.models.fine_tuning import NEW_OUTPUT, freeze_layers
from throughline.models.inference import save_trained_model
from throughline.models.model_files import check_savable
from throughline.models.transformers import Transformer
from throughline.settings import ModelSettings
from throughline.shared.errors import UnknownModel

pytestmark = pytest.mark.integration


def dense(units, name):
    return keras.layers.Dense(units, name=name)


def pretrained(path, *, outputs=7, activation="softmax"):
    """Write a network of two layers over four numbers, or its weights; returns the first one's."""
    answer = dense(outputs, "logits"), keras.layers.Activation(activation, name="probabilities")
    network = keras.Sequential([keras.Input((4,)), dense(6, "features"), *answer])
    (network.save_weights if path.name.endswith(".weights.h5") else network.save)(path)
    return network.get_layer("features").get_weights()


def build_for(target, path=None, *, shape=(4,), dtype="float32", **settings):
    """Models for a target, of the file at this path if there is one."""
    settings |= {"from": str(path)} if path else {}
    inputs = {"input_shape": shape, "dtype": dtype, "postprocess": ()}
    return build_models(ModelSettings.model_validate(settings), target=target, **inputs)


def build(path=None, *, outputs=3, **settings):
    return build_for(Target(kind="class", shape=(outputs,)), path, **settings).network


def two_layers(shape, outputs):
    return keras.Sequential([keras.Input(shape), dense(6, "features"), dense(outputs, "logits")])


TWO_LAYERS = {"name": f"{__name__}:two_layers"}


def head(name, *layers):
    return keras.Sequential([keras.Input((6,)), *layers], name=name)


def test_the_last_layer_is_replaced_where_the_classes_differ(tmp_path, capsys):
    path = tmp_path / "other.keras"
    features = pretrained(path)
    network = build(path)
    assert network.output_shape == (None, 3) and network.layers[-1].name == NEW_OUTPUT
    assert "logits is replaced by a new layer of 3 outputs" in capsys.readouterr().out
    for one, other in zip(network.get_layer("features").get_weights(), features, strict=True):
        np.testing.assert_array_equal(one, other)
    for activation, outputs, last in (
        ("softmax", 7, "probabilities"),  # as many outputs: it stays as it is
        ("log_softmax", 7, "probabilities"),
        ("sigmoid", 3, NEW_OUTPUT),
    ):
        pretrained(path, activation=activation)
        assert build(path, outputs=outputs).layers[-1].name == last


def test_layers_are_frozen_by_name_and_patterns(tmp_path):
    path = tmp_path / "other.keras"
    pretrained(path)
    frozen = build(path, freeze=["feat*"])
    assert [len(layer.trainable_weights) for layer in frozen.layers if layer.weights] == [0, 2]
    assert len(build(path, freeze=["all_but_last"]).trainable_weights) == 2
    with pytest.raises(UnknownModel, match="nothing has no weights that could be trained"):
        freeze_layers(head("nothing", keras.layers.Flatten()), [])
    frozen.save(path)
    assert len(build(path).trainable_weights) == 4, "whatever an earlier run has frozen"


@pytest.mark.parametrize(
    ("key", "file", "given", "said"),
    [
        ("from", "soft.keras", {"shape": (5,)}, r"takes inputs of shape \(4,\), but these are \(5"),
        ("from", "no.keras", {}, r"model.from: .*no.keras cannot be loaded"),
        ("from", "unsafe.keras", {}, r"model.from: .*unsafe.keras cannot be loaded"),
        ("from", "sigmoid.keras", {}, "ends with sigmoid, but classes need logits"),
        ("from", "soft.keras", {"freeze": ["featres"]}, "featres matches no layer.*features"),
        ("from", "soft.keras", {"freeze": ["*"]}, "no layer is left to train"),
        ("weights", "no.weights.h5", TWO_LAYERS, "model.weights: .*no.weights.h5 cannot be loaded"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path, key, file, given, said):
    for name in ("no.keras", "no.weights.h5"):
        (tmp_path / name).write_bytes(b"nothing")
    unsafe = [keras.Input((4,)), keras.layers.Lambda(lambda value: value * 2)]
    keras.Sequential(unsafe).save(tmp_path / "unsafe.keras")
    pretrained(tmp_path / "soft.keras")
    pretrained(tmp_path / "sigmoid.keras", activation="sigmoid")
    with pytest.raises(UnknownModel, match=said):
        build(outputs=7, **{key: str(tmp_path / file)}, **given)


@pytest.mark.parametrize(
    "tail",
    [
        [head("head", dense(5, "hidden"), dense(3, "logits"))],
        [dense(5, "hidden"), keras.layers.Reshape((1, 5)),
         keras.layers.TimeDistributed(dense(3, "logits")), keras.layers.Flatten()],
    ],
    ids=["nested", "wrapped"],
)  # fmt: skip
def test_all_but_the_last_layer_are_frozen_also_within_nested_models(tmp_path, tail):
    inputs = keras.Input((4,))
    value = keras.Sequential([dense(6, "first"), dense(6, "second")])(inputs)
    for layer in tail:
        value = layer(value)
    keras.Model(inputs, value).save(tmp_path / "nested.keras")
    network = build(tmp_path / "nested.keras", freeze=["all_but_last"])
    assert [tuple(one.shape) for one in network.trainable_weights] == [(5, 3), (3,)]


def test_a_loaded_network_computes_in_the_precision_of_this_process(tmp_path):
    pretrained(tmp_path / "single.keras", outputs=3)
    keras.config.set_dtype_policy("mixed_float16")
    try:
        pretrained(tmp_path / "half.keras", outputs=3)
        keras.config.set_dtype_policy("mixed_bfloat16")
        found = {name: build(tmp_path / f"{name}.keras") for name in ("single", "half")}
        for network in found.values():
            assert network.get_layer("features").compute_dtype == "bfloat16"
            assert network.get_layer("features").kernel.dtype == "float32"
        assert found["single"].get_layer("logits").compute_dtype == "float32"
        assert np.asarray(found["single"](np.ones((2, 4), np.float32))).dtype == np.float32
    finally:
        keras.config.set_dtype_policy("float32")
    network = build(tmp_path / "half.keras")
    assert {layer.compute_dtype for layer in network.layers} == {"float32"}


def test_weights_of_layers_that_fit_are_loaded(tmp_path, capsys):
    features = pretrained(tmp_path / "other.weights.h5")
    network = build(**TWO_LAYERS, weights=str(tmp_path / "other.weights.h5"))
    np.testing.assert_array_equal(network.get_layer("features").get_weights()[0], features[0])
    said = capsys.readouterr().out
    assert ": 2 of 4; others keep" in said and "logits/kernel" in said
    assert not any(np.isnan(weight).any() for weight in network.get_weights())


@pytest.mark.slow
def test_a_transformer_is_trained_on_with_another_last_layer(tmp_path):
    def text(target, path=None, **settings):
        return build_for(target, path, shape=(None,), dtype="int32", **settings)

    two, three = (Target(kind="class", shape=(outputs,)) for outputs in (2, 3))
    path, options = tmp_path / "model.keras", {"vocabulary": 20, "width": 8, "blocks": 1}
    first = text(two, name="transformer_encoder", options=options)
    needs = check_savable(first.full_model, [Transformer.__module__])
    spec = make_spec("text_folder", schema=labeled(text_feature()), objects=needs.objects)
    save_trained_model(first.full_model, path, spec, ())
    further = text(three, path, freeze=["all_but_last"]).network
    assert further.output_shape == (None, 3)
    assert [tuple(one.shape) for one in further.trainable_weights] == [(8, 3), (3,)]
    for old, new in zip(first.network.weights[:-2], further.weights[:-2], strict=True):
        np.testing.assert_array_equal(old, new)
