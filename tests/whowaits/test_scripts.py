"""Trainings with Keras and, in an environment of its own, PyTorch: each a script under the command.
Which verdict they get depends on the machine: benchmarks/whowaits.py compares it with the truth.
"""

import json
import os
import subprocess
import sys

import pytest

from tests.support.shared_servers import ROOT
from tests.support.skips import TORCH, need
from tests.support.stack import wait_for
from whowaits.changes.advice import DRAWS, SAME, UNSHOWN, WORTH
from whowaits.timing.verdict import COMPUTE_BOUND, INPUT_BOUND, SLIGHTLY_BOUND, UNDECIDED

pytestmark = [pytest.mark.slow]


def run(folder, text, *options, python=sys.executable):
    """Run the command on a script; returns what it prints, its exit code, and its errors."""
    (folder / "train.py").write_text(text)
    with subprocess.Popen(
        [python, "-m", "whowaits", "--python", python, *options, "train.py"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "whowaits" / "src"), "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    ) as process:  # fmt: skip
        printed, error = process.communicate(timeout=600)
    assert printed and "something in whowaits failed" not in error, error
    with pytest.raises(ProcessLookupError):  # none of its group is left
        wait_for(lambda: os.killpg(process.pid, 0))
    return printed, process.returncode, error


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


def measure(folder, code, *options):
    printed, *ends = run(folder, MODEL + code, "--json", "--seconds", "3", *options)
    return json.loads(printed), *ends


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

@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x))
    gradients = tape.gradient(loss, model.trainable_variables)
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


LOOP = """
model = torch.nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(10_000):
    for inputs, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
# As accelerate and trainers do: one batch is fetched ahead, and an iterator left before its end.
AHEAD = """
def ahead(loader):
    batches = iter(loader)
    batch = next(batches)
    for following in batches:
        yield batch
        batch = following
    yield batch
"""
COUNTED = AHEAD + LOOP.replace(
    "for inputs, labels in loader", "for _, (inputs, labels) in zip(range(30), ahead(loader))"
)
# An example waits, so that workers gain on any number of cores.
SLOW = """
import time, torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

class Slow(Dataset):
    def __len__(self):
        return 960
    def __getitem__(self, index):
        time.sleep(0.002)
        return {example}, index % 10

class Stream(IterableDataset):
    def __iter__(self):
        for index in range(640):
            time.sleep(0.001)
            yield torch.full((64,), float(index)), index % 10

class Open(Slow):
    def __init__(self):
        self.file = open(__file__)

"""
FULL, DRAWN = "torch.full((64,), float(index))", "torch.rand(64)"


def run_torch(folder, loader, *options, example=FULL, loop=LOOP):
    need("torch")
    text = SLOW.format(example=example) + f"loader = {loader}\n" + loop
    return run(folder, text, *options, python=TORCH)


def report(folder, loader, **given):
    found = json.loads(run_torch(folder, loader, "--json", **given)[0])
    return found, {each["text"].partition(": ")[2]: each for each in found["changes"]}


def means(change, meaning):
    """Whether a change is said to mean that, as one is that gained enough to be looked at."""
    return change["meaning"] == (meaning if change["gain"] >= WORTH else UNSHOWN)


@pytest.mark.parametrize(("example", "meaning"), [(FULL, SAME), (DRAWN, DRAWS)], ids=[SAME, DRAWS])
def test_what_workers_draw_is_said(tmp_path, example, meaning):
    loader = "DataLoader(Slow(), batch_size=32, shuffle=True)"
    _, changes = report(tmp_path, loader, example=example)
    best = changes["num_workers=2"]
    assert means(best, meaning) and best["where"] == "train.py:22"


def test_the_one_process_of_torchrun_is_measured(tmp_path):
    loop = "torch.distributed.init_process_group('gloo')\n" + LOOP
    command = ("--json", "--no-try", "torchrun", "--nproc-per-node", "1")
    printed, *_ = run_torch(tmp_path, "DataLoader(Slow(), batch_size=32)", *command, loop=loop)
    found = json.loads(printed)
    assert found["script"] == "train.py" and found["rounds"]


def test_a_stream_that_workers_would_repeat_is_not_tried_with_several(tmp_path):
    found, changes = report(tmp_path, "DataLoader(Stream(), batch_size=32)")
    assert "num_workers=2" not in changes and changes["num_workers=1"]["meaning"] == SAME
    assert any("1280 examples in place of 640" in each for each in found["notes"])


def test_whole_batches_of_tensors_are_the_same(tmp_path):
    tensors = "TensorDataset(torch.rand(9600, 64), torch.arange(9600) % 10)"
    _, changes = report(tmp_path, f"DataLoader({tensors}, batch_size=128, shuffle=True)")
    (whole,) = (each for text, each in changes.items() if text.startswith("sampler=BatchSampler("))
    assert means(whole, SAME)
    assert changes["num_workers=1"]["meaning"] in (SAME, UNSHOWN)


def test_a_file_that_workers_would_share_is_named(tmp_path):
    found, changes = report(tmp_path, "DataLoader(Open(), batch_size=32)")
    said = "holds `file`, which workers cannot share"
    assert not changes and any(said in each for each in found["notes"])


@pytest.mark.parametrize("loop", [LOOP, COUNTED], ids=["for", "counted"])
def test_the_patch_is_proven_by_a_copy(tmp_path, loop):
    loader = "DataLoader(Slow(), batch_size=32, num_workers=0)"
    printed, exit_code, error = run_torch(tmp_path, loader, "--patch", loop=loop)
    assert exit_code == 0, error
    call = "+loader = DataLoader(Slow(), batch_size=32, num_workers=2"
    proven = {f"{call})", f"{call}, persistent_workers=True)"}  # nearly as fast as each other
    assert proven & {*printed.splitlines()}, printed
