"""Trainings as people write them, to try `whowaits` on (`python -m benchmarks.whowaits`)."""

import re

# With TRUTH, a script trains on real batches and on batches from memory in alternation, for as many
# epochs as take SPAN_S. Short blocks would not do: the speed of a process varies over seconds,
# calling `fit` takes time, and closing a tf.data iterator sometimes takes a tenth of a second.
TRUTH = """
import os, sys, time
TRUTH = "TRUTH" in os.environ
EPOCHS, PAIRS, FEWEST, LONG_S, SPAN_S = 1_000_000 if TRUTH else 200, 9, 5, 60, 1.5
def alternate():  # yields batches and a number of epochs, and is sent seconds and steps
    epochs, started = {"real": 1, "memory": 1}, time.perf_counter()
    for number in range(-2, PAIRS):  # one pair compiles, one shows how long an epoch takes
        if number >= FEWEST and time.perf_counter() - started > LONG_S:
            break
        took = {}
        for kind in sorted(epochs, reverse=number % 2 == 0):
            seconds, steps = yield kind, epochs[kind]
            while seconds < SPAN_S / 2 and number >= 0:  # only one epoch was run
                more_s, more = yield kind, 1
                seconds, steps = seconds + more_s, steps + more
            took[kind] = 1e3 * seconds / steps
            epochs[kind] = epochs[kind] if number >= 0 else max(1, round(SPAN_S / seconds))
        if number >= 0:
            print("PAIR", took["real"], took["memory"], flush=True)
    os._exit(0)
schedule = alternate()
kind, epochs = next(schedule)
"""
KERAS = """
import importlib
import numpy as np
import tensorflow as tf
os.environ["KERAS_BACKEND"] = "jax" if LIBRARY == "jax" else "tensorflow"
keras = importlib.import_module("tf_keras" if LIBRARY == "tf_keras" else "keras")
BATCH, COUNT, AUTO = 32, 960, tf.data.AUTOTUNE
rng = np.random.default_rng(0)
images = rng.integers(0, 255, (COUNT, 96, 96, 3), dtype=np.uint8)
labels = np.arange(COUNT) % 2
rows = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(COUNT)
def network(width=16, side=64):
    return keras.Sequential([
        keras.layers.InputLayer((side, side, 3)),
        *(keras.layers.Conv2D(width, 3, 2, activation="relu") for number in range(2)),
        keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(2)])
def jpegs():
    return tf.data.Dataset.from_tensor_slices(
        ([tf.io.encode_jpeg(image).numpy() for image in images], labels))
def in_memory():
    small = (images[:, :64, :64] / 255).astype("float32")
    return tf.data.Dataset.from_tensor_slices((small, labels)).batch(BATCH).cache().prefetch(AUTO)
def decode(file, label):
    image = tf.image.decode_jpeg(file, channels=3)
    return tf.image.resize(tf.cast(image, tf.float32) / 255, (64, 64), "bicubic"), label
def crop(image, label):
    image = tf.image.resize(tf.cast(image, tf.float32), (96, 96), "bicubic")
    image = tf.image.random_crop(tf.image.random_flip_left_right(image), (64, 64, 3))
    return tf.image.random_contrast(image, 0.8, 1.2) / 255, label
def keep(data):
    if isinstance(data, tuple):
        x, y, size = data
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(size)
    data = data.take(64).cache()
    list(data)  # to its end: `fit`, which knows the steps, may leave the cache unfinished
    return data
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
def train_on(data, run, kind=kind, epochs=epochs):
    if not TRUTH:
        return run(EPOCHS, data)
    batches = {"real": data, "memory": keep(data)}
    while True:
        began = time.perf_counter()
        run(epochs, batches[kind])
        kind, epochs = schedule.send((time.perf_counter() - began, epochs * COUNT // BATCH))
def train(model, data):
    model.compile("sgd", LOSS)
    def run(epochs, given):
        given = given if isinstance(given, tuple) else (given,)
        model.fit(*given, epochs=epochs, verbose=0)
    train_on(data, run)
def train_by_tape(model, data):
    optimizer = keras.optimizers.SGD()
    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            value = LOSS(y, model(x, training=True))
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    def run(epochs, given):
        for number in range(epochs):
            for x, y in given:
                step(x, y)
    train_on(data, run)
"""
TORCH = """
import functools, itertools, queue, tempfile, threading
from pathlib import Path
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info
kept, read_loader = [], DataLoader.__iter__
def epoch(data, read=read_loader):
    global kind
    if not torch.is_grad_enabled():  # a validation
        yield from read(data)
        return
    began, steps, is_first = time.perf_counter(), 0, not kept
    try:
        for batch in kept if kind == "memory" else read(data):
            if is_first:
                kept.append(batch)
            steps += 1
            yield batch
    finally:  # a trainer may leave it before its end
        kind, _ = schedule.send((time.perf_counter() - began, steps))
if TRUTH:
    DataLoader.__iter__ = epoch
class Rows(Dataset):
    def __init__(self, seconds, waits=False):
        self.seconds, self.sleep = seconds, time.sleep if waits else abs
    def __len__(self):
        return 960
    def __getitem__(self, number):
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            self.sleep(self.seconds)
        return torch.full((64,), number / 960), number % 2
class Stream(IterableDataset):
    def __init__(self, splits):
        self.splits = splits
    def __iter__(self):
        info = get_worker_info() if self.splits else None
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return (Rows(0.001)[number] for number in range(first, 960, step))
def network(width):
    hidden = nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
    return nn.Sequential(*hidden, nn.Linear(width, 2))
def convolutions(width):
    convolution = nn.Conv2d(3, width, 3, 2), nn.ReLU(), nn.Conv2d(width, width, 3, 2), nn.ReLU()
    return nn.Sequential(*convolution, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 2))
loss = nn.CrossEntropyLoss()
def train_step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss(model(x), y).backward()
    optimizer.step()
def train(loader, model):
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for number in range(EPOCHS):
        for x, y in loader:
            train_step(model, optimizer, x, y)
"""


