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
@pytest.mark.parametrize(
    "setting",
    [
        "train.optimizer={sgd: {use_ema: true, ema_momentum: 0.9}}",
        "train.callbacks=[own_code:PuttingBack]",
    ],
    ids=["averages", "put in place at the end"],
)
@pytest.mark.usefixtures("own")
def test_validation_is_that_of_the_weights_that_are_kept(layout, tmp_path, setting):
    params = params_of("train.epochs=2", "train.learning_rate=0.2", setting)
    trained, models = train_once(params, layout, tmp_path)
    last, (loss, accuracy) = trained.result.last_epoch, validate(models, params, layout)
    assert last["val_loss"] == pytest.approx(loss, rel=1e-4)
    assert last["val_accuracy"] == pytest.approx(accuracy)
    assert trained.rows[-1]["val_loss"] != pytest.approx(loss, rel=1e-4), "of the epoch's weights"
    assert last["train_loss"] == trained.rows[-1]["train_loss"]
    if "PuttingBack" in setting:
        assert loss == pytest.approx(np.log(4), rel=1e-4), "all weights are zero"


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
