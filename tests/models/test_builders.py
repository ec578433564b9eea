"""Networks that are built by name, what they give, transformers, and the emulated accelerator."""

from itertools import islice

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tests.support.lanes import slow_but_first
from throughline.assembly.model import configure_process
from throughline.config.model_checks import BUILT_IN_MODELS
from throughline.measurement.accelerators import ACCELERATORS, find_accelerator
from throughline.models import transformers
from throughline.models.builders import BUILDERS, Target, build_models, text_classifier
from throughline.models.emulation import EmulatedTraining, Emulation
from throughline.models.inference import find_last_activation, gives_probabilities
from throughline.models.model_files import check_savable, load_model, save_model
from throughline.plan import ops
from throughline.settings import ModelSettings, TrainSettings
from throughline.shared.errors import ImpossiblePlan, UnknownModel
from throughline.training.compiling import compile_model
from throughline.training.replicated_model import RANDOM_STATE
from throughline.training.step_function import make_execution
from throughline.training.step_model import Feed, make_step_model

pytestmark = pytest.mark.integration

YEARS = np.asarray([[2015.0, 257, 1], [2010.0, 259, 0]], np.float32)
CLASSES = Target(kind="class", shape=(4,))


def build(name, *postprocess, shape=(3,), target=CLASSES, **options):
    """Models for numbers of this shape, or for images or texts."""
    dtype = "uint8" if len(shape) == 3 else "int32" if shape == (None,) else "float32"
    inputs = {"input_shape": shape, "dtype": dtype, "postprocess": postprocess}
    return build_models(ModelSettings(name=name, options=options), target=target, **inputs)


def test_a_text_without_tokens_has_an_answer():
    network = text_classifier((6,), 2, vocabulary=9, width=4)
    tokens = np.array([[0] * 6, [3, 4, 0, 0, 0, 0], [3, 4, 3, 4, 3, 4]], np.int32)
    answers = np.asarray(network(tokens))
    assert np.isfinite(answers).all()
    # Padding counts for nothing; an answer may be near 0, where the sums' rounding is absolute.
    np.testing.assert_allclose(answers[1], answers[2], rtol=1e-5, atol=1e-7)


def test_the_built_in_models_are_those_that_params_yaml_knows():
    assert {*BUILDERS} == {*BUILT_IN_MODELS}


@pytest.mark.slow
def test_the_input_is_scaled_once_by_postprocess_or_by_the_model():
    images = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
    name, small = "MobileNetV3Small", {"shape": (32, 32, 3), "alpha": 0.35}
    outside = build(name, ops.Rescale(scale=1 / 127.5, offset=-1), **small)
    within = build(name, **small, include_preprocessing=True)
    assert not any(isinstance(one, layers.Rescaling) for one in outside.network.layers)
    within.network.set_weights(outside.network.get_weights())
    expected = np.asarray(outside.full_model(images))
    np.testing.assert_allclose(within.full_model(images), expected, rtol=1e-4, atol=1e-6)


@pytest.fixture
def mixed_precision():
    configure_process(TrainSettings(mixed_precision=True))
    yield
    keras.config.set_dtype_policy("float32")


class SinceTwoThousand(ops.Op):
    """A user's op."""

    def layer(self):
        return layers.Rescaling(1.0, offset=-2000.0)


@pytest.mark.usefixtures("mixed_precision")
@pytest.mark.parametrize(
    "op",
    [
        SinceTwoThousand(),
        ops.Rescale(scale=0.2, offset=-402),
        ops.Standardize(mean=(2010.0, 0.0, 0.0), deviation=(5.0, 1.0, 1.0)),
        ops.Categories(sizes=(300, 2)),
    ],
)
def test_what_comes_before_the_network_is_as_exact_as_without_it(op):
    mixed = build("mlp", op)
    assert "bfloat16" in {layer.compute_dtype for layer in mixed.network.layers}
    keras.config.set_dtype_policy("float32")
    exact = build("mlp", op)
    assert mixed.postprocess and exact.postprocess
    np.testing.assert_array_equal(mixed.postprocess(YEARS), exact.postprocess(YEARS))


