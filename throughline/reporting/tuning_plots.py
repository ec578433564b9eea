"""A picture of a search: each candidate's training time, memory and disk."""

from pathlib import Path

from matplotlib.ticker import MaxNLocator

from throughline.reporting.plots import (
    INK,
    INPUT,
    MODEL,
    TRAIN,
    new_figure,
    save_figure,
    style_axes,
)
from throughline.results.tuning import TunedCandidate, TuningResult

MOST_SHOWN = 24
PALE = 0.4  # opacity of candidates that are not chosen


def plot_search(result: TuningResult, folder: Path) -> None:
    """Draw the measured candidates, fastest first: training time with interval, memory and disk.

    The choice is in full color. No file is written if none was measured.
    """
    shown = list_measured(result)
    if not shown:
        return
    figure = new_figure(9, 0.3 * len(shown) + 1.3)
    columns = figure.subplots(1, 3, sharey=True, gridspec_kw={"width_ratios": (3, 1, 1)})
    places = range(len(shown))
    times = [each.seconds or 0.0 for each in shown]
    for axes, color, title, values in zip(
        columns,
        (TRAIN, MODEL, INPUT),
        (f"preparation and {result.epochs:,} epochs [s]", "memory [MiB]", "disk [MiB]"),
        (times, [each.ram_mib or 0.0 for each in shown], [each.disk_mib for each in shown]),
        strict=True,
    ):
        for place, value in zip(places, values, strict=True):
            solid = shown[place].name == result.chosen
            axes.barh(place, value, height=0.62, color=color, alpha=1.0 if solid else PALE)
        axes.set_xlim(0, 1.05 * max(*values, 1.0))
        axes.xaxis.set_major_locator(MaxNLocator(3))
        axes.set_title(title, loc="left", fontsize=9, color=INK)
        style_axes(axes)
    lows, highs = [each.seconds_low for each in shown], [each.seconds_high for each in shown]
    # The interval of a single round is infinite.
    ends = [
        max(time, min(high or time, 1.3 * max(times)))
        for time, high in zip(times, highs, strict=True)
    ]
    reach = [
        [max(0.0, time - (low or time)) for time, low in zip(times, lows, strict=True)],
        [end - time for time, end in zip(times, ends, strict=True)],
    ]
    axes = columns[0]
    axes.errorbar(times, places, xerr=reach, fmt="none", ecolor=INK, elinewidth=1, capsize=2.5)
    note = {"textcoords": "offset points", "va": "center", "fontsize": 8, "color": INK}
    for place in places:
        axes.annotate(f"{times[place]:,.1f}", (ends[place], place), (6, 0), **note)
    axes.set_xlim(0, 1.12 * max(ends))
    axes.set_yticks(places, [each.name for each in shown], fontsize=8)
    axes.invert_yaxis()
    save_figure(figure, (folder / TuningResult.PICTURE).with_suffix(""))


def list_measured(result: TuningResult) -> list[TunedCandidate]:
    """List the fastest measured candidates in order, including the choice."""
    measured = [each for each in result.candidates if each.seconds is not None]
    measured.sort(key=lambda each: each.seconds or 0.0)
    chosen = [each for each in measured[MOST_SHOWN:] if each.name == result.chosen]
    return [*measured[:MOST_SHOWN], *chosen]
