"""Trainings as people write them, to try `whowaits` on (`python -m benchmarks.whowaits`)."""

from dataclasses import dataclass

# With TRUTH, a script trains on real batches and on batches from memory in alternation, for as many
# epochs as take SPAN_S. Short blocks would not do: the speed of a process varies over seconds,
# calling `fit` takes time, and closing a tf.data iterator sometimes takes a tenth of a second.
TRUTH = """
import os, sys, time
EPOCHS, PAIRS, FEWEST, LONG_S, SPAN_S = 6, 9, 5, 60, 1.5
UNTIMED = 2  # pairs: one compiles, one shows how long an epoch takes

def train_on(data, keep, run):
    if "TRUTH" not in os.environ:
        return run(EPOCHS, data)
    batches, epochs = {"real": data, "memory": keep(data)}, {"real": 1, "memory": 1}
    started = time.perf_counter()
    for number in range(PAIRS + UNTIMED):
        if number >= FEWEST + UNTIMED and time.perf_counter() - started > LONG_S:
            break
        took = {}
        for kind in sorted(batches, reverse=number % 2):
            began = time.perf_counter()
            steps = run(epochs[kind], batches[kind])
            seconds = time.perf_counter() - began
            took[kind] = 1e3 * seconds / steps
            if number == 1:
                epochs[kind] = max(1, round(SPAN_S / seconds))
        if number >= UNTIMED:
            print("PAIR", took["real"], took["memory"], flush=True)

def loop(data, keep, step):
    def run(epochs, given):
        steps = 0
        for number in range(epochs):
            for x, y in given:
                step(x, y)
                steps += 1
        return steps
    train_on(data, keep, run)
"""
KERAS = f"""
{TRUTH}
import numpy as np
import tensorflow as tf
if LIBRARY == "tf_keras":
    import tf_keras as keras
else:
    os.environ["KERAS_BACKEND"] = LIBRARY
    import keras

BATCH, COUNT, AUTO = 32, 960, tf.data.AUTOTUNE
rng = np.random.default_rng(0)
images = rng.integers(0, 255, (COUNT, 96, 96, 3), dtype=np.uint8)
labels = np.arange(COUNT) % 2
rows = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(COUNT)

def network(width=16, side=64):
    return keras.Sequential([
        keras.layers.InputLayer((side, side, 3)),
        keras.layers.Conv2D(width, 3, 2, activation="relu"),
        keras.layers.Conv2D(width, 3, 2, activation="relu"),
        keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(2),
    ])

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
    for _ in data:  # to its end: `fit`, which knows the steps, may leave the cache unfinished
        pass
    return data

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

def train(model, data):
    model.compile("sgd", LOSS)
    def run(epochs, given):
        given = given if isinstance(given, tuple) else (given,)
        model.fit(*given, epochs=epochs, verbose=0)
        return epochs * COUNT // BATCH
    train_on(data, keep, run)

def train_by_tape(model, data):
    optimizer = keras.optimizers.SGD()
    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            value = LOSS(y, model(x, training=True))
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    loop(data, keep, step)
"""
TORCH = """
import functools, itertools, os, queue, tempfile, threading, time
from pathlib import Path
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info

EPOCHS, TRUTH = 200, "TRUTH" in os.environ
if TRUTH:  # epochs of real and of kept batches in alternation, for SPAN_S each
    EPOCHS, PAIRS, FEWEST, LONG_S, SPAN_S = 1_000_000, 7, 4, 60, 1.0
    read_loader, kept, is_first = DataLoader.__iter__, [], True

    def alternate():
        started = time.perf_counter()
        for number in range(1 + PAIRS):
            if number > FEWEST and time.perf_counter() - started > LONG_S:
                break
            took = {}
            for kind in sorted(("real", "memory"), reverse=number % 2 == 0):
                seconds, steps = 0.0, 0
                while seconds < SPAN_S:
                    some_s, some = yield kind
                    seconds, steps = seconds + some_s, steps + some
                took[kind] = 1e3 * seconds / steps
            if number:  # the first compiles
                print("PAIR", took["real"], took["memory"], flush=True)
        os._exit(0)

    schedule = alternate()
    kind = next(schedule)

    def epoch(data, read=read_loader):
        global kind, is_first
        if not torch.is_grad_enabled():  # a validation
            yield from read(data)
            return
        began, steps = time.perf_counter(), 0
        try:
            for batch in kept if kind == "memory" else read(data):
                if is_first:
                    kept.append(batch)
                steps += 1
                yield batch
        finally:  # a trainer may leave it before its end
            kind, is_first = schedule.send((time.perf_counter() - began, steps)), False

    DataLoader.__iter__ = epoch

class Rows(Dataset):
    def __init__(self, seconds, waits=False, count=960):
        self.seconds, self.waits, self.count = seconds, waits, count
    def __len__(self):
        return self.count
    def __getitem__(self, number):
        end = time.perf_counter() + self.seconds
        if self.waits:
            time.sleep(self.seconds)
        while time.perf_counter() < end:
            pass
        return torch.randn(64), number % 2

def network(width):
    return nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))

def convolutions(width):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 2), nn.ReLU(), nn.Conv2d(width, width, 3, 2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 2))

loss = nn.CrossEntropyLoss()

def train(loader, model):
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for number in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
"""


