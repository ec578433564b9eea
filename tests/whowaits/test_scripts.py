"""Trainings of every kind that Keras on TensorFlow has, each a script under the command, unchanged:
`whowaits.hooks`, `whowaits.timing`, `whowaits.within`.

`whowaits.hooks.torch`, JAX and tf_keras are in benchmarks/whowaits.py, since this environment has
none of them.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

ATTEMPTS = 3  # to see a gain while other tests take the cores that parallel calls need
MODEL = """
import gc, sys, time; gc.disable()
import keras, numpy as np, tensorflow as tf; gc.enable(); gc.freeze()

def make(width=64, **options):
    layers = [keras.Input((64,)), keras.layers.Dense(width, "relu"), keras.layers.Dense(2)]
    model = keras.Sequential(layers)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), **options)
    return model

def wait(number):
    time.sleep(0.005)
    return np.zeros(64, np.float32)

def load(number):
    x = tf.numpy_function(wait, [number], tf.float32)
    return tf.ensure_shape(x, (64,)), tf.constant(0)

x, y = np.zeros((640, 64), "float32"), np.zeros(640, "int32")
waiting = tf.data.Dataset.range(400).map(load).batch(8)
"""


TWO_DEVICES = """
import tensorflow as tf
two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], two)
"""


def measure(folder, code, *arguments, seconds=3, model=MODEL, tries=False):
    """The report on a script, and what the command printed."""
    arguments = (*arguments, *(() if tries else ("--no-try",)))
    script = folder / "train.py"
    script.write_text(model + code)
    done = subprocess.run(
        [sys.executable, "-m", "whowaits", "--python", sys.executable, "--json",
         "--seconds", str(seconds), *arguments, str(script)],
        capture_output=True, text=True, check=False, timeout=150, cwd=folder,
    )  # fmt: skip
    assert done.stdout, done.stderr
    assert "something here failed" not in done.stderr, done.stderr
    return json.loads(done.stdout), done


@pytest.mark.slow
def test_fit_by_position_next_to_a_module_named_tasks(tmp_path):
    (tmp_path / "tasks.py").write_text("epochs = 3\n")
    code = "import tasks\nmake().fit(waiting, None, None, tasks.epochs, 0)\nprint('trained')"
    report, done = measure(tmp_path, code, "--fail-if", "stall > 20")
    assert report["verdict"] == "input-bound" and report["stall_pct"] > 60, report
    assert report["stall_low_pct"] <= report["stall_pct"] <= report["stall_high_pct"]
    assert report["training"].startswith("model.fit at train.py:")
    assert report["step_ms"] > 40 and report["model_ms"] < report["step_ms"]
    assert report["examples"] == 8 and report["rounds"] >= 1
    assert done.returncode == 3 and "trained" not in done.stderr


@pytest.mark.slow
def test_changes_are_tried_and_named_by_the_line_that_they_are_made_in(tmp_path):
    code = """
def flip(x, y):
    return tf.random.shuffle(x), y

data = tf.data.Dataset.range(400)
data = data.map(load)
data = data.map(flip, 2).batch(8, num_parallel_calls=2).prefetch(2)
make().fit(data, epochs=3, verbose=0)
"""
    for _ in range(ATTEMPTS):
        report, done = measure(tmp_path, code, tries=True)
        gains = {each["text"].partition(";")[0]: each for each in report["changes"]}
        if gains["map(load): num_parallel_calls=tf.data.AUTOTUNE"]["gain"] > 1.2:
            break
    line = MODEL.count("\n") + code[: code.index("data.map(load)")].count("\n") + 1
    parallel = gains["map(load): num_parallel_calls=tf.data.AUTOTUNE"]
    assert parallel["gain"] > 1.2 and parallel["where"] == f"train.py:{line}", report
    assert "Python code is called from several threads" in parallel["says"]
    cache = gains["map(load): .cache() after it"]
    assert cache["gain"] > 1.2 and cache["meaning"] == "drawn less often"
    assert "batch: .cache() after it" not in gains, "the shuffled pixels would be frozen"
    assert "something here failed" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("processes", [False, True])
def test_a_pydataset_with_workers_does_not_hang(tmp_path, processes):
    code = f"""
class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 20
    def __getitem__(self, number):
        time.sleep(0.06)
        return x[:32], y[:32]

if __name__ == "__main__":
    make().fit(Batches(workers=2, use_multiprocessing={processes}), epochs=3, verbose=0)
"""
    report, _ = measure(tmp_path, code)
    assert report["verdict"] == "input-bound" and report["rounds"], report


@pytest.mark.slow
def test_a_generator_and_arrays(tmp_path):
    code = """
