"""Batches of sequences, padded, bucketed or packed, and windows of tokens."""

import keras
import numpy as np
import pytest

from tests.support.prepared import prepare
from tests.support.small_pipelines import batches, digest_of_all, same
from tests.support.texts import SPLIT, params_of, prepare_texts, write_texts
from throughline.assembly.inputs import open_input_pipeline, open_inputs
from throughline.assembly.model import build_models_for, infer_target
from throughline.assembly.training import with_perplexity
from throughline.measurement.baseline import describe_next_tokens
from throughline.measurement.draws import check_epoch
from throughline.measurement.padding import lengths_in_batch, measure_sequences, padding_in_buckets
from throughline.models.builders import Target
from throughline.pipelines.read.sequence_batches import sequence_lengths
from throughline.shared.errors import ImpossiblePlan
from throughline.shared.layout import Layout
from throughline.training.compiling import compile_model

pytestmark = pytest.mark.integration

SNAPSHOT = {"read": "snapshot", "shuffle": {"kind": "global"}}
BUCKETS = [10, 20, 30, 60]
CONFIGS = {
    "pad_to": {**SNAPSHOT, "batch": {"pad_to": BUCKETS}, "map": {"parallel": 2}},
    "naive": {"shuffle": {"kind": "none"}},
    "bucket": {"batch": {"pad_to": BUCKETS}, "prefetch": 2},
    "bucket_tokens": {"batch": {"tokens": 200}},
    "snapshot": SNAPSHOT,
    "auto": {**SNAPSHOT, "batch": {"pad_to": "auto"}},
    "tokens": {**SNAPSHOT, "batch": {"tokens": 200, "pad_to": BUCKETS}},
    "pack": {**SNAPSHOT, "batch": {"pack": 64}, "map": {"parallel": 2}},
    "vectorized": {"vectorize": True, "prefetch": 2},
    "cached": {"cache": {"after": "tokenize"}},
    "in_memory": {"read": "arrays", "vectorize": True},
    "indexed": {"read": "indexed_shards", "shuffle": {"kind": "global"}, "vectorize": True},
}


@pytest.fixture(scope="module")
def layout(tmp_path_factory):
    return prepare_texts(tmp_path_factory.mktemp("texts"))


def open_pipeline(layout, config, purpose="train"):
    params = params_of(config)
    return open_input_pipeline(params, "p", open_inputs(params, layout), purpose=purpose)


@pytest.mark.slow
def test_every_way_delivers_the_same_texts_each_once_in_an_epoch(layout):
    opened = {name: open_pipeline(layout, CONFIGS[name], "compare") for name in CONFIGS}
    examples = digest_of_all(opened).examples
    assert examples > 100
    for name in CONFIGS:
        draws, _ = check_epoch(open_pipeline(layout, CONFIGS[name]))
        assert (draws.distinct, draws.most_often) == (examples, 1), name


def test_packed_rows_hold_the_tokens_of_their_documents_with_labels_and_weights(layout):
    pipeline = open_pipeline(layout, CONFIGS["pack"])
    assert pipeline.batch_bytes == 3 * 8 * 64 * 4, "of tokens, segments, and positions"
    tokens = 0
    for inputs, label, weight in batches(pipeline):
        assert label.shape == weight.shape == (len(inputs["text"]), pipeline.segments)
        assert np.array_equal(inputs["text"] > 0, inputs["segment_ids"] > 0)
        assert np.array_equal(inputs["segment_ids"].max(axis=1), weight.sum(axis=1))
        starts = (inputs["positions"] == 0) & (inputs["segment_ids"] > 0)
        assert np.array_equal(starts.sum(axis=1), weight.sum(axis=1))
        tokens += int((inputs["text"] > 0).sum())
    assert tokens == sequence_lengths(pipeline.data, "train").sum()


@pytest.mark.slow
def test_padding_shapes_and_tokens_are_measured(layout):
    opened = {name: open_pipeline(layout, CONFIGS[name]) for name in CONFIGS}
    stream, snapshot = (
        sorted(text.shape for text, _ in batches(opened[name])) for name in ("bucket", "pad_to")
    )
    assert stream == snapshot and {length for _, length in stream} <= {*BUCKETS}
    plain, padded, pack, auto = (
        measure_sequences(opened[name]) for name in ("snapshot", "pad_to", "pack", "auto")
    )
    lengths = sequence_lengths(opened["pad_to"].data, "train")
    slots = np.asarray(BUCKETS)[np.searchsorted(BUCKETS, lengths)].sum()
    assert padded.padding_pct == pytest.approx(100 * (1 - lengths.sum() / slots))
    assert pack.padding_pct < padded.padding_pct < plain.padding_pct
    assert {plain.tokens, padded.tokens, pack.tokens} == {lengths.sum()}
    assert pack.tokens_per_example == pytest.approx(lengths.mean())
    assert pack.distinct_shapes <= 2 and padded.distinct_shapes <= 2 * len(BUCKETS)
    assert padding_in_buckets(opened["pad_to"]) == pytest.approx(auto.padding_pct)


