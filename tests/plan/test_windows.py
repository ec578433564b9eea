"""Windows of a series and of text are refused where a split is too short for one."""

from __future__ import annotations

import pytest

from throughline.plan.windows import choose_token_window, choose_window
from throughline.settings import WindowSettings
from throughline.shared.errors import InvalidParams

SETTINGS = WindowSettings(length=10, horizon=2, targets=["wind"])


def test_a_series_is_cut_where_each_split_holds_a_window():
    window = choose_window(SETTINGS, {"train": 40, "test": 12}, ["rain", "wind"])
    assert (window.length, window.horizon, window.targets) == (10, 2, (1,))
    assert window.count(12) == 1
    with pytest.raises(InvalidParams, match="the test split has 11 time steps, fewer than"):
        choose_window(SETTINGS, {"train": 40, "test": 11}, ["rain", "wind"])
    with pytest.raises(InvalidParams, match="wind is not a column; known: rain"):
        choose_window(SETTINGS, {"train": 40}, ["rain"])


def test_all_columns_are_predicted_where_none_is_named():
    settings = SETTINGS.model_copy(update={"targets": []})
    assert choose_window(settings, {"train": 40}, ["rain", "wind"]).targets == (0, 1)


def test_text_is_cut_where_each_split_has_a_token_more_than_a_window():
    assert choose_token_window(8, {"train": 90, "test": 9}).count(9) == 1
    with pytest.raises(InvalidParams, match="the test split has 8 tokens, fewer than 8 and one"):
        choose_token_window(8, {"train": 90, "test": 8})
