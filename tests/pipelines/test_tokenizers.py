"""A tokenizer is fitted to the byte alike everywhere; one that others fitted keeps its numbers."""

import io

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

from tests.support.prepared_files import encode_example, write_shard
from tests.support.project import run_python
from throughline.kernels.kernels import compute
from throughline.kernels.randomness import RandomStream
from throughline.kernels.tokenizers import open_tokenizer, tokenize
from throughline.pipelines.write import tokenizer_fitting
from throughline.pipelines.write.tokenizer_fitting import PreparedTokenizer, fit
from throughline.plan.text_ops import EndDocument, Tokenize, Truncate
from throughline.shared.errors import InvalidParams

pytestmark = pytest.mark.integration

WORDS = ("the", "wolf", "and", "lamb", "came", "to", "same", "river", "drink", "water", "warm")
OPS = {
    "sentencepiece": Tokenize(kind="sentencepiece", vocabulary=60),
    "wordpiece": Tokenize(kind="wordpiece", vocabulary=60),
}
FIT = """
import os, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import throughline
from pathlib import Path
from throughline.plan.text_ops import Tokenize
from throughline.pipelines.write.tokenizer_fitting import fit
shard, out = map(Path, sys.argv[1:])
for kind in ("sentencepiece", "wordpiece"):
    (out / kind).write_bytes(fit(Tokenize(kind=kind, vocabulary=60), [(shard, "none")]))
"""


def write_texts(path, texts):
    """An uncompressed shard of texts; returns what `fit` takes."""
    usual = {"key": 0, "label": 0, "feature": "text"}
    write_shard(path, [encode_example(value=text.encode(), **usual) for text in texts])
    return [(path, "none")]


def stories(count: int = 200) -> list[str]:
    draw = np.random.default_rng(0)
    return [" ".join(draw.choice(WORDS, size=draw.integers(1, 30))) for _ in range(count)]


def words_of(shards, vocabulary: int = 60) -> set[str]:
    """The words and parts of words of a WordPiece vocabulary that is fitted on shards."""
    fitted = fit(Tokenize(kind="wordpiece", vocabulary=vocabulary), shards)
    return set(fitted.decode().splitlines())


@pytest.mark.slow
def test_a_tokenizer_has_the_same_bytes_in_another_process_with_other_cores(tmp_path):
    """Eight threads on one core there, on all of them here; and another order of Python's sets."""
    shards = write_texts(tmp_path / "shard", stories())
    run_python(FIT, str(tmp_path / "shard"), str(tmp_path), PYTHONHASHSEED="7")
    for kind, op in OPS.items():
        assert fit(op, shards) == (tmp_path / kind).read_bytes(), kind


@pytest.mark.slow
def test_texts_beyond_the_size_of_the_sample_teach_nothing(tmp_path, monkeypatch):
    shards = write_texts(tmp_path / "shard", ["aab " * 20, "ccd " * 20 + "q" * 20, "eef"])
    monkeypatch.setattr(tokenizer_fitting, "SAMPLE_BYTES", 160)
    words = words_of(shards)
    assert {"a", "c"} <= words
    assert not {"q", "e"} & words, "the second text is cut, the third is left out"


def test_a_tokenizer_for_lower_case_is_fitted_on_it(tmp_path):
    shards = write_texts(tmp_path / "shard", ["WOLF Lamb wolf"] * 20)
    op = Tokenize(kind="wordpiece", vocabulary=60, lower="always")
    words = fit(op, shards).decode().splitlines()[2:]
    assert "wolf" in words and words == [word.lower() for word in words]


@pytest.mark.parametrize(
    ("limit", "value", "text", "known", "unknown"),
    [
        ("PIECE", 8, "abc abc abc abc abc xyz\nabc", {"a", "x"}, set()),  # of a long line all
        ("MOST_WORDS", 2, "lamb wolf lamb wolf lamb zz", {"l", "w"}, {"z"}),  # most frequent ones
    ],
)
def test_long_lines_are_fitted_to_their_ends_and_on_frequent_words(
    tmp_path, monkeypatch, limit, value, text, known, unknown
):
    monkeypatch.setattr(tokenizer_fitting, limit, value)
    words = words_of(write_texts(tmp_path / "shard", [text] * 4))
    assert known <= words and not unknown & words


