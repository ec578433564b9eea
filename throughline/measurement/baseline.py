"""The held-out examples that judge a model: their number, and a constant prediction's score."""

import math
from collections.abc import Sequence

import numpy as np

from throughline.pipelines.read.prepared_data import PreparedData
from throughline.plan.steps import TokenWindow
from throughline.results.train import HeldOut, standard_error


def describe_held_out(data: PreparedData, *, targets: Sequence[int] | None = None) -> HeldOut:
    """Describe the test split, or else validation; `targets` are a series' predicted columns."""
    split = _find_split(data)
    if targets is None and not data.shards.schema.predicts_number:
        labels = np.asarray(data.memmap(split, "label"))
        share, count = float(np.bincount(labels).max() / len(labels)), len(labels)
        return _held_out(split, count, share, standard_error(share, count))
    column = "label" if targets is None else data.shards.schema.input.name
    columns = slice(None) if targets is None else list(targets)

    def values(of: str) -> np.ndarray:
        numbers = np.asarray(data.memmap(of, column), np.float64)
        return numbers.reshape(len(numbers), -1)[:, columns]

    distances = np.abs(values(split) - np.median(values("train"), axis=0)).mean(axis=1)
    find_error = standard_error_of_mean if targets is None else standard_error_in_time
    return _held_out(split, len(distances), float(distances.mean()), find_error(distances))


def describe_next_tokens(data: PreparedData, window: TokenWindow) -> HeldOut:
    """Describe the windows of the test split, or else of validation.

    The constant prediction is the most frequent token. Windows are assumed to be independent;
    tokens of the same window are not.
    """
    split = _find_split(data)
    windows = data.count_examples(split, window)
    tokens = np.asarray(data.memmap(split, data.shards.schema.input.name))
    targets = tokens[1 : 1 + windows * window.length].reshape(windows, window.length)
    shares = (targets == np.bincount(targets.reshape(-1)).argmax()).mean(axis=1)
    share = float(shares.mean())
    error = float(shares.std() / math.sqrt(windows))
    # A few windows may agree by chance.
    return _held_out(split, windows, share, max(error, standard_error(share, targets.size)))


def _find_split(data: PreparedData) -> str:
    return "test" if "test" in data.shards.splits else "validation"


def _held_out(split: str, examples: int, metric: float, stderr: float) -> HeldOut:
    return HeldOut(split=split, examples=examples, constant_metric=metric, constant_stderr=stderr)


def standard_error_of_mean(distances: np.ndarray) -> float:
    """Return the standard error of the mean of distances (examples,), which are not negative.

    At least mean ÷ examples, as if one of them were not 0: a few may be equal by chance.
    """
    count = len(distances)
    return float(max(distances.std() / math.sqrt(count), distances.mean() / count))


def standard_error_in_time(values: np.ndarray) -> float:
    """Return the standard error of the mean of a series (time steps,), whose values are correlated.

    Sums the variance and the covariances with later values, up to the first pair of lags whose sum
    is not positive: the initial positive sequence of Geyer, "Practical Markov Chain Monte Carlo",
    Statistical Science 7 (1992). Oscillations beyond it count as noise, so periods make the error
    larger rather than smaller.
    """
    count, centered = len(values), values - values.mean()
    spectrum = np.fft.rfft(centered, 2 * count)  # padded, so the end is not next to the start
    covariances = np.fft.irfft(np.abs(spectrum) ** 2)[: count - count % 2] / count
    pairs = covariances.reshape(-1, 2).sum(axis=1)
    positive = pairs[: int(np.argmin(pairs > 0)) if not (pairs > 0).all() else None]
    variance = max(2 * positive.sum() - covariances[:1].sum(), values.var())
    return math.sqrt(variance / count)
