"""Texts: tokenizers, their tokens in the snapshot, batches of sequences, windows of tokens."""

import io
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import keras
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

from tests.support.lanes import slow_but_first
from tests.support.prepared import prepare
from tests.support.prepared_files import encode_example, write_shard
from tests.support.small_pipelines import batches, digest_of_all, same
from tests.support.texts import SPLIT, WORDS, params_of, prepare_texts, write_texts
from throughline.assembly.inputs import open_input_pipeline, open_inputs
from throughline.assembly.model import build_models_for, infer_target
from throughline.assembly.training import with_perplexity
from throughline.data.columns.index import verify
from throughline.kernels.kernels import compute
from throughline.kernels.randomness import RandomStream
from throughline.kernels.tokenizers import open_tokenizer, tokenize
from throughline.measurement.baseline import describe_next_tokens
from throughline.measurement.draws import check_epoch
from throughline.measurement.padding import lengths_in_batch, measure_sequences, padding_in_buckets
from throughline.models.builders import Target
from throughline.pipelines.read.sequence_batches import sequence_lengths
from throughline.pipelines.write import tokenizer_fitting
from throughline.pipelines.write.tokenizer_fitting import PreparedTokenizer, fit
from throughline.plan.text_ops import EndDocument, Tokenize, Truncate
from throughline.shared.errors import CorruptColumn, ImpossiblePlan, InvalidParams, StaleSnapshot
from throughline.shared.layout import Layout
from throughline.training.compiling import compile_model

pytestmark = pytest.mark.integration

OPS = {
    "sentencepiece": Tokenize(kind="sentencepiece", vocabulary=60),
    "wordpiece": Tokenize(kind="wordpiece", vocabulary=60),
}


def shards_of(path, texts):
    """An uncompressed shard of texts; returns what `fit` takes."""
    usual = {"key": 0, "label": 0, "feature": "text"}
    write_shard(path, [encode_example(value=text.encode(), **usual) for text in texts])
    return [(path, "none")]


def stories(count: int = 200) -> list[str]:
    draw = np.random.default_rng(0)
    return [" ".join(draw.choice(WORDS, size=draw.integers(1, 30))) for _ in range(count)]


def fit_on_one_core(shards) -> list[bytes]:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    return [fit(op, shards) for op in OPS.values()]


@pytest.mark.slow
def test_a_tokenizer_has_the_same_bytes_in_another_process_with_other_cores(tmp_path, monkeypatch):
    """Eight threads on one core there, on all of them here; and another order of Python's sets."""
    shards = shards_of(tmp_path / "shard", stories())
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        there = pool.submit(fit_on_one_core, shards).result()
    assert there == [fit(op, shards) for op in OPS.values()]


def test_a_tokenizer_for_lower_case_is_fitted_on_it(tmp_path):
    shards = shards_of(tmp_path / "shard", ["WOLF Lamb wolf"] * 20)
    op = Tokenize(kind="wordpiece", vocabulary=60, lower="always")
    words = fit(op, shards).decode().splitlines()[2:]
    assert "wolf" in words and words == [word.lower() for word in words]


@pytest.mark.parametrize(
    ("limit", "value", "texts", "known", "unknown"),
    [
        ("PIECE", 8, ["abc abc abc abc abc xyz\nabc"] * 4, "ax", ""),  # of a long line all
        ("MOST_WORDS", 2, ["lamb wolf lamb wolf lamb zz"] * 4, "lw", "z"),  # most frequent ones
        # The second text is cut, and the third left out.
        ("SAMPLE_BYTES", 160, ["aab " * 20, "ccd " * 20 + "q" * 20, "eef"], "ac", "qe"),
    ],
)
def test_tokenizers_are_fitted_on_frequent_words_of_a_sample_and_whole_long_lines(
    tmp_path, monkeypatch, limit, value, texts, known, unknown
):
    monkeypatch.setattr(tokenizer_fitting, limit, value)
    fitted = {*fit(OPS["wordpiece"], shards_of(tmp_path / "shard", texts)).decode().splitlines()}
    assert {*known} <= fitted and not {*unknown} & fitted


def test_the_type_of_stored_tokens_holds_all_their_numbers():
    for vocabulary, dtype in ((1 << 16, "uint16"), ((1 << 16) + 1, "int32")):
        prepared = PreparedTokenizer(op=OPS["wordpiece"], vocabulary=vocabulary, files={})
        assert prepared.dtype == dtype


@pytest.mark.slow
def test_a_tokenizer_that_is_open_outlives_a_new_seed(tmp_path):
    """Setting one clears the kernels that TensorFlow keeps, and what belongs to them alone."""
    shards = shards_of(tmp_path / "shard", stories())
    for op in (*OPS.values(), Tokenize(kind="bytes")):
        if op.file:
            (tmp_path / op.file).write_bytes(fit(op, shards))
            op = op.model_copy(update={"model": str(tmp_path / op.file)})
        before = tokenize(op, tf.constant(stories(9))).to_list()
        texts = tf.data.Dataset.from_tensors(stories(9)).map(lambda text, op=op: tokenize(op, text))
        tf.random.set_seed(1)
        assert tokenize(op, tf.constant(stories(9))).to_list() == before
        assert next(iter(texts)).to_list() == before


