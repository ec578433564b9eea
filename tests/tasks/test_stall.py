"""Anybody's script under `python -m tasks.stall`: trainings whose stall is in how they are made."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from tasks.stall import advise, find_best, proves_input_bound
from throughline.diagnosis.dataset_changes import InputChange
from throughline.measurement.user_training import Gain
from throughline.results.profiling import Breakdown, IteratorTime

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys, time
import keras, numpy as np, tensorflow as tf

def wait(i):
    time.sleep(float(sys.argv[1]) / 1e3)
    return np.zeros((4,), np.float32)

def load(i):
    x = tf.numpy_function(wait, [i], tf.float32)
    x.set_shape((4,))
    return x, tf.constant(0)

class Sleeping(keras.layers.Layer):
    def call(self, x):
        with tf.control_dependencies([tf.numpy_function(self.wait, [], tf.int64)]):
            return tf.identity(x)

    def wait(self):
        time.sleep(float(sys.argv[2]) / 1e3)
        return np.int64(0)

model = keras.Sequential([keras.Input((4,)), Sleeping(), keras.layers.Dense(2)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
data = tf.data.Dataset.range(4000).map(load).batch(10).prefetch(2)
try:
    FIT
except Exception:
    print("nobody stops it")
print("trained", flush=True)
"""


ON_TWO_DEVICES = """
import keras, numpy as np, tensorflow as tf

two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], two)
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    try:
        model.fit(np.zeros((8, 4)), np.zeros((8, 2)))
    except Exception:
        print("nobody is told")
"""


