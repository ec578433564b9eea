"""Batches of text by length, of the whole pipeline: every way delivers the same tokens, and says
how much of it is padding.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.small_pipelines import batches, digest_of_all
from tests.support.texts import params_of, prepare_texts
from throughline.assembly.inputs import open_input_pipeline, open_inputs
from throughline.measurement.draws import check_epoch
from throughline.measurement.padding import lengths_in_batch, measure_sequences, padding_in_buckets
from throughline.pipelines.read.sequence_batches import sequence_lengths
from throughline.shared.errors import ImpossiblePlan

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


def open_pipeline(layout, config, purpose="train", split="train"):
    params = params_of(config)
    data = open_inputs(params, layout)
    return open_input_pipeline(params, "p", data, split=split, purpose=purpose)


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("naive", "pad_to", "pack"), id="some"),
        pytest.param(tuple(CONFIGS), marks=pytest.mark.slow, id="all"),
    ],
)
def test_every_way_delivers_the_same_texts_each_once_in_an_epoch(layout, names):
    opened = {name: open_pipeline(layout, CONFIGS[name], "compare") for name in names}
    examples = digest_of_all(opened).examples
    assert examples > 100
    for name in names:
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
    stream, snapshot = (
        sorted(text.shape for text, _ in batches(open_pipeline(layout, CONFIGS[name])))
        for name in ("bucket", "pad_to")
    )
    assert stream == snapshot and {length for _, length in stream} <= {*BUCKETS}
    plain, padded, pack = (
        measure_sequences(open_pipeline(layout, CONFIGS[name]))
        for name in ("snapshot", "pad_to", "pack")
    )
    pipeline = open_pipeline(layout, CONFIGS["pad_to"])
    lengths = sequence_lengths(pipeline.data, "train")
    slots = np.asarray(BUCKETS)[np.searchsorted(BUCKETS, lengths)].sum()
    assert padded.padding_pct == pytest.approx(100 * (1 - lengths.sum() / slots))
    assert pack.padding_pct < padded.padding_pct < plain.padding_pct
    assert {plain.tokens, padded.tokens, pack.tokens} == {lengths.sum()}
    assert pack.tokens_per_example == pytest.approx(lengths.mean())
    assert pack.distinct_shapes <= 2 and padded.distinct_shapes <= 2 * len(BUCKETS)
    auto = measure_sequences(open_pipeline(layout, CONFIGS["auto"]))
    assert padding_in_buckets(pipeline) == pytest.approx(auto.padding_pct)


def test_lengths_of_rows_end_with_the_last_token():
    rows = np.array([[3, 0, 2, 0], [0, 0, 0, 0], [1, 1, 1, 1]])
    assert lengths_in_batch(rows).tolist() == [3, 0, 4]


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        ({"pad_to": [10, 20]}, r"batch\.pad_to: \d+ of \d+ sequences of the train split have more"),
        ({"pack": 30}, r"batch\.pack: .* more than 30 tokens, the longest 60; .*truncate: .*30"),
        ({"tokens": 40}, r"batch\.tokens: 40 has no room for one example of 64 tokens"),
    ],
)
def test_texts_that_are_too_long_are_refused_with_what_to_do(layout, batch, reason):
    with pytest.raises(ImpossiblePlan, match=reason):
        open_pipeline(layout, {**SNAPSHOT, "batch": batch})
