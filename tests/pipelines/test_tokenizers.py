"""Tokenizers have the same bytes everywhere; texts become equal tokens in every configuration."""

import io
import random

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

from tests.support import texts as small_texts
from tests.support.lanes import slow_but_first
from tests.support.prepared import prepare
from tests.support.prepared_files import encode_example, write_shard
from tests.support.project import run_python
from tests.support.small_data import write_files
from throughline.assembly.inputs import open_input_pipeline, open_inputs
from throughline.data.columns.index import verify
from throughline.kernels.kernels import compute
from throughline.kernels.randomness import RandomStream
from throughline.kernels.tokenizers import open_tokenizer, tokenize
from throughline.pipelines.write import tokenizer_fitting
from throughline.pipelines.write.tokenizer_fitting import PreparedTokenizer, fit
from throughline.plan.text_ops import EndDocument, Tokenize, Truncate
from throughline.shared.errors import CorruptColumn, InvalidParams, StaleSnapshot
from throughline.shared.layout import Layout

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


@pytest.mark.slow
def test_a_tokenizer_has_the_same_bytes_in_another_process_with_other_cores(tmp_path):
    """Eight threads on one core there, on all of them here; and another order of Python's sets."""
    shards = write_texts(tmp_path / "shard", stories())
    run_python(FIT, str(tmp_path / "shard"), str(tmp_path), PYTHONHASHSEED="7")
    for kind, op in OPS.items():
        assert fit(op, shards) == (tmp_path / kind).read_bytes(), kind


def test_a_tokenizer_for_lower_case_is_fitted_on_it(tmp_path):
    shards = write_texts(tmp_path / "shard", ["WOLF Lamb wolf"] * 20)
    op = Tokenize(kind="wordpiece", vocabulary=60, lower="always")
    words = fit(op, shards).decode().splitlines()[2:]
    assert "wolf" in words and words == [word.lower() for word in words]


