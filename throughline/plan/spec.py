"""What an input pipeline is to compute, whatever the configuration: the data's schema, the ops, the
batch, the windows of a series or of text.
"""

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
    """The computation that every configuration carries out. `batch_size` counts examples over all
    workers.
    """

    schema: Schema
    preprocess: Sequence[Op]
    augment: Sequence[Op]
    postprocess: Sequence[Op]
    batch_size: int
    window: Window | TokenWindow | None = None

    @property
    def ops(self) -> list[tuple[str, Op]]:
        """All ops in their order, each with its section of params.yaml."""
        sections = ("preprocess", "augment", "postprocess")
        return [(section, op) for section in sections for op in getattr(self, section)]

    @property
    def ops_to_uniform_shape(self) -> Sequence[Op]:
        """The first of the augmenting ops, up to where images of variable size have the same size
        and can be batched.
        """
        needed = ops_until_uniform((*self.preprocess, *self.augment), self.schema)
        return (
            self.augment
            if needed is None
            else self.augment[: max(0, needed - len(self.preprocess))]
        )

    @property
    def per_example_augment(self) -> Sequence[Op]:
        """The first of the augmenting ops, which the host runs on one example at a time, or the
        fetch itself: they must be, or are cheaper so.
        """
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
        """The first of the augmenting ops, where they crop a rectangle out of every image and
        perhaps flip it: a fetch from the snapshot does that itself.
        """
        crop = tuple(self.augment[:1])
        if not crop or not crop[0].crops:
            return ()
        return (*crop, *takewhile(lambda op: op.flips, self.augment[1:]))