@dataclass(frozen=True)
class Case:
    """The end of a script; a cache after the op `freezes`, or after `batch`, freezes its draws."""

    script: str
    library: str = "tensorflow"
    freezes: str = ""

    @property
    def unsafe(self) -> tuple[str, ...]:
        """The beginnings of advice that freezes random draws."""
        return (f"{self.freezes}: .cache()", "batch: .cache()") if self.freezes else ()

    @property
    def text(self) -> str:
        if self.library == "torch":
            return f"{TORCH}{self.script}"
        return f"LIBRARY = {self.library!r}\n{KERAS}{self.script}"


# A stream over the rows, for one process or for workers that share it.
STREAM = """
class Stream(IterableDataset):
    def __iter__(self):
        info = {info}
        first, step = (info.id, info.num_workers) if info else (0, 1)
        rows = Rows(0.001)
        return (rows[number] for number in range(first, len(rows), step))
train(DataLoader(Stream(), 32), network(256))
"""
PYTORCH = {
    "no workers": "train(DataLoader(Rows(0.001), 32), network(256))",
    "a store": "train(DataLoader(Rows(0.002, waits=True), 32, num_workers=2), network(256))",
    "workers that keep up": """
rows = Rows(0.0003, waits=True)
train(DataLoader(rows, 32, num_workers=2, persistent_workers=True), network(2048))
""",
    "arrays": """
x, y = torch.randn(20_000, 64), torch.randint(0, 2, (20_000,))
train(DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True), network(32))
""",
    "arrays, a large model": """
x, y = torch.randn(960, 3, 64, 64), torch.randint(0, 2, (960,))
train(DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True), convolutions(64))
""",
    "class folders": """
root = Path(tempfile.mkdtemp())
for number in range(480):
    (root / "ab"[number % 2]).mkdir(exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 9, (96, 96, 3), dtype=np.uint8)
    np.savez_compressed(root / "ab"[number % 2] / f"{number}.npz", image=pixels)

class Folders(Dataset):
    def __init__(self, root):
        self.files = sorted(root.glob("*/*.npz"))
    def __len__(self):
        return len(self.files)
    def __getitem__(self, number):
        top, left = torch.randint(0, 32, (2,))
        image = np.load(self.files[number])["image"][top : top + 64, left : left + 64]
        label = "ab".index(self.files[number].parent.name)
        return torch.tensor(image).permute(2, 0, 1) / 255, label

train(DataLoader(Folders(root), batch_size=16, shuffle=True), convolutions(16))
""",
    "a stream that splits": STREAM.format(info="get_worker_info()"),
    "a stream that does not": STREAM.format(info="None"),
    "Trainer": """
from transformers import Trainer, TrainingArguments

class Records(Rows):
    def __getitem__(self, number):
        x, y = super().__getitem__(number)
        return {"x": x, "labels": y}

class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = network(256)
    def forward(self, x, labels):
        logits = self.layers(x)
        return {"loss": loss(logits, labels), "logits": logits}

arguments = TrainingArguments(
    tempfile.mkdtemp(), num_train_epochs=EPOCHS, per_device_train_batch_size=32,
    save_strategy="no" if TRUTH else "epoch", report_to="none", disable_tqdm=True)
Trainer(Classifier(), arguments, train_dataset=Records(0.001)).train()
""",
    "Lightning": """
import lightning

class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = network(512)
    def training_step(self, batch, number):
        x, y = batch
        return loss(self.layers(x), y)
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())

loader = DataLoader(Rows(0.001, waits=True), 32, shuffle=True, num_workers=2)
lightning.Trainer(max_epochs=EPOCHS, logger=False, default_root_dir=tempfile.mkdtemp(),
    enable_checkpointing=not TRUTH, enable_progress_bar=False).fit(Classifier(), loader)
""",
    "accelerate": """
from accelerate import Accelerator
accelerator, model = Accelerator(cpu=True), network(1024)
model, optimizer, loader = accelerator.prepare(
    model, torch.optim.Adam(model.parameters()), DataLoader(Rows(0.0002), 32, shuffle=True))
for number in range(EPOCHS):
    for x, y in loader:
        with accelerator.accumulate(model):
            optimizer.zero_grad()
            accelerator.backward(loss(model(x), y))
            optimizer.step()
""",
    "a GAN": """
generator, critic = network(512), network(512)
generator[-1], ones, zeros = nn.Linear(512, 64), torch.ones(32).long(), torch.zeros(32).long()
optimizers = [torch.optim.Adam(each.parameters(), 2e-4) for each in (critic, generator)]
for number in range(EPOCHS):
    for x, _ in DataLoader(Rows(0.0005), 32, shuffle=True, drop_last=True):
        fake = generator(torch.randn(32, 64))
        optimizers[0].zero_grad()
        (loss(critic(x), ones) + loss(critic(fake.detach()), zeros)).backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        loss(critic(fake), ones).backward()
        optimizers[1].step()
""",
    "LBFGS": """
model, loader = network(512), DataLoader(Rows(0.0003), 64)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=5)
for number in range(EPOCHS):
    for x, y in loader:
        def closure():
            optimizer.zero_grad()
            value = loss(model(x), y)
            value.backward()
            return value
        optimizer.step(closure)
""",
    "accumulated gradients": """
model, loader = network(1024), DataLoader(Rows(0.0005, waits=True), 16, num_workers=1)
optimizer = torch.optim.AdamW(model.parameters())
for number in range(EPOCHS):
    for index, (x, y) in enumerate(loader):
        (loss(model(x), y) / 4).backward()
        if (index + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
    "torch.compile": """
train(DataLoader(Rows(0.0001), 64, drop_last=True), torch.compile(network(1536)))
""",
    "a memmap": """
path = Path(tempfile.mkdtemp(), "train.bin")
np.random.default_rng(0).integers(0, 512, 2_000_000, dtype=np.uint16).tofile(path)

def get_batch():
    tokens = np.memmap(path, dtype=np.uint16, mode="r")
    starts = torch.randint(len(tokens) - 65, (16,))
    rows = torch.stack([torch.from_numpy(tokens[i : i + 65].astype(np.int64)) for i in starts])
    return rows[:, :-1], rows[:, 1:]

if TRUTH:
    read = lambda _: (get_batch() for _ in range(30))
    batches = itertools.chain.from_iterable(epoch(None, read) for _ in itertools.count())
model = nn.Sequential(
    nn.Embedding(512, 128), nn.TransformerEncoderLayer(128, 4, 256, batch_first=True),
    nn.Linear(128, 512))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for step in range(1000 * EPOCHS):
    x, y = next(batches) if TRUTH else get_batch()
    optimizer.zero_grad(set_to_none=True)
    loss(model(x).flatten(0, 1), y.flatten()).backward()
    optimizer.step()
""",
    "a thread": """
ready = queue.Queue(4)
def feed():
    for number in range(EPOCHS):
        for batch in DataLoader(Rows(0.002, waits=True), 32):
            ready.put(batch)
    ready.put(None)
threading.Thread(target=feed, daemon=True).start()
model = network(512)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for x, y in iter(ready.get, None):
    optimizer.zero_grad()
    loss(model(x), y).backward()
    optimizer.step()
""",
    "padded texts": """
rng = np.random.default_rng(0)
words = ["good", "bad", "so", "la"]
texts = [" ".join(rng.choice(words, rng.integers(20, 200))) for _ in range(960)]

class Texts(Dataset):
    def __len__(self):
        return len(texts)
    def __getitem__(self, number):
        ids = [words.index(word) + 1 for word in texts[number].lower().split()]
        return torch.tensor(ids), texts[number].count("good") % 2

def collate(examples):
    ids, labels = zip(*examples)
    return nn.utils.rnn.pad_sequence(ids, batch_first=True), torch.tensor(labels)

class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(len(words) + 1, 32), nn.Linear(32, 2)
        self.gru = nn.GRU(32, 32, batch_first=True)
    def forward(self, ids):
        return self.head(self.gru(self.embed(ids))[1][-1])

train(DataLoader(Texts(), 32, shuffle=True, collate_fn=collate), Network())
""",
    "validation between": """
loader, held = DataLoader(Rows(0.001), 32), DataLoader(Rows(0.0005, count=320), 32)
model = network(512)
optimizer = torch.optim.AdamW(model.parameters())
schedule = torch.optim.lr_scheduler.OneCycleLR(
    optimizer, 0.01, epochs=EPOCHS, steps_per_epoch=len(loader))

@torch.no_grad()
def evaluate(data):
    return sum((model(x).argmax(1) == y).sum().item() for x, y in data)

evaluate(loader)
for number in range(EPOCHS):
    for x, y in loader:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
        schedule.step()
    evaluate(held)
""",
    "rows kept by the dataset": """
class Kept(Rows):
    @functools.cache
    def __getitem__(self, number):
        return super().__getitem__(number)
train(DataLoader(Kept(0.003), 32, shuffle=True), network(512))
""",
}
CASES = {
    # Random ops that a later cache would freeze.
    "map of random crops": Case(
        "train(network(), rows.map(crop).batch(BATCH).prefetch(AUTO))",
        freezes="map(crop)",
    ),
    "a generator that draws": Case(
        """
def examples():
    for number in rng.permutation(COUNT):
        time.sleep(0.001)
        yield (images[number, :64, :64] / 255).astype("float32"), labels[number]

spec = (tf.TensorSpec((64, 64, 3)), tf.TensorSpec((), tf.int64))
train(network(), tf.data.Dataset.from_generator(examples, output_signature=spec).batch(BATCH))
""",
        freezes="from_generator",
    ),
    # With no bottleneck, or hardly any.
    "a large model, kept": Case("train(network(96), in_memory())"),
    "arrays": Case("train(network(64, 96), ((images / 255).astype('float32'), labels, BATCH))"),
    "a tape, a large model": Case("train_by_tape(network(64), in_memory())"),
    # With a bottleneck.
    "a tape, decoding": Case("train_by_tape(network(), jpegs().map(decode).batch(BATCH))"),
    "a cache after the first epoch": Case(
        "train(network(48), jpegs().map(decode).cache().batch(BATCH).prefetch(AUTO))"
    ),
    "tf_keras": Case("train(network(), jpegs().map(decode).batch(BATCH))", library="tf_keras"),
    "JAX, decoding": Case("train(network(), jpegs().map(decode).batch(BATCH))", library="jax"),
    **{f"PyTorch, {name}": Case(script, "torch") for name, script in PYTORCH.items()},
}
