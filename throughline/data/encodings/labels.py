"""What is to be predicted: a class by its number, or a number."""

from __future__ import annotations

from typing import Literal

import numpy as np

from throughline.plan.schema import Encoding, Feature, Schema, find_encoding, register
from throughline.settings import PipelineConfig

LabelKind = Literal["class", "number"]


class _LabelEncoding(Encoding):
    """A number in the record itself."""

    modality = "label"
    noun = "labels"
    storage = "table"

    def decode(self, feature: Feature, config: PipelineConfig | None) -> None:
        """Nothing: it is a number already."""


@register
class ClassEncoding(_LabelEncoding):
    """The number of a class."""

    name = "class"


@register
class TargetEncoding(_LabelEncoding):
    """A number to predict."""

    name = "number"


def label_feature(kind: LabelKind, targets: int = 1) -> Feature:
    """The target of a dataset of examples with one label each, of several numbers if they have as
    many `targets`.
    """
    return Feature(
        name="label",
        role="target",
        encoding=find_encoding(kind),
        shape=(targets,) if targets > 1 else (),
        dtype="float32" if kind == "number" else "int64",
    )


def labeled(value: Feature, label: LabelKind = "class", *more: Feature, targets: int = 1) -> Schema:
    """The schema of examples of one input, perhaps with `more`, and one label."""
    return Schema(features=(value, *more, label_feature(label, targets)))


def list_numbers(values: np.ndarray) -> list[float] | list[tuple[float, ...]]:
    """Numbers to predict (examples, targets) as labels of a manifest: a number each, or several."""
    if values.shape[1] == 1:
        return values[:, 0].tolist()
    return [tuple(row) for row in values.tolist()]
