"""How fast every configuration delivers batches by itself: photos, random crops of photos,
Fashion-MNIST and windows of a series.

    python -m benchmarks.input_pipelines --photos DIR --json FILE

Every configuration has its own process. All take turns, round after round, so that drift of the
machine affects all alike. The median over rounds counts. The start of an iterator is not counted;
the gap between epochs is measured apart. Batches are uint8, as an accelerator would get them;
configurations named `_float` cast on the host.
"""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import data
from benchmarks.command_line import data_command_line, open_work, write_results
from throughline.shared.allocator import raise_malloc_thresholds

PHOTOS = ("photos", "crops", "resized_crops", "imagenet")
KINDS = (*PHOTOS, "fashion_mnist", "windows")
ROUNDS = 5
TURN_S, SETTLE_S = 1.0, 0.7
PLENTY = 100_000  # epochs
GAP_EPOCHS = 3
LONGEST_EPOCH_S = 5.0  # longest epoch whose gap is measured, by four epochs


def worker(workload: data.Workload, name: str, pipe: Connection) -> None:
    """Serve one configuration: answer `turn` with examples/s, `gap` with its share of an epoch."""
    from throughline.assembly.inputs import make_input_spec, open_input_service, open_inputs
    from throughline.pipelines.input_pipeline import InputPipeline
    from throughline.plan.plan import make_plan

    raise_malloc_thresholds()
    params, config = workload.params, workload.params.pipelines[name]
    data = open_inputs(params, workload.layout)
    spec = make_input_spec(params, data, "train")
    wide = name.endswith("_float")
    if not wide and spec.window is None:
        spec = replace(spec, postprocess=())
    with open_input_service(config) as address:
        pipeline = InputPipeline(
            plan=make_plan(config, spec), data=data, split="train", seed=0, service_address=address
        )
        batches = pipeline.batches(epochs=PLENTY)
        warm_up(pipeline, batches)
        pipe.send((str(pipeline.plan), pipeline.examples))
        while (order := pipe.recv()) != "end":
            pipe.send(turn(batches) if order == "turn" else gap(pipeline))


def warm_up(pipeline: Any, batches: Iterator[Any]) -> None:
    """Run a whole epoch if it fills a cache, otherwise a moment."""
    began = time.perf_counter()
    for _ in itertools.islice(batches, pipeline.steps_per_epoch):
        if not pipeline.plan.caches and time.perf_counter() - began > TURN_S:
            break


def turn(batches: Iterator[Any]) -> float:
    """Return examples per second over at least two batches, once prepared batches are used up."""
    began = time.perf_counter()
    while time.perf_counter() - began < SETTLE_S:
        next(batches)
    count, steps, began = 0, 0, time.perf_counter()
    while steps < 2 or time.perf_counter() - began < TURN_S:
        count += int(next(batches)[1].shape[0])
        steps += 1
    return count / (time.perf_counter() - began)


def gap(pipeline: Any) -> float:
    """Return the median gap between epochs, as a share of an epoch."""
    shares, batches, last = [], iter(pipeline.dataset(epochs=GAP_EPOCHS + 1)), None
    for _ in range(GAP_EPOCHS + 1):
        began = time.perf_counter()
        next(batches)
        first = time.perf_counter()
        for _ in range(pipeline.steps_per_epoch - 1):
            next(batches)
        ended = time.perf_counter()
        # Fetching one batch is work, not gap.
        usual = (ended - first) / max(1, pipeline.steps_per_epoch - 1)
        shares += [] if last is None else [max(0.0, first - last - usual) / (ended - began)]
        last = ended
    return statistics.median(shares)


@functools.cache
def images_to_copy(shape: tuple[int, ...]) -> np.ndarray:
    """Return random uint8 images (images, height, width, channels), made once for all rounds."""
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def memcpy_rate(shape: tuple[int, ...], batch: int) -> float:
    """Return the images per second that one thread copies in batches from uncached memory."""
    source = images_to_copy((24 * batch, *shape))
    target = np.empty((batch, *shape), np.uint8)
    began = time.perf_counter()
    for start in range(0, len(source), batch):
        np.copyto(target, source[start : start + batch])
    return len(source) / (time.perf_counter() - began)


def decode_rate(workload: data.Workload) -> float:
    """Return the images per second that one thread decodes and resizes without a pipeline."""
    import tensorflow as tf

    from throughline.assembly.inputs import open_inputs
    from throughline.kernels.kernels import compute
    from throughline.kernels.randomness import RandomStream
    from throughline.plan.shapes import resolve_decode

    data = open_inputs(workload.params, workload.layout)
    ops = resolve_decode(workload.params.preprocess, data.shards.schema)
    encoded = [Path(path).read_bytes() for path in data.files("train").paths[:300]]

    def run(image: Any) -> Any:
        element = {
            "image": image,
            "key": tf.constant(0, tf.int64),
            "label": tf.constant(0, tf.int64),
        }
        for op in ops:
            element = compute(op, element, RandomStream(seed=0, epoch=tf.constant(0, tf.int64)))
        return tf.cast(element["image"][0, 0, 0], tf.int64)

    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    images = tf.data.Dataset.from_tensor_slices(encoded).map(run).with_options(options)
    drained = tf.function(
        lambda: images.reduce(tf.constant(0, tf.int64), lambda total, value: total + value)
    )
    drained()
    rates = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        drained()
        rates.append(len(encoded) / (time.perf_counter() - began))
    return statistics.median(rates)


