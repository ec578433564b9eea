"""Kernels of the ops on text. Tokens of a batch are ragged."""

from __future__ import annotations

import tensorflow as tf

from throughline.kernels.kernels import Element, compute
from throughline.kernels.randomness import RandomStream
from throughline.kernels.sequences import PADDING
from throughline.kernels.tokenizers import tokenize
from throughline.plan.text_ops import EndDocument, Tokenize, Truncate


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
    if tokens.shape.rank == 1:
        return {**element, "text": tf.pad(tokens, [[0, 1]], constant_values=PADDING)}
    if not isinstance(tokens, tf.RaggedTensor):  # already padded with this number
        return {**element, "text": tf.pad(tokens, [[0, 0], [0, 1]], constant_values=PADDING)}
    end = tf.fill([tf.shape(tokens.row_lengths())[0], 1], tf.constant(PADDING, tokens.dtype))
    return {**element, "text": tf.concat([tokens, end], axis=1)}
