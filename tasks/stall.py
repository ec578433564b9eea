"""Is a training input-bound? `python -m tasks.stall SCRIPT [ARGUMENTS]` runs anybody's Keras script
up to its first `model.fit`, measures there what the input holds up, and ends. `python -m
tasks.stall MODULE:FUNCTION [--model MODULE:FUNCTION]` takes the dataset and the compiled model
that functions make; without a model it says what the input delivers alone.

The model is timed alone, on a batch that is there, and on what its dataset delivers, from full and
from empty buffers; then some steps are traced. Nothing of the script has to be changed, and nothing
of this project is used for its input.
"""

from __future__ import annotations

import argparse
import importlib
import os
import runpy
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from keras.src.trainers import data_adapters

from tasks.diagnosis.trace_breakdown import break_down, iterator_table
from tasks.diagnosis.xspace import read_trace, record_trace
from tasks.errors import ForeignScript, report_user_errors
from tasks.measurement.steady_state import SteadyState, StepClock, measure_steady_state
from tasks.measurement.train_steps import repeat_batch, wait_for_loss, wait_until_idle
from tasks.measurement.verdict import COMPUTE_BOUND, Stall, judge
from tasks.progress import echo
from tasks.results.profiling import Breakdown, IteratorTime

MAX_ROUNDS, TRACED_STEPS = 9, 10
FED_BY = ("sample_weight", "steps_per_epoch", "class_weight")  # arguments of fit, besides the data
MAX_STEPS = 2000
BUSY = 0.8  # of the cores: then more calls at once bring nothing
# What to do about the iterator that a step waits for, by the name that tf.data gives its kind.
ADVICE_BY_KIND = {
    "Map": "give this map num_parallel_calls=tf.data.AUTOTUNE, or do it once and .cache()",
    "MapAndBatch": "give the map num_parallel_calls=tf.data.AUTOTUNE, or do it once and .cache()",
    "ParallelMap": "more num_parallel_calls; what runs in Python (numpy_function) holds its GIL",
    "FlatMap": "read several files at once: interleave(…, num_parallel_calls=tf.data.AUTOTUNE)",
    "Interleave": "read several files at once: interleave(…, num_parallel_calls=tf.data.AUTOTUNE)",
    "TFRecord": "read several files at once: interleave(…, num_parallel_calls=tf.data.AUTOTUNE)",
    "Generator": "Python makes one example at a time: make them by TensorFlow's ops, or store them",
    "Batch": "map whole batches instead of examples, or give .batch num_parallel_calls",
    "Shuffle": "shuffle file names or indices instead of decoded examples, or shuffle earlier",
}
LESS_WORK = "do less per example, or do it once (.cache(), a snapshot on disk)"


class _Ended(BaseException):
    """Ends the script where its training would begin; no `except Exception` of its stops that."""

    def __init__(self, refusal: ForeignScript | None = None) -> None:
        self.refusal = refusal


class ForeignTraining:
    """The training of a script: its model, and the dataset that it has given to `fit`."""

    def __init__(self, model: keras.Model, dataset: tf.data.Dataset) -> None:
        self.batch = _first_batch(dataset)
        self._batches = iter(dataset.repeat())
        model.steps_per_execution = 1
        model.make_train_function()
        self._train: Any = model.train_function

    @property
    def examples(self) -> int:
        """In a batch."""
        return int(tf.nest.flatten(self.batch)[0].shape[0])

    def start(self) -> None:
        """The first step traces the graph and starts the input."""
        self.step()

    def step(self) -> float:
        """Take a batch, train on it, wait until its loss is known on the host."""
        return wait_for_loss(self._train(self._batches))

    def pull(self) -> None:
        """Take a batch and leave it unused."""
        next(self._batches)

    def model_only(self) -> Any:
        """A step on one batch that is there already."""
        batches = repeat_batch(self.batch)
        return lambda: wait_for_loss(self._train(batches))


