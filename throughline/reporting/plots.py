"""Timelines of real steps, of one or several configurations. SVG for pages, PNG elsewhere."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from throughline.shared.files import atomic_file

INK, TRAIN, INPUT, MODEL, WAITING = "#5b6472", "#2f6fde", "#16a085", "#e08e2b", "#d64545"
TRAIN_LANE, WAITING_LANE = "train step", "waiting for input"
# Steps of a plan that in traces deliver stored examples in an order, or work on examples. Maps work
# on examples, too; their lanes have the names of their ops.
READING = (
    "columns", "epochs", "gather", "interleave", "order", "read", "records", "sample", "shards",
    "steps",
)  # fmt: skip
WORKING = (
    "batch", "bucket_batch", "cache_disk", "cache_memory", "cache_save_load", "class", "rows",
    "select", "service", "shuffle", "tf_snapshot", "tokens", "window",
)  # fmt: skip
LANE_COLORS = {
    TRAIN_LANE: TRAIN,
    WAITING_LANE: WAITING,
    **dict.fromkeys(READING, MODEL),
    **dict.fromkeys(WORKING, INPUT),
}
mpl.rcParams["text.parse_math"] = False  # a name with two $ is not a formula
mpl.rcParams["svg.fonttype"] = "none"  # names of any script, in the reader's fonts
mpl.rcParams["svg.hashsalt"] = "throughline"  # the same figure gives the same file


def plot_timelines(
    timelines: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], stem: Path
) -> None:
    """Draw timelines, by title, on one scale; each has lanes of (begin, end) [ms]."""
    heights = [0.34 * len(lanes) + 0.75 for lanes in timelines.values()]
    figure = new_figure(9, sum(heights) + 0.2)
    # All begin at 0, and the shortest sets the length: equal widths are equal times.
    length = min(
        max(end for spans in lanes.values() for _, end in spans) for lanes in timelines.values()
    )
    ratios = {"height_ratios": heights}
    grid = figure.subplots(len(heights), 1, gridspec_kw=ratios, squeeze=False)[:, 0]
    for axes, (title, lanes) in zip(grid, timelines.items(), strict=True):
        for place, (lane, spans) in enumerate(lanes.items()):
            axes.broken_barh(
                [(begin, end - begin) for begin, end in spans if begin < length],
                (place - 0.36, 0.72),
                facecolor=LANE_COLORS.get(lane, INPUT),
                edgecolor="white",
                linewidth=1.2 if lane == TRAIN_LANE else 0,  # steps are apart
            )
        axes.set_yticks(range(len(lanes)), [shorten(lane) for lane in lanes])
        axes.invert_yaxis()
        axes.set_xlim(0, length)
        axes.set_title(shorten(title, 110), loc="left", fontsize=9, color=INK)
        axes.set_xlabel("milliseconds")
        style_axes(axes)
    save_figure(figure, stem)


def shorten(text: str, most: int = 26) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def new_figure(width: float, height: float) -> Figure:
    """Make an empty figure [inches]."""
    return Figure(figsize=(width, height), layout="constrained")


def style_axes(axes) -> None:  # noqa: ANN001 - matplotlib has no public type for it
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK)
    axes.xaxis.label.set_color(INK)


def save_figure(figure: Figure, stem: Path) -> None:
    with atomic_file(stem.with_suffix(".svg")) as temporary:
        figure.savefig(temporary, format="svg", transparent=True, metadata={"Date": None})
    with atomic_file(stem.with_suffix(".png")) as temporary:
        figure.savefig(temporary, format="png", dpi=144)
