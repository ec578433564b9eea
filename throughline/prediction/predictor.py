"""Predicts examples batch by batch, in their order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from throughline.data.found import Rejected
from throughline.models.inference import TrainedModel
from throughline.models.serving import make_input_signature, make_serve_fn
from throughline.plan.schema import Schema
from throughline.prediction.examples import Example, in_batches


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A model's output: probabilities (classes,), or values (targets,) or (horizon, targets)."""

    example: Example
    output: np.ndarray


def predict(
    trained: TrainedModel, items: Iterable[Example | Rejected], *, batch_size: int
) -> Iterator[Prediction | Rejected]:
    """Predict all examples; rejected ones pass through in their place."""
    serve = tf.function(
        make_serve_fn(trained),
        input_signature=[make_input_signature(trained.spec)],
        autograph=False,
    )
    for batch in in_batches(items, batch_size):
        examples = [item for item in batch if isinstance(item, Example)]
        outputs = iter(())
        if examples:
            (answer,) = serve(_stack(examples, trained.spec.schema)).values()
            outputs = iter(answer.numpy())
        for item in batch:
            yield (
                Prediction(example=item, output=next(outputs))
                if isinstance(item, Example)
                else item
            )


def _stack(examples: list[Example], schema: Schema) -> tf.Tensor | dict[str, tf.Tensor]:
    values = [example.value for example in examples]
    first = tf.constant(values if isinstance(values[0], bytes) else np.stack(values))
    if schema.table_input is None:
        return first
    columns = np.stack([np.asarray(example.columns) for example in examples])
    return {schema.input.name: first, schema.table_input.name: tf.constant(columns)}
