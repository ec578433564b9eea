"""Fitting a tokenizer on the training split: the same texts give the same file, whatever the number
of threads.

Shards hold examples in a random order that is a function of their content, so the first texts are a
sample. Ten seconds per megabyte are too long for all of a large dataset, and more of it changes
little.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import tensorflow as tf

from throughline.kernels.tokenizers import PADDING, UNKNOWN, Tokenizer, lower_case, open_tokenizer
from throughline.pipelines.write.undecodable import process_record
from throughline.plan.ops import Op, Parse
from throughline.plan.text_ops import Tokenize
from throughline.shared.errors import InvalidParams
from throughline.shared.files import atomic_file, digest_file

SAMPLE_BYTES = 4 << 20
PIECE = 1000  # characters; longer lines are cut, since SentencePiece leaves them out
# WordPiece's learner is Python: it gets so many words, those that come most often, no longer ones.
MOST_WORDS, LONGEST_WORD = 10_000, 24
_THREADS = 8  # of SentencePiece; it adds up by threads, so another number gives another file
_NARROW = 1 << 16


@dataclass(frozen=True, kw_only=True)
class PreparedTokenizer:
    """The op with its file in the snapshot's folder, how many numbers its tokens have, the digest
    of that file by its name, and which share of the tokens of the sample stand for no known text.
    """

    op: Tokenize
    vocabulary: int
    files: dict[str, str]
    unknown_share: float = 0.0

    @property
    def dtype(self) -> str:
        """The narrowest type that holds the numbers."""
        return "uint16" if self.vocabulary <= _NARROW else "int32"


def prepare_tokenizer(
    preprocess: Sequence[Op], folder: Path, shards: Callable[[], Iterable[tuple[Path, str]]]
) -> PreparedTokenizer:
    """Put the file of the tokenizer that `preprocess` names into `folder`: a copy of the given one,
    or one that is fitted on the texts of these shards, of which the first are read.

    Raises:
      InvalidParams: the given file is not one of its kind, or the texts are too few.
    """
    op = next(op for op in preprocess if isinstance(op, Tokenize))
    if not op.file:
        return PreparedTokenizer(op=op, vocabulary=open_tokenizer(op).vocabulary, files={})
    path = folder / op.file
    if not path.exists():
        with atomic_file(path) as temporary:
            temporary.write_bytes(Path(op.model).read_bytes() if op.model else fit(op, shards()))
    bound = op.model_copy(update={"model": str(path)})
    tokenizer = open_tokenizer(bound)
    return PreparedTokenizer(
        op=bound,
        vocabulary=tokenizer.vocabulary,
        files={op.file: digest_file(path)},
        unknown_share=_count_unknown(tokenizer, _lines(_sample(_texts(shards())))),
    )


def _count_unknown(tokenizer: Tokenizer, texts: Iterable[str]) -> float:
    """The share of tokens that stand for text which the tokenizer does not know."""
    tokens = tokenizer.encode(tf.constant(list(texts), tf.string)).flat_values.numpy()
    return float(np.mean(tokens == tokenizer.unknown)) if len(tokens) else 0.0


def fit(op: Tokenize, shards: Iterable[tuple[Path, str]]) -> bytes:
    """The file of a tokenizer that is fitted on a sample of the texts of shards.

    Raises:
      InvalidParams: the texts are too few, or the vocabulary is too small for their characters.
    """
    lines = _lines(_sample(_texts(shards, lower=op.lower == "always")))
    return _fit_wordpiece(lines, op) if op.kind == "wordpiece" else _fit_sentencepiece(lines, op)


def _texts(shards: Iterable[tuple[Path, str]], *, lower: bool = False) -> Iterator[bytes]:
    for path, compression in shards:
        records: tf.data.Dataset = tf.data.TFRecordDataset(
            str(path), compression_type="GZIP" if compression == "gzip" else ""
        )
        texts = records.map(
            lambda record: process_record((Parse(dtypes=(("text", "string"),)),), record)["text"]
        )
        texts = texts.map(lower_case) if lower else texts
        yield from texts.as_numpy_iterator()


def _sample(texts: Iterable[bytes]) -> Iterator[str]:
    """The first texts up to the size of the sample, the last of them cut."""
    left = SAMPLE_BYTES
    for text in texts:
        yield text[:left].decode(errors="ignore")
        left -= len(text)
        if left <= 0:
            return


def _lines(texts: Iterable[str]) -> Iterator[str]:
    """The lines of texts, long ones in pieces."""
    for text in texts:
        for line in text.splitlines():
            for start in range(0, len(line), PIECE):
                yield line[start : start + PIECE]


def _fit_sentencepiece(lines: Iterable[str], op: Tokenize) -> bytes:
    import sentencepiece

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type="unigram",
            vocab_size=op.vocabulary - 1,
            hard_vocab_limit=False,
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            num_threads=_THREADS,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())
        raise InvalidParams(
            [
                f"preprocess: tokenize: SentencePiece cannot be fitted on the training split:"
                f" {reason}; change `vocabulary`, or use `kind: bytes`"
            ]
        ) from error
    return model.getvalue()


def _fit_wordpiece(lines: Iterable[str], op: Tokenize) -> bytes:
    from tensorflow_text.python.ops.bert_tokenizer import BasicTokenizer
    from tensorflow_text.tools.wordpiece_vocab import wordpiece_tokenizer_learner_lib as learner

    split = BasicTokenizer(lower_case=False)
    counts: Counter[bytes] = Counter()
    remaining = iter(lines)
    while together := list(islice(remaining, PIECE)):
        counts.update(split.tokenize(tf.constant(together)).flat_values.numpy().tolist())
    frequent = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MOST_WORDS]
    words = [(word.decode(), count) for word, count in frequent]
    try:
        vocabulary = learner.learn(
            words, op.vocabulary, [PADDING, UNKNOWN], lower_thresh=1, max_token_length=LONGEST_WORD
        )
    except (ValueError, IndexError, ZeroDivisionError) as error:
        raise InvalidParams(
            [
                f"preprocess: tokenize: WordPiece cannot be fitted on the training split: {error};"
                " change `vocabulary`, or use `kind: bytes`"
            ]
        ) from error
    return "".join(f"{word}\n" for word in vocabulary).encode()
