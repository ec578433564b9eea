"""Trainings as people write them, under `python -m tasks.stall`: is the fault named, and does the
fix, applied to the script, gain what was said?

    python -m benchmarks.scripts [--only NAME] [--rounds 3]

Every case is a script in two states, as it was written and with the first advice applied. Both are
trained in alternation; what a step takes in the median epoch counts, without its start.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRELUDE = """
import os, sys, time
from pathlib import Path
import keras, numpy as np, tensorflow as tf
from PIL import Image

FOLDER = Path(__file__).parent
AUTO = tf.data.AUTOTUNE
COUNT, BATCH, EPOCHS = 1024, 32, 9
draw = np.random.default_rng(1)

def image(seed, side=128):
    small = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), np.uint8)
    return np.asarray(Image.fromarray(small).resize((side, side), Image.Resampling.BICUBIC))

def pictures():
    folder = FOLDER / "pictures"
    if not folder.exists():
        for number in range(COUNT):
            path = folder / str(number % 2) / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image(number, 256)).save(path, quality=90)
    return folder

def records(compression=""):
    paths = [str(FOLDER / f"{compression or 'plain'}-{part}.tfrecord") for part in range(4)]
    files = sorted(pictures().rglob("*.jpg"))
    for part, path in enumerate(paths):
        if not Path(path).exists():
            with tf.io.TFRecordWriter(path, compression) as out:
                for file in files[part::4]:
                    raw = image(int(file.stem), 160).tobytes()
                    value = tf.train.BytesList(value=[raw if compression else file.read_bytes()])
                    features = tf.train.Features(
                        feature={"image": tf.train.Feature(bytes_list=value)})
                    out.write(tf.train.Example(features=features).SerializeToString())
    return paths

def network(side=64, width=16):
    return keras.Sequential([
        keras.Input((side, side, 3)), keras.layers.Conv2D(width, 3, 2, activation="relu"),
        keras.layers.Conv2D(width, 3, 2, activation="relu"), keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(2),
    ])

class Clock(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.ms = []
    def on_epoch_begin(self, epoch, logs=None):
        self.ends = []
    def on_train_batch_end(self, batch, logs=None):
        self.ends.append(time.perf_counter())
    def on_epoch_end(self, epoch, logs=None):  # an epoch's start is not its steady state
        self.ms.append(1e3 * (self.ends[-1] - self.ends[7]) / (len(self.ends) - 8))
    def on_train_end(self, logs=None):
        print("STEP", np.median(self.ms[1:]))

def train(model, data, **more):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    model.fit(data, epochs=EPOCHS, verbose=0, callbacks=[Clock()], **more)
"""
NOTHING = "nothing"
GAINS = 1.15  # less is within the noise of two trainings
ARRAYS = """
images = np.stack([image(number) for number in range(COUNT)])
labels = np.arange(COUNT) % 2
rows = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(COUNT)

def augment(image, label):
    image = tf.image.resize(tf.cast(image, tf.float32), (96, 96), "bicubic")
    image = tf.image.random_crop(tf.image.random_flip_left_right(image), (64, 64, 3))
    return tf.image.random_contrast(image, 0.8, 1.2) / 255, label
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A script, and what a first piece of advice that is right replaces in it, by how that advice
    begins. With "nothing", no advice is right, too.
    """

    script: str
    changes: dict[str, tuple[str, str]]


CASES = {
    "a map, one call at a time": Case(
        script=ARRAYS + "train(network(), rows.map(augment).batch(BATCH).prefetch(AUTO))",
        changes={"map(augment): num": (".map(augment)", ".map(augment, AUTO)")},
    ),
    "nothing made ahead": Case(
        script=ARRAYS + "train(network(width=48), rows.map(augment, AUTO).batch(BATCH, "
        "num_parallel_calls=AUTO))",
        changes={
            "end with .prefetch": (
                "num_parallel_calls=AUTO)",
                "num_parallel_calls=AUTO).prefetch(AUTO)",
            )
        },
    ),
    "infinite": Case(
        script=ARRAYS + "train(network(), rows.repeat().map(augment).batch(BATCH).prefetch(2), "
        "steps_per_epoch=32)",
        changes={
            "map(augment): num": (".map(augment)", ".map(augment, AUTO)"),
            "batch: num": (".batch(BATCH)", ".batch(BATCH, num_parallel_calls=AUTO)"),
        },
    ),
    "several inputs": Case(
        script=ARRAYS
        + """
def both(image, label):
    image, label = augment(image, label)
    return {"image": image, "mean": tf.reduce_mean(image, (0, 1))}, label

inputs = {"image": keras.Input((64, 64, 3), name="image"), "mean": keras.Input((3,), name="mean")}
flat = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(16, 3, 2)(inputs["image"]))
out = keras.layers.Dense(2)(keras.layers.Concatenate()([flat, inputs["mean"]]))
train(keras.Model(inputs, out), rows.map(both).batch(BATCH).prefetch(2))
""",
        changes={"map(both): num": (".map(both)", ".map(both, AUTO)")},
    ),
    "from a generator": Case(
        script="""
def examples():
    for number in range(COUNT):
        yield image(number, 64).astype(np.float32) / 255, number % 2

spec = (tf.TensorSpec((64, 64, 3)), tf.TensorSpec((), tf.int64))
data = tf.data.Dataset.from_generator(examples, output_signature=spec)
train(network(), data.batch(BATCH).prefetch(2))
""",
        changes={"batch: .cache()": (".batch(BATCH)", ".batch(BATCH).cache()")},
    ),
    "image_dataset_from_directory": Case(
        script="""
data = keras.utils.image_dataset_from_directory(
    str(pictures()), image_size=(64, 64), batch_size=BATCH, verbose=False)
