"""What the ops of texts compute, in TensorFlow; the tokens of a batch are ragged."""

from __future__ import annotations

from tasks.pipelines.kernels import Element, compute
from tasks.pipelines.randomness import RandomStream
from tasks.pipelines.text_ops import Tokenize, Truncate
from tasks.pipelines.tokenizers import tokenize


@compute.register
def _(op: Tokenize, element: Element, draw: RandomStream) -> Element:
    return {**element, "text": tokenize(op, element["text"])}


@compute.register
def _(op: Truncate, element: Element, draw: RandomStream) -> Element:
    tokens = element["text"]
    return {
        **element,
        "text": tokens[: op.tokens] if tokens.shape.rank == 1 else tokens[:, : op.tokens],
    }
