"""Pictures show what they are given; the same values give the same file."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.made_up import made_up
from tests.support.rows import row
from throughline.reporting.comparison_plots import plot_histories, plot_throughput
from throughline.reporting.evaluation_plots import plot_evaluation, plot_images
from throughline.reporting.plots import TRAIN_LANE, WAITING_LANE, plot_timelines
from throughline.reporting.tuning_plots import MOST_SHOWN, list_measured, plot_search
from throughline.results.evaluation import Confusion, Evaluation
from throughline.results.receipt import LOSSES, Receipt
from throughline.results.tuning import TunedCandidate, TuningResult
from throughline.shared.errors import MissingInput

pytestmark = pytest.mark.integration


def texts_of(stem: Path) -> list[str]:
    """The texts of an SVG file; its PNG must be a picture."""
    with Image.open(stem.with_suffix(".png")) as picture:
        assert min(picture.size) > 100
    return re.findall(r"<text[^>]*>(.*?)</text>", stem.with_suffix(".svg").read_text(), re.DOTALL)


@pytest.mark.slow
def test_timelines_end_where_the_shortest_does(tmp_path):
    long_name = "parse_decode_resize_random_crop_flip"
    within = {TRAIN_LANE: [(0.0, 3.0)], WAITING_LANE: [(1.0, 2.0)], long_name: [(0.0, 2.0)]}
    for stem, end in (("one", 40.0), ("other", 80.0)):
        longer = {TRAIN_LANE: [(0.0, 2.0), (5.0, end)]}
        plot_timelines({"naive: input-bound": within, "b": longer}, tmp_path / stem)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()
    texts = texts_of(tmp_path / "one")
    assert {"naive: input-bound", "train step", "waiting for input", "milliseconds"} <= set(texts)
    assert f"{long_name[:25]}…" in texts and long_name not in texts


@pytest.mark.parametrize(("fed", "noted"), [(129.0, False), (12_345.0, True)])
def test_a_ceiling_far_beyond_any_training_is_an_arrow_with_its_value(tmp_path, fed, noted):
    """The axis ends at 1.3 × 100 examples per second; epochs that do not compare do not count."""
    start = {"train_examples_per_s": 999.0, "epochs_doubt": "its one epoch, with the start"}
    rows = [row("naive", 50.0, input_examples_per_s=fed), row("optimized", 98.0, **start)]
    plot_throughput(rows, tmp_path)
    texts = texts_of(tmp_path / "throughput")
    assert {"naive", "optimized", "50", "98", "examples per second"} <= set(texts)
    assert (f"{fed:,.0f} ▶" in texts) is noted
    assert "400 ▶" in texts


@pytest.mark.slow
def test_histories_show_the_loss_and_the_metric_of_each_configuration(tmp_path):
    epochs = [{"epoch": one, "val_loss": 1 / (one + 1), "val_accuracy": 0.5} for one in range(3)]
    plot_histories({"naive": epochs, "optimized": epochs[:2]}, "accuracy", tmp_path / "both")
    texts = texts_of(tmp_path / "both")
    titles = [text for text in texts if text.startswith("validation")]
    assert titles == ["validation loss", "validation accuracy"]
    assert {"naive", "optimized", "epochs"} <= set(texts)
    unnamed = [{"epoch": 0.0, "train_loss": 1.0, "val_score": 0.5}]  # of a test step of one's own
    plot_histories({"naive": unnamed}, "accuracy", tmp_path / "none")
    assert not list(tmp_path.glob("none*"))


def test_confused_classes_losses_and_the_images_of_a_batch_are_drawn(tmp_path):
    confusion = Confusion(classes=("a coat", "a shirt"), counts=((9, 21), (0, 0)), left_out=0)
    found = Evaluation(split="test", examples=30, confusion=confusion)
    found.write(tmp_path / "p" / "evaluation")
    losses = np.linspace(2, 1, 3000, dtype=np.float32)
    losses[[700, 1500]] += 5
    np.save(tmp_path / "p" / LOSSES, losses)
    replace(made_up(Receipt), steps_per_epoch=1000).write(tmp_path / "p")
    plot_evaluation(tmp_path / "p", tmp_path)
    assert {"1/701", "2/501", "step", "loss"} <= set(texts_of(tmp_path / "losses"))
    shown = set(texts_of(tmp_path / "confusion"))
    assert {"a coat", "a shirt", "9", "21", "true", "predicted"} <= shown
    row = {"label": "a coat", "predicted": "a shirt", "probability": "0.870"}
    for name, channels in (("gray", 1), ("color", 3)):
        pixels = np.arange(7 * 8 * 6 * channels, dtype=np.uint8).reshape(7, 8, 6, channels)
        plot_images([row] * 7, pixels, tmp_path / name)
        drawn = (tmp_path / f"{name}.svg").read_text()
        assert drawn.count("<image ") == 7 and "→ a shirt 0.870" in drawn
    with pytest.raises(MissingInput, match="run `dvc repro train@other`"):
        plot_evaluation(tmp_path / "other", tmp_path)


SLOW = replace(made_up(TunedCandidate), name="slow", seconds=90.0, seconds_low=80.0)
FAST = replace(SLOW, name="fast", seconds=12.3, seconds_low=None, seconds_high=None, ram_mib=None)
REFUSED = replace(FAST, name="refused", seconds=None)
ONCE = replace(SLOW, name="once", seconds=80.0, seconds_low=0.0, seconds_high=math.inf)
SEEN = [SLOW, REFUSED, FAST, ONCE]
FOUND = replace(made_up(TuningResult), candidates=SEEN, chosen="fast", epochs=1200)


@pytest.mark.slow
def test_the_picture_of_a_search_names_who_was_measured_and_how_long_it_takes(tmp_path):
    plot_search(FOUND, tmp_path)
    texts = texts_of(tmp_path / "tune")
    named = {"slow", "90.0", "fast", "12.3", "once", "80.0"}
    assert {*named, "preparation and 1,200 epochs [s]"} <= set(texts)
    assert "refused" not in texts
    (tmp_path / "none").mkdir()
    plot_search(replace(FOUND, candidates=[REFUSED]), tmp_path / "none")
    assert not list((tmp_path / "none").iterdir()), "nothing was measured"


def test_the_choice_of_a_search_is_shown_however_many_were_faster():
    many = [replace(FAST, name=str(number), seconds=float(number)) for number in range(99)]
    names = [each.name for each in list_measured(replace(FOUND, candidates=many, chosen="77"))]
    assert names == [*map(str, range(MOST_SHOWN)), "77"]
