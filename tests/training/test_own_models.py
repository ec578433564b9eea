"""Models of one's own, the weights that are kept, and state besides weights."""

import subprocess
import sys
import textwrap
import threading
from subprocess import PIPE

import keras
import mlflow
import numpy as np
import pytest
import tensorflow as tf

from tests.support.trainings import params_of, train_once, validate
from throughline.models.model_files import check_savable, load_model, save_model
from throughline.shared.errors import UnsavableModel
from throughline.tracking.calls import list_models
from throughline.tracking.recorder import Recorder, RunKey
from throughline.training import callbacks
from throughline.training.model_state import find_draws, find_incomplete, list_parts, list_variables

pytestmark = pytest.mark.integration

HEAD = "import keras\nfrom keras import layers\n\n\n"
SCALE = """class Scale(layers.Layer):
    def __init__(self, factor=2.0, **options):
        super().__init__(**options)
        self.factor = factor

    def call(self, value):
        return value * self.factor
"""
BLOCK = "def block():\n    return "
LACKING = "\n    def get_config(self):\n        return super().get_config()\n"
SCALED = SCALE + "\n\n" + BLOCK + "Scale(3.0)"
REGISTERED = "@keras.saving.register_keras_serializable(package='{}')\n"
DOUBLE = "def double(value):\n    return 2 * value\n\n\n"
ACTIVATED = DOUBLE + BLOCK + "layers.Dense(4, activation=double)"
OWN = {
    # Code of a module that gives a layer: what is said about it before the first epoch (nothing:
    # ""), or why it is refused.
    "plain": (SCALED, "model.keras needs Scale: load it with custom_objects="),
    "registered": (REGISTERED + SCALED, ""),
    "activation": (ACTIVATED, "model.keras needs double"),
    "lambda": (BLOCK + "layers.Lambda(lambda value: 2 * value)", "cannot serve it"),
    "keras_only": (BLOCK + "layers.Dense(4)", ""),
}
ADVICE = r"get_config\(\) that returns its constructor's"
REFUSED = {
    SCALE + "\n\n" + BLOCK + "Scale(factor=keras.Variable(2.0))":
        rf"saved: Object Scale.*{ADVICE} arguments.*register_keras_serializable",
    SCALE.replace("factor=2.0", "factor") + LACKING + "\n\n" + BLOCK + "Scale(2.0)":
        rf"not loaded again: [^\n]*missing 1 required [^\n]*: 'factor'.*{ADVICE}",
    f"def block():\n{textwrap.indent(SCALE, '    ')}    return Scale(2.0)":
        r"not loaded again: .*top level of a module",
}  # fmt: skip


@pytest.fixture
def own(tmp_path, monkeypatch, request):
    """A function from code to the name of a module of the project with it, and a model of it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    name = f"own_{abs(hash(request.node.name))}"

    def made(code):
        (tmp_path / f"{name}.py").write_text(HEAD + code.replace("{}", name) + "\n")
        module = __import__(name)
        inputs = keras.Input((4,))
        network = keras.Sequential([keras.Input((4,)), module.block(), keras.layers.Dense(3)])
        return name, keras.Model(inputs, network(inputs), name="full_model")

    yield made
    sys.modules.pop(name, None)


@pytest.mark.parametrize(("code", "said"), OWN.values(), ids=OWN)
def test_a_model_of_ones_own_is_saved_and_loaded(own, tmp_path, code, said):
    module, model = own(code)
    form = check_savable(model, [module])
    assert (said in form.hint()) if said else form.hint() is None
    save_model(model, tmp_path / "model.keras")
    again = load_model(tmp_path / "model.keras", form.objects, safe=form.safe)
    values = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_array_equal(again(values), model(values))


@pytest.mark.parametrize(
    ("code", "said"), REFUSED.items(), ids=["argument", "lacking argument", "local class"]
)
def test_a_model_that_cannot_be_saved_is_refused_with_what_to_do(own, code, said):
    module, model = own(code)
    with pytest.raises(UnsavableModel, match=f"(?s){said}"):
        check_savable(model, [module])


def log(own, kind, folder):
    """Log a model as train does; returns the run, what MLflow serves of it, and the model."""
    module, model = own(OWN[kind][0])
    save_model(model, folder / "model.keras")
    with Recorder(RunKey(dataset="own", pipeline="p", data_digest="d")) as recorder:
        recorder.log_model(folder / "model.keras", check_savable(model, [module]).objects)
        recorder.log_metrics({"after": 1.0})
    run = mlflow.get_run(recorder.run_id)
    assert recorder.sent and run.data.metrics == {"after": 1.0}
    return recorder.run_id, list_models(run), model


@pytest.mark.slow
# MLflow's warning about its own functions.
@pytest.mark.filterwarnings("ignore:.*Any type hint:UserWarning")
def test_a_logged_model_is_served_without_the_project(own, mlflow_store, tmp_path):
    _, (served,), model = log(own, "plain", tmp_path)
    code = f"""import mlflow, numpy as np
