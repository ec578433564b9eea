"""Documents without classes become one long text, cut into windows whose next tokens a model
predicts: the same windows in every configuration.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest

from tests.support.prepared import prepare
from tests.support.small_pipelines import batches, digest_of_all, same
from tests.support.texts import SPLIT, write_texts
from throughline.assembly.inputs import open_input_pipeline, open_inputs
from throughline.assembly.model import build_models_for, infer_target
from throughline.assembly.training import with_perplexity
from throughline.config.params import check
from throughline.measurement.baseline import describe_next_tokens
from throughline.measurement.draws import check_epoch
from throughline.models.builders import Target
from throughline.shared.layout import Layout
from throughline.training.compiling import compile_model

pytestmark = pytest.mark.integration
LENGTH = 24
CONFIGS = {
    "naive": {"read": "shards"},
    "cached": {"read": "shards", "cache": {"where": "memory", "after": "tokenize"}},
    "in_memory": {"read": "arrays"},
    "snapshot": {"read": "snapshot", "shuffle": {"kind": "global"}, "prefetch": 2},
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Parameters, and texts in two folders and above them, prepared."""
    root = tmp_path_factory.mktemp("next_token")
    source = write_texts(root / "source")
    (source / "beside.txt").write_text("The quick brown fox. " * 20)
    data = {"source": "text_folder", "path": str(source), "label_kind": "none", "split": SPLIT}
    params = check(
        {
            "data": data,
            "preprocess": [{"tokenize": {"kind": "bytes"}}, "end_document"],
            "window": {"tokens": LENGTH},
            "batch_size": 16,
            "model": {"options": {"width": 16, "blocks": 1}},
            "pipelines": CONFIGS,
        }
    )
    return params, open_inputs(params, prepare(params, Layout(root), min_shards=3))


def tokens_of(data, split="train"):
    """All tokens of a split: the documents as the snapshot holds them, one after another."""
    column = data.column("text")
    extent = np.asarray(data.memmap(split, column.extent.name))
    values = np.asarray(data.memmap(split, "text"))
    return np.concatenate([values[begin : begin + size] for begin, size in extent])


def test_all_configurations_deliver_the_same_windows(stored):
    params, data = stored
    digest = digest_of_all(
        {
            name: open_input_pipeline(params, name, data, split="train", purpose="compare")
            for name in params.pipelines
        }
    )
    assert digest.examples == (len(tokens_of(data)) - 1) // LENGTH > 100


def test_windows_are_the_documents_one_after_another_and_targets_one_token_on(stored):
    params, data = stored
    pipeline = open_input_pipeline(params, "naive", data, split="train", purpose="evaluate")
    inputs, targets = (np.concatenate(parts) for parts in zip(*batches(pipeline), strict=True))
    tokens, used = tokens_of(data).astype(np.int32), inputs.size
    assert inputs.dtype == targets.dtype == np.int32
    np.testing.assert_array_equal(inputs.reshape(-1), tokens[:used])
    np.testing.assert_array_equal(targets.reshape(-1), tokens[1 : used + 1])
    assert (tokens == 0).sum() == data.shards.examples("train")  # each document's end


def test_an_epoch_draws_every_window_once_and_another_one_in_another_order(stored):
    params, data = stored
    pipeline = open_input_pipeline(params, "snapshot", data, split="train", purpose="train")
    draws, _ = check_epoch(pipeline)
    assert (draws.distinct, draws.most_often) == (pipeline.examples, 1)
    whole = batches(pipeline, epochs=2)
    first, second = (
        np.concatenate([inputs for inputs, _ in epoch]).tolist()
        for epoch in (whole[: pipeline.steps_per_epoch], whole[pipeline.steps_per_epoch :])
    )
    assert first != second and sorted(first) == sorted(second)
    assert same(batches(pipeline, first_step=3, epochs=2), whole[3:])


@pytest.mark.slow
def test_a_decoder_learns_to_predict_the_next_token(stored):
    params, data = stored
    assert infer_target(params, data) == Target(kind="next_token", shape=(257,))
    keras.utils.set_random_seed(0)
    models = build_models_for(params, data)
    pipeline = open_input_pipeline(params, "snapshot", data, split="train", purpose="train")
    held_out = open_input_pipeline(params, "snapshot", data, split="validation", purpose="evaluate")
    settings = params.train.model_copy(update={"learning_rate": 0.02, "epochs": 12})
    compile_model(models.network, settings, target=models.target, steps=pipeline.steps_per_epoch)
    models.network.fit(
        pipeline.dataset(epochs=12), steps_per_epoch=pipeline.steps_per_epoch, epochs=12, verbose=0
    )
    measured = models.network.evaluate(held_out.dataset(), return_dict=True, verbose=0)
    guess = describe_next_tokens(data, held_out.plan.window)
    assert guess.examples == held_out.examples
    assert measured["accuracy"] > guess.constant_metric + 4 * guess.constant_stderr
    perplexity = with_perplexity(measured, models.target)["perplexity"]
    assert perplexity == pytest.approx(np.exp(measured["loss"])) and perplexity < 40


def test_the_constant_is_the_most_frequent_token(stored):
    params, data = stored
    window = open_input_pipeline(params, "naive", data, split="train", purpose="train").plan.window
    shown, tokens = describe_next_tokens(data, window), tokens_of(data, "validation")
    used = tokens[1 : 1 + shown.examples * LENGTH]
    assert shown.constant_metric == pytest.approx(np.bincount(used).max() / len(used))
    assert 0 < shown.constant_stderr < shown.constant_metric