train(network(), data)
""",
        changes={
            "batch: .cache()": (
                "train(network(), data)",
                "train(network(), data.cache().shuffle(99).prefetch(AUTO))",
            )
        },
    ),
    "TFRecords of photos": Case(
        script="""
def decode(record):
    spec = {"image": tf.io.FixedLenFeature((), tf.string)}
    found = tf.io.decode_jpeg(tf.io.parse_single_example(record, spec)["image"], channels=3)
    return tf.image.resize(found, (64, 64)) / 255, 0

data = tf.data.TFRecordDataset(records()).map(decode, AUTO).batch(BATCH).prefetch(AUTO)
train(network(), data)
""",
        changes={"batch: .cache()": (".batch(BATCH)", ".batch(BATCH).cache()")},
    ),
    "compressed TFRecords": Case(
        script="""
def decode(record):
    spec = {"image": tf.io.FixedLenFeature((), tf.string)}
    found = tf.io.decode_raw(tf.io.parse_single_example(record, spec)["image"], tf.uint8)
    return tf.cast(tf.reshape(found, (160, 160, 3))[:64, :64], tf.float32) / 255, 0

data = tf.data.TFRecordDataset(records("GZIP"), "GZIP").map(decode, AUTO)
train(network(), data.batch(BATCH).prefetch(AUTO))
""",
        changes={"batch: .cache()": (".batch(BATCH)", ".batch(BATCH).cache()")},
    ),
    "a py_function": Case(
        script="""
def load(number):
    return image(int(number), 64).astype(np.float32) / 255

def make(number):
    made = tf.py_function(load, [number], tf.float32)
    return tf.ensure_shape(made, (64, 64, 3)), number % 2

data = tf.data.Dataset.range(COUNT).map(make, AUTO).batch(BATCH).prefetch(AUTO)
train(network(), data)
""",
        changes={"batch: .cache()": (".batch(BATCH)", ".batch(BATCH).cache()")},
    ),
    "a PyDataset": Case(
        script="""
class Pictures(keras.utils.PyDataset):
    def __len__(self):
        return COUNT // BATCH
    def __getitem__(self, batch):
        numbers = range(batch * BATCH, (batch + 1) * BATCH)
        made = np.stack([image(number, 64) for number in numbers]).astype(np.float32) / 255
        return made, np.arange(BATCH) % 2

data = Pictures()
train(network(), data)
""",
        changes={
            "from_generator: .cache()": (
                "train(network(), data)",
                "made = zip(*(data[number] for number in range(len(data))))\n"
                "made = [np.concatenate(parts) for parts in made]\n"
                "train(network(), tf.data.Dataset.from_tensor_slices(tuple(made)).batch(BATCH)"
                ".cache().prefetch(2))",
            )
        },
    ),
    "a map that waits for a store": Case(
        script="""
def fetch(number):
    time.sleep(0.002)
    return np.full((64, 64, 3), number % 256, np.float32)

def make(number):
    made = tf.numpy_function(fetch, [number], tf.float32)
    return tf.ensure_shape(made, (64, 64, 3)), number % 2

train(network(), tf.data.Dataset.range(COUNT).map(make).batch(BATCH).prefetch(AUTO))
""",
        changes={
            "map(make): num": (".map(make)", ".map(make, AUTO)"),
            "batch: .cache()": (".batch(BATCH)", ".batch(BATCH).cache()"),
        },
    ),
    "already fine": Case(
        script=ARRAYS
        + """
data = rows.map(lambda image, label: (tf.cast(image[:64, :64], tf.float32) / 255, label), AUTO)
train(network(width=64), data.cache().batch(BATCH).prefetch(AUTO))
""",
        changes={NOTHING: ("", "")},
    ),
}


def main() -> None:
    """Run the cases and print a table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--only", default="", metavar="WORD", help="cases with it in their name")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, case in CASES.items():
            if options.only in name:
                print(judge(name, case, Path(folder), rounds=options.rounds), flush=True)


def judge(name: str, case: Case, folder: Path, *, rounds: int) -> str:
    """A row of the table: what is said of a script, and what its fix gains."""
    written, fixed = folder / "written.py", folder / "fixed.py"
    written.write_text(PRELUDE + case.script)
    _run(str(written))  # it makes its files
    said = _run("-m", "tasks.stall", "--seconds", "20", str(written))
    verdict = re.search(r": (.*?), stall (\d+) %", said)
    first = re.search(r"change first: (.*) \(gains ([\d.]+) ×\)", said)
    shown = f"{verdict[1]} {verdict[2]} %" if verdict else said
    kinds = [kind for kind in case.changes if first and first[1].startswith(kind)]
    if first and not kinds:
        return f"| {name} | {shown} | {first[1]} | WRONG | {first[2]} × |"
    old, new = case.changes[kinds[0] if kinds else next(iter(case.changes))]
    if old not in case.script:
        raise ValueError(f"{name}: {old} is not in its script")
    fixed.write_text(PRELUDE + case.script.replace(old, new))
    steps = [[_step_ms(path) for path in (written, fixed)] for _ in range(rounds)]
    gained = statistics.median(before / after for before, after in steps)
    if first is None:
        right = "right" if gained < GAINS else "WRONG"
        return f"| {name} | {shown} | nothing | {right} | | {gained:.2f} × |"
    off = 100 * (float(first[2]) / gained - 1)
    return (
        f"| {name} | {shown} | {first[1]} | right | {first[2]} × | {gained:.2f} × | {off:+.0f} % |"
    )


def _step_ms(script: Path) -> float:
    found = re.search(r"STEP ([\d.]+)", _run(str(script)))
    if found is None:
        raise ValueError(f"{script} has not trained")
    return float(found[1])


def _run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return done.stdout


if __name__ == "__main__":
    main()
