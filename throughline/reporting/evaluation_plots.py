"""Pictures of what a model gets wrong: the classes that it confuses, and its worst examples."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.image import imread

from throughline.reporting.plots import INK, new_figure, save_figure
from throughline.results.evaluation import Confusion, Evaluation, WorstExample

PER_ROW = 6  # pictures
LONGEST_NAME = 18  # characters
DARK = 0.5  # share of the color scale from which on numbers are white


def plot_confusion(confusion: Confusion, stem: Path) -> None:
    """Draw the confusion matrix (rows: true classes); colors are shares of a row."""
    counts = np.asarray(confusion.counts, np.float64)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    size = len(confusion.classes)
    figure = new_figure(min(9, 2.6 + 0.45 * size), min(8, 1.4 + 0.36 * size))
    axes = figure.subplots()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    names = [_shorten(name) for name in confusion.classes]
    axes.set_xticks(range(size), names, rotation=45, ha="right", fontsize=8)
    axes.set_yticks(range(size), names, fontsize=8)
    for row, column in np.argwhere(counts > 0).tolist():
        color = "white" if shares[row, column] > DARK else INK
        text = f"{counts[row, column]:,.0f}"
        axes.text(column, row, text, ha="center", va="center", fontsize=7, color=color)
    axes.set_xlabel("predicted", color=INK)
    axes.set_ylabel("true", color=INK)
    axes.tick_params(colors=INK, length=0)
    axes.spines[:].set_visible(False)
    save_figure(figure, stem)


def plot_worst(worst: Sequence[WorstExample], picture: Path, stem: Path) -> None:
    """Draw the worst examples with their classes; `picture` shows them one below the other."""
    pixels = imread(picture)
    height = len(pixels) // len(worst)
    rows = -(-len(worst) // PER_ROW)
    figure = new_figure(9, rows * (0.55 + 1.45 * min(1.5, height / pixels.shape[1])))
    for place, example in enumerate(worst):
        _draw(figure, (rows, PER_ROW, place + 1), pixels[place * height :][:height], example)
    save_figure(figure, stem)


def plot_evaluation(folder: Path, out: Path) -> None:
    """Draw the evaluation in a configuration's folder as `confusion` and `worst` into `out`."""
    evaluation = Evaluation.read(folder)
    if evaluation.confusion:
        plot_confusion(evaluation.confusion, out / "confusion")
    if evaluation.picture:
        plot_worst(evaluation.worst, evaluation.picture_path(folder), out / "worst")


def _draw(
    figure: Figure, place: tuple[int, int, int], pixels: np.ndarray, example: WorstExample
) -> None:
    axes = figure.add_subplot(*place)
    axes.imshow(pixels, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set_axis_off()
    share = "" if example.probability is None else f" {example.probability:.2f}"
    title = f"{_shorten(example.truth)}\n→ {_shorten(example.predicted)}{share}"
    axes.set_title(title, fontsize=7.5, color=INK)


def _shorten(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"…{name[1 - LONGEST_NAME :]}"
