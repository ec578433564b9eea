"""Pictures of results: throughput against its ceilings, and a timeline of real steps. SVG for pages, PNG for everything else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from tasks.evidence.xspace import STEP, WAIT, Event
from tasks.files import atomic_file

INK, TRAIN, INPUT, MODEL, WAITING = "#5b6472", "#2f6fde", "#16a085", "#e08e2b", "#d64545"
LANES = 8
mpl.rcParams["svg.hashsalt"] = "throughline"  # the same figure gives the same file


def plot_throughput(rows: Sequence[Mapping[str, float | str]], folder: Path) -> None:
    """Draw training throughput of each configuration between its input-only and model-only ceilings.

    An input ceiling far beyond what any training could use is an arrow at the edge with its figure.
    """
    figure = _figure(8, 0.62 * len(rows) + 1.6)
    axes = figure.subplots()
    trained, fed, computed = ([float(row[key]) for row in rows] for key in ("train_examples_per_s", "input_examples_per_s", "model_examples_per_s"))
    edge = 1.3 * max(*trained, *computed)
    places = range(len(rows))
    axes.barh(places, trained, height=0.5, color=TRAIN, label="training")
    axes.scatter(computed, places, marker="|", s=420, linewidths=3, color=MODEL, label="model alone", zorder=3)
    near = [place for place in places if fed[place] < edge]
    axes.scatter([fed[place] for place in near], near, marker="|", s=420, linewidths=3, color=INPUT, label="input alone", zorder=3)
    for place in places:
        note = {"textcoords": "offset points", "va": "center", "fontsize": 9}
        axes.annotate(f"{trained[place]:,.0f}", (trained[place], place), (-6, 0), ha="right", color="white", **note)
        if place not in near:
            axes.annotate(f"{fed[place]:,.0f} ▶", (edge, place), (-2, 0), ha="right", color=INPUT, **note)
    axes.set_yticks(places, [str(row["pipeline"]) for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, edge)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_xlabel("examples per second")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    _plain(axes)
    _save(figure, folder / "throughput")


def plot_timeline(events: Sequence[Event], folder: Path, *, title: str, steps: int = 6) -> None:
    """Draw the last traced steps as lanes over real time: the step, its wait for input, and the busiest iterators."""
    marks = [event for event in events if event.name == STEP][-steps:]
    if not marks:
        return
    begin, end = marks[0].start_ms, marks[-1].start_ms + marks[-1].duration_ms
    lanes: dict[str, list[Event]] = {"train step": marks, "waiting for input": [event for event in events if event.name == WAIT]}
    busy: dict[str, float] = {}
    for event in events:
        if event.name.startswith("Iterator::") and event.label and "Dataset:" not in event.label:
            lanes.setdefault(event.label, []).append(event)
            busy[event.label] = busy.get(event.label, 0) + event.duration_ms
    shown = ["train step", "waiting for input", *sorted(busy, key=lambda name: -busy[name])[: LANES - 2]]
    figure = _figure(9, 0.42 * len(shown) + 1.3)
    axes = figure.subplots()
    for place, lane in enumerate(shown):
        spans = [event for event in lanes[lane] if event.start_ms < end and event.start_ms + event.duration_ms > begin]
        color = TRAIN if lane == "train step" else WAITING if lane == "waiting for input" else INPUT
        axes.broken_barh([(event.start_ms - begin, event.duration_ms) for event in spans], (place - 0.35, 0.7), color=color, alpha=0.85)
    axes.set_yticks(range(len(shown)), shown)
    axes.invert_yaxis()
    axes.set_xlim(0, end - begin)
    axes.set_xlabel("milliseconds")
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    _plain(axes)
    _save(figure, folder / "timeline")


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout="constrained")


def _plain(axes) -> None:  # noqa: ANN001 - matplotlib has no public type for it
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK)
    axes.xaxis.label.set_color(INK)


def _save(figure: Figure, stem: Path) -> None:
    with atomic_file(stem.with_suffix(".svg")) as temporary:
        figure.savefig(temporary, format="svg", transparent=True, metadata={"Date": None})
    with atomic_file(stem.with_suffix(".png")) as temporary:
        figure.savefig(temporary, format="png", dpi=144)
