"""Is a training input-bound? `python -m tasks.stall SCRIPT [ARGUMENTS]` runs anybody's Keras script
up to its first `model.fit`, measures there what the input holds up, and ends. `python -m
tasks.stall MODULE:FUNCTION [--model MODULE:FUNCTION]` takes the dataset and the compiled model
that functions make; without a model it says what the input delivers alone.

The model is timed alone, on a batch that is there, and on what its dataset delivers, from full and
from empty buffers; then some steps are traced. Where it waits, the changes that the dataset leaves
open are made to its graph and tried. Nothing of the script has to be changed, and nothing of this
project is used for its input.
"""

from __future__ import annotations

import argparse
import importlib
import runpy
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from keras.src.trainers import data_adapters

from throughline.diagnosis.dataset_changes import InputChange, propose_changes
from throughline.diagnosis.trace_breakdown import break_down, iterator_table
from throughline.diagnosis.xspace import read_trace, record_trace
from throughline.measurement.user_training import Gain, UserInput, UserTraining
from throughline.measurement.verdict import Stall, decide_verdict, judge
from throughline.results.profiling import (
    COMPUTE_BOUND,
    INPUT_BOUND,
    UNDECIDED,
    Breakdown,
    IteratorTime,
)
from throughline.shared.errors import UnmeasurableTraining, report_user_errors
from throughline.shared.limits import usable_cores
from throughline.shared.progress import echo

TRACED_STEPS = 10
# Parts of the time that the first measurement may take: for a trial, and for all of them.
TRIED_EACH, TRIED_ALL = 0.2, 3
WORTH_NAMING = 1.1
ALIKE = 0.9  # of the best gain: then a change that keeps nothing in memory is named first
FED_BY = ("sample_weight", "steps_per_epoch", "class_weight")  # arguments of fit, besides the data
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

    def __init__(self, refusal: UnmeasurableTraining | None = None) -> None:
        self.refusal = refusal


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


def report(name: str, model: keras.Model, dataset: tf.data.Dataset, *, max_seconds: float) -> None:
    """Measure and print verdict, figures, what to change, and the iterators."""
    training = UserTraining(model, dataset)
    state = training.measure(max_seconds=max_seconds)
    for _ in range(state.prepared):
        training.pull()
    accelerator = bool(tf.config.list_physical_devices("GPU"))
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
    breakdown = _traced(training.step)
    gain = report_changes(training, dataset, breakdown, max_seconds=max_seconds)
    if verdict.name == UNDECIDED and gain and proves_input_bound(gain, accelerator=accelerator):
        echo(
            "  it is input-bound, as this shows: a change of its input alone makes it"
            f" {gain.low:.2f} times as fast, or more"
        )
    report_iterators(breakdown)


def proves_input_bound(gain: Gain, *, accelerator: bool) -> bool:
    """Whether a training that a change of its input speeds up by so much was input-bound."""
    least_pct = 100 * (1 - 1 / gain.low)
    return decide_verdict(least_pct, on_accelerator=accelerator) == INPUT_BOUND


def report_input(name: str, dataset: tf.data.Dataset, *, max_seconds: float) -> None:
    """Measure and print what an input delivers alone, what to change, and the iterators."""
    given = UserInput(dataset)
    rates = given.measure(max_seconds=max_seconds)
    rate = statistics.median(rates)
    echo(
        f"{name}: {given.examples * rate:,.0f} examples/s at most, a batch of {given.examples}"
        f" takes {1e3 / rate:.2f} ms; --model MODULE:FUNCTION says whether a model waits for that"
    )
    breakdown = _traced(given.step)
    report_changes(given, dataset, breakdown, max_seconds=max_seconds)
    report_iterators(breakdown)


def report_changes(
    given: UserTraining | UserInput,
    dataset: tf.data.Dataset,
    breakdown: Breakdown,
    *,
    max_seconds: float,
) -> Gain | None:
    """Try the changes that a dataset leaves open, print what each gains and what to change first;
    returns what that gains, None where nothing does.
    """
    echo("  tried here, each change by itself:")
    tried = []
    for change, gain in try_changes(given, dataset, max_seconds=max_seconds):
        keeps = f" (it keeps {change.keeps})" if change.keeps else ""
        echo(f"    {gain} {change.text}{keeps}")
        tried.append((change, gain))
    if not tried:
        echo("    nothing: it leaves nothing open, or cannot be rewritten or read again")
    best = find_best(tried)
    if best is not None:  # the best of several may owe it to chance
        gain = measure_gain(given, dataset, best[0], max_seconds=max_seconds)
        if gain:
            echo(f"    {gain} {best[0].text}, measured again")
            best = find_best([(best[0], gain)])
    if best is None:
        echo(f"  change first: {advise(breakdown, cores=usable_cores())}")
        return None
    echo(f"  change first: {best[0].text} (gains {best[1].factor:.2f} ×)")
    return best[1]


