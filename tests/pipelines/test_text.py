"""Texts travel from class folders to equal tokens in every configuration, and to a model."""

import random
import shutil

import pytest
import tensorflow as tf

from tests.support.lanes import slow_but_first
from tests.support.prepared import prepare, snapshot, take_snapshot
from tests.support.small_data import write_files
from tests.support.texts import SPLIT
from tests.support.texts import params_of as text_params
from throughline.assembly.inputs import open_input_pipeline, open_inputs
from throughline.data.columns.index import map_column, read_index, verify
from throughline.kernels.tokenizers import tokenize
from throughline.pipelines.write import tokenizer_fitting
from throughline.plan.text_ops import Tokenize
from throughline.shared.errors import CorruptColumn, InvalidParams, StaleSnapshot
from throughline.shared.layout import Layout

pytestmark = pytest.mark.integration
WORDS = {
    "english": "the wolf and the lamb came to the same river to drink water one day",
    "greek": "Ὁ λύκος καὶ ὁ ἀμνός ἦλθον εἰς τὸν αὐτὸν ποταμόν ἵνα πίωσιν ὕδωρ",
    "hindi": "एक दिन भेड़िया और मेमना पानी पीने के लिए एक ही नदी पर आए",
    "japanese": "ある日 狼と 子羊が 同じ川に 水を飲みに 来ました。 ｶﾅ ㍍",
}
SNAPSHOT = {"read": "snapshot", "shuffle": {"kind": "global"}, "prefetch": 2}
KINDS = {
    "bytes": {"kind": "bytes"},
    "sentencepiece": {"kind": "sentencepiece", "vocabulary": 300},
    "wordpiece": {"kind": "wordpiece", "vocabulary": 300},
}


def params_of(path, tokenize, *more):
    """Parameters with one configuration `p` for the texts below a path."""
    data = {"source": "text_folder", "path": str(path), "split": SPLIT}
    return text_params(SNAPSHOT, data=data, preprocess=[{"tokenize": tokenize}, *more])


def opened(folder, params):
    layout = Layout(folder)
    if layout.shards.exists():
        take_snapshot(params, layout)
    else:
        prepare(params, layout, min_shards=3)
    return open_inputs(params, layout)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Some documents per language, of 1 to 60 words."""
    draw, files = random.Random(0), {}
    for language, sentence in WORDS.items():
        for number in range(40):
            text = " ".join(draw.choices(sentence.split(), k=draw.randint(1, 60)))
            files[f"{language}/{number}.txt"] = f"{text} {number}\n"
    return write_files(tmp_path_factory.mktemp("texts"), files)


@pytest.fixture(scope="module")
def prepared_with(texts, tmp_path_factory):
    """Parameters with a kind of tokenizer, and the prepared data, by that kind."""
    made = {}

    def prepare(kind):
        if kind not in made:
            params = params_of(texts, KINDS[kind], {"truncate": {"tokens": 50}})
            made[kind] = params, opened(tmp_path_factory.mktemp(kind), params)
        return made[kind]

    return prepare


@pytest.fixture(params=slow_but_first(["wordpiece", "bytes", "sentencepiece"]))
def stored(request, prepared_with):
    return prepared_with(request.param)


def test_the_snapshot_holds_the_tokens_without_padding(stored):
    params, data = stored
    tokens, extent = data.snapshot.columns[:2]
    assert (tokens.name, tokens.dtype, tokens.shape) == ("text", "uint16", (None,))
    count = data.snapshot.splits["train"].count
    lengths = map_column(data.snapshot_folder, "train", extent, count)[:, 1]
    assert 1 < lengths.min() < lengths.max() == 50
    pipeline = open_input_pipeline(params, "p", data, split="train", purpose="train")
    for batch, _ in pipeline.dataset().take(3):
        assert batch.dtype == tf.int32
        assert (batch.numpy() != 0).any(axis=0).all()  # none is wider than its longest text
        assert batch.numpy().max() < data.snapshot.vocabulary
    verify(data.snapshot_folder, read_index(data.snapshot_folder))


def test_one_text_and_a_batch_have_the_same_tokens_in_a_graph_and_without(stored):
    params, data = stored
    op = data.bind_to_data(params.preprocess)[1]
    lines = list(WORDS.values())
    expected = [tokenize(op, tf.constant(line)).numpy().tolist() for line in lines]
    assert tokenize(op, tf.constant(lines)).to_list() == expected
    mapped = tf.data.Dataset.from_tensor_slices(lines).map(lambda line: tokenize(op, line))
    assert [item.tolist() for item in mapped.as_numpy_iterator()] == expected
    assert min(map(min, expected)) > 0


def training_shards(data):
    """What a tokenizer is fitted on."""
    return [(data.shard_files.path(one), one.compression) for one in data.shards.for_split("train")]


@pytest.mark.slow
def test_a_given_tokenizer_is_known_by_its_content(prepared_with, texts, tmp_path):
    _, data = prepared_with("bytes")
    given, op = tmp_path / "given", Tokenize(**KINDS["wordpiece"])
    given.write_bytes(tokenizer_fitting.fit(op, training_shards(data)))

    def chosen(path):
        return params_of(texts, {"kind": "wordpiece", "model": str(path)})

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


@pytest.mark.slow
def test_a_tokenizer_that_knows_little_of_the_texts_is_said(prepared_with, tmp_path, capsys):
    _, data = prepared_with("bytes")
    shutil.copytree(data.shards_folder, tmp_path / "shards")
    (tmp_path / "given").write_text("[PAD]\n[UNK]\nquux\n")
    ops = [Tokenize(kind="wordpiece", model=str(tmp_path / "given"))]
    snapshot(data.shards, tmp_path / "shards", tmp_path / "snapshot", preprocess=ops)
    assert "100% of the tokens of the first training texts are unknown" in capsys.readouterr().out


def test_a_vocabulary_smaller_than_the_alphabet_says_what_to_change(prepared_with):
    _, data = prepared_with("bytes")
    with pytest.raises(InvalidParams, match=r"SentencePiece cannot be fitted.*vocabulary"):
        tokenizer_fitting.fit(Tokenize(kind="sentencepiece", vocabulary=20), training_shards(data))
