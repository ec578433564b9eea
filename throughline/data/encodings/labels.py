"""Labels: the class or the numbers to predict."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from throughline.data.encodings.base import Reason
from throughline.plan.schema import Encoding, Feature, Schema, find_encoding, register
from throughline.shared.errors import UnreadableSource

LabelKind = Literal["class", "number"]
UNLABELED = "-1"  # a common mark of examples without a label
FEW_CLASSES = 20  # up to this many different whole numbers are classes
_READABLE = ("utf-8", "backslashreplace")
EXAMPLES_PER_NUMBERED_CLASS = 10  # with fewer per number, many numbers may be values to predict


class _LabelEncoding(Encoding):
    modality = "label"
    noun = "labels"
    storage = "table"


@register
class ClassEncoding(_LabelEncoding):
    name = "class"


@register
class TargetEncoding(_LabelEncoding):
    name = "number"


def labeled(value: Feature, label: LabelKind = "class", *more: Feature, targets: int = 1) -> Schema:
    """Return the schema of examples with an input, further inputs `more`, and a label.

    The label is a class, or `targets` numbers.
    """
    target = Feature(
        name="label",
        role="target",
        encoding=find_encoding(label),
        shape=(targets,) if targets > 1 else (),
        dtype="float32" if label == "number" else "int64",
    )
    return Schema(features=(value, *more, target))


def list_numbers(values: np.ndarray) -> list[float] | list[tuple[float, ...]]:
    """Return numbers to predict (examples, targets) as labels of a manifest."""
    if values.shape[1] == 1:
        return values[:, 0].tolist()
    return [tuple(row) for row in values.tolist()]


@dataclass(frozen=True, kw_only=True)
class ReadLabels:
    """Labels of the kind `kind`: class names, or numbers.

    `classes` is sorted, and empty for numbers. `problems` says by position why labels are unusable.
    `facts` are decisions that the user may not have meant.
    """

    kind: LabelKind
    labels: list[str] | list[float]
    classes: list[str]
    problems: dict[int, str]
    facts: tuple[str, ...] = ()


def guess_label_kind(
    where: str, numbers: Collection[float], *, rows: int, fractions: bool, floats: bool
) -> LabelKind:
    """Decide whether labels that are all numbers are classes or numbers to predict.

    `numbers` are the different ones. Fractions are numbers to predict, and so are many different
    whole numbers stored as `floats`. Many different integers could be either if each is in few
    rows, or if they do not count from 0 or 1 (or -1, for none): raises UnreadableSource.
    """
    distinct = len(numbers)
    if fractions or (floats and distinct > FEW_CLASSES):
        return "number"
    if distinct > FEW_CLASSES and (
        rows < EXAMPLES_PER_NUMBERED_CLASS * distinct
        or min(numbers) not in (-1, 0, 1)
        or max(numbers) - min(numbers) >= distinct
    ):
        raise UnreadableSource(
            f"{where}: {distinct:,} different numbers in {rows:,} rows may be values or classes",
            "set data.label_kind: number to predict them, or class if they number classes",
        )
    return "class"


def read_labels(where: str, values: Sequence[str | float | bool], *, asked: str) -> ReadLabels:
    """Read labels as classes or numbers, as `asked` (`data.label_kind`) or, if auto, by value.

    Whole numbers that are classes are named as integers, even if they are stored as floats. Raises
    UnreadableSource if the kind is unclear, or `asked` is number and a label is text or boolean.
    """
    if any(isinstance(value, (str, bool)) for value in values):
        if asked == "number":
            raise UnreadableSource(
                f"{where}: text or booleans, but data.label_kind: number needs numbers",
                "set data.label_kind: class, or name another label",
            )
        names = [str(value) for value in values]
        return ReadLabels(kind="class", labels=names, classes=sorted({*names}), problems={})
    floats = any(isinstance(value, float) for value in values)
    fractions = {place: value for place, value in enumerate(values) if value % 1}  # type: ignore[operator]
    kind = asked
    if asked not in ("class", "number"):
        kind = guess_label_kind(
            where,
            {float(value) for value in values},
            rows=len(values),
            fractions=bool(fractions),
            floats=floats,
        )
    if kind == "number":
        return ReadLabels(kind="number", labels=[*map(float, values)], classes=[], problems={})
    whole = {int(value) for place, value in enumerate(values) if place not in fractions}
    fact = f"{where}: whole numbers read as classes; data.label_kind: number predicts them"
    return ReadLabels(
        kind="class",
        labels=[str(int(value)) for value in values],
        classes=[str(value) for value in sorted(whole)],
        problems={
            place: Reason("label is not a whole number", f": {value:g}")
            for place, value in fractions.items()
        },
        facts=(fact,) if floats and asked != "class" else (),
    )


def list_labels(labels: np.ndarray, count: int, where: str) -> tuple[list[str | float], str]:
    """Return the labels of `count` examples, and a note if they are one-hot.

    `labels` is (examples,), (examples, 1), or one-hot (examples, classes). Raises UnreadableSource
    for other shapes and dtypes, and for values that are not finite; `where` names the array.
    """
    note, is_matrix = "", labels.ndim == 2  # noqa: PLR2004
    if is_matrix and labels.shape[1] == 1:
        labels = labels[:, 0]
    elif is_matrix and len(labels) == count and _is_one_hot(labels):
        labels, note = labels.argmax(axis=1), "one-hot label read as the number of its class"
    if labels.ndim != 1 or len(labels) != count:
        raise UnreadableSource(
            f"{where} has shape {labels.shape}; expected ({count},), ({count}, 1) or one-hot rows,"
            " one class per image"
        )
    if labels.dtype.kind not in "iubfUS":
        raise UnreadableSource(
            f"{where} has dtype {labels.dtype}; labels are integers, floats or strings"
        )
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        first = int(np.flatnonzero(~np.isfinite(labels))[0])
        raise UnreadableSource(f"{where} holds {labels[first]} at index {first}; remove such rows")
    if labels.dtype.kind in "SU":
        texts = labels if labels.dtype.kind == "S" else np.char.encode(labels, *_READABLE)
        labels = np.char.decode(texts, *_READABLE)
    return labels.tolist(), note


def _is_one_hot(labels: np.ndarray) -> bool:
    if labels.dtype.kind not in "iubf" or labels.shape[1] == 0:
        return False
    ones = labels == 1
    return bool((ones | (labels == 0)).all() and (ones.sum(axis=1) == 1).all())
