"""Trainings with Keras on TensorFlow, each a script under the command, unchanged.

Which verdict they get depends on the machine: benchmarks/whowaits.py compares it with the truth,
for scripts of every kind, PyTorch, JAX and tf_keras included.
"""

import json
import os
import subprocess
import sys

import pytest

from tests.support.stack import wait_for
from whowaits.timing.verdict import COMPUTE_BOUND, INPUT_BOUND, SLIGHTLY_BOUND, UNDECIDED

MODEL = """
import keras, numpy as np, tensorflow as tf

def make():
    layers = [keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(2)]
    model = keras.Sequential(layers)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model

x, y = np.zeros((640, 64), "float32"), np.zeros(640, "int32")
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
"""


def measure(folder, code, *arguments):
    """The report on a script, and the command, which has left no process."""
    (folder / "train.py").write_text(MODEL + code)
    with subprocess.Popen(
        [sys.executable, "-m", "whowaits", "--python", sys.executable, "--json", "--seconds", "3",
         *arguments, "train.py"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
        start_new_session=True,
    ) as process:  # fmt: skip
        printed, error = process.communicate(timeout=400)
    assert printed and "something in whowaits failed" not in error, error
    wait_for(lambda: not has_processes(process.pid))
    return json.loads(printed), process.returncode, error


def has_processes(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.core
def test_a_fit_is_measured_and_ended(tmp_path):
    (tmp_path / "tasks.py").write_text("epochs = 3\n")
    code = """
import tasks
print("begun")
callbacks = [keras.callbacks.ModelCheckpoint("{epoch}.keras")]
make().fit(data.repeat(9999).cache("kept"), None, None, tasks.epochs, 0, callbacks)
print("trained")
"""
    report, exit_code, error = measure(tmp_path, code, "--no-try", "--fail-if", "stall > 1000")
    assert report["training"].startswith("model.fit at train.py:")
    assert report["backend"] == "tensorflow" and report["examples"] == 8
    assert report["steps"] > 0 and report["step_ms"] > 0
    assert report["verdict"] in (INPUT_BOUND, SLIGHTLY_BOUND, COMPUTE_BOUND, UNDECIDED)
    assert exit_code in (0, 4), "the condition is not met, or not decided"
    assert "begun\n" in error and "trained" not in error
    files = {each.name for each in tmp_path.iterdir()} - {"__pycache__"}
    assert files == {"train.py", "tasks.py"}, "no checkpoint, and no part of a cache"


@pytest.mark.slow
def test_workers_of_the_training_that_is_asked_for_end_with_it(tmp_path):
    code = """
class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 20
    def __getitem__(self, number):
        return x[:32], y[:32]

if __name__ == "__main__":
    make().fit(x, y, verbose=0)
    make().fit(Batches(workers=2, use_multiprocessing=True), epochs=999, verbose=0)
"""
    report, exit_code, _ = measure(tmp_path, code, "--training", "2")
    assert exit_code == 0 and report["examples"] == 32
    assert any("training 2 of 2" in note for note in report["notes"])


@pytest.mark.slow
def test_a_script_that_is_kept_trains_and_ends_as_it_does_without(tmp_path):
    code = """
import atexit, os, threading
import whowaits
from pathlib import Path
os.mkdir("elsewhere")
os.chdir("elsewhere")
assert Path(__file__).is_absolute() and Path(__file__).read_text()
log = open("../log.txt", "w")
log.write("written")
atexit.register(lambda: open("../at-exit", "w").close())
threading.Timer(1.0, lambda: open("../thread", "w").close()).start()

model, optimizer = make(), keras.optimizers.SGD()
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        value = loss(y, model(x))
    gradients = tape.gradient(value, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))

for x, y in data.take(1):
    step(x, y)
for epoch in range(3):
    for number, (x, y) in enumerate(data):
        step(x, y)
    for x, y in data.take(2):
        model(x)
with whowaits.watch() as seen:
    make().fit(data, epochs=2, verbose=0)
assert seen.report.step_ms > 0, seen.report
make().fit(data, verbose=0, callbacks=[whowaits.Callback()])
print("trained", int(optimizer.iterations))
"""
    report, exit_code, error = measure(tmp_path, code, "--keep")
    line = (MODEL + code.partition("    for number")[0]).count("\n") + 1
    assert report["training"] == f"the loop at train.py:{line}"
    assert exit_code == 0 and "trained 241\n" in error
    assert "this block: " in error, "the report of the watch"
    assert (tmp_path / "log.txt").read_text() == "written"
    assert {"at-exit", "thread"} <= {each.name for each in tmp_path.iterdir()}