def batches():
    while True:
        time.sleep(0.03)
        yield x[:32], y[:32]

make().fit(batches(), steps_per_epoch=30, epochs=2, verbose=0)
"""
    report, _ = measure(tmp_path, code)
    assert report["verdict"] == "input-bound" and report["examples"] == 32, report
    code = "make(4096).fit(x, y, batch_size=320, validation_data=(x, y), epochs=4, verbose=0)"
    report, _ = measure(tmp_path, code)
    assert report["examples"] == 320 and report["model_ms"], report


@pytest.mark.slow
def test_a_loop_with_a_gradient_tape_whose_function_was_traced_before_it(tmp_path):
    code = """
model, optimizer = make(), keras.optimizers.SGD()
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        value = loss(y, model(x))
    gradients = tape.gradient(value, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))

for x, y in waiting.take(1):
    step(x, y)
for epoch in range(30):
    for number, (x, y) in enumerate(waiting):
        step(x, y)
    for x, y in waiting.take(2):
        model(x)
"""
    report, _ = measure(tmp_path, code)
    line = (MODEL + code.partition("    for number")[0]).count("\n") + 1
    assert report["training"] == f"the loop at train.py:{line}", report
    assert report["verdict"] == "input-bound" and report["rounds"], report


@pytest.mark.slow
def test_the_training_that_is_asked_for_and_the_function_as_compiled(tmp_path):
    code = """
make().fit(x, y, verbose=0)
model = make(steps_per_execution=4)
model.fit(waiting.repeat(), steps_per_epoch=40, epochs=2, verbose=0)
"""
    report, _ = measure(tmp_path, code, "--training", "2", seconds=6)
    assert report["verdict"] == "input-bound" and report["step_ms"] > 100, report
    assert any("steps_per_execution=4" in note for note in report["notes"])
    assert any("training 2 of 2" in note for note in report["notes"])


@pytest.mark.slow
def test_two_devices_are_timed_as_they_are(tmp_path):
    code = """
x = np.zeros((640, 64), np.float32), np.zeros(640, np.int32)
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    model = make()
model.fit(*x, epochs=3, verbose=0)
"""
    report, _ = measure(tmp_path, code, model=TWO_DEVICES + MODEL.partition("\nx, y =")[0])
    assert report["model_ms"] is None and report["waited_pct"] > 0, report
    assert report["reason"].endswith("the model alone is not timed on 2 replicas") or (
        report["verdict"] == "input-bound" and report["stall_high_pct"] is None
    )


SERVERS = """
import socket
import tensorflow as tf

def free():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"

cluster = tf.train.ClusterSpec({"worker": [free()], "ps": [free()]})
servers = [tf.distribute.Server(cluster, job_name=name, task_index=0) for name in cluster.jobs]
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")
strategy = tf.distribute.ParameterServerStrategy(resolver)
print("trains")
"""


@pytest.mark.slow
def test_a_parameter_server_is_refused_before_the_first_step(tmp_path):
    report, done = measure(tmp_path, SERVERS, model="")
    assert done.returncode == 2 and "trains" not in done.stderr
    assert report["reason"].startswith("a ParameterServerStrategyV2 was made"), report
    report, done = measure(tmp_path, SERVERS, "--keep", model="")
    assert done.returncode == 2 and "trains" in done.stderr
    assert report["reason"].startswith("a ParameterServerStrategyV2 was made"), report


@pytest.mark.slow
def test_one_of_several_hosts_is_timed_as_it_is(tmp_path):
    hosts = """
import json, os
worker = {"cluster": {"worker": ["127.0.0.1:29871"]}, "task": {"type": "worker", "index": 0}}
os.environ["TF_CONFIG"] = json.dumps(worker)
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
"""
    code = """
with strategy.scope():
    model = make()
data = tf.data.Dataset.from_tensor_slices((x, y)).map(lambda x, y: (x + 1, y)).batch(8)
model.fit(data, epochs=1000, verbose=0)
"""
    model = hosts + MODEL.partition("\nwaiting =")[0]
    report, _ = measure(tmp_path, code, model=model, tries=True)
    assert report["model_ms"] is None and report["waited_pct"] > 0, report
    assert not report["changes"] and report["rounds"] == 0


@pytest.mark.slow
def test_a_schedule_that_knows_its_epochs_does_not_fail_the_measurement(tmp_path):
    code = """
