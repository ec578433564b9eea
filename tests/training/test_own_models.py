"""Models with layers and functions of one's own: what cannot be saved is refused before the first
epoch, all else is logged.
"""

from __future__ import annotations

import subprocess
import sys

import keras
import mlflow
import numpy as np
import pytest

from throughline.models.model_files import check_savable, load_model, save_model
from throughline.shared.errors import UnsavableModel
from throughline.tracking.recorder import Recorder, RunKey

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
SCALED = SCALE + "\n\n" + BLOCK + "Scale(3.0)"
REGISTERED = "@keras.saving.register_keras_serializable(package='{}')\n"
DOUBLE = "def double(value):\n    return 2 * value\n\n\n"
OWN = {
    # Code of a module that gives a layer: what is said about it before the first epoch (nothing:
    # ""), or why it is refused.
    "plain": (SCALED, "model.keras needs Scale: load it with custom_objects="),
    "registered": (REGISTERED + SCALED, ""),
    "activation": (
        DOUBLE + BLOCK + "layers.Dense(4, activation=double)",
        "model.keras needs double",
    ),
    "lambda": (BLOCK + "layers.Lambda(lambda value: 2 * value)", "cannot serve it"),
    "keras_only": (BLOCK + "layers.Dense(4)", ""),
}
REFUSED = {
    "argument_without_config": (
        SCALE + "\n\n" + BLOCK + "Scale(factor=keras.Variable(2.0))",
        (
            r"cannot be saved: Object Scale(.|\n)*get_config\(\) that returns its constructor's"
            r" arguments(.|\n)*register_keras_serializable"
        ),
    ),
    "config_lacks_an_argument": (
        SCALE.replace("factor=2.0", "factor")
        + "\n    def get_config(self):\n        return super().get_config()\n\n\n"
        + BLOCK
        + "Scale(2.0)",
        (
            r"not loaded again: .*missing 1 required positional argument:"
            r" 'factor'(.|\n)*get_config\(\) that returns its constructor's"
        ),
    ),
    "local_class": (
        "def block():\n"
        + "".join(f"    {line}\n" if line else "\n" for line in SCALE.splitlines())
        + "    return Scale(2.0)",
        r"not loaded again: (.|\n)*top level of its module",
    ),
}


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


@pytest.mark.parametrize("kind", OWN)
def test_a_model_of_ones_own_is_saved_and_loaded(own, tmp_path, kind):
    code, said = OWN[kind]
    module, model = own(code)
    form = check_savable(model, [module])
    assert (said in form.hint()) if said else form.hint() is None
    save_model(model, tmp_path / "model.keras")
    again = load_model(tmp_path / "model.keras", form.objects, safe=form.safe)
    values = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_array_equal(again(values), model(values))


@pytest.mark.parametrize("kind", REFUSED)
def test_a_model_that_cannot_be_saved_is_refused_with_what_to_do(own, kind):
    code, said = REFUSED[kind]
    module, model = own(code)
    with pytest.raises(UnsavableModel, match=said):
        check_savable(model, [module])


KEY = RunKey(dataset="own", pipeline="p", data_digest="d")


def log(own, kind, folder):
    """Log a model as train does, and a metric after it; returns the run, what MLflow serves of it,
    and the model.
    """
    recorder = Recorder(KEY)
    module, model = own(OWN[kind][0])
    save_model(model, folder / "model.keras")
    with recorder:
        recorder.log_model(folder / "model.keras", check_savable(model, [module]).objects)
        recorder.log_metrics({"after": 1.0})
    client = mlflow.MlflowClient()
    run = client.get_run(recorder.run_id)
    assert recorder.sent and run.data.metrics == {"after": 1.0}
    of_run = f"source_run_id = '{recorder.run_id}'"
    models = client.search_logged_models([run.info.experiment_id], filter_string=of_run)
    return recorder.run_id, models, model


@pytest.mark.slow
# MLflow's warning about its own functions.
@pytest.mark.filterwarnings("ignore:.*Any type hint:UserWarning")
def test_a_logged_model_is_served_without_the_project_and_others_do_not_end_the_training(
    own, mlflow_store, tmp_path
):
    _, (served,), model = log(own, "plain", tmp_path)
    code = (
        "import mlflow, numpy as np;"
        f" print(mlflow.pyfunc.load_model({served.model_uri!r}).predict(np.ones((1, 4),"
        " np.float32)).tolist())"
    )
    (away := tmp_path / "away").mkdir()
    address = f"sqlite:///{tmp_path / 'mlflow.db'}"
    environment = {"MLFLOW_TRACKING_URI": address, "PATH": "/usr/bin", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=away, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answer = eval(done.stdout.splitlines()[-1])
    np.testing.assert_allclose(answer, model(np.ones((1, 4), np.float32)), rtol=1e-5)


@pytest.mark.slow
def test_a_model_that_mlflow_cannot_serve_is_logged_as_a_file(own, mlflow_store, tmp_path, capsys):
    run_id, served, _ = log(own, "lambda", tmp_path)
    (found,) = mlflow.MlflowClient().list_artifacts(run_id)
    assert found.path == "model.keras" and not served
    assert "MLflow gets the file of the model" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_that_was_deleted_is_followed_by_a_new_one(mlflow_store):
    recorder = Recorder(KEY)
    with recorder:
        pass
    first = recorder.run_id
    mlflow.MlflowClient().delete_run(first)
    with recorder:
        recorder.log_metrics({"after": 1.0})
    assert recorder.run_id != first
    assert mlflow.get_run(recorder.run_id).data.metrics == {"after": 1.0}