@pytest.mark.usefixtures("mixed_precision")
@pytest.mark.parametrize("shape", [(1,), (2, 3)])
def test_predicted_numbers_have_their_unit_in_single_precision(shape):
    per_column = {"mean": (200_001.0,) * shape[-1], "scale": (0.0001,) * shape[-1]}
    models = build("mlp", target=Target(kind="regression", shape=shape, **per_column))
    outputs = np.asarray(models.full_model(YEARS * 0))
    assert outputs.dtype == np.float32 and outputs.shape == (2, *shape)
    np.testing.assert_array_equal(outputs, np.full((2, *shape), 200_001, np.float32))


@pytest.mark.usefixtures("mixed_precision")
@pytest.mark.parametrize("name", ["emulated", *slow_but_first(["small_cnn", "MobileNetV2"])])
def test_the_full_model_answers_in_single_precision(name):
    options = {"step_ms": 1} if name == "emulated" else {}
    models = build(name, ops.Rescale(), shape=(32, 32, 3), **options)
    assert models.full_model.output.dtype == "float32"


def test_a_model_that_ends_with_a_softmax_gives_probabilities():
    inputs = keras.Input((3,))
    logits, within = layers.Dense(2)(inputs), layers.Dense(2, "softmax")(inputs)
    inner, called = keras.Model(inputs, within)(inputs), keras.ops.softmax(logits)
    for what, outputs in {
        "a layer": layers.Softmax()(logits),
        "an activation": layers.Activation("softmax")(logits),
        "another model": inner,
        "before a cast": layers.Identity(dtype="float32")(inner),
        "before another one": layers.Activation("linear", dtype="float32")(inner),
        "a function": called,
        "an ensemble": layers.Average()([inner, called]),
    }.items():
        assert gives_probabilities(keras.Model(inputs, outputs)), what
    mixed, sigmoid = layers.Average()([inner, logits]), layers.Dense(2, "sigmoid")(inputs)
    for outputs in (logits, sigmoid, mixed):
        assert not gives_probabilities(keras.Model(inputs, outputs))
    assert find_last_activation(keras.Model(inputs, keras.ops.sigmoid(logits))) == "sigmoid"


@pytest.mark.parametrize(
    ("activation", "found"), [("softmax", "softmax"), ("sigmoid", "sigmoid"), ("linear", None)]
)
def test_an_activation_is_found_behind_layers_that_keep_its_values(activation, found):
    inputs = keras.Input((4, 4, 3))
    maps = layers.Conv2D(2, 2, activation=activation)(inputs)
    pooled = layers.GlobalAveragePooling2D()(maps)
    for outputs in (pooled, layers.Dropout(0.5)(layers.Flatten()(maps[:, :1, :1])), pooled * 1.0):
        network = keras.Model(inputs, outputs)
        weights = network.get_weights()
        outer = keras.Model(stored := keras.Input((4, 4, 3), dtype="uint8"), network(stored))
        assert find_last_activation(network) == find_last_activation(outer) == found
        np.testing.assert_equal(network.get_weights(), weights)


DOCUMENTS = ([5, 3, 8], [2, 2, 7, 1, 9], [4])


def make_network(**options):
    options |= {"vocabulary": 10, "outputs": 4, "width": 16, "blocks": 1}
    text = keras.Input((None,), dtype="int32")
    return keras.Model(text, transformers.TransformerEncoder(**options)(text))


@pytest.fixture(scope="module")
def network():
    keras.utils.set_random_seed(3)
    return make_network(heads=2)


def packed_row(room):
    """All documents in one row of `room` tokens, with a free slot after them."""
    row = {name: np.zeros((1, room), np.int32) for name in ("text", "segment_ids", "positions")}
    begin = 0
    for number, document in enumerate(DOCUMENTS, 1):
        part = (0, slice(begin, begin + len(document)))
        row["text"][part], row["segment_ids"][part] = document, number
        row["positions"][part] = np.arange(len(document))
        begin += len(document)
    return row


def alone(network):
    return np.concatenate([network(np.array([one], np.int32)) for one in DOCUMENTS])


def test_a_document_gives_the_same_alone_padded_and_in_a_row_with_others(network):
    padded = np.array([one + [0] * (12 - len(one)) for one in DOCUMENTS], np.int32)
    np.testing.assert_allclose(network(padded), alone(network), atol=1e-5)
    outputs = transformers.make_packed_model(network, segments=4)(packed_row(12))
    assert outputs.shape == (1, 4, 4)
    np.testing.assert_allclose(outputs[0, :3], alone(network), atol=1e-5)
    one, other = (network(np.array([tokens], np.int32)) for tokens in ([5, 3, 8], [8, 3, 5]))
    assert not np.allclose(one, other, atol=1e-3), "the order of its tokens matters"