def report_iterators(breakdown: Breakdown) -> None:
    """Print the time that each iterator of tf.data took."""
    for line in iterator_table(breakdown):
        echo(f"    {line}")


def try_changes(
    given: UserTraining | UserInput, dataset: tf.data.Dataset, *, max_seconds: float
) -> Iterator[tuple[InputChange, Gain]]:
    """Measure a dataset with each of the changes that it leaves open, in alternation with the
    dataset as it is; `max_seconds` is what its own measurement was allowed. What cannot be
    rewritten or does not run so is left out.
    """
    try:
        changes = propose_changes(dataset, batch=given.examples)
    except (tf.errors.OpError, ValueError):
        return
    seconds = max_seconds * min(TRIED_EACH, TRIED_ALL / (2 * len(changes) + 1))
    before = _rates_if_readable(given, dataset, seconds)
    for change in changes:
        changed = _rates_if_readable(given, change.dataset, seconds)
        after = _rates_if_readable(given, dataset, seconds)
        if changed and before + after:
            yield change, Gain.of(before + after, changed)
        before = after


def measure_gain(
    given: UserTraining | UserInput,
    dataset: tf.data.Dataset,
    change: InputChange,
    *,
    max_seconds: float,
) -> Gain | None:
    """Measure a dataset with a change, and before and after that as it is; None where it cannot be
    read so often.
    """
    before, changed, after = (
        _rates_if_readable(given, each, max_seconds * TRIED_EACH)
        for each in (dataset, change.dataset, dataset)
    )
    return Gain.of(before + after, changed) if changed and before + after else None


def _rates_if_readable(
    given: UserTraining | UserInput, dataset: tf.data.Dataset, seconds: float
) -> list[float]:
    """Rates of a dataset, none where it fails: a generator, for one, can be read once only."""
    try:
        return given.measure_rates(dataset, max_seconds=seconds)
    except tf.errors.OpError:
        return []


def find_best(tried: Sequence[tuple[InputChange, Gain]]) -> tuple[InputChange, Gain] | None:
    """The change that gains the most, of those about alike one that needs no memory; None where
    none gains.
    """
    worth = [pair for pair in tried if pair[1].factor >= WORTH_NAMING and pair[1].low > 1]
    most = max((gain.factor for _, gain in worth), default=0.0)
    alike = [pair for pair in worth if pair[1].factor >= ALIKE * most]
    return min(alike, key=lambda pair: (bool(pair[0].keeps), -pair[1].factor), default=None)


def _check_alone() -> None:
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if keras.backend.backend() != "tensorflow" or replicas > 1:
        refusal = UnmeasurableTraining(
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
        report(name, model, adapter.get_tf_dataset(), max_seconds=max_seconds)
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
    raise UnmeasurableTraining(
        f"{name} ended without calling model.fit(…): there is nothing to measure"
    )


def make(what: str, kind: type) -> Any:
    """Call a function that is named MODULE:FUNCTION, for a `kind`.

    Raises:
      UnmeasurableTraining: there is none of that name, or it returns something else.
    """
    module, _, function = what.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        made = getattr(importlib.import_module(module), function)()
    except (ModuleNotFoundError, AttributeError) as error:
        raise UnmeasurableTraining(f"{what}: {error}") from None
    if not isinstance(made, kind):
        raise UnmeasurableTraining(f"{what} returns {type(made).__name__}, not a {kind.__name__}")
    return made


def measure_made(dataset: str, model: str | None, *, max_seconds: float) -> None:
    """Measure what a function makes, with the model of another one or alone."""
    made = make(dataset, tf.data.Dataset)
    if model is None:
        report_input(dataset, made, max_seconds=max_seconds)
        return
    network = make(model, keras.Model)
    if not network.compiled:
        raise UnmeasurableTraining(
            f"{model} returns a model that is not compiled: call compile on it"
        )
    report(dataset, network, made, max_seconds=max_seconds)


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
            raise UnmeasurableTraining(f"{script} does not exist")
        sys.argv = [str(script), *options.arguments]
        sys.path.insert(0, str(script.parent.resolve()))
        with measured_instead_of_fitted(script.name, max_seconds=options.seconds):
            runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