def test_a_sentencepiece_model_without_padding_is_counted_from_one(tmp_path):
    """As its trainer makes them where nothing else is said: number 0 is what is unknown."""
    model = io.BytesIO()
    limits = {"vocab_size": 40, "hard_vocab_limit": False, "minloglevel": 2}
    train = sentencepiece.SentencePieceTrainer.train
    train(sentence_iterator=iter(stories()), model_writer=model, **limits)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    assert processor.pad_id() == -1
    (tmp_path / "given").write_bytes(model.getvalue())
    op = Tokenize(kind="sentencepiece", model=str(tmp_path / "given"))
    text = "the wolf ☃ drank"
    numbers = processor.encode(text)
    assert 0 in numbers, "the snowman"
    assert tokenize(op, tf.constant(text)).numpy().tolist() == [one + 1 for one in numbers]
    assert open_tokenizer(op).vocabulary == processor.vocab_size() + 1


@pytest.mark.parametrize(
    ("text", "vocabulary", "lower", "tokens"),
    [
        ("lamb eats wolf", "[PAD]\n[UNK]\nwolf\nlamb\n", "auto", [3, 1, 2]),
        ("lamb eats wolf", "[UNK]\r\nwolf\r\nlamb\r\n", "auto", [3, 1, 2]),  # counted from 1, too
        ("Wolf wolf Café", "[PAD]\n[UNK]\nwolf\ncafe\n", "auto", [2, 2, 3]),
        ("Wolf wolf Café", "[PAD]\n[UNK]\nwolf\ncafé\n", "auto", [2, 2, 3]),
        ("Wolf wolf Café", "[PAD]\n[UNK]\nwolf\ncafe\n", "never", [1, 2, 1]),
        ("Wolf wolf Café", "[PAD]\n[UNK]\nwolf\nWolf\n", "auto", [3, 2, 1]),
        ("Wolf wolf Café", "[PAD]\n[UNK]\nwolf\nWolf\n", "always", [2, 2, 1]),
        ("Wólf 늑대", "[PAD]\n[UNK]\nwolf\n늑대\n", "auto", [2, 3]),  # syllables stay whole
    ],
)
def test_words_are_counted_from_one_and_in_lower_case_as_the_vocabulary(
    tmp_path, text, vocabulary, lower, tokens
):
    """In lower case as its words show, or as `lower` says; without accents if no word has one."""
    (tmp_path / "given").write_bytes(vocabulary.encode())
    op = Tokenize(kind="wordpiece", model=str(tmp_path / "given"), lower=lower)
    assert tokenize(op, tf.constant(text)).numpy().tolist() == tokens
    assert open_tokenizer(op).vocabulary == len({*vocabulary.split(), "[PAD]"})


def test_bytes_are_tokens_from_one_on():
    op, lower = Tokenize(kind="bytes"), Tokenize(kind="bytes", lower="always")
    assert tokenize(op, tf.constant("aß")).numpy().tolist() == [98, 196, 160]
    assert tokenize(op, tf.constant(["", "b"])).to_list() == [[], [99]]
    assert open_tokenizer(op).vocabulary == 257
    assert tokenize(lower, tf.constant("Ää")).numpy().tolist() == [196, 165, 196, 165]