model = mlflow.pyfunc.load_model({served.model_uri!r})
print(model.predict(np.ones((1, 4), np.float32)).tolist())"""
    (away := tmp_path / "away").mkdir()
    address = f"sqlite:///{tmp_path / 'mlflow.db'}"
    environment = {"MLFLOW_TRACKING_URI": address, "PATH": "/usr/bin", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=away, env=environment, stdout=PIPE, text=True, check=True)
    answer = eval(done.stdout.splitlines()[-1])
    np.testing.assert_allclose(answer, model(np.ones((1, 4), np.float32)), rtol=1e-5)


@pytest.mark.slow
def test_a_model_that_mlflow_cannot_serve_is_logged_as_a_file(own, mlflow_store, tmp_path, capsys):
    run_id, served, _ = log(own, "lambda", tmp_path)
    (found,) = mlflow.MlflowClient().list_artifacts(run_id)
    assert found.path == "model.keras" and not served
    assert "MLflow gets only the model's file" in capsys.readouterr().out


class PuttingBack(keras.callbacks.Callback):
    def on_train_end(self, logs=None):
        self.model.set_weights([0 * one for one in self.model.get_weights()])


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting",
    [
        "train.optimizer={sgd: {use_ema: true, ema_momentum: 0.9}}",
        f"train.callbacks=[{__name__}:PuttingBack]",
    ],
    ids=["averages", "put in place at the end"],
)
def test_validation_is_that_of_the_weights_that_are_kept(layout, tmp_path, setting):
    params = params_of("train.epochs=2", "train.learning_rate=0.2", setting)
    trained, models = train_once(params, layout, tmp_path)
    last, (loss, accuracy) = trained.result.last_epoch, validate(models, params, layout)
    assert last["val_loss"] == pytest.approx(loss, rel=1e-4)
    assert last["val_accuracy"] == pytest.approx(accuracy)
    assert trained.rows[-1]["val_loss"] != pytest.approx(loss, rel=1e-4), "of the epoch's weights"
    assert last["train_loss"] == trained.rows[-1]["train_loss"]
    if "PuttingBack" in setting:
        assert loss == pytest.approx(np.log(4), rel=1e-4), "all weights are zero"


def test_what_may_put_other_weights_in_place_is_code_of_ones_own():
    may, some = callbacks.may_replace_weights, keras.callbacks.LambdaCallback
    assert may([keras.callbacks.TerminateOnNaN(), PuttingBack()])
    assert may([some(on_epoch_end=lambda epoch, logs: None)])
    assert not may([some(on_train_batch_end=lambda batch, logs: None)])
    assert not may([keras.callbacks.EarlyStopping(restore_best_weights=True)])


def make_model(**kept):
    """A model whose train step may keep more than Keras knows."""
    inputs = keras.Input((3,))
    inner = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model = keras.Model(inputs, inner(inputs))
    model.compile(keras.optimizers.SGD(momentum=0.9), "mse")
    model.optimizer.build(model.trainable_variables)
    for name, value in kept.items():
        setattr(model, name, value)
    return model


def test_optimizers_are_found_in_lists_and_dicts_and_in_models_that_are_layers():
    several = [keras.optimizers.Adam(), keras.optimizers.SGD(momentum=0.5)]
    for optimizer in several:
        optimizer.build([keras.Variable(np.ones(2))])
    plain, model = make_model(), make_model(several=several[:1])
    model.layers[1].named = {"critic": several[1:]}
    assert find_incomplete(plain) is None and find_incomplete(model) is None
    further = {id(one.value) for optimizer in several for one in optimizer.variables}
    variables = [*map(id, list_variables(model))]
    assert len({*variables}) == len(variables) == len(list_variables(plain)) + len(further)
    assert further < {*variables}


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ({"of": {"critic": keras.optimizers.Adam()}}, "the optimizer of['critic'] has no state"),
        ({"seen": tf.Variable(0)}, "seen is a tf.Variable"),
        ({"seen": [(1, {"deep": tf.Variable(0)})]}, "seen[0][1]['deep'] is a tf.Variable"),
        ({"seen": keras.Variable(0.0)}, None),
        ({"seen": [keras.Variable(0.0)]}, None),
    ],
)
def test_what_a_checkpoint_would_not_hold_is_named(kept, said):
    found = find_incomplete(make_model(**kept))
    assert found is None if said is None else (found or "").startswith(said)


GENERATOR = tf.random.Generator.from_seed(1)


@pytest.mark.parametrize(
    ("function", "draws"),
    [
        (lambda value: tf.nn.dropout(value, 0.5), {"RandomUniform"}),
        (tf.random.shuffle, {"RandomShuffle"}),
        (lambda value: value + GENERATOR.normal([4]), {"RngReadAndSkip"}),
        (lambda value: tf.cond(value[0] > 0, lambda: tf.random.normal([4]), lambda: value),
         {"RandomStandardNormal"}),
        (lambda value: value + tf.random.stateless_normal([4], [1, 2]), set()),
        (lambda value: value + keras.random.normal((4,)), {"keras.random without a seed"}),
        (keras.layers.Dropout(0.5, seed=1), set()),
    ],
)  # fmt: skip
def test_draws_from_a_state_that_keras_does_not_hold_are_found_wherever_they_are(function, draws):
    function = tf.function(function, autograph=False)
    graph = function.get_concrete_function(tf.TensorSpec((4,), tf.float32)).graph
    assert find_draws(graph) == draws


class Holding(keras.callbacks.Callback):
    """Holds parts of the model, and something of its own."""

    def on_train_begin(self, logs=None):
        dense = self.model.layers[1].layers[0]
        self.parts = [self.model, dense, dense.kernel, self.model.optimizer]
        self.own = np.arange(3)


def test_a_callback_that_holds_parts_of_the_model_holds_those_of_the_model_that_goes_on():
    before, after = Holding(), Holding()
    models = [make_model(), make_model()]
    for callback, model in zip((before, after), models, strict=True):
        callback.set_model(model)
    before.on_train_begin()
    stored = callbacks.dump_states([before], list_parts(models[0]))
    callbacks.load_states([after], stored, list_parts(models[1]))
    held = after.parts
    after.on_train_begin()
    assert all(one is other for one, other in zip(held, after.parts, strict=True))
    np.testing.assert_array_equal(after.own, before.own)
    assert after.model is models[1]


class Unreadable:
    """What can be written and not read."""

    def __reduce__(self):
        return int, ("none",)


@pytest.mark.parametrize(
    ("held", "said"),
    [(threading.Lock(), "cannot pickle"), (Unreadable(), "invalid literal for int")],
)
def test_a_state_that_cannot_be_written_or_read_again_is_not_kept(held, said):
    callback = keras.callbacks.Callback()
    callback.held = held
    with pytest.raises(TypeError, match=rf"Callback\.held: {said}"):
        callbacks.dump_states([callback], [])
