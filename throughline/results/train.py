"""The result of train: speed, quality and used resources of a training, and its MLflow run."""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist

from scipy.special import betainc

from throughline.results.base import ResultFile, Usage
from throughline.shared.errors import expect_current_schema
from throughline.shared.files import atomic_file

HISTORY = "history.csv"
# A difference of held-out metrics of more than this many standard errors is significant.
SIGNIFICANT_STDERRS = 3
# Fewer steps are mostly starts and ends of epochs.
LEAST_STEPS = 20
# The share of useless models that may pass as better than a constant prediction.
CHANCE = 0.05


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """The split of a training's final metric.

    `constant_metric` is that of the best constant prediction: the accuracy of the most frequent
    class or token, or the mean absolute error of the training split's median. Its standard error
    assumes that the `examples` are independent, except in a series.
    """

    split: str
    examples: int
    constant_metric: float
    constant_stderr: float

    @property
    def trials(self) -> int:
        """The number of independent trials behind an accuracy, usually the number of examples."""
        return count_trials(self.constant_metric, self.constant_stderr) or self.examples


@dataclass(frozen=True, kw_only=True)
class TrainThroughput:
    """The median rate of a training's warm epochs, or its only epoch's, and its first epoch's."""

    train_examples_per_s: float
    cold_examples_per_s: float

    @property
    def warm_examples_per_s(self) -> float | None:
        """The median of the warm epochs; None if the only epoch began cold."""
        warm = self.train_examples_per_s != self.cold_examples_per_s
        return self.train_examples_per_s if warm else None


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Step times of the warm epochs, or of the only epoch, without the first steps of each."""

    ms_p50: float
    ms_p95: float
    ms_p99: float
    count: int


@dataclass(frozen=True, kw_only=True)
class TrainResult(ResultFile, file="train.json", stage="train@{name}"):
    """The result of a training.

    Attributes:
      last_epoch: Metrics by Keras' names; those of validation belong to the weights that are kept.
      test: Metrics on the test split; empty without one.
      throughput: None if nothing was timed.
      step: None if all steps had been trained before an interruption.
      processes: Their number; with random layers, only the same number repeats it exactly.
      machine: Cores and GPUs of the first process.
    """

    metric: str
    held_out: HeldOut
    last_epoch: Mapping[str, float]
    test: Mapping[str, float] = field(default_factory=dict)
    throughput: TrainThroughput | None
    step: StepTimes | None
    cpu_seconds_per_1k_examples: float | None
    usage: Usage
    processes: int = 1
    machine: str = ""

    @property
    def epochs_doubt(self) -> str:
        """Why the rate of its epochs does not compare with a race's; "" if it does."""
        if self.throughput is None or self.throughput.warm_examples_per_s is None:
            return "its one epoch, with the start"
        steps = self.step.count if self.step else 0
        return f"{steps:,} steps: mostly starts and ends of epochs" * (steps < LEAST_STEPS)

    @property
    def judged(self) -> float:
        """The metric on the test split, or on validation without one; NaN if not computed."""
        return self.test.get(self.metric, self.last_epoch.get(f"val_{self.metric}", float("nan")))


@dataclass(frozen=True, kw_only=True)
class RunRecord(ResultFile, file="run.json", stage="train@{name}"):
    """The MLflow run of a training; if the server was away, it is found later by tag `unsent`."""

    mlflow_run_id: str | None
    unsent: str | None = None


def train_metrics(trained: TrainResult) -> dict[str, float | None]:
    """Return the measurements of train under their names in MLflow; None means not measured."""
    throughput, step, usage = trained.throughput, trained.step, trained.usage
    return {
        "throughput/train_examples_per_s": throughput and throughput.train_examples_per_s,
        "step/ms_p50": step and step.ms_p50,
        "step/ms_p95": step and step.ms_p95,
        "step/ms_p99": step and step.ms_p99,
        **{f"test/{name}": value for name, value in trained.test.items()},
        "cpu/seconds_per_1k_examples": trained.cpu_seconds_per_1k_examples,
        "cpu/utilization_pct": usage.cpu_utilization_pct,
        "memory/rss_mb_max": usage.rss_mb_max,
        "disk/read_mb": usage.disk_read_mb,
        "gpu/utilization_pct_mean": usage.gpu_utilization_pct_mean,
        "gpu/utilization_pct_p10": usage.gpu_utilization_pct_p10,
        "gpu/memory_mb_max": usage.gpu_memory_mb_max,
        "gpu/power_w_mean": usage.gpu_power_w_mean,
    }


def validation_metrics(trained: TrainResult) -> dict[str, float]:
    """Return the kept model's validation metrics by MLflow's names; not always the last epoch's."""
    return {
        f"val/{name.removeprefix('val_')}": value
        for name, value in trained.last_epoch.items()
        if name.startswith("val_")
    }


def standard_error(share: float, examples: int) -> float:
    """Return the standard error of a share of `examples`; never 0, as one example could differ."""
    one = 1 / max(2, examples)
    return math.sqrt(max(share * (1 - share), one * (1 - one)) / examples)


def count_trials(share: float, stderr: float) -> int:
    """Return the number of independent trials that gives a share this standard error, or 0."""
    return round(share * (1 - share) / stderr**2) if stderr > 0 else 0


def describe_weakness(result: TrainResult) -> str | None:
    """Say that a model is not better, beyond chance, than a constant prediction; None if it is."""
    metric, held_out, value = result.metric, result.held_out, result.judged
    constant = held_out.constant_metric
    if beats_constant(metric, value, constant=constant, stderr=held_out.constant_stderr):
        return None
    return (
        f"{held_out.split} {metric} {value:.4g} on {held_out.examples:,} examples is not better,"
        f" beyond chance, than a constant prediction's {constant:.4g}"
    )


def beats_constant(metric: str, value: float, *, constant: float, stderr: float) -> bool:
    """Return whether a metric is better, beyond chance, than a constant prediction's.

    Accuracies: the exact binomial test, with as many trials as the standard error implies.
    """
    if metric == "mae":
        return constant - value > NormalDist().inv_cdf(1 - CHANCE) * stderr
    if not value > constant:
        return False
    trials = count_trials(constant, stderr)
    successes = round(value * trials)
    tail = betainc(successes, trials - successes + 1, constant)  # P(at least so many successes)
    return successes > 0 and bool(tail < CHANCE)


def write_history(folder: Path, epochs: Sequence[Mapping[str, float]]) -> None:
    """Write history.csv: one line per epoch; a cell is empty if its epoch lacks the value."""
    columns = dict.fromkeys(name for epoch in epochs for name in epoch)
    with atomic_file(folder / HISTORY) as temporary, temporary.open("w", newline="") as file:
        writer: csv.DictWriter[str] = csv.DictWriter(file, [*columns])
        writer.writeheader()
        writer.writerows(epochs)


def read_history(folder: Path) -> list[dict[str, float]]:
    """Read the epochs of history.csv, each with a value per column that is not empty.

    Raises:
      MissingInput, DamagedFile: If it does not exist, or is not a table of numbers.
    """
    path = folder / HISTORY
    with expect_current_schema(path, f"train@{folder.name}"), path.open(newline="") as file:
        rows = [*csv.DictReader(file)]
        if not rows:
            raise ValueError("it has no epoch")
        return [{name: float(cell) for name, cell in row.items() if cell != ""} for row in rows]