@pytest.mark.parametrize("step", slow_but_first(["train_step", "test_step"]))
def test_the_loss_of_uneven_packed_batches_is_the_mean_over_all_documents(step):
    network = make_network(dropout=0.0)
    logits, labels = alone(network)[[0, 1, 2, 0]], np.array([1, 3, 0, 1])
    expected = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, logits)
    packed = transformers.make_packed_model(network, segments=5)
    settings = TrainSettings(optimizer="sgd", learning_rate=1e-30, schedule="constant")
    compile_model(packed, settings, target=Target(kind="class", shape=(4,)), steps=2)
    row, label, measured = packed_row(16), np.array([[1, 3, 0, 0, 0]]), {}
    few = {name: np.where(row["segment_ids"] == 1, value, 0) for name, value in row.items()}
    for inputs, documents in ((row, [[1, 1, 1, 0, 0]]), (few, [[1, 0, 0, 0, 0]])):
        batch = inputs, label, np.array(documents, np.float32)
        measured = getattr(packed, step)(tf.nest.map_structure(tf.constant, batch))
    assert {*measured} == {"loss", "accuracy"}
    assert float(measured["loss"]) == pytest.approx(float(expected), rel=1e-4)
    assert float(measured["accuracy"]) == pytest.approx(np.mean(logits.argmax(axis=1) == labels))
    packed.reset_metrics()
    assert float(packed.metrics[0].result()) == 0, "the next epoch has a loss of its own"


@pytest.mark.usefixtures("mixed_precision")
@pytest.mark.parametrize("kind", slow_but_first(["encoder", "decoder"]))
def test_with_mixed_precision_a_transformer_answers_in_single_and_is_saved(tmp_path, kind):
    make, tokens = getattr(transformers, f"transformer_{kind}"), [[5, 3, 0], [0, 0, 0]]
    model = make((None,), 10, vocabulary=10, width=16, blocks=1)
    outputs = model(np.array(tokens, np.int32))
    assert outputs.dtype == "float32" and np.isfinite(outputs).all()
    assert model.layers[-1].blocks[0].compute_dtype == "bfloat16"
    module, name = transformers.Transformer.__module__, type(model.layers[-1]).__name__
    form = check_savable(model, [module])
    assert form.objects == {name: f"{module}:{name}"} and form.safe
    save_model(model, tmp_path / "model.keras")
    loaded = load_model(tmp_path / "model.keras", form.objects)
    np.testing.assert_array_equal(loaded(np.array(tokens, np.int32)), outputs)


@pytest.mark.parametrize("tied", slow_but_first([True, False]))
def test_a_decoder_sees_no_later_token_and_all_earlier_ones(tied):
    decoder = transformers.TransformerDecoder(vocabulary=10, width=16, tied=tied)
    texts = ([5, 3, 8, 2, 7], [5, 3, 8, 9, 7])
    one, other = (decoder(np.array([tokens], np.int32)).numpy() for tokens in texts)
    assert one.shape == (1, 5, 10)
    np.testing.assert_allclose(one[:, :3], other[:, :3], atol=1e-6)
    assert all((np.abs(one[0, at] - other[0, at]) > 1e-4).any() for at in (3, 4))


@pytest.mark.slow
def test_every_block_drops_by_a_seed_of_its_own_that_follows_from_the_trainings():
    def states(seed):
        keras.utils.set_random_seed(seed)
        model = transformers.transformer_encoder((None,), 3, vocabulary=10, width=8, blocks=2)
        return [one.numpy().tolist() for one in model.variables if one.name == RANDOM_STATE]

    (first, second), again, other = states(1), states(1), states(2)
    assert first != second and again == [first, second] != other


def test_a_model_that_mixes_documents_is_refused():
    text = keras.Input((None,), dtype="int32")
    pooled = layers.GlobalAveragePooling1D()(layers.Embedding(10, 4)(text))
    with pytest.raises(UnknownModel, match="use transformer_encoder, or"):
        transformers.make_packed_model(keras.Model(text, pooled, name="bag"), segments=2)