@pytest.mark.parametrize(
    ("limit", "value", "texts", "known", "unknown"),
    [
        ("PIECE", 8, ["abc abc abc abc abc xyz\nabc"] * 4, "ax", ""),  # of a long line all
        ("MOST_WORDS", 2, ["lamb wolf lamb wolf lamb zz"] * 4, "lw", "z"),  # most frequent ones
        # The second text is cut, and the third left out.
        pytest.param("SAMPLE_BYTES", 160, ["aab " * 20, "ccd " * 20 + "q" * 20, "eef"], "ac", "qe",
                     marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_tokenizers_are_fitted_on_frequent_words_of_a_sample_and_whole_long_lines(
    tmp_path, monkeypatch, limit, value, texts, known, unknown
):
    monkeypatch.setattr(tokenizer_fitting, limit, value)
    fitted = fit(OPS["wordpiece"], write_texts(tmp_path / "shard", texts)).decode().splitlines()
    assert {*known} <= {*fitted} and not {*unknown} & {*fitted}


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


@pytest.mark.parametrize(
    ("op", "before", "after"),
    [
        (Truncate(tokens=2), [[3, 4, 5], [6], []], [[3, 4], [6], []]),
        (EndDocument(), [[4, 5], [], [6]], [[4, 5, 0], [0], [6, 0]]),
    ],
)
def test_texts_are_cut_and_ended_alone_and_in_a_batch(op, before, after):
    draw, tokens = RandomStream(seed=0, epoch=tf.constant(0, tf.int64)), tf.ragged.constant(before)
    texts = [compute(op, {"text": one}, draw)["text"] for one in (tokens, tokens[0])]
    assert texts[0].to_list() == after and texts[1].numpy().tolist() == after[0]
    if op.name == "end_document":
        padded = compute(op, {"text": tokens.to_tensor()}, draw)["text"]
        assert padded.numpy().tolist() == texts[0].to_tensor().numpy().tolist()


SENTENCES = {
    "english": "the wolf and the lamb came to the same river to drink water one day",
    "greek": "Ὁ λύκος καὶ ὁ ἀμνός ἦλθον εἰς τὸν αὐτὸν ποταμόν ἵνα πίωσιν ὕδωρ",
    "hindi": "एक दिन भेड़िया और मेमना पानी पीने के लिए एक ही नदी पर आए",
    "japanese": "ある日 狼と 子羊が 同じ川に 水を飲みに 来ました。 ｶﾅ ㍍",
}


KINDS = [
    {"kind": "wordpiece", "vocabulary": 300},
    {"kind": "bytes"},
    {"kind": "sentencepiece", "vocabulary": 300},
]


def params_of(path, tokenize, *more):
    """Parameters with one configuration `p` for the texts below a path."""
    config = {"read": "snapshot", "shuffle": {"kind": "global"}, "prefetch": 2}
    data = {"source": "text_folder", "path": str(path), "split": small_texts.SPLIT}
    return small_texts.params_of(config, data=data, preprocess=[{"tokenize": tokenize}, *more])


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Some documents per language, of 1 to 60 words."""
    draw, files = random.Random(0), {}
    for language, sentence in SENTENCES.items():
        for number in range(40):
            text = " ".join(draw.choices(sentence.split(), k=draw.randint(1, 60)))
            files[f"{language}/{number}.txt"] = f"{text} {number}\n"
    return write_files(tmp_path_factory.mktemp("texts"), files)


@pytest.fixture(scope="module", params=slow_but_first(KINDS), ids=lambda kind: kind["kind"])
def stored(request, texts, tmp_path_factory):
    """Parameters with a kind of tokenizer, and the prepared data."""
    params = params_of(texts, request.param, {"truncate": {"tokens": 50}})
    layout = prepare(params, Layout(tmp_path_factory.mktemp("stored")), min_shards=3)
    return params, open_inputs(params, layout)


def test_the_snapshot_holds_the_tokens_without_padding(stored):
    params, data = stored
    tokens, extent = data.snapshot.columns[:2]
    assert (tokens.name, tokens.dtype, tokens.shape) == ("text", "uint16", (None,))
    lengths = data.memmap("train", extent.name)[:, 1]
    assert 1 < lengths.min() < lengths.max() == 50
    for batch, _ in open_input_pipeline(params, "p", data).dataset().take(3):
        assert batch.dtype == tf.int32
        assert (batch.numpy() != 0).any(axis=0).all()  # none is wider than its longest text
        assert batch.numpy().max() < data.snapshot.vocabulary
    verify(data.snapshot_folder, data.snapshot)


def test_one_text_and_a_batch_have_the_same_tokens_in_a_graph_and_without(stored):
    params, data = stored
    op = data.bind_to_data(params.preprocess)[1]
    lines = list(SENTENCES.values())
    expected = [tokenize(op, tf.constant(line)).numpy().tolist() for line in lines]
    assert tokenize(op, tf.constant(lines)).to_list() == expected
    mapped = tf.data.Dataset.from_tensor_slices(lines).map(lambda line: tokenize(op, line))
    assert [item.tolist() for item in mapped.as_numpy_iterator()] == expected
    assert min(map(min, expected)) > 0


@pytest.mark.slow
def test_a_given_tokenizer_is_known_by_its_content_and_said_to_know_little(texts, tmp_path, capsys):
    layout, given, moved = Layout(tmp_path), tmp_path / "given", tmp_path / "moved"

    def chosen(path):
        return params_of(texts, {"kind": "wordpiece", "model": str(path)})

    given.write_text("[PAD]\n[UNK]\nthe\nwolf\n")
    prepare(chosen(given), layout)
    assert "% of the tokens of the first training texts are unknown" in capsys.readouterr().out
    params = chosen(given.rename(moved))
    assert open_inputs(params, layout).snapshot.vocabulary == 4
    path = layout.snapshot / Tokenize(kind="wordpiece").file
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(CorruptColumn, match=f"{path.name} is not the file that the index"):
        open_inputs(params, layout)
    moved.write_text("[PAD]\n[UNK]\nthe\nlamb\n")
    with pytest.raises(StaleSnapshot):
        open_inputs(chosen(moved), layout)


def test_a_vocabulary_smaller_than_the_alphabet_says_what_to_change(tmp_path):
    shards = write_texts(tmp_path / "shard", SENTENCES.values())
    with pytest.raises(InvalidParams, match=r"SentencePiece cannot be fitted.*vocabulary"):
        fit(Tokenize(kind="sentencepiece", vocabulary=20), shards)