KERAS_SCRIPTS = """
## map of random crops
train(network(), rows.map(crop).batch(BATCH).prefetch(AUTO))
## a generator that draws
def examples():
    for number in rng.permutation(COUNT):
        time.sleep(0.001)
        yield (images[number, :64, :64] / 255).astype("float32"), labels[number]
spec = (tf.TensorSpec((64, 64, 3)), tf.TensorSpec((), tf.int64))
train(network(), tf.data.Dataset.from_generator(examples, output_signature=spec).batch(BATCH))
## a large model, kept
train(network(96), in_memory())
## arrays
train(network(64, 96), ((images / 255).astype("float32"), labels, BATCH))
## a tape, a large model
train_by_tape(network(64), in_memory())
## a tape, decoding
train_by_tape(network(), jpegs().map(decode).batch(BATCH))
## a cache after the first epoch
train(network(48), jpegs().map(decode).cache().batch(BATCH).prefetch(AUTO))
## tf_keras
train(network(), jpegs().map(decode).batch(BATCH))
## JAX, decoding
train(network(), jpegs().map(decode).batch(BATCH))
"""
PYTORCH = """
## no workers
train(DataLoader(Rows(0.001), 32), network(256))
## a store
train(DataLoader(Rows(0.002, waits=True), 32, num_workers=2), network(256))
## workers that keep up
rows = Rows(0.0003, waits=True)
train(DataLoader(rows, 32, num_workers=2, persistent_workers=True), network(2048))
## a stream that splits
train(DataLoader(Stream(splits=True), 32), network(256))
## a stream that does not
train(DataLoader(Stream(splits=False), 32), network(256))
## arrays
rows = TensorDataset(torch.randn(20_000, 64), torch.randint(0, 2, (20_000,)))
train(DataLoader(rows, batch_size=64, shuffle=True), network(32))
## arrays, a large model
images = TensorDataset(torch.randn(960, 3, 64, 64), torch.randint(0, 2, (960,)))
train(DataLoader(images, batch_size=32, shuffle=True), convolutions(64))
## torch.compile
train(DataLoader(Rows(0.0001), 64, drop_last=True), torch.compile(network(1536)))
## rows kept by the dataset
class Kept(Rows):
    __getitem__ = functools.cache(Rows.__getitem__)
train(DataLoader(Kept(0.003), 32, shuffle=True), network(512))
## class folders
root = Path(tempfile.mkdtemp())
files = [root / "ab"[number % 2] / f"{number}.npz" for number in range(480)]
for number, file in enumerate(files):
    file.parent.mkdir(exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 9, (96, 96, 3), dtype=np.uint8)
    np.savez_compressed(file, image=pixels)
class Folders(Dataset):
    def __len__(self):
        return len(files)
    def __getitem__(self, number):
        top, left = torch.randint(0, 32, (2,))
        image = np.load(files[number])["image"][top : top + 64, left : left + 64]
        return torch.tensor(image).permute(2, 0, 1) / 255, "ab".index(files[number].parent.name)
train(DataLoader(Folders(), batch_size=16, shuffle=True), convolutions(16))
## padded texts
draw = np.random.default_rng(0)
words = {word: number for number, word in enumerate(["", "good", "bad", "so", "la"])}
texts = [" ".join(draw.choice([*words][1:], draw.integers(20, 400))) for _ in range(960)]
def collate(some):
    ids = [torch.tensor([words[word] for word in text.lower().split()]) for text in some]
    labels = torch.tensor([text.count("good") % 2 for text in some])
    return nn.utils.rnn.pad_sequence(ids, batch_first=True), labels
bag = nn.EmbeddingBag(len(words), 64, padding_idx=0)
train(DataLoader(texts, 32, shuffle=True, collate_fn=collate), nn.Sequential(bag, network(256)))
## validation between
loader, model = DataLoader(Rows(0.001), 32), network(512)
optimizer = torch.optim.AdamW(model.parameters())
cycle = torch.optim.lr_scheduler.OneCycleLR(
    optimizer, 0.01, epochs=EPOCHS, steps_per_epoch=len(loader))
@torch.no_grad()
def evaluate(data):
    return sum((model(x).argmax(1) == y).sum().item() for x, y in data)
evaluate(loader)
for number in range(EPOCHS):
    for x, y in loader:
        train_step(model, optimizer, x, y)
        cycle.step()
    evaluate(DataLoader(Rows(0.0002), 32))
## a GAN
makes, judges = nn.Sequential(network(512), nn.Linear(2, 64)), network(512)
of_judges, of_makes = (torch.optim.Adam(each.parameters(), 2e-4) for each in (judges, makes))
ones, zeros = torch.ones(32).long(), torch.zeros(32).long()
for number in range(EPOCHS):
    for x, _ in DataLoader(Rows(0.0005), 32, shuffle=True):
        fake = makes(torch.randn(32, 64))
        of_judges.zero_grad()
        (loss(judges(x), ones) + loss(judges(fake.detach()), zeros)).backward()
        of_judges.step()
        of_makes.zero_grad()
        loss(judges(fake), ones).backward()
        of_makes.step()
## LBFGS
model = network(512)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=5)
for number in range(EPOCHS):
    for x, y in DataLoader(Rows(0.0003), 64):
        def closure():
            optimizer.zero_grad()
            value = loss(model(x), y)
            value.backward()
            return value
        optimizer.step(closure)
## accumulated gradients
model, loader = network(1024), DataLoader(Rows(0.0005, waits=True), 16, num_workers=1)
optimizer = torch.optim.AdamW(model.parameters())
for number in range(EPOCHS):
    for index, (x, y) in enumerate(loader):
        (loss(model(x), y) / 4).backward()
        if (index + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
## a memmap
path = Path(tempfile.mkdtemp(), "train.bin")
np.random.default_rng(0).integers(0, 512, 2_000_000, dtype=np.uint16).tofile(path)
def get_batch():
    tokens = np.memmap(path, dtype=np.uint16, mode="r")
    starts = torch.randint(len(tokens) - 65, (16,))
    rows = torch.stack([torch.from_numpy(tokens[i : i + 65].astype(np.int64)) for i in starts])
    return rows[:, :-1], rows[:, 1:].flatten()
if TRUTH:
    thirty = lambda _: (get_batch() for _ in range(30))
    get_batch_of = itertools.chain.from_iterable(epoch(None, thirty) for _ in itertools.count())
layers = nn.Embedding(512, 128), nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
model = nn.Sequential(*layers, nn.Linear(128, 512), nn.Flatten(0, 1))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for step in range(1000 * EPOCHS):
    train_step(model, optimizer, *(next(get_batch_of) if TRUTH else get_batch()))
## a thread
def feed():
    for number in range(EPOCHS):
        for batch in DataLoader(Rows(0.002, waits=True), 32):
            ready.put(batch)
ready, model = queue.Queue(4), network(512)
threading.Thread(target=feed, daemon=True).start()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(30 * EPOCHS):
    train_step(model, optimizer, *ready.get())
## accelerate
from accelerate import Accelerator
accelerator, model = Accelerator(cpu=True), network(1024)
model, optimizer, loader = accelerator.prepare(
    model, torch.optim.Adam(model.parameters()), DataLoader(Rows(0.0002), 32, shuffle=True))
for number in range(EPOCHS):
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(loss(model(x), y))
        optimizer.step()
## Trainer
from transformers import Trainer, TrainingArguments
class Records(Rows):
    def __getitem__(self, number):
        return dict(zip(("x", "labels"), super().__getitem__(number)))
class Classifier(nn.Sequential):
    def forward(self, x, labels):
        logits = super().forward(x)
        return {"loss": loss(logits, labels), "logits": logits}
arguments = TrainingArguments(
    tempfile.mkdtemp(), num_train_epochs=EPOCHS, per_device_train_batch_size=32,
    save_strategy="no" if TRUTH else "epoch", report_to="none", disable_tqdm=True)
Trainer(Classifier(*network(256)), arguments, train_dataset=Records(0.001)).train()
## Lightning
import lightning
class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = network(512)
    def training_step(self, batch, number):
        return loss(self.layers(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())
loader = DataLoader(Rows(0.001, waits=True), 32, shuffle=True, num_workers=2)
lightning.Trainer(
    max_epochs=EPOCHS, logger=False, default_root_dir=tempfile.mkdtemp(),
    enable_checkpointing=not TRUTH, enable_progress_bar=False).fit(Classifier(), loader)
"""
LIBRARIES = {"tf_keras": "tf_keras", "JAX, decoding": "jax"}
# Ops with random draws, which a cache after them, or after `batch`, would freeze.
DRAWING = {"map of random crops": "map(crop)", "a generator that draws": "from_generator"}


def split(scripts: str) -> dict[str, str]:
    """Split text into scripts, each below a line with its name."""
    _, *parts = re.split(r"^## (.+)\n", scripts, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


CASES = {
    name: f"LIBRARY = {LIBRARIES.get(name, 'tensorflow')!r}\n{TRUTH}{KERAS}{script}"
    for name, script in split(KERAS_SCRIPTS).items()
} | {f"PyTorch, {name}": TRUTH + TORCH + script for name, script in split(PYTORCH).items()}
