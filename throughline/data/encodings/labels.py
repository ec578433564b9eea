"""What is to be predicted: a class by its number, or a number."""

from __future__ import annotations

from typing import Literal

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


def label_feature(kind: LabelKind) -> Feature:
    """The target of a dataset of examples with one label each."""
    dtype = "float32" if kind == "number" else "int64"
    return Feature(name="label", role="target", encoding=find_encoding(kind), shape=(), dtype=dtype)


def labeled(value: Feature, label: LabelKind = "class", *more: Feature) -> Schema:
    """The schema of examples of one input, perhaps with `more`, and one label."""
    return Schema(features=(value, *more, label_feature(label)))
