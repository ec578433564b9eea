"""What it costs a training to be watched by `whowaits` (as `--keep`, `watch` and `Callback` do).

    python -m benchmarks.whowaits_cost [--pairs 25]

One process trains two equal models by `fit` in alternation, one of them under `whowaits.watch()`. A
block is an epoch without its first steps. The cost is the median difference of a step over pairs,
with an interval; that of the thread's CPU time is hardly changed by other programs.
"""

import contextlib
import io
import statistics
import time
from typing import Any

import numpy as np

from benchmarks.command_line import parse_by
from whowaits.timing.rounds import median_interval

SKIPPED = 10  # steps at the start of a block
MODELS = {"small": (1, 64, 300), "medium": (2, 512, 150), "large": (3, 1024, 60)}
BATCH = 128


def main() -> None:
    parser = parse_by(__doc__)
    parser.add_argument("--pairs", type=int, default=25)
    options = parser.parse_args()
    print("| model | a step, ms | watched, µs more | of its thread, µs more |\n|---|---|---|---|")
    for name, (layers, width, steps) in MODELS.items():
        print(f"| {name} | {measure(layers, width, steps, pairs=options.pairs)} |", flush=True)


def measure(layers: int, width: int, steps: int, *, pairs: int) -> str:
    import keras
    import tensorflow as tf

    import whowaits

    data = tf.data.Dataset.from_tensors((tf.random.normal((BATCH, 256)), tf.zeros((BATCH,))))
    data = data.cache().repeat()
    models = []
    for _ in range(2):
        hidden = [keras.layers.Dense(width, "relu") for _ in range(layers)]
        model = keras.Sequential([keras.Input((256,)), *hidden, keras.layers.Dense(2)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        models.append(model)
    bare = getattr(keras.Model.fit, "__wrapped__", keras.Model.fit)  # `watch` leaves its wrapper

    class Clock(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == SKIPPED - 1:
                self.began = time.perf_counter(), time.thread_time()
            self.ended = time.perf_counter(), time.thread_time()

    def time_step(watched: bool) -> np.ndarray:
        clock = Clock()
        watching = whowaits.watch() if watched else contextlib.nullcontext()
        with contextlib.redirect_stdout(io.StringIO()), watching:
            fit: Any = keras.Model.fit if watched else bare
            fit(models[watched], data, steps_per_epoch=steps, verbose=0, callbacks=[clock])
        return 1e6 * np.subtract(clock.ended, clock.began) / (steps - SKIPPED)

    alone, more = [], []
    for pair in range(pairs + 1):
        order = (False, True) if pair % 2 else (True, False)
        times = {watched: time_step(watched) for watched in order}
        if pair:  # the first traces and compiles
            alone.append(times[False][0] / 1e3)
            more.append(times[True] - times[False])
    costs = []
    for values in np.transpose(more):
        low, high = median_interval(values)
        costs.append(f"{statistics.median(values):.0f} ({low:.0f} to {high:.0f})")
    return " | ".join([f"{statistics.median(alone):.2f}", *costs])


if __name__ == "__main__":
    main()
