"""Small transformers over tokens: an encoder that classifies texts, a decoder of next tokens.

The encoder takes a text per row, padded with 0, or several documents per row. A document's outputs
do not depend on others in its row: attention stays within its segment, positions start at 0 in
each segment, and every segment is pooled by itself.
"""

from typing import Any

import keras
from keras import layers, ops

from throughline.shared.errors import UnknownModel

INPUTS = ("text", "segment_ids", "positions")
LONGEST_WAVE = 10_000.0
LOSS = "loss"  # Keras' name for it among the metrics


class Transformer(layers.Layer):
    """Embedding and `blocks` of attention and two dense layers, in pre-norm form.

    Not registered with Keras, because MLflow would then make every model that it logs need this
    module.

    Source: Vaswani et al., NeurIPS 2017; normalization first as in Xiong et al., ICML 2020.
    """

    head: Any = None

    def __init__(
        self,
        *,
        vocabulary: int,
        width: int = 64,
        heads: int = 2,
        blocks: int = 2,
        dropout: float = 0.1,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._sizes: dict[str, Any] = {"vocabulary": vocabulary, "width": width, "heads": heads}
        self._sizes |= {"blocks": blocks, "dropout": dropout}
        self.embedding = layers.Embedding(vocabulary, width)
        self.blocks = [_Block(width, heads, dropout, name=f"block_{n}") for n in range(blocks)]
        self.norm = layers.LayerNormalization()

    @property
    def last(self) -> Any:
        return self.embedding if self.head is None else self.head

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self._sizes}

    def build(self, input_shape: Any) -> None:
        self.embedding.build((None, None))
        for part in (*self.blocks, self.norm, self.head):
            if part is not None:
                part.build((None, None, self._sizes["width"]))


class TransformerEncoder(Transformer):
    """Classifies each segment by the mean over its tokens, with `outputs` logits."""

    def __init__(self, *, outputs: int, **options: Any) -> None:
        super().__init__(**options)
        self._sizes["outputs"] = outputs
        self.head = layers.Dense(outputs, dtype="float32")

    def call(
        self,
        text: Any,
        segment_ids: Any = None,
        positions: Any = None,
        *,
        segments: int | None = None,
        training: bool | None = None,
    ) -> Any:
        """Map tokens (rows, length) int32 to logits (rows, outputs) float32.

        With `segment_ids` (rows, length), counted from 1, and `positions` (rows, length) within the
        segments, the logits are (rows, segments, outputs). 0 is padding.
        """
        alone = segment_ids is None
        if alone:
            segment_ids = ops.cast(ops.not_equal(text, 0), "int32")
            shape: Any = ops.shape(text)
            positions = ops.broadcast_to(ops.arange(shape[1], dtype="int32"), shape)
        value: Any = self.embedding(text)
        value = value + ops.cast(encode_positions(positions, self._sizes["width"]), value.dtype)
        same = ops.equal(segment_ids[:, :, None], segment_ids[:, None, :])
        mask = ops.logical_and(same, segment_ids[:, :, None] > 0)
        for block in self.blocks:
            value = block(value, mask, training=training)
        numbers = ops.arange(1, (1 if alone else segments or 1) + 1, dtype="int32")
        belongs = ops.cast(segment_ids[:, :, None] == numbers, "float32")
        total: Any = ops.einsum("rts,rtw->rsw", belongs, ops.cast(self.norm(value), "float32"))
        count: Any = ops.sum(belongs, axis=1)
        mean = total / ops.maximum(count[..., None], 1.0)
        outputs = self.head(mean)
        return outputs[:, 0] if alone else outputs


