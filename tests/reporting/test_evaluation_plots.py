"""Pictures of what a model gets wrong name the classes and show the examples."""

from __future__ import annotations

import re

import numpy as np
import pytest
from PIL import Image

from throughline.reporting.evaluation_plots import plot_evaluation
from throughline.results.evaluation import Confusion, Evaluation, WorstExample
from throughline.shared.errors import MissingInput


def test_confused_classes_and_worst_examples_are_drawn(tmp_path):
    worst = [
        WorstExample(
            id=f"{number}.png",
            truth="a coat",
            predicted=f"a shirt {number}",
            probability=0.87,
            loss=2.0,
            value="",
        )
        for number in range(7)
    ]
    folder = tmp_path / "p" / "evaluation"
    folder.mkdir(parents=True)
    Evaluation(
        split="test",
        examples=30,
        confusion=Confusion(classes=("a coat", "a shirt"), counts=((9, 21), (0, 0)), left_out=0),
        worst=tuple(worst),
        picture=True,
    ).write(folder)
    pixels = np.arange(7 * 8 * 6, dtype=np.uint8).reshape(7 * 8, 6)
    Image.fromarray(pixels).save(Evaluation.picture_path(tmp_path / "p"))
    plot_evaluation(tmp_path / "p", tmp_path)
    texts = re.findall(
        r"<text[^>]*>(.*?)</text>", (tmp_path / "confusion.svg").read_text(), re.DOTALL
    )
    assert {"a coat", "a shirt", "9", "21", "true", "predicted"} <= set(texts)
    drawn = (tmp_path / "worst.svg").read_text()
    assert drawn.count("<image ") == 7
    assert "→ a shirt 6 0.87" in drawn


def test_without_an_evaluation_it_is_said_what_makes_one(tmp_path):
    with pytest.raises(MissingInput, match="run `dvc repro train@p`"):
        plot_evaluation(tmp_path / "p", tmp_path)
