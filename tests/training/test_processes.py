"""Real processes that train together train what one would, and end together whatever happens."""

import copy
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flows.run.fork_server import stage_server
from tests.support import project
from tests.support.project import SMALL, environment, runs_of, write_params
from tests.support.stack import wait_for
from throughline.plan.training_workers import make_tf_config
from throughline.results.build import BuildResult, PlanSummary
from throughline.results.race import RaceResult
from throughline.results.train import TrainResult, read_history
from throughline.shared.fork_client import READY, STAGE_SERVER
from throughline.training.processes import LOST_ANOTHER, reserve_addresses

pytestmark = pytest.mark.slow

CLOSE = 1e-5  # relative
PATIENCE_S = 300  # so busy may the machine be
# What happens to a process of this index after so many steps: FAULT="what index steps".
OWN_CODE = '''
import json, os, pathlib, signal, threading, time, types

import keras
import numpy as np
import tensorflow as tf

from throughline.training import deadline

TF_CONFIG = json.loads(os.environ.get("TF_CONFIG") or "{}")
INDEX = TF_CONFIG["task"]["index"] if TF_CONFIG else 0
FAULT, PROCESS, STEPS = os.environ.get("FAULT", "none 0 0").split()
FAILS = INDEX == int(PROCESS)


class Fault(keras.callbacks.Callback):
    """Notes the loss of every step and, at the end, the weights and the state of random layers;
    does what FAULT says.
    """

    def __init__(self):
        super().__init__()
        self.losses, self.validated = [], []
        if FAULT == "hold" and FAILS:
            self.held = threading.Lock()

    def on_epoch_end(self, epoch, logs=None):
        self.validated.append(logs["val_loss"])

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(float(logs["loss"]))
        if len(self.losses) != int(STEPS):
            return
        if FAULT == "sleep" and not FAILS:
            # For the one that waits in vain from now on an hour passes in a second.
            hasten = lambda: 3600 * time.monotonic()
            deadline.time = types.SimpleNamespace(monotonic=hasten, sleep=time.sleep)
        elif FAULT == "raise" and FAILS:
            raise RuntimeError("a bug of one's own")
        elif FAULT == "leave" and FAILS:
            self.model.stop_training = True
        elif FAULT == "sleep":
            time.sleep(3600)
        elif FAULT.startswith("SIG") and FAILS:
            os.kill(os.getpid(), getattr(signal, FAULT))

    def on_train_end(self, logs=None):
        states = [one for one in self.model.variables if one.name == "seed_generator_state"]
        arrays = {"weights": self.model.get_weights(), "random": map(np.asarray, states)}
        seen = {name: [one.tolist() for one in found] for name, found in arrays.items()}
        seen |= {"losses": self.losses, "validated": self.validated}
        pathlib.Path(f"seen-{INDEX}.json").write_text(json.dumps(seen))


class OwnStep(keras.Model):
    """Computes its loss by itself, and divides it by the number of processes; each of these finds
    another validation loss.
    """

    def train_step(self, data):
        images, labels = data
        with tf.GradientTape() as tape:
            outputs = self(images, training=True)
            loss = tf.reduce_mean(
                keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)
            )
            divided = loss / tf.distribute.get_strategy().num_replicas_in_sync
        gradients = tape.gradient(divided, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights))
        self._loss_tracker.update_state(loss, sample_weight=tf.shape(images)[0])
        return self.compute_metrics(images, labels, outputs)

    def test_step(self, data):
        logs = super().test_step(data)
        return {**logs, "loss": logs["loss"] + INDEX}


def own_step(input_shape, outputs):
    inputs = keras.Input(input_shape)
    return OwnStep(inputs, keras.layers.Dense(outputs)(keras.layers.Flatten()(inputs)))


def normalized(input_shape, outputs, dropout=0.0):
    return keras.Sequential([
        keras.Input(input_shape),
        keras.layers.Conv2D(4, 3, use_bias=False),  # which would train on rounding
        keras.Sequential([keras.layers.BatchNormalization(), keras.layers.ReLU()]),
        keras.layers.Flatten(),
        keras.layers.Dropout(dropout),
        keras.layers.Dense(outputs),
    ])
'''


