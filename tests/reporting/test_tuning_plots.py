"""The picture of a search: every candidate that was measured, the fastest first."""

from __future__ import annotations

import re
from dataclasses import replace

from PIL import Image

from tests.support.made_up import made_up
from throughline.reporting.tuning_plots import MOST_SHOWN, list_measured, plot_search
from throughline.results.tuning import TunedCandidate, TuningResult

SLOW = replace(
    made_up(TunedCandidate), name="slow", seconds=90.0, seconds_low=80.0, seconds_high=95.0
)
FAST = replace(SLOW, name="fast", seconds=12.3, seconds_low=None, seconds_high=None, ram_mib=None)
REFUSED = replace(FAST, name="refused", seconds=None)
FOUND = replace(made_up(TuningResult), candidates=[SLOW, REFUSED, FAST], chosen="fast", epochs=1200)


def test_the_picture_names_who_was_measured_and_how_long_it_takes(tmp_path):
    plot_search(FOUND, tmp_path)
    with Image.open(tmp_path / TuningResult.PICTURE) as picture:
        assert min(picture.size) > 100
    texts = re.findall(r"<text[^>]*>(.*?)</text>", (tmp_path / "tune.svg").read_text())
    assert {"slow", "90.0", "fast", "12.3", "preparation and 1,200 epochs [s]"} <= set(texts)
    assert "refused" not in texts


def test_the_choice_is_shown_however_many_were_faster():
    many = [replace(FAST, name=str(number), seconds=float(number)) for number in range(99)]
    names = [each.name for each in list_measured(replace(FOUND, candidates=many, chosen="77"))]
    assert names == [*map(str, range(MOST_SHOWN)), "77"]


def test_there_is_no_picture_of_nothing(tmp_path):
    plot_search(replace(FOUND, candidates=[REFUSED]), tmp_path)
    assert not list(tmp_path.iterdir())