def test_lengths_of_rows_end_with_the_last_token():
    rows = np.array([[3, 0, 2, 0], [0, 0, 0, 0], [1, 1, 1, 1]])
    assert lengths_in_batch(rows).tolist() == [3, 0, 4]


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        ({"pad_to": [10, 20]}, r"batch\.pad_to: .* train split .* \d+ of \d+ more than 20"),
        ({"pack": 30}, r"batch\.pack: .* up to 60 tokens, .* more than 30; .*truncate: .*30"),
        ({"tokens": 40}, r"batch\.tokens: 40 has no room for one example of 64 tokens"),
    ],
)
def test_texts_that_are_too_long_are_refused_with_what_to_do(layout, batch, reason):
    with pytest.raises(ImpossiblePlan, match=reason):
        open_pipeline(layout, {**SNAPSHOT, "batch": batch})


LENGTH = 24
WINDOWED = {
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
    preprocess = [{"tokenize": {"kind": "bytes"}}, "end_document"]
    model = {"options": {"width": 16, "blocks": 1}}
    more = {"window": {"tokens": LENGTH}, "batch_size": 16, "model": model, "pipelines": WINDOWED}
    params = params_of({}, data=data, preprocess=preprocess, **more)
    return params, open_inputs(params, prepare(params, Layout(root), min_shards=3))


def tokens_of(data, split="train"):
    """All tokens of a split: the documents as the snapshot holds them, one after another."""
    column = data.column("text")
    extent = np.asarray(data.memmap(split, column.extent.name))
    values = np.asarray(data.memmap(split, "text"))
    return np.concatenate([values[begin : begin + size] for begin, size in extent])


def test_windows_of_all_configurations_are_the_documents_and_targets_one_token_on(stored):
    params, data = stored
    digest = digest_of_all(
        {name: open_input_pipeline(params, name, data, purpose="compare") for name in WINDOWED}
    )
    assert digest.examples == (len(tokens_of(data)) - 1) // LENGTH > 100
    pipeline = open_input_pipeline(params, "naive", data, purpose="evaluate")
    inputs, targets = (np.concatenate(parts) for parts in zip(*batches(pipeline), strict=True))
    tokens, used = tokens_of(data).astype(np.int32), inputs.size
    assert inputs.dtype == targets.dtype == np.int32
    np.testing.assert_array_equal(inputs.reshape(-1), tokens[:used])
    np.testing.assert_array_equal(targets.reshape(-1), tokens[1 : used + 1])
    assert (tokens == 0).sum() == data.shards.examples("train")  # each document's end


def test_an_epoch_draws_every_window_once_and_another_one_in_another_order(stored):
    params, data = stored
    pipeline = open_input_pipeline(params, "snapshot", data)
    draws, _ = check_epoch(pipeline)
    assert (draws.distinct, draws.most_often) == (pipeline.examples, 1)
    steps, whole = pipeline.steps_per_epoch, batches(pipeline, epochs=2)
    first, second = (
        np.concatenate([inputs for inputs, _ in epoch]).tolist()
        for epoch in (whole[:steps], whole[steps:])
    )
    assert first != second and sorted(first) == sorted(second)
    assert same(batches(pipeline, first_step=3, epochs=2), whole[3:])


@pytest.mark.slow
def test_a_decoder_learns_to_predict_the_next_token(stored):
    params, data = stored
    assert infer_target(params, data) == Target(kind="next_token", shape=(257,))
    keras.utils.set_random_seed(0)
    models = build_models_for(params, data)
    pipeline = open_input_pipeline(params, "snapshot", data)
    held_out = open_input_pipeline(params, "snapshot", data, split="validation", purpose="evaluate")
    settings = params.train.model_copy(update={"learning_rate": 0.02, "epochs": 12})
    steps = pipeline.steps_per_epoch
    compile_model(models.network, settings, target=models.target, steps=steps)
    models.network.fit(pipeline.dataset(epochs=12), steps_per_epoch=steps, epochs=12, verbose=0)
    measured = models.network.evaluate(held_out.dataset(), return_dict=True, verbose=0)
    guess = describe_next_tokens(data, held_out.plan.window)
    assert guess.examples == held_out.examples
    assert measured["accuracy"] > guess.constant_metric + 4 * guess.constant_stderr
    perplexity = with_perplexity(measured, models.target)["perplexity"]
    assert perplexity == pytest.approx(np.exp(measured["loss"])) and perplexity < 40


def test_the_constant_is_the_most_frequent_token(stored):
    params, data = stored
    window = open_input_pipeline(params, "naive", data).plan.window
    shown, tokens = describe_next_tokens(data, window), tokens_of(data, "validation")
    used = tokens[1 : 1 + shown.examples * LENGTH]
    assert shown.constant_metric == pytest.approx(np.bincount(used).max() / len(used))
    assert 0 < shown.constant_stderr < shown.constant_metric