class Trainings:
    """A prepared project, in whose folder trainings run as the DAG runs them."""

    def __init__(self, folder: Path, served: dict[str, str]) -> None:
        self.folder, self.environment = folder, {**environment(folder), **served}

    def write(self, **train) -> None:
        """Write params.yaml with these settings of `train`, or of what their names say."""
        params = copy.deepcopy(SMALL)
        params |= {"batch_size": train.pop("batch_size", 16)}
        params["pipelines"]["optimized"] |= train.pop("pipeline", {})
        params["model"] = train.pop("model", params["model"])
        params["train"] |= {"batch_multiple": 4, "callbacks": ["own:Fault"], **train}
        write_params(self.folder, params)

    def start(self, *, fault: str = "none 0 0", **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tasks.train", "--pipeline", "optimized"],
            cwd=self.folder, env={**self.environment, "FAULT": fault, **environment},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def train(self, *, code: int | None = 0, fault: str = "none 0 0") -> str:
        with self.start(fault=fault) as process:
            output, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == code or (code is None and process.returncode), output
        return output

    def seen(self, index: int = 0) -> dict[str, list]:
        """What a process has noted."""
        return json.loads((self.folder / f"seen-{index}.json").read_text())

    @property
    def results(self) -> Path:
        return self.folder / "runs" / "optimized"

    @property
    def rows(self) -> list[dict[str, float]]:
        """The rows of history.csv, but for times."""
        rows = read_history(self.results)
        return [{name: row[name] for name in row if name != "examples_per_s"} for row in rows]


@pytest.fixture(scope="module")
def trainings(tmp_path_factory, array_file):
    folder = project.make_project(tmp_path_factory.mktemp("processes") / "project", array_file)
    (folder / "own.py").write_text(OWN_CODE)
    project.run_stages(folder, "ingest", "shard", "snapshot", "build@optimized")
    with stage_server(folder, environment(folder)) as served:
        wait_for(Path(served[STAGE_SERVER] + READY).exists)
        yield Trainings(folder, served)


def assert_close(ours: list[dict], theirs: list[dict], *, rel: float = CLOSE) -> None:
    """Two histories are equal but for rounding."""
    assert ours == [pytest.approx(each, rel=rel) for each in theirs]


LONG = {"epochs": 25, "checkpoint_every": "25 epochs"}


@pytest.fixture(scope="module")
def alone(trainings):
    """The losses of 200 steps, and the rows of 25 epochs, of one process."""
    trainings.write(processes=1, **LONG)
    trainings.train()
    return trainings.seen()["losses"], trainings.rows


@pytest.mark.core
def test_losses_of_200_steps_are_those_of_one_process_and_weights_equal_in_all(trainings, alone):
    trainings.write(processes=2, **LONG)
    trainings.train()
    losses = trainings.seen()["losses"]
    assert len(losses) == 200
    assert trainings.seen(1) == trainings.seen(), "bit for bit"
    assert losses == pytest.approx(alone[0], rel=CLOSE)
    assert_close(trainings.rows, alone[1])


def test_batches_are_normalized_as_a_whole_also_within_nested_models(trainings):
    histories = []
    for count in (1, 2):
        trainings.write(processes=count, model={"name": "own:normalized"})
        trainings.train()
        histories.append(trainings.rows)
    assert_close(*histories, rel=1e-4)


def test_an_interrupted_training_goes_on_with_another_number_of_processes(trainings, alone):
    for processes, fault, code, said in (
        (2, "SIGKILL 1 5", 2, ""),
        (1, "SIGKILL 0 11", 137, "resuming interrupted training at epoch 1, step"),
        (4, "none 0 0", 0, "resuming interrupted training at epoch 2, step"),
    ):
        trainings.write(processes=processes, checkpoint_every="1 steps")
        assert said in trainings.train(code=code, fault=fault)
    assert_close(trainings.rows, alone[1][:2])


def test_an_own_train_step_in_cut_executions_on_a_split_in_memory_trains_the_same(trainings):
    histories, own = [], {"model": {"name": "own:own_step"}}
    in_memory = {"pipeline": {"snapshot_on": "device", "prefetch": "none"}}
    for count in (1, 2):
        trainings.write(processes=count, steps_per_execution=3, **own, **in_memory)  # of 8 steps
        said = trainings.train()
        histories.append(trainings.rows)
    assert "it must divide its loss by their number" in said
    assert trainings.seen(1) == trainings.seen(), "bit for bit"
    assert len(trainings.seen()["losses"]) == 2 * 3, "executions of two epochs"
    assert_close(*histories)


def test_a_full_disk_at_the_chief_ends_all_where_the_model_has_no_room(trainings, small_disk):
    kept = trainings.results.with_name("kept")
    for name in ("plan.json", "input.json"):
        shutil.copy(trainings.results / name, small_disk / name)
    trainings.results.rename(kept)
    trainings.results.symlink_to(small_disk)
    try:
        wide = {"name": "mlp", "options": {"width": 8000}}
        trainings.write(processes=2, model=wide, checkpoint_every="2 steps")
        said = trainings.train(code=2)
    finally:
        trainings.results.unlink()
        kept.rename(trainings.results)
    assert "no checkpoint could be written" in said and "DiskFull: no space is left" in said
    assert {path.name for path in small_disk.iterdir()} >= {"plan.json", "input.json"}
    assert not (small_disk / "model.keras").exists()


DROPOUT = {"name": "own:normalized", "options": {"dropout": 0.5}}
FAULTY = {"processes": 2, "checkpoint_every": "2 steps", "model": DROPOUT}


def test_all_end_when_one_fails_and_the_next_run_has_the_same_weights(trainings):
    """Each run goes on from the checkpoint of the one that was ended before."""
    trainings.write(**FAULTY)
    trainings.train()
    chief, other, rows = trainings.seen(), trainings.seen(1), trainings.rows
    assert chief["random"] != other["random"], "masks of dropout differ"
    assert chief["weights"] == other["weights"], "bit for bit"
    resuming = ""
    for fault, code, said in (
        ("SIGKILL 1 11", 2, "process 1 of 2 was killed by SIGKILL"),
        ("SIGSTOP 1 11", LOST_ANOTHER, "process 0 of 2 has lost process 1"),
        ("raise 0 11", 1, "RuntimeError: a bug of one's own"),
        ("sleep 1 11", None, "has waited 60 s for step"),
    ):
        trainings.write(**FAULTY, step_timeout_s=60)
        output = trainings.train(code=code, fault=fault)
        assert said in output and resuming in output, fault
        resuming = "resuming interrupted training at epoch 2, step 2"
    assert resuming in trainings.train()
    assert trainings.seen()["weights"] == chief["weights"], "bit for bit"
    assert_close(trainings.rows, rows)  # a mean of the processes' means, of two parts of the epoch


def test_a_callback_that_ends_the_training_in_one_process_ends_it_in_all_after_the_epoch(trainings):
    trainings.write(**FAULTY | {"epochs": 4})
    said = trainings.train(fault="leave 1 11")
    assert len(trainings.rows) == 2 and "train.callbacks" in said
    assert len(trainings.seen()["losses"]) == len(trainings.seen(1)["losses"]) == 16
    assert trainings.seen()["weights"] == trainings.seen(1)["weights"], "bit for bit"


def test_a_process_that_never_starts_is_named(trainings):
    trainings.write(processes="auto", start_timeout_s=4)
    with (
        reserve_addresses(2) as addresses,
        trainings.start(TF_CONFIG=make_tf_config(addresses, 0)) as process,
    ):
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode != 0
    assert f"no answer from process 1 ({addresses[1]})" in output


def test_processes_with_other_parameters_name_the_part(trainings, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    for name in ("throughline", "tasks", "own.py", "data", "runs", "uv.lock", "dvc.yaml"):
        (other / name).symlink_to(trainings.folder / name)
    elsewhere = Trainings(other, {})
    elsewhere.write(processes=2, learning_rate=0.02, checkpoint_every="3 steps")
    trainings.write(processes=2, learning_rate=0.03)
    with (
        reserve_addresses(2) as addresses,
        trainings.start(TF_CONFIG=make_tf_config(addresses, 0)) as chief,
        elsewhere.start(TF_CONFIG=make_tf_config(addresses, 1)) as follower,
    ):
        output, _ = chief.communicate(timeout=PATIENCE_S)
        follower.communicate(timeout=PATIENCE_S)
    assert chief.returncode == 2
    assert "process 1 of 2 differs from the first in checkpoint_every, train" in output


def test_mlflow_hears_of_the_end_of_those_that_are_ended_together(trainings):
    trainings.write(processes=2, epochs=400, callbacks=[])
    with trainings.start() as process:
        checkpoints = trainings.results / ".checkpoint"
        wait_for(lambda: list(checkpoints.glob("*/at-000003*")))
        os.killpg(process.pid, signal.SIGTERM)  # as supervisors do
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode in (128 + signal.SIGTERM, -signal.SIGTERM), output
    assert runs_of(trainings.folder)[0].info.status == "KILLED"


def test_where_one_process_cannot_keep_its_state_none_keeps_checkpoints(trainings):
    """In mid-epoch all read what their metrics are together, or none does."""
    trainings.write(processes=2, checkpoint_every="2 steps")
    said = trainings.train(fault="hold 1 0")
    assert "no checkpoints are kept" in said and "another process cannot keep its state" in said
    assert len(trainings.rows) == 2


def test_under_dvc_both_processes_race_as_one_each_on_its_slice(trainings):
    """The host's TF_CONFIG names it alone: its processes are the stage's own."""
    model = {"name": "emulated", "options": {"step_ms": 10.0}}
    trainings.write(processes=2, model=model, callbacks=[], batch_size=32)
    stages = [f"{stage}@optimized" for stage in ("build", "train", "profile")]
    done = subprocess.run(
        [sys.executable, "-m", "dvc", "repro", "--single-item", "identities", *stages, "race"],
        cwd=trainings.folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        env={**trainings.environment, "TF_CONFIG": make_tf_config(["127.0.0.1:1"], 0)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    built = BuildResult.read(trainings.results)
    assert built.epoch_draws.examples == 120 == PlanSummary.read(trainings.results).examples
    assert TrainResult.read(trainings.results).processes == 2
    result = RaceResult.read(trainings.folder / "race")
    raced = result.configurations["optimized"]
    assert result.processes == 2 and raced.exchange_ms is not None
    turns = [turn for each in result.rounds for turn in each.turns.values()]
    rates = [2 * turn.examples / turn.seconds for turn in turns]  # a turn counts one process's half
    assert min(rates) <= raced.model_alone.value <= 120 / 4 / 0.01, "a step waits for 10 ms"
