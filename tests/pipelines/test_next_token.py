"""Documents without classes become one long text, cut into windows whose next tokens a model
predicts: the same windows in every configuration.
"""

from __future__ import annotations

import json
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.prepared import prepare
from tests.support.small_pipelines import batches, same
from tests.support.texts import SPLIT, WORDS, write_texts
from throughline.assembly.inputs import open_input_pipeline, open_inputs
from throughline.assembly.model import build_models_for, infer_target
from throughline.assembly.training import with_perplexity
from throughline.config.params import check
from throughline.data.sources import scan
from throughline.kernels import text_kernels
from throughline.kernels.randomness import RandomStream
from throughline.measurement.baseline import describe_next_tokens
from throughline.measurement.draws import check_epoch
from throughline.measurement.equality import digest_examples
from throughline.models.builders import Target
from throughline.plan.text_ops import EndDocument
from throughline.settings import DataSettings, PipelineConfig
from throughline.shared.errors import ImpossiblePlan, InvalidParams
from throughline.shared.layout import Layout
from throughline.training.compiling import compile_model

pytestmark = pytest.mark.integration

LENGTH = 24
GLOBAL = {"read": "snapshot", "shuffle": {"kind": "global"}}
CONFIGS = {
    "naive": {"read": "shards"},
    "parallel": {"read": "shards", "map": {"parallel": "cores"}, "prefetch": 2},
    "cached": {"read": "shards", "cache": {"where": "memory", "after": "tokenize"}},
    "in_memory": {"read": "arrays"},
    "snapshot": {**GLOBAL, "prefetch": 2},
    "snapshot_window": {"read": "snapshot", "shuffle": {"kind": "window"}},
}


def document(path, **sections):
    return {
        "data": {
            "source": "text_folder",
            "path": str(path),
            "label_kind": "none",
            "split": SPLIT,
        },
        "shard": {"min_shards": 3, "writers": 2},
        "preprocess": [{"tokenize": {"kind": "bytes"}}, "end_document"],
        "window": {"tokens": LENGTH},
        "batch_size": 16,
        "model": {"options": {"width": 16, "blocks": 1}},
        "pipelines": CONFIGS,
        **sections,
    }


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Parameters, and texts in two folders and above them, prepared."""
    root = tmp_path_factory.mktemp("next_token")
    source = write_texts(root / "source")
    (source / "beside.txt").write_text("The quick brown fox. " * 20)
    params = check(document(source))
    return params, open_inputs(params, prepare(params, Layout(root), min_shards=3))


def tokens_of(data, split="train"):
    """All tokens of a split: the documents as the snapshot holds them, one after another."""
    column = data.column("text")
    extent = np.asarray(data.memmap(split, column.extent.name))
    values = np.asarray(data.memmap(split, "text"))
    return np.concatenate([values[begin : begin + size] for begin, size in extent])


def test_all_configurations_deliver_the_same_windows(stored):
    params, data = stored
    digests = {
        name: digest_examples(
            open_input_pipeline(params, name, data, split="train", purpose="compare")
        )
        for name in params.pipelines
    }
    assert len({item.digest for item in digests.values()}) == 1, digests
    assert digests["naive"].examples == (len(tokens_of(data)) - 1) // LENGTH > 100


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


def test_the_end_of_a_document_is_number_0_alone_and_in_a_batch():
    op, epoch = EndDocument(), tf.constant(0, tf.int64)
    draw = RandomStream(seed=0, epoch=epoch, salts=("end_document", 0))
    tokens = tf.ragged.constant([[4, 5], [], [6]], dtype=tf.int32)
    batch = text_kernels.compute(op, {"text": tokens}, draw)["text"]
    assert batch.to_list() == [[4, 5, 0], [0], [6, 0]]
    alone = text_kernels.compute(op, {"text": tokens[0]}, draw)["text"]
    assert alone.numpy().tolist() == [4, 5, 0]
    padded = text_kernels.compute(op, {"text": tokens.to_tensor()}, draw)["text"]
    assert padded.numpy().tolist() == batch.to_tensor().numpy().tolist(), "of one that is padded"


@pytest.mark.parametrize(
    ("source", "name", "content"),
    [
        ("text_table", "texts.csv", "text\n" + "\n".join(WORDS)),
        ("text_lines", "texts.jsonl", "\n".join(json.dumps({"text": word}) for word in WORDS)),
        ("text_lines", "texts.txt", "\n".join(WORDS)),
    ],
)
def test_tables_and_lines_need_no_class(tmp_path, source, name, content):
    (tmp_path / name).write_text(content)
    found = scan(DataSettings(source=source, path=str(tmp_path / name), label_kind="none"))
    documents = list(found.documents)
    assert {one.label for one in documents} == {"text"} and len(documents) == len(WORDS)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**GLOBAL, "batch": {"pack": 64}}, "batch: windows of text have one length"),
        ({"read": "indexed_shards"}, "read: a window of text is made of several records"),
        ({"read": "shards", "interleave": {}}, "interleave: windows of text need the documents"),
        ({"read": "shards", "deterministic": False}, "deterministic: windows of text need"),
        ({**GLOBAL, "sampling": "balanced"}, "sampling: windows of text have no class"),
        ({"read": "shards", "vectorize": True}, "vectorize: windows are batched when they exist"),
        ({"read": "shards", "service": {"workers": 1}}, "service: its workers would cut windows"),
        ({**GLOBAL, "snapshot_on": "device"}, "snapshot_on: windows of text are gathered"),
    ],
)
def test_what_windows_cannot_be_made_of_is_refused(stored, config, message):
    params, data = stored
    with pytest.raises(InvalidParams, match=rf"pipelines\.odd\.{message}"):
        check(document("my/texts", pipelines={"odd": config}))
    changed = replace(params, pipelines={"odd": PipelineConfig.model_validate(config)})
    with pytest.raises(ImpossiblePlan, match=message):
        open_input_pipeline(changed, "odd", data, split="train", purpose="train")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": {}}, r"data\.label_kind: none leaves nothing to predict but the next token"),
        ({"model": {"name": "text_classifier"}}, "text_classifier does not predict next tokens"),
        ({"model": {"name": "emulated"}}, "emulated does not predict next tokens"),
        (
            {"preprocess": ["end_document", {"tokenize": {"kind": "bytes"}}]},
            "end_document follows the last of the tokens; put it after `tokenize`",
        ),
        (
            {"data": {"source": "arrays", "path": "x.npz"}, "preprocess": ["decode"]},
            r"window\.tokens: the source arrays is not text",
        ),
        (
            {
                "window": {},
                "data": {"source": "text_folder", "path": "my/texts"},
                "model": {"name": "transformer_decoder"},
            },
            "transformer_decoder predicts next tokens, and",
        ),
    ],
)
def test_parameters_that_cannot_be_right_are_refused(change, message):
    with pytest.raises(InvalidParams, match=message):
        check(document("my/texts", **change))


def test_a_split_shorter_than_a_window_is_refused(stored):
    params, data = stored
    window = params.window.model_copy(update={"tokens": 4000})
    with pytest.raises(InvalidParams, match=r"the validation split has .* tokens, fewer than"):
        open_input_pipeline(
            replace(params, window=window), "naive", data, split="validation", purpose="evaluate"
        )
