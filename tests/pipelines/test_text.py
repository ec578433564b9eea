"""Texts travel from class folders to equal tokens in every configuration, and to a model."""

from __future__ import annotations

import copy
import random
import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests.support.prepared import prepare, take_snapshot
from tests.support.project import SMALL
from tests.support.small_data import flip_bit
from tests.support.small_pipelines import batches, same
from throughline.assembly.inputs import open_input_pipeline, open_inputs
from throughline.assembly.model import build_models_for
from throughline.config.params import check
from throughline.data.columns.index import column_path, map_column, read_index, verify
from throughline.kernels import text_kernels
from throughline.kernels.randomness import RandomStream
from throughline.kernels.tokenizers import open_tokenizer, tokenize
from throughline.measurement.draws import check_epoch
from throughline.measurement.equality import digest_examples
from throughline.pipelines.write import tokenizer_fitting
from throughline.pipelines.write.snapshot import snapshot
from throughline.plan.text_ops import Tokenize, Truncate
from throughline.shared.errors import CorruptColumn, InvalidParams, StaleSnapshot
from throughline.shared.layout import Layout
from throughline.training.compiling import compile_model

pytestmark = pytest.mark.integration

WORDS = {
    "english": "the wolf and the lamb came to the same river to drink water one day",
    "greek": "Ὁ λύκος καὶ ὁ ἀμνός ἦλθον εἰς τὸν αὐτὸν ποταμόν ἵνα πίωσιν ὕδωρ",
    "hindi": "एक दिन भेड़िया और मेमना पानी पीने के लिए एक ही नदी पर आए",
    "japanese": "ある日 狼と 子羊が 同じ川に 水を飲みに 来ました。 ｶﾅ ㍍",
}
CONFIGS = {
    "naive": {"read": "shards"},
    "vectorized": {"read": "shards", "vectorize": True, "prefetch": 2},
    "parallel": {
        "read": "shards",
        "interleave": {"cycle_length": 2, "parallel": "cores"},
        "map": {"parallel": "cores"},
        "deterministic": False,
    },
    "cached": {"read": "shards", "cache": {"where": "memory", "after": "tokenize"}},
    "on_disk": {"read": "shards", "cache": {"where": "save_load"}, "vectorize": True},
    "in_memory": {"read": "arrays", "vectorize": True},
    "balanced": {"read": "shards", "sampling": "balanced"},
    "indexed": {"read": "indexed_shards", "shuffle": {"kind": "global"}, "vectorize": True},
    "snapshot": {"read": "snapshot", "shuffle": {"kind": "global"}, "prefetch": 2},
    "snapshot_window": {"read": "snapshot", "shuffle": {"kind": "window"}},
}
KINDS = {
    "bytes": {"kind": "bytes"},
    "sentencepiece": {"kind": "sentencepiece", "vocabulary": 300},
    "wordpiece": {"kind": "wordpiece", "vocabulary": 300},
}


def write_texts(folder):
    """Some documents per language, of 1 to 60 words."""
    draw = random.Random(0)
    for language, sentence in WORDS.items():
        (folder / language).mkdir(parents=True)
        for number in range(40):
            text = " ".join(draw.choices(sentence.split(), k=draw.randint(1, 60)))
            (folder / language / f"{number}.txt").write_text(text + f" {number}\n", "utf-8")
    return folder


def document(path, kind, **data):
    document = copy.deepcopy(SMALL)
    document |= {
        "preprocess": [{"tokenize": KINDS[kind]}, {"truncate": {"tokens": 50}}],
        "augment": [],
        "postprocess": [],
        "model": {"name": "text_classifier", "options": {"width": 8}},
        "pipelines": CONFIGS,
        "batch_size": 16,
    }
    document["data"] |= {"source": "text_folder", "path": str(path), **data}
    return document


def opened(folder, params):
    layout = Layout(folder)
    if layout.shards.exists():
        take_snapshot(params, layout)
    else:
        prepare(params, layout, min_shards=3)
    return open_inputs(params, layout)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return write_texts(tmp_path_factory.mktemp("texts") / "source")


@pytest.fixture(scope="module")
def prepared_with(texts, tmp_path_factory):
    """Parameters with a kind of tokenizer, and the prepared data, by that kind."""
    made = {}

    def prepare(kind):
        if kind not in made:
            params = check(document(texts, kind))
            made[kind] = params, opened(tmp_path_factory.mktemp(kind), params)
        return made[kind]

    return prepare