def test_the_type_of_stored_tokens_holds_all_their_numbers():
    for vocabulary, dtype in ((1 << 16, "uint16"), ((1 << 16) + 1, "int32")):
        prepared = PreparedTokenizer(op=OPS["wordpiece"], vocabulary=vocabulary, files={})
        assert prepared.dtype == dtype


@pytest.mark.slow
def test_a_tokenizer_that_is_open_outlives_a_new_seed(tmp_path):
    """Setting one clears the kernels that TensorFlow keeps, and what belongs to them alone."""
    shards = write_texts(tmp_path / "shard", stories())
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


def tokens_of(text, vocabulary, path, **options):
    """The tokens of a text by a WordPiece vocabulary, which is written to a file."""
    path.write_bytes("".join(f"{word}\n" for word in vocabulary).encode())
    op = Tokenize(kind="wordpiece", model=str(path), **options)
    assert open_tokenizer(op).vocabulary == len({*vocabulary} | {"[PAD]"})
    return tokenize(op, tf.constant(text)).numpy().tolist()


@pytest.mark.parametrize(
    "words", [["[PAD]", "[UNK]", "wolf", "lamb"], ["[UNK]\r", "wolf\r", "lamb\r"]]
)
def test_a_vocabulary_without_padding_is_counted_from_one(tmp_path, words):
    assert tokens_of("lamb eats wolf", words, tmp_path / "given") == [3, 1, 2]


@pytest.mark.parametrize(
    ("text", "words", "lower", "tokens"),
    [
        ("Wolf wolf Café", ["wolf", "cafe"], "auto", [2, 2, 3]),
        ("Wolf wolf Café", ["wolf", "café"], "auto", [2, 2, 3]),
        ("Wolf wolf Café", ["wolf", "cafe"], "never", [1, 2, 1]),
        ("Wolf wolf Café", ["wolf", "Wolf"], "auto", [3, 2, 1]),
        ("Wolf wolf Café", ["wolf", "Wolf"], "always", [2, 2, 1]),
        ("Wólf 늑대", ["wolf", "늑대"], "auto", [2, 3]),  # syllables stay whole
    ],
)
def test_an_uncased_vocabulary_gets_texts_in_lower_case(tmp_path, text, words, lower, tokens):
    """As its tokens show, or as `lower` says; without accents if no token has one."""
    known = ["[PAD]", "[UNK]", *words]
    assert tokens_of(text, known, tmp_path / "given", lower=lower) == tokens


def test_bytes_are_tokens_from_one_on():
    op = Tokenize(kind="bytes")
    assert tokenize(op, tf.constant("aß")).numpy().tolist() == [98, 196, 160]
    assert tokenize(op, tf.constant(["", "b"])).to_list() == [[], [99]]
    assert open_tokenizer(op).vocabulary == 257
    lower = Tokenize(kind="bytes", lower="always")
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


def computed(op, tokens):
    draw = RandomStream(seed=0, epoch=tf.constant(0, tf.int64), salts=())
    return compute(op, {"text": tokens}, draw)["text"]


def test_truncate_keeps_the_first_tokens_of_one_text_and_of_each_of_a_batch():
    op, batch = Truncate(tokens=2), tf.ragged.constant([[3, 4, 5], [6], []], dtype=tf.int32)
    assert computed(op, batch[0]).numpy().tolist() == [3, 4]
    assert computed(op, batch).to_list() == [[3, 4], [6], []]


def test_the_end_of_a_document_is_number_0_alone_and_in_a_batch():
    op, tokens = EndDocument(), tf.ragged.constant([[4, 5], [], [6]], dtype=tf.int32)
    batch = computed(op, tokens)
    assert batch.to_list() == [[4, 5, 0], [0], [6, 0]]
    assert computed(op, tokens[0]).numpy().tolist() == [4, 5, 0]
    padded = computed(op, tokens.to_tensor()).numpy().tolist()
    assert padded == batch.to_tensor().numpy().tolist(), "of one that is padded"
