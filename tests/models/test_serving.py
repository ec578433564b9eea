"""An exported model answers files and strings as the trained one answers pixels and tokens."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.saved_models import make_spec, save_as_train_does
from tests.support.texts import params_of, prepare_texts
from throughline.assembly.inputs import open_inputs
from throughline.assembly.model import build_models_for
from throughline.data.encodings.images import image_feature
from throughline.data.encodings.labels import labeled
from throughline.data.encodings.texts import text_feature
from throughline.kernels.elements import apply_ops
from throughline.kernels.tokenizers import tokenize
from throughline.models.inference import TrainedModel, open_trained_model
from throughline.models.serving import export_model, make_serve_fn
from throughline.plan.augmentations import ResizedCenterCrop
from throughline.plan.ops import DecodeImage, Op, Pad, Resize
from throughline.plan.schema import Shape
from throughline.plan.text_ops import Tokenize
from throughline.shared.errors import UnsavableModel

pytestmark = pytest.mark.integration

DECODE = DecodeImage(channels=3)
CROP = ResizedCenterCrop(height=8, width=8, shorter=9)
TEXTS = ["the quick brown fox", "", "a lazy dog, üñí, jumps over the fox " * 4]


def test_a_language_model_says_which_token_follows(tmp_path):
    params = params_of({}, window={"tokens": 24}, model={"options": {"width": 8, "blocks": 1}})
    data = open_inputs(params, prepare_texts(tmp_path / "texts"))
    models = build_models_for(params, data)
    save_as_train_does(models, params, data, tmp_path / "model.keras")
    with open_trained_model(tmp_path / "model.keras") as trained:
        served = make_serve_fn(trained)(tf.constant(TEXTS[2:]))
    tokens = np.array([[byte + 1 for byte in TEXTS[2].encode()][-24:]], np.int32)
    expected = tf.nn.softmax(models.full_model(tokens)[:, -1])
    np.testing.assert_allclose(served["probabilities"], expected, atol=1e-5)


class Marked(Op):
    """An op of one's own on single texts, before they are tokenized."""

    name = "marked"
    takes = "example"
    works_on = ("text",)

    def compute(self, element, draw):
        return {**element, "text": tf.strings.reduce_join([element["text"], "!"])}


class LastToken(Marked):
    """An op of one's own on the tokens of single texts."""

    name = "last_token"

    def compute(self, element, draw):
        return {**element, "text": element["text"][-1:]}


def text_model(*ops: Op) -> TrainedModel:
    """A model of the mean of embedded tokens."""
    embedded = keras.layers.Embedding(300, 4, mask_zero=True)
    pooled = keras.layers.GlobalAveragePooling1D()
    model = keras.Sequential([keras.Input((None,), dtype="int32"), embedded, pooled])
    spec = make_spec("text_folder", schema=labeled(text_feature()), classes=tuple("abcd"))
    return TrainedModel(model=model, spec=spec, ops=ops)


@pytest.mark.parametrize(
    ("ops", "tokens"),  # each byte plus one
    [
        ((Marked(), Tokenize(kind="bytes")), [[98, 99, 34], [100, 34, 0]]),  # of "ab!" and "c!"
        ((Tokenize(kind="bytes"), LastToken()), [[99], [100]]),
    ],
)
def test_ops_of_single_texts_get_single_texts(ops, tokens):
    trained = text_model(*ops)
    served = make_serve_fn(trained)(tf.constant(["ab", "c"]))
    expected = tf.nn.softmax(trained.model(np.array(tokens, np.int32)))
    np.testing.assert_allclose(served["probabilities"], expected, atol=1e-6)


def test_the_file_of_a_tokenizer_is_part_of_it(tmp_path):
    pieces = tmp_path / "tokenizer"
    pieces.write_text("[PAD]\n[UNK]\nthe\nquick\nfox\n##es\n")
    op = Tokenize(kind="wordpiece", model=str(pieces))
    trained = text_model(op)
    export_model(trained, tmp_path / "served")
    texts = tf.constant(["The foxes", "quick", ""])
    tokens = tokenize(op, texts).to_tensor()
    pieces.unlink()
    loaded = tf.saved_model.load(str(tmp_path / "served"))
    served = loaded.serve(texts)
    expected = tf.nn.softmax(trained.model(tokens))
    np.testing.assert_allclose(served["probabilities"], expected, atol=1e-6)


def photo_model(*ops: Op, shape: Shape = (None, None, 3)) -> TrainedModel:
    """A model of photos of this shape that answers with the pixels that reach it."""
    pixels = keras.Input((8, 8, 3), dtype="uint8")
    schema = labeled(image_feature(shape))
    spec = make_spec("image_folder", task="regression", schema=schema)
    answer = keras.layers.Flatten()(keras.layers.Rescaling(1.0)(pixels))
    return TrainedModel(model=keras.Model(pixels, answer), spec=spec, ops=ops)


def make_photos(*sizes: tuple[int, int]) -> list[bytes]:
    """PNG files of these heights and widths."""
    draw = np.random.default_rng(0)
    images = (draw.integers(0, 256, (*size, 3), np.uint8) for size in sizes)
    return [tf.io.encode_png(image).numpy() for image in images]


@pytest.mark.parametrize(
    ("ops", "shape"),
    [
        ((DecodeImage(channels=3, crop=(8, 8)),), (None, None, 3)),
        ((DecodeImage(channels=3, ratio=2), CROP), (20, 30, 3)),
        ((DECODE, CROP), (20, 30, 3)),
        ((DECODE, Pad(pixels=1), CROP), (20, 30, 3)),
    ],
    ids=["fused", "ratio", "crop", "pad"],
)
def test_images_are_served_however_a_configuration_decodes_them_and_of_any_size(ops, shape):
    files = make_photos((20, 30), (21, 30), (9, 50))
    served = make_serve_fn(photo_model(*ops, shape=shape))(tf.constant(files))["values"]
    for file, answer in zip(files, served, strict=True):
        one = {"image": tf.constant(file), "key": tf.zeros((), tf.int64)}
        image = apply_ops(ops, one, seed=0, epoch=tf.constant(0, tf.int64))["image"]
        np.testing.assert_array_equal(answer, tf.reshape(image, (-1,)))


@pytest.mark.slow
def test_what_opencv_crops_is_exported_without_it(tmp_path):
    trained, files = photo_model(DECODE, CROP), make_photos((20, 31), (8, 8), (6, 40))
    export_model(trained, tmp_path / "served")
    loaded = tf.saved_model.load(str(tmp_path / "served"))
    served, expected = (
        serve(tf.constant(files))["values"] for serve in (loaded.serve, make_serve_fn(trained))
    )
    np.testing.assert_allclose(served, expected, atol=2)


class Inverted(Op):
    """An op of one's own that calls Python."""

    name = "inverted"

    def compute(self, element, draw):
        image = element["image"]
        called = tf.numpy_function(lambda pixels: 255 - pixels, [image], tf.uint8)
        return {**element, "image": tf.ensure_shape(called, image.shape)}


def test_what_calls_python_is_not_exported(tmp_path):
    trained = photo_model(DECODE, Inverted(), Resize(height=8, width=8))
    with pytest.raises(UnsavableModel, match=r"exported: \S*inverted calls Python"):
        export_model(trained, tmp_path / "served")
    assert not (tmp_path / "served").exists()