@pytest.fixture(params=list(KINDS))
def stored(request, prepared_with):
    return prepared_with(request.param)


@pytest.fixture
def plain(prepared_with):
    """The same with bytes as tokens."""
    return prepared_with("bytes")


def test_all_configurations_deliver_the_same_tokens(stored):
    params, data = stored
    (kind,) = (op.kind for op in params.preprocess if isinstance(op, Tokenize))
    # What a tokenizer is asked for: a text, several at once, a batch; the other ways differ alike.
    asked = ("naive", "parallel", "vectorized", "snapshot")
    digests = {
        name: digest_examples(
            open_input_pipeline(params, name, data, split="train", purpose="compare")
        )
        for name in (params.pipelines if kind == "bytes" else asked)
    }
    assert len({item.digest for item in digests.values()}) == 1, digests
    assert digests["naive"].shape == (None,)
    assert digests["naive"].examples == data.shards.examples("train") > 50


def test_the_snapshot_holds_the_tokens_without_padding(stored):
    params, data = stored
    tokens, extent = data.snapshot.columns[:2]
    assert (tokens.name, tokens.dtype, tokens.shape) == ("text", "uint16", (None,))
    count = data.snapshot.splits["train"].count
    lengths = map_column(data.snapshot_folder, "train", extent, count)[:, 1]
    assert 1 < lengths.min() < lengths.max() == 50
    pipeline = open_input_pipeline(params, "snapshot", data, split="train", purpose="train")
    for batch, _ in pipeline.dataset().take(3):
        assert batch.dtype == tf.int32
        assert (batch.numpy() != 0).any(axis=0).all()  # none is wider than its longest text
        assert batch.numpy().max() < data.snapshot.vocabulary
    verify(data.snapshot_folder, read_index(data.snapshot_folder))


@pytest.mark.parametrize("name", ["snapshot", "indexed"])
def test_an_epoch_draws_every_text_once_and_any_step_can_be_started_from(plain, name):
    params, data = plain
    pipeline = open_input_pipeline(params, name, data, split="train", purpose="train")
    draws, _ = check_epoch(pipeline)
    assert (draws.distinct, draws.most_often) == (data.shards.examples("train"), 1)
    whole = batches(pipeline, epochs=2)
    for first in (1, pipeline.steps_per_epoch):
        assert same(batches(pipeline, first_step=first, epochs=2), whole[first:])


@pytest.mark.slow
def test_a_model_learns_to_tell_languages_apart(prepared_with):
    params, data = prepared_with("wordpiece")
    models = build_models_for(params, data)
    assert models.full_model.inputs[0].name == "text"
    compile_model(models.network, params.train, target=models.target, steps=1)
    pipeline = open_input_pipeline(params, "snapshot", data, split="train", purpose="train")
    history = models.network.fit(pipeline.dataset(epochs=40), verbose=0)
    assert history.history["accuracy"][-1] > 0.6


def test_padding_changes_nothing_for_the_model(plain):
    models = build_models_for(*plain)
    tokens = tf.constant([[5, 6, 7]])
    padded = tf.constant([[5, 6, 7, 0, 0]])
    np.testing.assert_allclose(models.network(tokens), models.network(padded), rtol=1e-5)


def test_one_text_and_a_batch_have_the_same_tokens_in_a_graph_and_without(stored):
    params, data = stored
    op = data.bind_to_data(params.preprocess)[1]
    lines = list(WORDS.values())
    expected = [tokenize(op, tf.constant(line)).numpy().tolist() for line in lines]
    assert tokenize(op, tf.constant(lines)).to_list() == expected
    mapped = tf.data.Dataset.from_tensor_slices(lines).map(lambda line: tokenize(op, line))
    assert [item.tolist() for item in mapped.as_numpy_iterator()] == expected
    assert min(map(min, expected)) > 0


def test_bytes_are_tokens_from_one_on():
    op = Tokenize(kind="bytes")
    assert tokenize(op, tf.constant("aß")).numpy().tolist() == [98, 196, 160]
    assert tokenize(op, tf.constant(["", "b"])).to_list() == [[], [99]]
    assert open_tokenizer(op).vocabulary == 257