def start_workers(
    workload: data.Workload, names: list[str], stack: ExitStack
) -> dict[str, Connection]:
    """Start a worker for each configuration until the stack's block ends; return their pipes."""
    context, pipes = multiprocessing.get_context("spawn"), {}
    for name in names:
        pipes[name], theirs = context.Pipe()
        process = context.Process(target=worker, args=(workload, name, theirs))
        process.start()
        stack.callback(process.join)
        stack.callback(pipes[name].send, "end")
    return pipes


def take_turns(pipes: Mapping[str, Connection]) -> dict[str, float]:
    """Run one round: let each worker in turn measure its examples per second."""
    rates = {}
    for name, pipe in pipes.items():
        pipe.send("turn")
        rates[name] = pipe.recv()
    return rates


def compare(
    workload: data.Workload, names: list[str], rounds: int
) -> tuple[dict[str, dict[str, Any]], list[float]]:
    """Let the configurations take turns; return results, and memcpy rates of the same rounds."""
    plans, examples, turns, copied = {}, {}, [], []
    with ExitStack() as stack:
        pipes = start_workers(workload, names, stack)
        for name, pipe in pipes.items():
            plans[name], examples[name] = pipe.recv()
            print(f"  {workload.name}: {name} is ready", file=sys.stderr, flush=True)
        for number in range(rounds):
            turns.append(take_turns(pipes))
            copied.append(memcpy_rate((224, 224, 3), 64))
            print(f"  {workload.name}: round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        rates = {name: [one[name] for one in turns] for name in names}
        gaps = {}
        for name, pipe in pipes.items():
            epoch_s = examples[name] / statistics.median(rates[name])
            if "resident" not in name and epoch_s < LONGEST_EPOCH_S:
                pipe.send("gap")
                gaps[name] = pipe.recv()
    base = statistics.median(rates["naive"])
    results = {
        name: {
            "examples_per_s": round(statistics.median(values), 1),
            "ratio": round(statistics.median(values) / base, 3),
            "spread_pct": round(100 * (max(values) - min(values)) / statistics.median(values), 1),
            "epoch_gap_pct": round(100 * gaps[name], 2) if name in gaps else None,
            "plan": plans[name],
        }
        for name, values in rates.items()
    }
    return results, copied


def show(title: str, results: dict[str, dict[str, Any]]) -> None:
    print(
        f"\n{title}\n{'configuration':<24}{'examples/s':>12}"
        f"{'× naive':>10}{'spread':>9}{'epoch gap':>11}"
    )
    for name, row in sorted(results.items(), key=lambda item: -item[1]["examples_per_s"]):
        lost = "" if row["epoch_gap_pct"] is None else f"{row['epoch_gap_pct']:.1f} %"
        print(
            f"{name:<24}{row['examples_per_s']:>12,.0f}{row['ratio']:>10.2f}{row['spread_pct']:>8.0f}%{lost:>11}"
        )


def main() -> None:
    parser = data_command_line("input_pipelines", __doc__)
    parser.add_argument(
        "--only", nargs="*", default=[], metavar="NAME", help="only these configurations, and naive"
    )
    parser.add_argument("--data", nargs="*", default=list(KINDS), choices=KINDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns per configuration")
    options = parser.parse_args()
    written: dict[str, Any] = {}
    with open_work(options.work) as work:
        makers = {
            "photos": lambda: data.photos(options.photos, work),
            "crops": lambda: data.crops(options.photos, work),
            "resized_crops": lambda: data.resized_crops(options.photos, work),
            "imagenet": lambda: data.imagenet(options.photos, work),
            "fashion_mnist": lambda: data.fashion_mnist(work),
            "windows": lambda: data.windows(work),
        }
        for kind in options.data:
            if kind in PHOTOS and options.photos is None:
                print(f"{kind}: left out, since --photos DIR is not given")
                continue
            workload = makers[kind]()
            names = [
                name
                for name in workload.params.pipelines
                if not options.only or name in (*options.only, "naive")
            ]
            results, copied = compare(workload, names, options.rounds)
            written[kind] = results
            show(f"{kind}, batches of {workload.params.batch_size}", results)
            if kind == "photos":
                written["memcpy_images_per_s"] = round(statistics.median(copied), 1)
                written["decode_resize_images_per_s"] = round(
                    decode_rate(workload) * multiprocessing.cpu_count(), 1
                )
                print(f"memcpy of the same bytes: {written['memcpy_images_per_s']:,.0f} images/s")
                print(
                    "decoding and resizing by the ops alone, one core times all:"
                    f" {written['decode_resize_images_per_s']:,.0f} images/s"
                )
            write_results(options.json, written)


if __name__ == "__main__":
    main()
