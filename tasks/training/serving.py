"""A trained model of text as a TensorFlow SavedModel that takes strings: tokenizing is part of it.

Its signature `serve` is what TensorFlow Serving and `tf.saved_model.load` call. The tokenizers are
ops of TensorFlow Text, so a program that loads it needs `import tensorflow_text` first, unless
tokens are bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tasks.files import atomic_folder
from tasks.pipelines.elements import apply_ops
from tasks.pipelines.ops import Op
from tasks.pipelines.text_ops import EndDocument, Tokenize, Truncate
from tasks.pipelines.tokenizers import open_tokenizer

CLASSES = Path("assets.extra", "classes.txt")


def export_text_model(
    model: keras.Model,
    ops: Sequence[Op],
    folder: Path,
    *,
    classes: Sequence[str] = (),
    context: int | None = None,
) -> None:
    """Write `folder`, a SavedModel with the signature `serve(text: string (batch,))`, which returns
    `probabilities` float32: (batch, classes) in the order of `classes`, which lie next to it; or
    (batch, vocabulary) of the token after each text, of a language model, which sees the last
    `context` tokens of it.

    `model` takes tokens (batch, length) int32 and returns logits; `ops` make these tokens of a
    text.
    """
    if context is not None:  # a text goes on where it ends
        ops = tuple(op for op in ops if not isinstance(op, EndDocument | Truncate))
    tokenizer = open_tokenizer(next(op for op in ops if isinstance(op, Tokenize)))

    def serve(text: tf.Tensor) -> dict[str, tf.Tensor]:
        element = apply_ops(ops, {"text": text}, seed=0, epoch=tf.constant(0, tf.int64))
        tokens: Any = element["text"] if context is None else element["text"][:, -context:]
        logits = tf.cast(model(_pad(tokens), training=False), tf.float32)
        if context is not None:
            last = tf.maximum(tokens.row_lengths() - 1, 0)
            logits = tf.gather(logits, last, batch_dims=1)
        return {"probabilities": tf.nn.softmax(logits)}

    archive: Any = keras.export.ExportArchive()  # of TensorFlow, which is Keras' backend here
    archive.track(model)
    if tokenizer.module is not None:
        archive.track(tokenizer.module)
    archive.add_endpoint(
        "serve", serve, input_signature=[tf.TensorSpec((None,), tf.string, "text")]
    )
    with atomic_folder(folder) as temporary:
        archive.write_out(str(temporary), verbose=False)
        if classes:
            (temporary / CLASSES).parent.mkdir()
            (temporary / CLASSES).write_text("".join(f"{name}\n" for name in classes))


def _pad(tokens: tf.RaggedTensor) -> tf.Tensor:
    """Tokens (batch, longest) int32, padded with 0; one column at least."""
    longest = tf.maximum(tokens.bounding_shape(axis=1), 1)
    return tokens.to_tensor(0, shape=tf.stack([tokens.nrows(), longest]))
