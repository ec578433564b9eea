"""Tokenizers in TensorFlow, the same for writing a snapshot and for streams.

Number 0 is padding or a document's end. If a file gives it to another token, all shift by one.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from throughline.kernels.kernels import Element, compute
from throughline.kernels.randomness import RandomStream
from throughline.plan.text_ops import EndDocument, Tokenize, Truncate
from throughline.shared.errors import InvalidParams
from throughline.shared.files import digest_blake2b

PADDING = 0  # a number that no token has
PADDING_WORD, UNKNOWN = "[PAD]", "[UNK]"
BYTES = 256
_SPECIAL = re.compile(r"\[.*\]|<.*>")  # names of tokens that stand for no text
_HANGUL = re.compile("[가-힣]")  # syllables


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """Encodes texts as numbers of tokens.

    Attributes:
      encode: Turns texts (batch,) into ragged tokens (batch, tokens) int32, from 1.
      vocabulary: Upper bound of the numbers, excluded.
      words: The text of each token; empty for bytes.
      unknown: Token for text that no other token covers; None for bytes, which cover all.
      module: Object that a SavedModel must also track, if any.
    """

    encode: Callable[[tf.Tensor], tf.RaggedTensor]
    vocabulary: int
    words: Sequence[str] = ()
    unknown: int | None = None
    module: Any = None


def tokenize(op: Tokenize, text: tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
    """Return tokens (tokens,) int32 of a text (), or ragged (batch, tokens) of texts (batch,).

    Raises:
      InvalidParams: The tokenizer's file is not of its kind.
    """
    encode = open_tokenizer(op).encode
    return encode(text[None]).values if text.shape.rank == 0 else encode(text)


@compute.register
def _(op: Tokenize, element: Element, draw: RandomStream) -> Element:
    return {**element, "text": tokenize(op, element["text"])}


@compute.register
def _(op: Truncate, element: Element, draw: RandomStream) -> Element:
    tokens = element["text"]
    first = tokens[: op.tokens] if tokens.shape.rank == 1 else tokens[:, : op.tokens]
    return {**element, "text": first}


@compute.register
def _(op: EndDocument, element: Element, draw: RandomStream) -> Element:
    tokens = element["text"]
    if not isinstance(tokens, tf.RaggedTensor):  # one text, or texts padded with this number
        room = [[0, 0]] * (tokens.shape.rank - 1) + [[0, 1]]
        return {**element, "text": tf.pad(tokens, room, constant_values=PADDING)}
    end = tf.fill([tf.shape(tokens.row_lengths())[0], 1], tf.constant(PADDING, tokens.dtype))
    return {**element, "text": tf.concat([tokens, end], axis=1)}


def open_tokenizer(op: Tokenize) -> Tokenizer:
    """Return the tokenizer of an op that is bound to the data; raises as `tokenize`."""
    with tf.init_scope():  # outside of any function that is being traced
        return _load(op.kind, Path(op.model).read_bytes() if op.file else b"", op.lower)


def lower_case(texts: tf.Tensor, *, accents: bool = True, syllables: bool = False) -> tf.Tensor:
    """Return texts (batch,) in lower case, and without accents unless `accents` is true.

    Without accents, Hangul is written in syllables if `syllables`, else in letters.
    """
    texts = tf.strings.lower(texts, encoding="utf-8")
    if accents:
        return texts
    import tensorflow_text

    decomposed = tensorflow_text.normalize_utf8(texts, "NFD")
    plain = tf.strings.regex_replace(decomposed, r"\p{Mn}", "")
    return tensorflow_text.normalize_utf8(plain, "NFC") if syllables else plain


@lru_cache(maxsize=8)
def _load(kind: str, content: bytes, lower: str) -> Tokenizer:
    loaders = {"bytes": _bytes, "sentencepiece": _sentencepiece, "wordpiece": _wordpiece}
    tokenizer = loaders[kind](content)
    words = [word for word in tokenizer.words if not _SPECIAL.fullmatch(word)]
    uncased = bool(words) and not any(word != word.lower() for word in words)
    if lower == "never" or (lower == "auto" and not uncased):
        return tokenizer
    # Like BERT: an uncased vocabulary has no accents either, unless a token contains one.
    accents = not words or any(
        any(map(unicodedata.combining, unicodedata.normalize("NFD", word))) for word in words
    )
    syllables = any(map(_HANGUL.search, words))
    lowered = partial(lower_case, accents=accents, syllables=syllables)
    return replace(tokenizer, encode=lambda texts: tokenizer.encode(lowered(texts)))


def _bytes(content: bytes) -> Tokenizer:
    def encode(texts: tf.Tensor) -> tf.RaggedTensor:
        values = tf.io.decode_raw(tf.strings.reduce_join(texts), tf.uint8)
        return tf.RaggedTensor.from_row_lengths(
            tf.cast(values, tf.int32) + 1, tf.strings.length(texts)
        )

    return Tokenizer(encode=encode, vocabulary=1 + BYTES)


def _sentencepiece(content: bytes) -> Tokenizer:
    import sentencepiece
    from tensorflow_text.python.ops.sentencepiece_tokenizer import (
        gen_sentencepiece_tokenizer as kernels,
    )

    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=content)
    except RuntimeError as error:
        problem = (
            "preprocess: tokenize.model is not a SentencePiece model; for a vocabulary file, set"
            " `kind: wordpiece`"
        )
        raise InvalidParams([problem]) from error
    shift = int(processor.pad_id() != 0)

    # tensorflow_text's class leaves the model to the kernel that loads it, and setting a seed
    # clears the cache of kernels. A resource with a shared name stays. A SavedModel recreates it.
    class Model(tf.saved_model.experimental.TrackableResource):
        def _create_resource(self) -> tf.Tensor:
            return kernels.sentencepiece_op(model=content, shared_name=digest_blake2b(content))

    model = Model()
    handle = model.resource_handle  # made now, outside of a function that is being traced

    def encode(texts: tf.Tensor) -> tf.RaggedTensor:
        tokens, splits = kernels.sentencepiece_tokenize_op(
            handle, texts, nbest_size=0, alpha=1.0, add_bos=False, add_eos=False, reverse=False
        )
        return _shifted(tf.RaggedTensor.from_row_splits(tokens, splits, validate=False), shift)

    return Tokenizer(
        encode=encode,
        vocabulary=processor.vocab_size() + shift,
        words=[processor.id_to_piece(number) for number in range(processor.vocab_size())],
        unknown=processor.unk_id() + shift,
        module=model,
    )


def _wordpiece(content: bytes) -> Tokenizer:
    import tensorflow_text

    try:
        words = content.decode().replace("\r\n", "\n").removesuffix("\n").split("\n")
    except UnicodeDecodeError:
        words = []
    if UNKNOWN not in words or len(set(words)) < len(words):
        problem = (
            "preprocess: tokenize.model is not a WordPiece vocabulary, which has one token per line"
            f" in UTF-8, each once, {UNKNOWN} among them"
        )
        raise InvalidParams([problem])
    shift = int(words[0] != PADDING_WORD)
    tokenizer = tensorflow_text.FastWordpieceTokenizer(
        vocab=words, token_out_type=tf.int32, unknown_token=UNKNOWN
    )
    return Tokenizer(
        encode=lambda texts: _shifted(tokenizer.tokenize(texts), shift),
        vocabulary=len(words) + shift,
        words=words,
        unknown=words.index(UNKNOWN) + shift,
        module=tokenizer,
    )


def _shifted(tokens: Any, shift: int) -> tf.RaggedTensor:
    return tokens + shift if shift else tokens