class TransformerDecoder(Transformer):
    """Predicts each next token by causal attention; `tied` logits use the embedding's weights.

    Sources: Radford et al., 2019; for tied weights Press and Wolf, EACL 2017.
    """

    def __init__(self, *, tied: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self._sizes["tied"] = tied
        if not tied:
            self.head = layers.Dense(self._sizes["vocabulary"], dtype="float32")

    def call(self, text: Any, training: bool | None = None) -> Any:
        """Map tokens (rows, length) int32 to logits (rows, length, vocabulary) of each next one."""
        width = self._sizes["width"]
        size: Any = ops.shape(text)
        count: Any = ops.arange(size[1], dtype="int32")
        positions: Any = count[None]
        value: Any = self.embedding(text) * width**0.5  # otherwise positions drown the tokens
        value = value + ops.cast(encode_positions(positions, width), value.dtype)
        causal = positions[:, :, None] >= positions[:, None, :]
        for block in self.blocks:
            value = block(value, causal, training=training)
        value = self.norm(value)
        if self.head is not None:
            return self.head(value)
        weights = ops.cast(self.embedding.embeddings, "float32")
        return ops.matmul(ops.cast(value, "float32"), ops.transpose(weights))


class _Block(layers.Layer):
    def __init__(self, width: int, heads: int, dropout: float, **options: Any) -> None:
        super().__init__(**options)
        if heads < 1 or width % heads:
            raise ValueError(f"width {width} is not a multiple of heads {heads}")
        self.attention = layers.MultiHeadAttention(heads, width // heads)
        self.norms = [layers.LayerNormalization(), layers.LayerNormalization()]
        self.widen = layers.Dense(4 * width, activation="gelu")
        self.narrow = layers.Dense(width)
        self.drop = layers.Dropout(dropout)

    def build(self, input_shape: Any) -> None:
        for norm in self.norms:
            norm.build(input_shape)
        self.attention.build(input_shape, input_shape)
        self.widen.build(input_shape)
        self.narrow.build((*input_shape[:-1], 4 * input_shape[-1]))

    def call(self, value: Any, mask: Any, training: bool | None = None) -> Any:
        inner = self.norms[0](value)
        inner = self.attention(inner, inner, attention_mask=mask, training=training)
        value = value + self.drop(inner, training=training)
        inner = self.narrow(self.widen(self.norms[1](value)))
        return value + self.drop(inner, training=training)


def replace_head(network: keras.Model, encoder: TransformerEncoder, outputs: int) -> keras.Model:
    """Return a copy of `network`, which ends with `encoder`, with a new head of `outputs`."""
    other = TransformerEncoder.from_config({**encoder.get_config(), "outputs": outputs})
    result = keras.Model(network.inputs, other(encoder.input), name=network.name)
    for name in ("embedding", "norm"):
        getattr(other, name).set_weights(getattr(encoder, name).get_weights())
    for new, old in zip(other.blocks, encoder.blocks, strict=True):
        new.set_weights(old.get_weights())
    return result


def encode_positions(positions: Any, width: int) -> Any:
    """Encode any positions (rows, length) by sines and cosines, (rows, length, width) float32."""
    dimensions: Any = ops.arange(0, width, 2, dtype="float32")
    positions = ops.cast(positions, "float32")
    angles = positions[..., None] / ops.power(LONGEST_WAVE, dimensions / width)
    return ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1)[..., :width]


def transformer_encoder(
    input_shape: tuple[int | None, ...], outputs: int, *, vocabulary: int, **options: Any
) -> keras.Model:
    """Make a transformer of two small blocks; `options`: width, heads, blocks, dropout."""
    text = keras.Input(input_shape, dtype="int32", name="tokens")
    encoder = TransformerEncoder(vocabulary=vocabulary, outputs=outputs, **options)
    return keras.Model(text, encoder(text), name="transformer_encoder")


def transformer_decoder(
    input_shape: tuple[int | None, ...], outputs: int, *, vocabulary: int, **options: Any
) -> keras.Model:
    """Make a causal transformer of two small blocks; `options`: as for the encoder, and tied."""
    text = keras.Input(input_shape, dtype="int32", name="tokens")
    decoder = TransformerDecoder(vocabulary=vocabulary, **options)
    return keras.Model(text, decoder(text), name="transformer_decoder")


class PackedModel(keras.Model):
    """A model of rows of several documents each; sample weights count in its loss and metrics.

    The loss over several batches is the mean over their documents, as metrics are. Keras would
    weigh each batch's mean by its number of rows, which hold different numbers of documents.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._loss_of_documents = keras.metrics.Mean(name=LOSS)

    @property
    def metrics(self) -> list[Any]:
        compiled = [metric for metric in super().metrics if metric.name != LOSS]
        return [self._loss_of_documents, *compiled]

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """Return the mean loss over the documents of a batch, and add it to the epoch's.

        `y_pred` is (rows, documents, outputs); `sample_weight` (rows, documents) is 1 for a
        document and 0 for an empty slot.
        """
        loss: Any = super().compute_loss(x, y, y_pred, sample_weight, training)
        self._loss_of_documents.update_state(loss, sample_weight=ops.sum(sample_weight))
        return loss


def make_packed_model(network: keras.Model, *, segments: int) -> PackedModel:
    """Make a model of packed rows of at most `segments` documents; it shares the network's weights.

    Raises:
      UnknownModel: If the network has no layer that keeps segments apart.
    """
    encoder = next((one for one in network.layers if isinstance(one, TransformerEncoder)), None)
    if encoder is None:
        raise UnknownModel(
            f"model.name: {network.name} does not keep the documents of a packed row apart; use"
            " transformer_encoder, or `batch: {pad_to: auto}` instead of `pack`"
        )
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in INPUTS}
    return PackedModel(inputs, encoder(*inputs.values(), segments=segments), name="packed")
