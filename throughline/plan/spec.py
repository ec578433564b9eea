"""What an input pipeline computes in every configuration: schema, ops, batch size and windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from throughline.plan.ops import Op
from throughline.plan.schema import Schema
from throughline.plan.shapes import ops_until_uniform
from throughline.plan.steps import TokenWindow, Window


@dataclass(frozen=True, kw_only=True)
class InputSpec:
    """The computation of every configuration. `batch_size` counts the examples of all workers."""

    schema: Schema
    preprocess: Sequence[Op]
    augment: Sequence[Op]
    postprocess: Sequence[Op]
    batch_size: int
    window: Window | TokenWindow | None = None

    @property
    def ops(self) -> list[tuple[str, Op]]:
        sections = ("preprocess", "augment", "postprocess")
        return [(section, op) for section in sections for op in getattr(self, section)]

    @property
    def ops_to_uniform_shape(self) -> Sequence[Op]:
        """The leading augmenting ops that bring images of variable size to one size."""
        needed = ops_until_uniform((*self.preprocess, *self.augment), self.schema)
        return (
            self.augment
            if needed is None
            else self.augment[: max(0, needed - len(self.preprocess))]
        )

    @property
    def per_example_augment(self) -> Sequence[Op]:
        """The leading augmenting ops for single examples, because they must be or are faster so."""
        needing = [number for number, op in enumerate(self.augment, 1) if op.takes == "example"]
        return max(
            self.augment[: max(needing, default=0)],
            self.ops_to_uniform_shape,
            self.fetched_augment,
            tuple(takewhile(lambda op: op.prefers_single_examples, self.augment)),
            key=len,
        )

    @property
    def fetched_augment(self) -> Sequence[Op]:
        """The leading augmenting ops that a fetch can do: one that crops, and those that flip."""
        crop = tuple(self.augment[:1])
        if not crop or not crop[0].crops:
            return ()
        return (*crop, *takewhile(lambda op: op.flips, self.augment[1:]))
