"""What a training says of validation is what the model achieves that is kept."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from tests.support.trainings import params_of, train_once, validate
from throughline.training.callbacks import make_early_stopping, may_replace_weights

pytestmark = pytest.mark.integration

OWN = """
import keras
import numpy as np


class PuttingBack(keras.callbacks.Callback):
    def on_train_end(self, logs=None):
        self.model.set_weights([np.zeros_like(one) for one in self.model.get_weights()])
"""


@pytest.mark.slow
def test_of_averaged_weights_validation_is_that_of_the_averages(layout, tmp_path):
    averaging = "train.optimizer={sgd: {use_ema: true, ema_momentum: 0.9}}"
    params = params_of("train.epochs=2", "train.learning_rate=0.2", averaging)
    trained, models = train_once(params, layout, tmp_path)
    last, (loss, accuracy) = trained.result.last_epoch, validate(models, params, layout)
    assert last["val_loss"] == pytest.approx(loss, rel=1e-4)
    assert last["val_accuracy"] == pytest.approx(accuracy)
    assert trained.rows[-1]["val_loss"] != pytest.approx(loss, rel=1e-4), "of the epoch's weights"
    assert last["train_loss"] == trained.rows[-1]["train_loss"]


@pytest.mark.slow
def test_of_weights_that_a_callback_puts_in_place_at_the_end_validation_is_theirs(
    layout, tmp_path, own
):
    params = params_of("train.epochs=1", f"train.callbacks=[{own}:PuttingBack]")
    trained, models = train_once(params, layout, tmp_path)
    loss, accuracy = validate(models, params, layout)
    assert loss == pytest.approx(np.log(4), rel=1e-4), "all weights are zero"
    assert trained.result.last_epoch["val_loss"] == pytest.approx(loss, rel=1e-4)
    assert trained.result.last_epoch["val_accuracy"] == pytest.approx(accuracy)


@pytest.mark.slow
def test_of_the_best_epochs_weights_validation_is_that_of_the_best_epoch(layout, tmp_path):
    stopping = "train.early_stopping={monitor: val_loss, patience: 1, min_delta: 9}"
    params = params_of("train.epochs=3", stopping)
    trained, models = train_once(params, layout, tmp_path)
    assert trained.result.last_epoch["val_loss"] == trained.rows[0]["val_loss"]
    loss, _ = validate(models, params, layout)
    assert trained.rows[0]["val_loss"] == pytest.approx(loss, rel=1e-4)


class AtEpochs(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        pass


class AtSteps(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        pass


@pytest.mark.parametrize(
    ("callback", "may"),
    [
        (AtEpochs(), True),
        (AtSteps(), False),
        (keras.callbacks.LambdaCallback(on_train_end=lambda logs: None), True),
        (keras.callbacks.EarlyStopping(restore_best_weights=True), False),
        (keras.callbacks.Callback(), False),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_may_put_other_weights_in_place_is_code_of_ones_own(callback, may):
    assert may_replace_weights([keras.callbacks.TerminateOnNaN(), callback]) is may
    assert not may_replace_weights(make_early_stopping(params_of().train))
