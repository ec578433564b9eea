"""Pictures of a comparison: throughput against its ceilings, and validation after each epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
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

SHORTEST_LABELED = 0.15  # of the axis: bars from which on the rate is written within


def plot_throughput(rows: Sequence[Row], folder: Path) -> None:
    """Draw training throughput of each configuration, with the interval of its rounds, between its
    input-only and model-only ceilings.

    An input ceiling far beyond what any training could use is an arrow at the edge with its value;
    training that seems faster than one of its ceilings has a dagger.
    """
    figure = new_figure(8, 0.62 * len(rows) + 1.6)
    axes = figure.subplots()
    trained = [row.steady_examples_per_s for row in rows]
    fed = [row.input_examples_per_s for row in rows]
    computed = [row.model_ceiling_examples_per_s for row in rows]
    reached = [row.steady_examples_per_s_high for row in rows]
    edge = max(1.3 * max(*trained, *computed), 1.2 * max(reached))
    places = range(len(rows))
    axes.barh(places, trained, height=0.5, color=TRAIN, label="training")
    reach = [
        [row.steady_examples_per_s - row.steady_examples_per_s_low for row in rows],
        [high - rate for high, rate in zip(reached, trained, strict=True)],
    ]
    axes.errorbar(trained, places, xerr=reach, fmt="none", ecolor=INK, elinewidth=1, capsize=2.5)
    ceiling = {"marker": "|", "s": 420, "linewidths": 3, "zorder": 3}
    axes.scatter(computed, places, color=MODEL, label="model alone", **ceiling)
    near = [place for place in places if fed[place] < edge]
    axes.scatter([fed[place] for place in near], near, color=INPUT, label="input alone", **ceiling)
    for place in places:
        note = {"textcoords": "offset points", "va": "center", "fontsize": 9}
        rate = f"{trained[place]:,.0f}"
        # Next to a bar that is too short to hold it.
        inside = trained[place] >= SHORTEST_LABELED * edge
        at, color = (0, "white") if inside else (reached[place], INK)
        axes.annotate(rate, (at, place), (6, 0), ha="left", color=color, **note)
        if place not in near:
            axes.annotate(
                f"{fed[place]:,.0f} ▶", (edge, place), (-2, 0), ha="right", color=INPUT, **note
            )
    axes.set_yticks(places, [shorten(row.pipeline) for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, edge)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_xlabel("examples per second")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    style_axes(axes)
    save_figure(figure, folder / "throughput")


def plot_histories(
    histories: Mapping[str, Sequence[Mapping[str, float]]], metric: str, stem: Path
) -> None:
    """Draw the validation loss of each configuration after each of its epochs, and the metric,
    where the trainings followed them; no picture where they followed neither, as a test step of
    one's own may. `histories` are rows of history.csv by configuration.
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