@pytest.mark.parametrize(
    ("kind", "content", "said"),
    [
        ("sentencepiece", b"\xff\x00 no tokenizer", "not a Sent"),
        ("wordpiece", b"\xff\x00 no tokenizer", "not a WordPiece vocabulary"),
        ("wordpiece", b"[PAD]\n[UNK]\nlamb\nlamb", r"not a WordPiece vocabulary.*each once"),
        ("wordpiece", b"[PAD]\nlamb", r"not a WordPiece vocabulary.*\[UNK\]"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path, kind, content, said):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(InvalidParams, match=said):
        open_tokenizer(Tokenize(kind=kind, model=str(tmp_path / "file")))


@pytest.mark.parametrize(
    ("op", "before", "after"),
    [
        (Truncate(tokens=2), [[3, 4, 5], [6], []], [[3, 4], [6], []]),
        (EndDocument(), [[4, 5], [], [6]], [[4, 5, 0], [0], [6, 0]]),
    ],
)
def test_texts_are_cut_and_ended_alone_and_in_a_batch(op, before, after):
    draw, tokens = RandomStream(seed=0, epoch=tf.constant(0, tf.int64)), tf.ragged.constant(before)

    def computed(value):
        return compute(op, {"text": value}, draw)["text"]

    assert computed(tokens).to_list() == after and computed(tokens[0]).numpy().tolist() == after[0]
    if op.name == "end_document":
        padded = computed(tokens.to_tensor()).numpy()
        np.testing.assert_array_equal(padded, tf.ragged.constant(after).to_tensor())


KINDS = [
    {"kind": "wordpiece", "vocabulary": 60},
    {"kind": "bytes"},
    {"kind": "sentencepiece", "vocabulary": 60},
]


def params_for(path, tokenize):
    """Parameters with one configuration `p` for the texts below a path."""
    config = {**SNAPSHOT, "prefetch": 2}
    data = {"source": "text_folder", "path": str(path), "split": SPLIT}
    preprocess = [{"tokenize": tokenize}, {"truncate": {"tokens": 20}}]
    return params_of(config, data=data, preprocess=preprocess)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return write_texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module", params=slow_but_first(KINDS), ids=lambda kind: kind["kind"])
def stored(request, texts, tmp_path_factory):
    """Parameters with a kind of tokenizer, and the prepared data."""
    params = params_for(texts, request.param)
    layout = prepare(params, Layout(tmp_path_factory.mktemp("stored")), min_shards=3)
    return params, open_inputs(params, layout)


def test_the_snapshot_holds_the_tokens_without_padding(stored):
    params, data = stored
    tokens, extent = data.snapshot.columns[:2]
    assert (tokens.name, tokens.dtype, tokens.shape) == ("text", "uint16", (None,))
    lengths = data.memmap("train", extent.name)[:, 1]
    assert 1 < lengths.min() < lengths.max() == 20
    for batch, _ in open_input_pipeline(params, "p", data).dataset().take(3):
        assert batch.dtype == tf.int32
        assert (batch.numpy() != 0).any(axis=0).all()  # none is wider than its longest text
        assert batch.numpy().max() < data.snapshot.vocabulary
    verify(data.snapshot_folder, data.snapshot)


def test_one_text_and_a_batch_have_the_same_tokens_in_a_graph_and_without(stored):
    params, data = stored
    op = data.bind_to_data(params.preprocess)[1]
    lines = ["the quick fox over a dog", "καὶ ὁ ἀμνός", "एक दिन", "ある日 狼と 子羊が ｶﾅ ㍍"]
    expected = [tokenize(op, tf.constant(line)).numpy().tolist() for line in lines]
    assert tokenize(op, tf.constant(lines)).to_list() == expected
    mapped = tf.data.Dataset.from_tensor_slices(lines).map(lambda line: tokenize(op, line))
    assert [item.tolist() for item in mapped.as_numpy_iterator()] == expected
    assert min(map(min, expected)) > 0


@pytest.mark.slow
def test_a_given_tokenizer_is_known_by_its_content_and_said_to_know_little(texts, tmp_path, capsys):
    layout, given, moved = Layout(tmp_path), tmp_path / "given", tmp_path / "moved"
    given.write_text("[PAD]\n[UNK]\nthe\nfox\n")
    prepare(params_for(texts, {"kind": "wordpiece", "model": str(given)}), layout)
    assert "% of the tokens of the first training texts are unknown" in capsys.readouterr().out
    given.rename(moved)
    params = params_for(texts, {"kind": "wordpiece", "model": str(moved)})
    assert open_inputs(params, layout).snapshot.vocabulary == 4
    path = layout.snapshot / Tokenize(kind="wordpiece").file
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(CorruptColumn, match=f"{path.name} is not the file that the index"):
        open_inputs(params, layout)
    moved.write_text("[PAD]\n[UNK]\nthe\ndog\n")
    with pytest.raises(StaleSnapshot):
        open_inputs(params_for(texts, {"kind": "wordpiece", "model": str(moved)}), layout)


def test_a_vocabulary_smaller_than_the_alphabet_says_what_to_change(tmp_path):
    shards = shards_of(tmp_path / "shard", ["".join(map(chr, range(0x3041, 0x3090)))])
    with pytest.raises(InvalidParams, match=r"SentencePiece cannot be fitted.*vocabulary"):
        fit(Tokenize(kind="sentencepiece", vocabulary=20), shards)


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
def windowed(tmp_path_factory):
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


def test_windows_of_all_configurations_are_the_documents_and_targets_one_token_on(windowed):
    params, data = windowed
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


def test_an_epoch_draws_every_window_once_and_another_one_in_another_order(windowed):
    pipeline = open_input_pipeline(windowed[0], "snapshot", windowed[1])
    draws, _ = check_epoch(pipeline)
    assert (draws.distinct, draws.most_often) == (pipeline.examples, 1)
    whole = batches(pipeline, epochs=2)
    first, second = np.split(np.concatenate([inputs for inputs, _ in whole]), 2)
    assert not np.array_equal(first, second)
    assert sorted(first.tolist()) == sorted(second.tolist())
    assert same(batches(pipeline, first_step=3, epochs=2), whole[3:])


@pytest.mark.slow
def test_a_decoder_learns_to_predict_the_next_token(windowed):
    params, data = windowed
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


def test_the_constant_is_the_most_frequent_token(windowed):
    params, data = windowed
    window = open_input_pipeline(params, "naive", data).plan.window
    shown, tokens = describe_next_tokens(data, window), tokens_of(data, "validation")
    used = tokens[1 : 1 + shown.examples * LENGTH]
    assert shown.constant_metric == pytest.approx(np.bincount(used).max() / len(used))
    assert 0 < shown.constant_stderr < shown.constant_metric
