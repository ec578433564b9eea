"""What callbacks, metrics and builders of one's own may give that is no number, and what is said of
it before or at the first epoch.
"""

from __future__ import annotations

import pytest

from tests.support.trainings import params_of, run
from throughline.shared.errors import UnknownModel

pytestmark = [pytest.mark.slow, pytest.mark.integration]
OWN = """
import keras


class Lists(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        logs["mine"] = [1, 2]


class Words(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        logs["mine"] = "good"


class Counts(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        logs["mine"] = epoch


class Mapped(keras.metrics.Mean):
    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(y_pred)

    def result(self):
        return {"low": super().result(), "high": super().result() + 1}


def two_inputs(input_shape, outputs):
    inputs = [keras.Input(input_shape), keras.Input(input_shape)]
    flat = keras.layers.Flatten()(keras.layers.Add()(inputs))
    return keras.Model(inputs, keras.layers.Dense(outputs)(flat))
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_logs.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)


REFUSED = [
    ("train.callbacks=[own_logs:Lists]", r"puts '\[1, 2\]' into the logs of an epoch as 'mine'"),
    ("train.callbacks=[own_logs:Words]", r"puts 'good' into the logs of an epoch as 'mine'"),
    ("model={name: 'own_logs:two_inputs'}", r"own_logs:two_inputs takes 2 inputs, .* have one"),
]


@pytest.mark.parametrize(("setting", "said"), REFUSED)
def test_what_is_no_number_is_named(own, layout, tmp_path, setting, said):
    with pytest.raises(UnknownModel, match=said):
        run(params_of(setting, "train.epochs=1"), layout, tmp_path / "out")


def test_numbers_of_callbacks_and_of_metrics_that_give_several_are_columns(own, layout, tmp_path):
    own_ones = ("train.callbacks=[own_logs:Counts]", "train.metrics=[auto, own_logs:Mapped]")
    rows, _ = run(params_of(*own_ones, "train.epochs=2"), layout, tmp_path / "out")
    assert [row["train_mine"] for row in rows] == [0.0, 1.0]
    for split in ("train", "val"):
        assert rows[1][f"{split}_high"] == pytest.approx(rows[1][f"{split}_low"] + 1)