def test_a_given_tokenizer_is_known_by_its_content(plain, texts, tmp_path):
    _, data = plain
    given, op = tmp_path / "given", Tokenize(**KINDS["wordpiece"])
    given.write_bytes(tokenizer_fitting.fit(op, training_shards(data)))

    def chosen(path):
        tokenize = {"tokenize": {"kind": "wordpiece", "model": str(path)}}
        return check(document(texts, "wordpiece") | {"preprocess": [tokenize]})

    shutil.copytree(data.shards_folder.parent, tmp_path / "data")
    opened(tmp_path, chosen(given))
    params = chosen(given.rename(tmp_path / "moved"))
    assert open_inputs(params, Layout(tmp_path)).snapshot.vocabulary > 100
    path = tmp_path / "data" / "snapshot" / op.file
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(CorruptColumn, match=f"{path.name} is not the file that the index"):
        open_inputs(params, Layout(tmp_path))
    moved = tmp_path / "moved"
    moved.write_bytes(moved.read_bytes().replace(b"wolf", b"lamb") + b"\n")
    with pytest.raises(StaleSnapshot):
        open_inputs(chosen(moved), Layout(tmp_path))


def training_shards(data):
    """What a tokenizer is fitted on."""
    return [(data.shard_files.path(one), one.compression) for one in data.shards.for_split("train")]


def test_a_vocabulary_without_padding_is_counted_from_one(tmp_path):
    (tmp_path / "with.txt").write_text("[PAD]\n[UNK]\nwolf\nlamb\n")
    (tmp_path / "without.txt").write_text("[UNK]\r\nwolf\r\nlamb\r\n")
    for name in ("with.txt", "without.txt"):
        op = Tokenize(kind="wordpiece", model=str(tmp_path / name))
        assert tokenize(op, tf.constant("lamb eats wolf")).numpy().tolist() == [3, 1, 2]
        assert open_tokenizer(op).vocabulary == 4


def test_an_uncased_vocabulary_gets_texts_in_lower_case(tmp_path):
    """As its tokens show, or as `lower` says; without accents if no token has one."""
    known = {
        "plain": ["[PAD]", "[UNK]", "wolf", "cafe"],
        "accents": ["[PAD]", "[UNK]", "wolf", "café"],
        "cased": ["[PAD]", "[UNK]", "wolf", "Wolf"],
    }
    text = tf.constant("Wolf wolf Café")
    tokens = {}
    for name, words in known.items():
        (tmp_path / name).write_text("\n".join(words))
        for lower in ("auto", "always", "never"):
            op = Tokenize(kind="wordpiece", model=str(tmp_path / name), lower=lower)
            tokens[name, lower] = tokenize(op, text).numpy().tolist()
    assert tokens["plain", "auto"] == tokens["plain", "always"] == [2, 2, 3]
    assert tokens["accents", "auto"] == tokens["accents", "always"] == [2, 2, 3]
    assert tokens["plain", "never"] == tokens["accents", "never"] == [1, 2, 1]
    assert tokens["cased", "auto"] == tokens["cased", "never"] == [3, 2, 1]
    assert tokens["cased", "always"] == [2, 2, 1]
    (tmp_path / "korean").write_text("[PAD]\n[UNK]\nwolf\n늑대")
    syllables = Tokenize(kind="wordpiece", model=str(tmp_path / "korean"))
    assert tokenize(syllables, tf.constant("Wólf 늑대")).numpy().tolist() == [2, 3]
    letters = Tokenize(kind="bytes", lower="always")
    assert tokenize(letters, tf.constant("Ää")).numpy().tolist() == [196, 165, 196, 165]


def test_a_tokenizer_that_knows_little_of_the_texts_is_said(plain, tmp_path, capsys):
    _, data = plain
    shutil.copytree(data.shards_folder, tmp_path / "shards")
    (tmp_path / "given").write_text("[PAD]\n[UNK]\nquux\n")
    ops = [Tokenize(kind="wordpiece", model=str(tmp_path / "given"))]
    snapshot(data.shards, tmp_path / "shards", tmp_path / "snapshot", preprocess=ops)
    assert "100% of the tokens are unknown" in capsys.readouterr().out


@pytest.mark.parametrize(("kind", "said"), [("sentencepiece", "no Sent"), ("wordpiece", "no Word")])
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path, kind, said):
    (tmp_path / "file").write_bytes(b"\xff\x00 no tokenizer")
    with pytest.raises(InvalidParams, match=said):
        open_tokenizer(Tokenize(kind=kind, model=str(tmp_path / "file")))