class ForeignInput:
    """A dataset without a training: a step takes a batch."""

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self.batch = _first_batch(dataset)
        self._batches = iter(dataset.repeat())

    def step(self) -> None:
        """Take a batch."""
        next(self._batches)


def _first_batch(dataset: tf.data.Dataset) -> Any:
    """Raises:
    ForeignScript: it is empty, or its elements are single examples.
    """
    first = list(dataset.take(1))
    if not first:
        raise ForeignScript("the dataset delivers nothing")
    if any(part.shape.rank == 0 for part in tf.nest.flatten(first[0])):
        raise ForeignScript(
            "the dataset delivers single examples, of which no model takes one; end it with"
            " .batch(256).prefetch(tf.data.AUTOTUNE)"
        )
    return first[0]


def measure_stall(
    training: ForeignTraining, *, max_seconds: float
) -> tuple[SteadyState, Breakdown]:
    """Time the model alone and the training, then trace some steps."""
    model = training.model_only()
    state = measure_steady_state(
        training,
        model,
        model,
        StepClock(wait_until_idle=wait_until_idle),
        max_rounds=MAX_ROUNDS,
        max_seconds=max_seconds,
    )
    for _ in range(state.prepared):
        training.pull()
    return state, _traced(training.step)


def _traced(step: Callable[[], object]) -> Breakdown:
    with tempfile.TemporaryDirectory() as folder:
        record_trace(step, Path(folder), steps=TRACED_STEPS)
        return break_down(read_trace(Path(folder)))


def advise(breakdown: Breakdown, *, cores: int) -> str:
    """What to change first about the input, from the iterator that a step waits for."""
    waited = [item for item in breakdown.iterators if item.kind != "Root"]
    if not any(item.kind == "Prefetch" and item.depth <= 1 for item in waited):
        return "end the dataset with .prefetch(tf.data.AUTOTUNE), to work while the model does"
    worst = max(waited, key=lambda item: item.critical_pct)
    return f"{worst.title}: {_advice_for(worst, cores=cores)}"


def _advice_for(item: IteratorTime, *, cores: int) -> str:
    if item.parallelism >= BUSY * cores:
        return f"the cores are busy: {LESS_WORK}"
    return ADVICE_BY_KIND.get(item.kind.rstrip("V1234"), LESS_WORK)


def report(name: str, training: ForeignTraining, *, max_seconds: float) -> None:
    """Measure and print verdict, figures, what to change, and the iterators."""
    accelerator = bool(tf.config.list_physical_devices("GPU"))
    state, breakdown = measure_stall(training, max_seconds=max_seconds)
    verdict = judge(Stall.of(state), None, on_accelerator=accelerator)
    low, high = state.stall_interval_pct
    step_ms, model_ms = state.train_step_ms, state.model_step_ms
    echo(f"{name}: {verdict.name}, stall {state.stall_pct:.0f} % ({low:.0f} to {high:.0f} %)")
    echo(
        f"  a step of {training.examples} examples takes {step_ms:.2f} ms, the model alone"
        f" {model_ms:.2f} ms: {training.examples / step_ms * 1e3:,.0f} examples/s of"
        f" {training.examples / model_ms * 1e3:,.0f} that the model could take"
    )
    if verdict.cause:
        echo(f"  {verdict.cause}; --seconds {2 * max_seconds:.0f} measures longer")
    if verdict.name == COMPUTE_BOUND:
        return
    show_advice(breakdown)


def report_input(name: str, given: ForeignInput, *, max_seconds: float) -> None:
    """Measure and print what an input delivers alone, what to change, and the iterators."""
    clock = StepClock(wait_until_idle=wait_until_idle)
    batch_ms = clock.block(given.step, TRACED_STEPS, warm_up=TRACED_STEPS).mean_ms
    steps = max(TRACED_STEPS, min(MAX_STEPS, round(max_seconds * 1e3 / 2 / batch_ms)))
    batch_ms = clock.block(given.step, steps).mean_ms
    examples = int(tf.nest.flatten(given.batch)[0].shape[0])
    echo(
        f"{name}: {examples / batch_ms * 1e3:,.0f} examples/s at most, a batch of {examples} takes"
        f" {batch_ms:.2f} ms; --model MODULE:FUNCTION says whether a model waits for that"
    )
    show_advice(_traced(given.step))


