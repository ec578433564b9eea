"""What a `fit` of Keras is given, and when it ends: `whowaits.fits`."""

from __future__ import annotations

import pytest
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TFEpochIterator
from keras.src.trainers import epoch_iterator

from whowaits.fits import FitWatch
from whowaits.session import Options, Session
from whowaits.waits import Waits


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_an_epoch_from_which_batches_were_taken_makes_no_later_one_shorter(monkeypatch):
    session = Session(Options(), print)
    watch, owner = FitWatch(session, Waits()), epoch_iterator.EpochIterator
    monkeypatch.setattr(owner, "catch_stop_iteration", owner.catch_stop_iteration)
    watch.patch_counting(epoch_iterator)
    session.open("fit")
    watch.active = True
    data = tf.data.Dataset.range(9).filter(lambda number: number >= 0)  # nobody knows how many
    epochs = TFEpochIterator(x=data, distribute_strategy=tf.distribute.get_strategy())
    steps = [0, 0]
    for epoch, batches in enumerate((3, 1)):
        with epochs.catch_stop_iteration():
            for _, _, iterator in epochs:
                for _ in range(batches):
                    next(iterator)
                steps[epoch] += 1
    assert steps == [3, 9]
