"""Fits a tokenizer on the training split; the same texts give the same file.

Fitting takes ten seconds per megabyte, so it sees a sample: the first texts, since shards hold
examples in a random order that depends on their content.
"""

import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import tensorflow as tf

from throughline.kernels.elements import process_record
from throughline.kernels.tokenizers import PADDING_WORD, UNKNOWN, lower_case, open_tokenizer
from throughline.plan.ops import Op, Parse
from throughline.plan.text_ops import Tokenize
from throughline.shared.errors import InvalidParams
from throughline.shared.files import atomic_file, digest_file

SAMPLE_BYTES = 4 << 20
PIECE = 1000  # characters; longer lines are cut, because SentencePiece drops them
# WordPiece's learner is Python: it gets only the most frequent words, and no long ones.
MOST_WORDS, LONGEST_WORD = 10_000, 24
_THREADS = 8  # SentencePiece's; another number sums in another order and gives another file
_NARROW = 1 << 16


@dataclass(frozen=True, kw_only=True)
class PreparedTokenizer:
    """A tokenizer; its file, if it has one, is in the snapshot's folder.

    Attributes:
      op: The op with that file.
      vocabulary: Upper bound of its token numbers, excluded.
      files: The file's name and digest; empty for bytes.
      unknown_share: Share of the sample's tokens that stand for unknown text.
    """

    op: Tokenize
    vocabulary: int
    files: dict[str, str]
    unknown_share: float = 0.0

    @property
    def dtype(self) -> str:
        return "uint16" if self.vocabulary <= _NARROW else "int32"


def prepare_tokenizer(
    preprocess: Sequence[Op], folder: Path, shards: Callable[[], Iterable[tuple[Path, str]]]
) -> PreparedTokenizer:
    """Put the tokenizer's file into `folder` unless it is there: as given, or fitted on the shards.

    `shards` are paths and compressions.

    Raises:
      InvalidParams: The given file is not of its kind, or none can be fitted on these texts.
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
    sample = list(_lines(_sample(_texts(shards()))))
    tokens = tokenizer.encode(tf.constant(sample, tf.string)).flat_values.numpy()
    return PreparedTokenizer(
        op=bound,
        vocabulary=tokenizer.vocabulary,
        files={op.file: digest_file(path)},
        unknown_share=float(np.mean(tokens == tokenizer.unknown)) if len(tokens) else 0.0,
    )


def fit(op: Tokenize, shards: Iterable[tuple[Path, str]]) -> bytes:
    """Return the file of a tokenizer fitted on a sample of the texts of shards.

    Raises:
      InvalidParams: There are too few texts, or the vocabulary is too small for their characters.
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
    """Yield the first texts, up to SAMPLE_BYTES together; the last one is cut."""
    left = SAMPLE_BYTES
    for text in texts:
        yield text[:left].decode(errors="ignore")
        left -= len(text)
        if left <= 0:
            return


def _lines(texts: Iterable[str]) -> Iterator[str]:
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
        raise _cannot_be_fitted("SentencePiece", reason) from error
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
    special = [PADDING_WORD, UNKNOWN]
    try:
        vocabulary = learner.learn(
            words, op.vocabulary, special, lower_thresh=1, max_token_length=LONGEST_WORD
        )
    except (ValueError, IndexError, ZeroDivisionError) as error:
        raise _cannot_be_fitted("WordPiece", error) from error
    return "".join(f"{word}\n" for word in vocabulary).encode()


def _cannot_be_fitted(kind: str, reason: object) -> InvalidParams:
    return InvalidParams(
        [
            f"preprocess: tokenize: {kind} cannot be fitted on the training split: {reason};"
            " change `vocabulary`, or use `kind: bytes`"
        ]
    )
