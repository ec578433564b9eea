"""Pictures of a comparison: throughput with its ceilings, and validation by epoch."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from throughline.reporting.plots import (
    INK,
    INPUT,
    MODEL,
    TRAIN,
    new_figure,
    save_figure,
    shorten,
    style_axes,
)
from throughline.results.comparison import Row

SHORTEST_LABELED = 0.15  # a bar of at least this share of the axis contains its rate


def plot_throughput(rows: Sequence[Row], folder: Path) -> None:
    """Draw each configuration's speed in the race, with its interval and ceilings.

    A dot shows the epochs of its own training, if they are comparable with the race. An input
    ceiling far beyond all other figures is an arrow at the edge, with its value.
    """
    figure = new_figure(8, 0.62 * len(rows) + 1.6)
    axes = figure.subplots()
    places = range(len(rows))
    trained = np.array([row.steady_examples_per_s for row in rows])
    computed = [row.model_examples_per_s for row in rows]
    fed = {place: row.input_examples_per_s for place, row in enumerate(rows)}
    own = {
        place: row.train_examples_per_s
        for place, row in enumerate(rows)
        if row.train_examples_per_s is not None and not row.epochs_doubt
    }
    edge = 1.3 * max(*trained, *computed, *own.values(), 1.0)
    axes.barh(places, trained, height=0.5, color=TRAIN, label="training")
    # The interval of a few rounds may be infinite.
    reached = np.minimum([row.steady_examples_per_s_high for row in rows], edge)
    reach = [trained - [row.steady_examples_per_s_low for row in rows], reached - trained]
    axes.errorbar(trained, places, xerr=reach, fmt="none", ecolor=INK, elinewidth=1, capsize=2.5)
    ceiling = {"marker": "|", "s": 420, "linewidths": 3, "zorder": 3}
    axes.scatter(computed, places, color=MODEL, label="model alone", **ceiling)
    near = {place: rate for place, rate in fed.items() if rate is not None and rate < edge}
    axes.scatter([*near.values()], [*near], color=INPUT, label="input alone", **ceiling)
    if own:
        dot = {"s": 34, "color": "white", "edgecolor": INK, "zorder": 4}
        axes.scatter([*own.values()], [*own], label="its epochs", **dot)
    note = {"textcoords": "offset points", "va": "center", "fontsize": 9}
    for place in places:
        rate = f"{trained[place]:,.0f}"
        # The rate is next to a bar that is too short for it.
        inside = trained[place] >= SHORTEST_LABELED * edge
        beside = max(reached[place], near.get(place, 0.0), own.get(place, 0.0))
        at, color = (0, "white") if inside else (beside, INK)
        axes.annotate(rate, (at, place), (6, 0), ha="left", color=color, **note)
        beyond = fed[place]
        if beyond is not None and place not in near:
            axes.annotate(
                f"{beyond:,.0f} ▶", (edge, place), (-2, 0), ha="right", color=INPUT, **note
            )
    axes.set_yticks(places, [shorten(row.pipeline) for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, edge)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_xlabel("examples per second")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, frameon=False)
    style_axes(axes)
    save_figure(figure, folder / "throughput")


def plot_histories(
    histories: Mapping[str, Sequence[Mapping[str, float]]], metric: str, stem: Path
) -> None:
    """Draw validation loss and metric by epoch, for each configuration.

    `histories` are rows of history.csv by configuration. No picture is drawn if the trainings
    recorded neither, as may happen with a user's own test step.
    """
    followed = {column for epochs in histories.values() for epoch in epochs for column in epoch}
    columns = dict.fromkeys(["val_loss", f"val_{metric}"])
    shown = [column for column in columns if column in followed]
    if not shown:
        return
    figure = new_figure(9, max(3.0, 0.2 * len(histories) + 1.0))
    grid = figure.subplots(1, len(shown), squeeze=False)[0]
    colors = mpl.colormaps["tab20"]
    for axes, column in zip(grid, shown, strict=True):
        for number, epochs in enumerate(histories.values()):
            axes.plot(
                [epoch["epoch"] + 1 for epoch in epochs],
                [epoch.get(column, math.nan) for epoch in epochs],
                color=colors(number % colors.N),
                marker="o",
                markersize=3,
                linewidth=1.4,
            )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("epochs")
        axes.set_title(column.replace("val_", "validation "), loc="left", fontsize=9, color=INK)
        style_axes(axes)
    names = [shorten(name) for name in histories]
    figure.legend(grid[0].get_lines(), names, loc="outside right upper", frameon=False, fontsize=8)
    save_figure(figure, stem)
