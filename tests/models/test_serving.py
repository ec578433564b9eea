"""An exported model of text answers strings as the trained one answers their tokens."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from texts import params_of, prepare_texts

from tasks.export import export
from throughline.assembly.fingerprint import layer_modules
from throughline.assembly.inference import inference_ops, make_inference_spec
from throughline.assembly.inputs import open_inputs
from throughline.assembly.model import build_models_for
from throughline.data.encodings.arrays import array_feature
from throughline.data.encodings.labels import labeled
from throughline.data.encodings.texts import text_feature
from throughline.kernels.tokenizers import tokenize
from throughline.models.inference import (
    InferenceSpec,
    TrainedModel,
    open_trained_model,
    save_trained_model,
)
from throughline.models.model_files import check_savable
from throughline.models.serving import CLASSES, export_model, make_serve_fn
from throughline.plan.text_ops import Tokenize
from throughline.settings import DataSettings, WindowSettings

pytestmark = pytest.mark.integration

TEXTS = ["the quick brown fox", "", "a lazy dog, üñí, jumps over the fox " * 4]


@pytest.fixture(scope="module")
def layout(tmp_path_factory):
    return prepare_texts(tmp_path_factory.mktemp("texts"))


def save(params, name, layout):
    """Save the model of a configuration with its first weights, as train does in the end."""
    data = open_inputs(params, layout)
    model = build_models_for(params, data).full_model
    spec = make_inference_spec(
        params, name, data, check_savable(model, sorted(layer_modules(params)))
    )
    path = layout.results(name) / "model.keras"
    path.parent.mkdir(parents=True, exist_ok=True)
    save_trained_model(model, path, spec, inference_ops(params, name, data))
    return model


def test_the_model_of_a_run_is_exported(layout, tmp_path):
    params = params_of({}, train={"seed": 1})
    model = save(params, "p", layout)
    with open_trained_model(layout.results("p") / "model.keras") as trained:
        assert export(trained, tmp_path / "served") == "text: string"
    loaded = tf.saved_model.load(str(tmp_path / "served"))
    served = loaded.serve(tf.constant(TEXTS))
    for text, answer in zip(TEXTS, served["probabilities"].numpy(), strict=True):
        tokens = [byte + 1 for byte in text.encode()][:60] or [0]
        expected = tf.nn.softmax(model(np.array([tokens], np.int32)))[0]
        np.testing.assert_allclose(answer, expected, atol=1e-5)
    assert (tmp_path / "served" / CLASSES).read_text().splitlines() == ["ham", "spam"]


def test_a_language_model_says_which_token_follows(layout, tmp_path):
    params = params_of({}, window={"tokens": 24}, model={"options": {"width": 8, "blocks": 1}})
    model = save(params, "p", layout)
    with open_trained_model(layout.results("p") / "model.keras") as trained:
        export(trained, tmp_path / "served")
    loaded = tf.saved_model.load(str(tmp_path / "served"))
    served = loaded.serve(tf.constant(TEXTS[2:]))
    tokens = np.array([[byte + 1 for byte in TEXTS[2].encode()][-24:]], np.int32)
    expected = tf.nn.softmax(model(tokens)[:, -1])
    np.testing.assert_allclose(served["probabilities"], expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["sentencepiece", "wordpiece"])
def test_fitted_tokenizers_are_part_of_it(tmp_path, kind):
    pieces = tmp_path / "tokenizer"
    if kind == "wordpiece":
        pieces.write_text("[PAD]\n[UNK]\nthe\nquick\nfox\n##es\n")
    else:
        import sentencepiece

        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["the quick brown fox jumps over the lazy dog"] * 20),
            model_prefix=str(pieces),
            vocab_size=30,
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            minloglevel=2,
        )
        pieces = pieces.with_suffix(".model")
    op = Tokenize(kind=kind, model=str(pieces))
    text = keras.Input((None,), dtype="int32")
    embedded = keras.layers.Embedding(50, 4, mask_zero=True)(text)
    model = keras.Model(text, keras.layers.GlobalAveragePooling1D()(embedded))
    spec = InferenceSpec(
        task="class",
        schema=labeled(text_feature()),
        data=DataSettings(source="text_folder", path="unused"),
        window=WindowSettings(),
        ops=(),
        classes=("a", "b", "c", "d"),
    )
    export_model(TrainedModel(model=model, spec=spec, ops=(op,)), tmp_path / "served")
    loaded = tf.saved_model.load(str(tmp_path / "served"))
    served = loaded.serve(tf.constant(["The foxes", "quick"]))
    tokens = tokenize(op, tf.constant(["The foxes", "quick"])).to_tensor()
    expected = tf.nn.softmax(model(tokens))
    np.testing.assert_allclose(served["probabilities"], expected, atol=1e-6)


def test_a_model_that_ends_with_a_softmax_is_served_as_it_is():
    features = keras.Input((3,), dtype="float32")
    model = keras.Model(features, keras.layers.Dense(2, "softmax")(features))
    spec = InferenceSpec(
        task="class",
        schema=labeled(array_feature("numbers", (3,), "float32")),
        data=DataSettings(source="table", path="unused"),
        window=WindowSettings(),
        ops=(),
    )
    values = np.array([[1.0, -2.0, 0.5]], np.float32)
    served = make_serve_fn(TrainedModel(model=model, spec=spec, ops=()))(tf.constant(values))
    np.testing.assert_allclose(served["probabilities"], model(values), rtol=1e-6)
