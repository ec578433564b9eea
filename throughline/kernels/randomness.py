"""The source of all randomness in an input pipeline: a pure function that folds numbers into bits.

Every user (a permutation, a sampler, an op, a shuffle buffer) folds the seed and the epoch with
salts of its own, so that no two draw the same numbers and nothing depends on order or parallelism.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

Salt = str | int | tf.Tensor
GRAPH_SEED = 1  # for graphs that tf.data calls, in which only the seeds of ops matter
# Ops that draw random numbers from their own state, or from a tf.random.Generator's.
_DRAWING = re.compile(
    r"Random(Uniform|UniformInt|StandardNormal|Shuffle|Gamma|Poisson|PoissonV2|Crop)"
    r"|(Parameterized)?TruncatedNormal|Multinomial|SampleDistortedBoundingBox(V2)?"
    r"|\w+CandidateSampler|Rng\w+|NonDeterministicInts"
    r"|Stateful(Uniform|StandardNormal|TruncatedNormal|RandomBinomial)\w*"
)


@dataclass(frozen=True, kw_only=True)
class RandomStream:
    """A stateless source of randomness; `salts` say which op draws."""

    seed: int
    epoch: tf.Tensor
    salts: tuple[str | int, ...] = ()

    def uniform(self, key: tf.Tensor, stream: int = 0) -> tf.Tensor:
        """Return float32 in [0, 1) shaped like `key`, from (seed, epoch, salts, stream, key) alone.

        An op that draws several times for an example numbers its draws by `stream`.
        """
        return _unit_interval(fold(self.seed, self.epoch, *self.salts, stream, key))

    def uniform_vector(self, key: tf.Tensor, length: int) -> tf.Tensor:
        """Return `length` independent draws per key (…): (…, length) float32 in [0, 1)."""
        numbers = tf.range(length, dtype=tf.int64)
        return _unit_interval(fold(self.seed, self.epoch, *self.salts, key[..., None], numbers))


def find_stateful_draws(definition: tf.compat.v1.GraphDef) -> set[str]:
    """Return the types of the random ops in a graph and its functions that draw from a state."""
    nodes = [definition.node, *(one.node_def for one in definition.library.function)]
    return {node.op for each in nodes for node in each if _DRAWING.fullmatch(node.op)}


def find_python_call(library: Any) -> str | None:
    """Name the first op that calls Python in a graph's function library; None if there is none."""
    nodes = [node for one in library.function for node in one.node_def]
    called = next((node.name for node in nodes if "PyFunc" in node.op), None)
    return called and (called.rpartition("/")[0] or called)


def _unit_interval(mixed: tf.Tensor) -> tf.Tensor:
    top24 = tf.bitwise.right_shift(mixed, tf.constant(40, tf.uint64))
    return tf.cast(top24, tf.float32) / float(1 << 24)


def fold(seed: int, epoch: tf.Tensor, *salts: Salt) -> tf.Tensor:
    """Fold seed, epoch and salts into 64 random bits.

    The result is uint64, in the shape that `epoch` and the tensors among the salts broadcast to. It
    is not a sum: (seed 1, epoch 0) and (seed 0, epoch 1) differ, and so do the salts ("flip", 1)
    and ("flip", 0). Salts that are not tensors say which op or step draws, and are folded first.
    """
    names = [seed, *(salt for salt in salts if isinstance(salt, str | int))]
    digest = hashlib.blake2b(json.dumps(names).encode(), digest_size=8).digest()
    bits = tf.constant(int.from_bytes(digest, "little"), tf.uint64)
    for number in (epoch, *(salt for salt in salts if not isinstance(salt, str | int))):
        bits = mix64(bits ^ tf.cast(number, tf.uint64))
    return bits


def mix64(value: tf.Tensor) -> tf.Tensor:
    """Scatter the bits of uint64 values by a bijection (SplitMix64, Steele et al., OOPSLA 2014)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        value = (
            value ^ tf.bitwise.right_shift(value, tf.constant(shift, tf.uint64))
        ) * tf.constant(factor, tf.uint64)
    return value ^ tf.bitwise.right_shift(value, tf.constant(31, tf.uint64))
