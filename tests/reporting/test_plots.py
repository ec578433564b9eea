"""Pictures show what they are given; the same values give the same file."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from PIL import Image

from tests.support.project import ROOT
from tests.support.rows import row
from throughline.plan import steps
from throughline.plan.parallelism import Parallelism
from throughline.reporting.comparison_plots import plot_histories, plot_throughput
from throughline.reporting.plots import (
    LANE_COLORS,
    TRAIN_LANE,
    WAITING_LANE,
    plot_steps,
    plot_timelines,
)
from throughline.settings import BatchSettings, InterleaveSettings, ServiceSettings, ShuffleSettings


def texts_of(stem: Path) -> list[str]:
    """The texts of an SVG file; its PNG must be a picture."""
    with Image.open(stem.with_suffix(".png")) as picture:
        assert min(picture.size) > 100
    return re.findall(r"<text[^>]*>(.*?)</text>", stem.with_suffix(".svg").read_text())


def test_a_timeline_has_its_lanes_below_its_title(tmp_path):
    long_name = "parse_decode_resize_random_crop_flip"
    lanes = {TRAIN_LANE: [(0.0, 4.0)], WAITING_LANE: [(4.0, 6.0)], long_name: [(0.0, 9.0)]}
    plot_timelines({"naive: input-bound": lanes}, tmp_path / "timeline")
    texts = texts_of(tmp_path / "timeline")
    assert {"naive: input-bound", "train step", "waiting for input", "milliseconds"} <= set(texts)
    assert f"{long_name[:25]}…" in texts and long_name not in texts


def test_every_transformation_of_a_plan_has_its_color():
    """Maps apart, whose names are those of their ops; the timeline leaves out the prefetch."""
    known = {
        "shuffle": ShuffleSettings(), "sampling": "uniform", "parallel": Parallelism(),
        "batch_size": 1, "whole_batches": True, "batching": BatchSettings(tokens=8), "size": 1,
        "on": "host", "window": None, "ops": (), "example_op_count": 0, "length": 1,
        "horizon": 1, "stride": 1, "targets": (), "settings": ServiceSettings(), "source": "shards",
        "interleave": None,
    }  # fmt: skip
    unnamed = (steps.Map, steps.Prefetch)
    kinds = [kind for kind in steps.Step.__subclasses__() if kind not in unnamed]
    made = [
        *(steps.Cache(where=where) for where in ("memory", "disk", "tf_snapshot", "save_load")),
        steps.Read(source="shards", interleave=InterleaveSettings()),
        *(
            kind(**{field: known[field] for field in kind.__dataclass_fields__ if field in known})
            for kind in kinds
            if kind is not steps.Cache
        ),
    ]
    literal = {
        keyword.value.value
        for package in ("plan", "kernels", "pipelines", "pipelines/order", "pipelines/read")
        for path in (ROOT / "throughline" / package).glob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func) != "tf.Variable"
        for keyword in call.keywords
        if keyword.arg == "name" and isinstance(keyword.value, ast.Constant)
    }
    names = literal | {step.trace_name for step in made}
    assert names == set(LANE_COLORS) - {TRAIN_LANE, WAITING_LANE}


def test_timelines_end_where_the_shortest_does(tmp_path):
    within = {TRAIN_LANE: [(0.0, 3.0)]}
    for stem, end in (("one", 40.0), ("other", 80.0)):
        longer = {TRAIN_LANE: [(0.0, 2.0), (5.0, end)]}
        plot_timelines({"a": within, "b": longer}, tmp_path / stem)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()


def test_the_slowest_hundredth_of_steps_is_left_out(tmp_path):
    usual = [1.0, 2.0] * 50
    for name, slow in (("none", []), ("one", [500.0]), ("three", [500.0] * 3)):
        (tmp_path / name).mkdir()
        plot_steps([*usual, *slow], 1.5, tmp_path / name)
    none, one, three = (
        (tmp_path / name / "steps.svg").read_bytes() for name in ("none", "one", "three")
    )
    assert none == one != three
    assert "model alone" in texts_of(tmp_path / "one" / "steps")


@pytest.mark.parametrize(("fed", "noted"), [(129.0, False), (131.0, True), (12_345.0, True)])
def test_a_ceiling_far_beyond_any_training_is_an_arrow_with_its_value(tmp_path, fed, noted):
    """The axis ends at 1.3 × 100 examples per second."""
    plot_throughput([row("naive", 0.5, input_examples_per_s=fed), row("optimized", 0.98)], tmp_path)
    texts = texts_of(tmp_path / "throughput")
    assert {"naive", "optimized", "50", "98", "examples per second"} <= set(texts)
    assert (f"{fed:,.0f} ▶" in texts) is noted
    assert "400 ▶" in texts


def test_histories_show_the_loss_and_the_metric_of_each_configuration(tmp_path):
    epochs = [
        {"epoch": number, "val_loss": 1 / (number + 1), "val_accuracy": 0.5} for number in range(3)
    ]
    plot_histories({"naive": epochs, "optimized": epochs[:2]}, "accuracy", tmp_path / "both")
    texts = texts_of(tmp_path / "both")
    assert [text for text in texts if text.startswith("validation")] == [
        "validation loss",
        "validation accuracy",
    ]
    assert {"naive", "optimized", "epochs"} <= set(texts)
    plot_histories({"naive": epochs}, "loss", tmp_path / "loss")
    assert texts_of(tmp_path / "loss").count("validation loss") == 1
    # A model of one's own need not be compiled with the metric that models are compared by.
    plot_histories({"naive": epochs}, "mae", tmp_path / "without")
    assert [text for text in texts_of(tmp_path / "without") if text.startswith("validation")] == [
        "validation loss"
    ]


def test_histories_without_a_validation_loss_are_no_picture(tmp_path):
    """Such as those of a test step of one's own that names its metrics otherwise."""
    epochs = [{"epoch": 0.0, "train_loss": 1.0, "val_score": 0.5}]
    plot_histories({"naive": epochs}, "accuracy", tmp_path / "histories")
    assert not list(tmp_path.iterdir())