def show_advice(breakdown: Breakdown) -> None:
    """Print what to change first, and the iterators."""
    echo(f"  change first: {advise(breakdown, cores=len(os.sched_getaffinity(0)))}")
    for line in iterator_table(breakdown):
        echo(f"    {line}")


def _check_alone() -> None:
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if keras.backend.backend() != "tensorflow" or replicas > 1:
        refusal = ForeignScript(
            f"the script trains with the backend {keras.backend.backend()} on {replicas} device(s);"
            " measured is what Keras trains with TensorFlow on one"
        )
        raise _Ended(refusal)


@contextmanager
def measured_instead_of_fitted(name: str, *, max_seconds: float) -> Iterator[None]:
    """Within the block `keras.Model.fit` measures, prints, and ends the block."""

    def fit(
        model: keras.Model, x: Any = None, y: Any = None, batch_size: Any = None, **options: Any
    ) -> None:
        _check_alone()
        given = {key: options[key] for key in FED_BY if key in options}
        if not isinstance(x, tf.data.Dataset):
            given["shuffle"] = options.get("shuffle", True)
        adapter = data_adapters.get_data_adapter(x=x, y=y, batch_size=batch_size, **given)
        training = ForeignTraining(model, adapter.get_tf_dataset())
        report(name, training, max_seconds=max_seconds)
        raise _Ended

    original = keras.Model.fit
    setattr(keras.Model, "fit", fit)  # noqa: B010 - of another signature
    try:
        yield
    except _Ended as ended:
        if ended.refusal:
            raise ended.refusal from None
        return
    finally:
        setattr(keras.Model, "fit", original)  # noqa: B010
    raise ForeignScript(f"{name} ended without calling model.fit(…): there is nothing to measure")


def make(what: str, kind: type) -> Any:
    """Call a function that is named MODULE:FUNCTION, for a `kind`.

    Raises:
      ForeignScript: there is none of that name, or it returns something else.
    """
    module, _, function = what.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        made = getattr(importlib.import_module(module), function)()
    except (ModuleNotFoundError, AttributeError) as error:
        raise ForeignScript(f"{what}: {error}") from None
    if not isinstance(made, kind):
        raise ForeignScript(f"{what} returns {type(made).__name__}, not a {kind.__name__}")
    return made


def measure_made(dataset: str, model: str | None, *, max_seconds: float) -> None:
    """Measure what a function makes, with the model of another one or alone."""
    made = make(dataset, tf.data.Dataset)
    if model is None:
        report_input(dataset, ForeignInput(made), max_seconds=max_seconds)
        return
    network = make(model, keras.Model)
    if not network.compiled:
        raise ForeignScript(f"{model} returns a model that is not compiled: call compile on it")
    report(dataset, ForeignTraining(network, made), max_seconds=max_seconds)


def main() -> None:
    """Say whether a training waits for its input, and what to change first."""
    parser = argparse.ArgumentParser(prog="python -m tasks.stall", description=main.__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="bound on the timing [s]")
    parser.add_argument(
        "--model", metavar="MODULE:FUNCTION", help="what returns the compiled Keras model"
    )
    parser.add_argument(
        "script",
        help="a Python file that calls model.fit, or MODULE:FUNCTION, which returns a tf.data data"
        " set",
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own arguments")
    options = parser.parse_args()
    with report_user_errors():
        script = Path(options.script)
        if ":" in options.script and not script.exists():
            measure_made(options.script, options.model, max_seconds=options.seconds)
            return
        if not script.is_file():
            raise ForeignScript(f"{script} does not exist")
        sys.argv = [str(script), *options.arguments]
        sys.path.insert(0, str(script.parent.resolve()))
        with measured_instead_of_fitted(script.name, max_seconds=options.seconds):
            runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