def stall(*arguments):
    """The command on a script, ended."""
    return subprocess.run(
        [sys.executable, "-m", "tasks.stall", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def run_stall(folder, *arguments, fit="model.fit(data, epochs=2)", code=0):
    script = folder / "train.py"
    script.write_text(SCRIPT.replace("FIT", fit))
    done = stall("--seconds", "3", str(script), *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    assert "nobody stops it" not in done.stdout
    assert ("trained" in done.stdout) == bool(code), "it ends where the training would begin"
    return done.stdout, done.stderr


def test_a_script_that_waits_for_its_input(tmp_path):
    shown, _ = run_stall(tmp_path, "4", "10")  # 40 ms of input for a step of 10 ms
    verdict, percent = re.match(r"train.py: (\S+), stall (\d+) %", shown).groups()
    assert verdict == "input-bound" and 55 <= int(percent) <= 85, shown
    gains = re.findall(r"^ +([\d.]+) × \([\d.]+ to [\d.]+\) (.*)", shown, re.MULTILINE)
    faster = [text for gain, text in gains if float(gain) > 1.5]
    assert "map(load): num_parallel_calls=tf.data.AUTOTUNE" in faster, shown
    assert re.search(r"change first: (map\(load\)|batch: .cache\(\)).* \(gains [\d.]+ ×\)", shown)
    assert "a step of 10 examples takes " in shown and ", measured again\n" in shown


@pytest.mark.slow
def test_a_script_whose_model_is_slower(tmp_path):
    shown, _ = run_stall(tmp_path, "0.2", "40")
    assert shown.startswith("train.py: compute-bound, stall "), shown
    assert "change first" not in shown


@pytest.mark.slow
def test_arrays_and_generators_are_measured_too(tmp_path):
    rows = "np.zeros((200, 4), np.float32), np.zeros(200)"
    shown, _ = run_stall(tmp_path, "0", "40", fit=f"model.fit({rows}, 20, epochs=2)")
    assert shown.startswith("train.py: compute-bound") and "a step of 20 examples" in shown
    batches = "((wait(0)[None].repeat(5, 0), np.zeros(5)) for _ in range(10 ** 9))"
    shown, _ = run_stall(tmp_path, "30", "2", fit=f"model.fit({batches}, steps_per_epoch=9)")
    assert shown.startswith("train.py: input-bound") and "a step of 5 examples" in shown


@pytest.mark.slow
def test_what_cannot_be_measured_is_told(tmp_path):
    _, told = run_stall(tmp_path, "0", "0", fit="pass", code=2)
    assert "UnmeasurableTraining: train.py ended without calling model.fit" in told
    done = stall("nowhere.py")
    assert done.returncode == 2 and "nowhere.py does not exist" in done.stderr


@pytest.mark.slow
def test_a_training_on_several_devices_is_refused_whatever_the_script_catches(tmp_path):
    (tmp_path / "train.py").write_text(ON_TWO_DEVICES)
    done = stall(str(tmp_path / "train.py"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "UnmeasurableTraining: the script trains with the backend tensorflow on 2" in done.stderr


def iterator(path, critical, parallelism=1.0):
    return IteratorTime(
        path=f"Iterator::Root::{path}", step="", calls=1, total_ms=1.0, self_ms=1.0,
        call_ms_p50=1.0, call_ms_p95=1.0, parallelism=parallelism, critical_pct=critical,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("iterators", "advice"),
    [
        ([iterator("Map", 90)], "end the dataset with .prefetch"),
        ([iterator("Prefetch", 5), iterator("Prefetch::Map", 90)], "Map: give this map num_para"),
        (
            [iterator("Prefetch", 5), iterator("Prefetch::ParallelMapV2", 90, parallelism=1.9)],
            "ParallelMapV2: the cores are busy: do less",
        ),
        ([iterator("Prefetch", 5), iterator("Prefetch::Odd", 90)], "Odd: do less per example"),
        ([iterator("Prefetch", 5), iterator("Prefetch::TFRecord", 90)], "TFRecord: read several"),
    ],
)
def test_advice_is_about_what_a_step_waits_for(iterators, advice):
    breakdown = Breakdown(
        steps=10, traced_step_ms_p50=1.0, wait_ms_p50=1.0, wait_ms_p95=1.0, wait_ms_mean=1.0,
        iterators=tuple(iterators), gpu_busy_ms=None, gpu_copy_ms=None,
    )  # fmt: skip
    assert advise(breakdown, cores=2).startswith(advice)


@pytest.mark.parametrize(
    ("tried", "first"),
    [
        ([], None),
        ([("a", 1.02, 1.01, "")], None),
        ([("a", 1.5, 0.9, "")], None),
        ([("a", 1.3, 1.2, ""), ("b", 1.4, 1.2, "")], "b"),
        ([("kept", 1.4, 1.2, "9 MiB"), ("free", 1.3, 1.2, "")], "free"),
        ([("kept", 3.4, 3.2, "9 MiB"), ("free", 1.3, 1.2, "")], "kept"),
    ],
)
def test_what_to_change_first_gains_beyond_the_noise_and_keeps_nothing_where_that_is_as_good(
    tried, first
):
    pairs = [
        (
            InputChange(text=text, dataset=tf.data.Dataset.range(1), keeps=keeps),
            Gain(factor=factor, low=low, high=2 * factor),
        )
        for text, factor, low, keeps in tried
    ]
    best = find_best(pairs)
    assert (best[0].text if best else None) == first


@pytest.mark.parametrize(("low", "proven"), [(0.8, False), (1.2, False), (1.3, True), (4, True)])
def test_a_gain_of_the_input_alone_proves_what_it_had_cost(low, proven):
    gain = Gain(factor=2 * low, low=low, high=3 * low)
    assert proves_input_bound(gain, accelerator=False) is proven


MADE = """
import keras, numpy as np, tensorflow as tf

def slow(i):
    x = tf.cast(tf.fill((200, 200), i), tf.float32)
    for _ in range(5):
        x = x @ x / 200
    return x[0, :4], 0

def data():
    return tf.data.Dataset.range(400).map(slow).batch(10)

def single():
    return tf.data.Dataset.range(400).map(slow)

def model():
    made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    made.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return made

def unfinished():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
"""


@pytest.mark.slow
def test_a_dataset_and_a_model_that_functions_make(tmp_path, monkeypatch):
    (tmp_path / "made.py").write_text(MADE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    alone = stall("--seconds", "2", "made:data")
    assert re.match(r"made:data: [\d,]+ examples/s at most, a batch of 10 takes", alone.stdout), (
        alone
    )
    both = stall("--seconds", "3", "--model", "made:model", "made:data")
    assert re.match(r"made:data: (input-bound|undecided), stall \d+ %", both.stdout), both
    assert "change first: " in both.stdout
    for arguments, reason in (
        (("made:single",), "delivers single examples"),
        (("made:nothing",), "has no attribute 'nothing'"),
        (("nowhere:data",), "No module named 'nowhere'"),
        (("made:model",), "made:model returns Sequential, not a DatasetV2"),
        (("--model", "made:unfinished", "made:data"), "not compiled"),
    ):
        done = stall(*arguments)
        assert done.returncode == 2 and reason in done.stderr, done