def emulated(**more):
    return build("emulated", ops.Rescale(), **{"shape": (8, 8, 1), **more})


def test_a_step_takes_its_time_from_when_its_batch_is_there_and_sleeps_what_is_left():
    loaded, computed, slept = [], [], []  # in seconds of a virtual clock

    def load():
        for seconds in (0.010, 0.010, 0.080):  # the last takes longer than the accelerator
            loaded.append(0.030)  # the input pipeline works on the batch
            yield seconds

    def compute(seconds):
        computed.append(seconds)
        return seconds

    training = EmulatedTraining(Emulation(step_ms=50), output=None, shape=(4,))
    given = {"clock": lambda: 100 + sum([*loaded, *computed, *slept]), "sleep": slept.append}
    assert training.pace(compute, **given)(load(), 3) == 0.080, "the logs of the last step"
    assert slept == pytest.approx([0.040, 0.040, 0.0])


def test_varying_steps_are_drawn_from_their_seed_around_the_mean():
    drawn, again = (
        np.array([*islice(Emulation(step_ms=10, spread=0.5).durations_s(), 2000)]) for _ in "12"
    )
    np.testing.assert_array_equal(drawn, again)
    assert drawn.min() >= 0.005 and drawn.max() <= 0.015
    assert drawn.mean() == pytest.approx(0.010, rel=0.03)


def test_it_learns_how_frequent_the_classes_are_and_is_saved_as_any_model(tmp_path):
    built = emulated(step_ms=0.1)
    batch = np.zeros((4, 8, 8, 1), np.uint8), np.array([0, 0, 0, 1])
    batches = iter(tf.data.Dataset.from_tensors(batch).repeat(60))
    settings = {"learning_rate": 0.5, "schedule": "constant", "steps_per_execution": 4}
    model = make_step_model(built, TrainSettings(**settings), Feed(steps_per_epoch=15, stored=True))
    execute = make_execution(model)
    for _ in range(15):
        execute(batches, tf.constant(4))
    assert next(batches, None) is None, "each step of an execution takes a batch"
    built.full_model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    inputs = np.zeros((3, 8, 8, 1), np.uint8)
    logits = loaded.predict(inputs, verbose=0)
    np.testing.assert_allclose(logits, model(inputs), rtol=1e-5)
    assert logits.argmax(axis=1).tolist() == [0, 0, 0]


def test_texts_of_any_length_are_taken_targets_keep_their_shape_and_no_memory_is_there():
    texts = build("emulated", shape=(None,), step_ms=5)
    for length in (3, 7):
        assert texts.full_model(np.ones((2, length), np.int32)).shape == (2, 4)
    gathering = Feed(steps_per_epoch=1, stored=True, gather=lambda step: step)
    with pytest.raises(ImpossiblePlan, match="snapshot_on: host"):
        make_step_model(texts, TrainSettings(), gathering)
    built = emulated(target=Target(kind="regression", shape=(2, 3)), step_ms=0.1)
    model = make_step_model(built, TrainSettings(), Feed(steps_per_epoch=1, stored=False))
    assert model(np.zeros((5, 8, 8, 1), np.float32)).shape == (5, 2, 3)


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("emulated", {}, "needs step_ms"),
        ("emulated", {"step_ms": True}, "step_ms: input should be a valid number; found True"),
        ("emulated", {"step_ms": 5, "spread": 2}, "options.spread: .* equal to 1; found 2"),
        ("emulated", {"step_ms": 5, "jiter": 0.1}, "model.options.jiter"),
        ("mlp", {"wdth": 3}, "model.options: mlp does not accept .*wdth"),
        ("MobileNetV2", {"weights": "imagenet"}, "set by this program, not by options: weights"),
    ],
)
def test_options_are_checked(name, options, problem):
    with pytest.raises(UnknownModel, match=problem):
        build(name, shape=(32, 32, 3), **options)


def test_every_accelerator_of_the_table_has_a_source_and_scales_with_the_batch():
    for name, one in ACCELERATORS.items():
        assert one.source and name.endswith("-" + one.model.lower().replace("-", ""))
        assert one.step_ms(one.batch_size) == pytest.approx(1e3 * one.step_s)
    assert find_accelerator("h100-resnet50").examples_per_s == pytest.approx(1786, abs=1)
    with pytest.raises(UnknownModel, match="did you mean"):
        find_accelerator("h100-resnet5")