def test_a_vocabulary_smaller_than_the_alphabet_says_what_to_change(plain):
    _, data = plain
    with pytest.raises(InvalidParams, match=r"SentencePiece cannot be fitted.*vocabulary"):
        tokenizer_fitting.fit(Tokenize(kind="sentencepiece", vocabulary=20), training_shards(data))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"preprocess": []}, "preprocess: text needs one `tokenize`"),
        (
            {"preprocess": [{"truncate": {"tokens": 9}}, "tokenize"]},
            "truncate counts tokens; put it after `tokenize`",
        ),
        (
            {"preprocess": [{"tokenize": {"model": "no/such/file"}}]},
            r"tokenize\.model: no/such/file does not exist",
        ),
        (
            {"preprocess": [{"tokenize": {"kind": "bytes", "model": "file"}}]},
            "bytes need no file",
        ),
        ({"augment": ["flip"]}, "augment: flip works on images, not on text"),
        (
            {"pipelines": {"odd": {"read": "shards", "service": {"workers": 1}}}},
            "service: its workers' batches differ in length",
        ),
        (
            {"pipelines": {"odd": {**CONFIGS["snapshot"], "snapshot_on": "device"}}},
            "snapshot_on: texts differ in length",
        ),
        (
            {"postprocess": ["rescale"]},
            "postprocess: rescale works on images and numbers, not on text",
        ),
        ({"model": {"name": "small_cnn"}}, "small_cnn takes images, the source has text; use auto"),
    ],
)
def test_parameters_that_cannot_be_right_for_text_are_refused(texts, change, message):
    with pytest.raises(InvalidParams, match=message):
        check(document(texts, "bytes") | change)


def test_ops_and_models_of_text_are_refused_for_images():
    with pytest.raises(InvalidParams) as error:
        check(SMALL | {"preprocess": ["tokenize"], "model": {"name": "text_classifier"}})
    assert "preprocess: tokenize works on text, not on images" in str(error.value)
    assert "model.name: text_classifier takes text, the source has images" in str(error.value)


def test_a_text_longer_than_all_others_together_is_like_any_other(texts, tmp_path):
    shutil.copytree(texts, tmp_path / "source")
    (tmp_path / "source" / "greek" / "long.txt").write_text("μῆνιν " * 20_000, "utf-8")
    chosen = document(tmp_path / "source", "bytes")
    chosen["preprocess"] = [{"tokenize": KINDS["bytes"]}]
    chosen["pipelines"] = {name: CONFIGS[name] for name in ("naive", "vectorized", "snapshot")}
    params = check(chosen)
    data = opened(tmp_path, params)
    sizes = {
        split: data.snapshot.bytes(split) / data.shards.examples(split)
        for split in data.shards.splits
    }
    split = max(sizes, key=lambda name: sizes[name])  # where the long one is
    assert sizes[split] * data.shards.examples(split) < 500_000, "it pads no other"
    digests = {
        name: digest_examples(
            open_input_pipeline(params, name, data, split=split, purpose="compare")
        )
        for name in params.pipelines
    }
    assert len({item.digest for item in digests.values()}) == 1


def test_truncate_keeps_the_first_tokens_of_one_text_and_of_each_of_a_batch():
    op, draw = Truncate(tokens=2), RandomStream(seed=0, epoch=tf.constant(0, tf.int64), salts=())
    one = text_kernels.compute(op, {"text": tf.constant([3, 4, 5])}, draw)["text"]
    batch = tf.ragged.constant([[3, 4, 5], [6], []], dtype=tf.int32)
    assert one.numpy().tolist() == [3, 4]
    assert text_kernels.compute(op, {"text": batch}, draw)["text"].to_list() == [[3, 4], [6], []]


def test_damage_to_tokens_is_named(plain, tmp_path):
    _, data = plain
    shutil.copytree(data.snapshot_folder, tmp_path / "snapshot")
    path = column_path(tmp_path / "snapshot", "train", "text")
    flip_bit(path, 0)
    with pytest.raises(CorruptColumn, match=r"text\.bin: chunk of rows 0 to"):
        verify(tmp_path / "snapshot", read_index(tmp_path / "snapshot"))
