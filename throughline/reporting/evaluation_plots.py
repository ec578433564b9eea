"""Pictures of a training: confused classes, losses, and the images of a batch."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from throughline.measurement.spikes import Spike, find_spikes
from throughline.reporting.plots import INK, TRAIN, WAITING, new_figure, save_figure, style_axes
from throughline.results.evaluation import Confusion, Evaluation
from throughline.results.receipt import Receipt, name_step, read_losses

PER_ROW = 6  # pictures
LONGEST_NAME = 18  # characters
DRAWN = 1000  # most points of a curve; a point shows the range of several steps if necessary
DARK = 0.5  # numbers are white above this share of the color scale


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


def plot_images(rows: Sequence[Mapping[str, str]], images: np.ndarray, stem: Path) -> None:
    """Draw images (n, height, width[, channels]) uint8 with labels and predictions from `rows`."""
    height, width = images.shape[1:3]
    lines = -(-len(rows) // PER_ROW)
    figure = new_figure(9, lines * (0.55 + 1.45 * min(1.5, height / width)))
    for place, (row, pixels) in enumerate(zip(rows, images, strict=True), 1):
        axes = figure.add_subplot(lines, PER_ROW, place)
        axes.imshow(pixels, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        axes.set_axis_off()
        predicted = f"{_shorten(row['predicted'])} {row['probability']}".rstrip()
        axes.set_title(f"{_shorten(row['label'])}\n→ {predicted}", fontsize=7.5, color=INK)
    save_figure(figure, stem)


def plot_losses(losses: np.ndarray, spikes: Sequence[Spike], per_epoch: int, stem: Path) -> None:
    """Draw the loss of each step (steps,), `per_epoch` in an epoch, and mark its spikes."""
    figure = new_figure(9, 2.6)
    axes = figure.subplots()
    size = -(-len(losses) // DRAWN)
    groups = [losses[start : start + size] for start in range(0, len(losses), size)]
    starts = np.arange(len(groups)) * size + 1
    if size > 1:
        lows, highs = ([edge(group) for group in groups] for edge in (np.nanmin, np.nanmax))
        axes.fill_between(starts, lows, highs, color=TRAIN, alpha=0.25, linewidth=0)
    axes.plot(starts, [np.nanmedian(group) for group in groups], color=TRAIN, linewidth=0.8)
    last, lines, top = -len(losses), 0, 0.0
    for spike in sorted(spikes, key=lambda spike: spike.step):
        axes.plot(spike.step + 1, spike.loss, "o", color=WAITING, markersize=4)
        # Put the names of neighboring spikes one above the other.
        near = spike.step - last < len(losses) / 20
        last, lines = spike.step, lines + 1 if near else 0
        top = max(top, spike.loss) if near else spike.loss
        above = (3, 4 + 9 * lines)
        note = {"textcoords": "offset points", "xytext": above, "fontsize": 8, "color": INK}
        axes.annotate(name_step(spike.step, per_epoch), (spike.step + 1, top), **note)
    axes.set_xlabel("step", color=INK)
    axes.set_ylabel("loss", color=INK)
    style_axes(axes)
    save_figure(figure, stem)


def plot_evaluation(folder: Path, out: Path) -> None:
    """Draw confusion matrix and losses of a configuration's training, if there are any."""
    evaluation, losses = Evaluation.read(folder), read_losses(folder)
    if spikes := find_spikes(losses):
        plot_losses(losses, spikes, Receipt.read(folder).steps_per_epoch, out / "losses")
    if evaluation.confusion:
        plot_confusion(evaluation.confusion, out / "confusion")


def _shorten(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"…{name[1 - LONGEST_NAME :]}"
