"""Pictures of results: throughput against its ceilings, and a timeline of real steps. SVG for
pages, PNG for everything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from tasks.files import atomic_file

INK, TRAIN, INPUT, MODEL, WAITING = "#5b6472", "#2f6fde", "#16a085", "#e08e2b", "#d64545"
TRAIN_LANE, WAITING_LANE = "train step", "waiting for input"
READING = ("read", "interleave", "shards", "sample")
mpl.rcParams["svg.hashsalt"] = "throughline"  # the same figure gives the same file


def plot_throughput(rows: Sequence[Mapping[str, float | str]], folder: Path) -> None:
    """Draw training throughput of each configuration, with the spread of its rounds, between its
    input-only and model-only ceilings.

    An input ceiling far beyond what any training could use is an arrow at the edge with its value.
    """
    figure = _figure(8, 0.62 * len(rows) + 1.6)
    axes = figure.subplots()
    trained, fed, computed = (
        [float(row[key]) for row in rows]
        for key in ("steady_examples_per_s", "input_examples_per_s", "ceiling_examples_per_s")
    )
    edge = 1.3 * max(*trained, *computed)
    places = range(len(rows))
    axes.barh(places, trained, height=0.5, color=TRAIN, label="training")
    within = [
        [float(row[f"steady_examples_per_s_{end}"]) for row in rows] for end in ("low", "high")
    ]
    reach = [
        [rate - low for rate, low in zip(trained, within[0], strict=True)],
        [high - rate for rate, high in zip(trained, within[1], strict=True)],
    ]
    axes.errorbar(trained, places, xerr=reach, fmt="none", ecolor=INK, elinewidth=1, capsize=2.5)
    axes.scatter(
        computed,
        places,
        marker="|",
        s=420,
        linewidths=3,
        color=MODEL,
        label="model alone",
        zorder=3,
    )
    near = [place for place in places if fed[place] < edge]
    axes.scatter(
        [fed[place] for place in near],
        near,
        marker="|",
        s=420,
        linewidths=3,
        color=INPUT,
        label="input alone",
        zorder=3,
    )
    for place in places:
        note = {"textcoords": "offset points", "va": "center", "fontsize": 9}
        axes.annotate(
            f"{trained[place]:,.0f}", (0, place), (6, 0), ha="left", color="white", **note
        )
        if place not in near:
            axes.annotate(
                f"{fed[place]:,.0f} ▶", (edge, place), (-2, 0), ha="right", color=INPUT, **note
            )
    axes.set_yticks(places, [str(row["pipeline"]) for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, edge)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_xlabel("examples per second")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    _style_axes(axes)
    _save(figure, folder / "throughput")


def plot_timelines(
    timelines: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], stem: Path
) -> None:
    """Draw timelines one below the other over the same length of real time: by title, lanes of
    (begin, end) [ms].
    """
    heights = [0.34 * len(lanes) + 0.75 for lanes in timelines.values()]
    figure = _figure(9, sum(heights) + 0.2)
    # All begin at 0, and the shortest sets the scale: the same width is the same time.
    length = min(
        max(end for spans in lanes.values() for _, end in spans) for lanes in timelines.values()
    )
    for axes, (title, lanes) in zip(_rows(figure, heights), timelines.items(), strict=True):
        for place, (lane, spans) in enumerate(lanes.items()):
            steps_apart = 1.2 if lane == TRAIN_LANE else 0
            color = {TRAIN_LANE: TRAIN, WAITING_LANE: WAITING}.get(
                lane, MODEL if lane in READING else INPUT
            )
            axes.broken_barh(
                [(begin, end - begin) for begin, end in spans if begin < length],
                (place - 0.36, 0.72),
                facecolor=color,
                edgecolor="white",
                linewidth=steps_apart,
            )
        axes.set_yticks(range(len(lanes)), [_short(lane) for lane in lanes])
        axes.invert_yaxis()
        axes.set_xlim(0, length)
        axes.set_title(_short(title, 110), loc="left", fontsize=9, color=INK)
        axes.set_xlabel("milliseconds")
        _style_axes(axes)
    _save(figure, stem)


def plot_steps(train_ms: Sequence[float], model_ms: float, folder: Path) -> None:
    """Draw how the times of real steps are distributed, next to what the model alone takes; the
    slowest hundredth is left out.
    """
    shown = [step for step in train_ms if step <= sorted(train_ms)[int(0.99 * (len(train_ms) - 1))]]
    figure = _figure(9, 1.9)
    axes = figure.subplots()
    axes.hist(shown, bins=min(60, max(5, len(shown) // 3)), color=TRAIN)
    axes.axvline(model_ms, color=MODEL, linewidth=2.5)
    axes.annotate(
        "model alone",
        (model_ms, axes.get_ylim()[1]),
        (4, -10),
        textcoords="offset points",
        color=MODEL,
        fontsize=9,
    )
    axes.set_xlim(0, None)
    axes.set_xlabel("milliseconds per step")
    axes.set_ylabel("steps")
    _style_axes(axes)
    _save(figure, folder / "steps")


def _rows(figure: Figure, heights: Sequence[float]) -> list[Axes]:
    grid = figure.subplots(len(heights), 1, gridspec_kw={"height_ratios": heights}, squeeze=False)
    return [row[0] for row in grid]


def _short(text: str, most: int = 26) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout="constrained")


def _style_axes(axes) -> None:  # noqa: ANN001 - matplotlib has no public type for it
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK)
    axes.xaxis.label.set_color(INK)


def _save(figure: Figure, stem: Path) -> None:
    with atomic_file(stem.with_suffix(".svg")) as temporary:
        figure.savefig(temporary, format="svg", transparent=True, metadata={"Date": None})
    with atomic_file(stem.with_suffix(".png")) as temporary:
        figure.savefig(temporary, format="png", dpi=144)