rates = [0.1] * 60
schedule = keras.callbacks.LearningRateScheduler(lambda epoch: rates[epoch])
make().fit(x[:64], y[:64], epochs=60, verbose=0, callbacks=[schedule])
"""
    report, done = measure(tmp_path, code, seconds=12)
    assert done.returncode == (0 if report["rounds"] else 1), done.stderr
    assert "IndexError: list index out of range" in done.stderr, "its traceback"
    assert any("IndexError" in note for note in report["notes"]), report


@pytest.mark.slow
def test_keep_lets_the_script_train_on_also_after_a_watch_and_with_a_callback(tmp_path):
    code = """
import whowaits
make().fit(waiting, epochs=2, verbose=0)
print("trained")
with whowaits.watch() as seen:
    make().fit(x, y, epochs=2, verbose=0)
assert seen.report.waited_pct > 0, seen.report
make().fit(waiting.take(20), verbose=0, callbacks=[whowaits.Callback()])
"""
    report, done = measure(tmp_path, code, "--keep")
    assert "trained" in done.stderr and done.returncode == 0, done
    assert report["stall_high_pct"] is None and report["stall_low_pct"] > 60
    assert any("training 1 of 2" in note for note in report["notes"]), report


@pytest.mark.slow
def test_a_callback_reports_on_its_fit(tmp_path):
    code = """
import whowaits
model, few = make(), waiting.take(20)
model.fit(few, verbose=0)
model.fit(few, verbose=0, callbacks=[whowaits.Callback()])
"""
    script = tmp_path / "train.py"
    script.write_text(MODEL + code)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=150
    )
    assert "fit: input-bound, stall at least" in done.stdout


@pytest.mark.slow
def test_a_step_that_does_not_end_is_not_waited_for(tmp_path):
    code = """
import whowaits.hooks.timed_function
whowaits.hooks.timed_function.STEP_S = 1.0

def batches():
    for _ in range(40):
        yield x[:32], y[:32]
    time.sleep(100)

make().fit(batches(), epochs=2, verbose=0)
"""
    report, _ = measure(tmp_path, code)
    (note,) = [note for note in report["notes"] if "no step ended" in note]
    assert note.startswith("no step ended in 1 s; the script stands at train.py:"), report


@pytest.mark.slow
def test_callbacks_neither_end_the_measuring_nor_write_what_a_training_would_go_on_from(tmp_path):
    code = """
callbacks = [
    keras.callbacks.BackupAndRestore("backup"),
    keras.callbacks.ModelCheckpoint("{epoch}.keras"),
    keras.callbacks.EarlyStopping("loss", min_delta=1e9, patience=1),
]
make().fit(waiting, epochs=4, verbose=0, callbacks=callbacks)
open("after", "w").close()
"""
    report, _ = measure(tmp_path, code, seconds=6)  # beyond the epoch that would be the last
    assert report["rounds"] and report["verdict"] == "input-bound", report
    assert sorted(each.name for each in tmp_path.iterdir()) == ["train.py"]
    (note,) = [note for note in report["notes"] if "left out" in note]
    assert note.startswith("BackupAndRestore and ModelCheckpoint is left out"), note


@pytest.mark.slow
def test_a_training_that_does_not_begin_is_said_and_no_other_is_reported(tmp_path):
    code = """
make().fit(x, y, verbose=0)
make().fit(x, y, verbose=0)
"""
    report, done = measure(tmp_path, code, "--training", "3", seconds=1)
    assert done.returncode == 2 and report["verdict"] == "undecided"
    assert report["reason"].startswith("training 3 has not begun"), report


@pytest.mark.slow
def test_a_script_that_is_kept_ends_as_it_does_without(tmp_path):
    code = """
import atexit, os, threading
from pathlib import Path
os.mkdir("elsewhere")
os.chdir("elsewhere")
assert Path(__file__).is_absolute() and Path(__file__).read_text()
log = open("../log.txt", "w")
log.write("written")
atexit.register(lambda: open("../at-exit", "w").close())
threading.Timer(1.0, lambda: open("../thread", "w").close()).start()
"""
    _, done = measure(tmp_path, code, "--keep", model="")
    assert done.returncode == 2, "without a training"
    assert (tmp_path / "log.txt").read_text() == "written"
    assert {"at-exit", "thread"} <= {each.name for each in tmp_path.iterdir()}


@pytest.mark.slow
def test_a_cache_in_a_file_can_be_filled_after_a_measurement_that_ended_within(tmp_path):
    code = """
make().fit(waiting.repeat(9).cache("kept"), epochs=2, verbose=0)
"""
    measure(tmp_path, code)
    assert [each.name for each in tmp_path.iterdir()] == ["train.py"]
