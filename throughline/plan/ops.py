"""The base class of ops, and the ops of pre- and postprocessing. Each op is a frozen value.

This module imports no TensorFlow, so that a plan can be made, checked and printed in milliseconds;
`kernels.py` computes the ops. If an op computes other results, it needs a new `version`, which
changes its snapshots' keys. A new op is a class with `@register`, a kernel and an equality test.
`augmentations.py` has the ops that augment images.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

from throughline.plan.schema import Schema
from throughline.shared.code_identity import PROGRAM, code_digest
from throughline.shared.errors import ImpossiblePlan

Kind = TypeVar("Kind", bound="type[Op]")
Shape = tuple[int | None, ...] | None
OPENCV = "opencv-python-headless"  # the distribution's name
LONGEST_SIDE = 16384
# Maximum aspect for scaling by the shorter side: the rest of an image is cut off first, so that a
# strip of 20,000 pixels by 40 does not become one of 128,000 by 256. Panoramas have less.
LONGEST_ASPECT = 8


REGISTRY: dict[str, type[Op]] = {}


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """Facts about the data that `Op.bind` may use.

    Attributes:
      mean, deviation: Per channel or column of the training split; 0 and 1 for categories.
      classes: Number of classes.
      categories: Number of categories per column.
      snapshot: Folder of the snapshot, which holds the tokenizer of texts.
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    classes: int
    categories: tuple[int, ...]
    snapshot: Path


class _ClassName:
    """The default name of an op: that of its class."""

    def __get__(self, op: Op | None, kind: type[Op]) -> str:
        return kind.__name__


class Op(BaseModel):
    """One step of work on an example's features; name, version and arguments identify it.

    Attributes:
      takes: Whether the kernel accepts one example, a batch (a leading dimension on every feature),
        or both.
      random: The op draws anew each epoch, as a pure function of (seed, epoch, example key).
      device: The op can also run as the first layer of the model.
      works_on: Modalities of the data that the op accepts (`plan/schema.py`); empty: all.
      on_labels: The op changes labels, and stays on the host.
      mixes_labels: The op mixes the labels of examples, which become vectors.
      counts_pixels: The op's arguments count pixels of the full-size image.
      crops: The op's result is a rectangle of the image, perhaps resized. `draw_crop_windows`
        draws it, so that a fetch from the snapshot reads only the rectangle.
      flips: The op mirrors images, and can be part of such a fetch.
      opencv: OpenCV computes the op's pixels, in one Python call.
      host_only: The op has no form that an accelerator could run within the train step.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: ClassVar[str] = cast("str", _ClassName())
    version: ClassVar[int] = 1
    takes: ClassVar[Literal["example", "batch", "both"]] = "both"
    random: ClassVar[bool] = False
    device: ClassVar[bool] = False
    works_on: ClassVar[tuple[str, ...]] = ("images",)
    on_labels: ClassVar[bool] = False
    mixes_labels: ClassVar[bool] = False
    counts_pixels: ClassVar[bool] = False
    crops: ClassVar[bool] = False
    flips: ClassVar[bool] = False
    opencv: ClassVar[bool] = False
    host_only: ClassVar[bool] = False

    @property
    def identity(self) -> dict[str, Any]:
        """Name, version and arguments, for snapshot keys; for a user's own op also its code."""
        identity = {"op": self.name, "version": self.version, **self.model_dump()}
        module = type(self).__module__
        if module.partition(".")[0] in PROGRAM:
            return identity
        return {**identity, "source": code_digest(module, without=PROGRAM)}

    @property
    def libraries(self) -> tuple[str, ...]:
        """Distributions besides TensorFlow whose versions affect the result."""
        return (OPENCV,) if self.opencv else ()

    @property
    def prefers_single_examples(self) -> bool:
        """Whether the host is faster on single examples, although the kernel takes batches, too."""
        return False

    def shape(self, before: Shape) -> Shape:
        """Return the shape of the model's input after this op; None: examples differ."""
        return before

    def in_evaluation(self) -> Op | None:
        """Return the op that replaces this random one in evaluation; None: it is left out."""
        return None

    def bind(self, facts: DataFacts) -> Op:
        return self


def register(kind: Kind) -> Kind:
    """Make an op known to params.yaml by its name."""
    REGISTRY[kind.name] = kind
    return kind


class NeedsClasses(Op):
    """An op with labels as vectors, one number per class."""

    classes: int = Field(
        default=0, ge=0, description="length of a label; 0: as many as the data has classes"
    )

    def bind(self, facts: DataFacts) -> Op:
        return self if self.classes else self.model_copy(update={"classes": facts.classes})


class Sized(Op):
    """An op whose result always has the same (height, width)."""

    height: int = Field(gt=0, le=LONGEST_SIDE, description="rows of the result")
    width: int = Field(gt=0, le=LONGEST_SIDE, description="columns of the result")

    def shape(self, before: Shape) -> Shape:
        return (self.height, self.width, before[-1] if before else None)


class Load(Op):
    """Read the bytes of a file; planned automatically if a configuration reads files."""

    name = "load"
    takes = "example"
    feature: str


class Parse(Op):
    """Parse serialized tf.train.Example records into key and features; planned automatically if
    shards are read. `sizes` gives the lengths of features with several numbers.
    """

    name = "parse"
    dtypes: tuple[tuple[str, str], ...]
    sizes: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, schema: Schema) -> Parse:
        dtypes = tuple((one.name, one.record_dtype) for one in schema.features)
        several = [one for one in (schema.table_input, schema.target) if one and one.shape]
        return cls(dtypes=dtypes, sizes=tuple((one.name, one.channels) for one in several))


@register
class Decode(Op):
    """Turn bytes into a uint8 image (height, width, channels) or numbers, depending on the data."""

    name = "decode"
    works_on = ()


class DecodeImage(Op):
    """`decode` for a JPEG or PNG; `crop` is the (height, width) of a center crop fused with it."""

    name = "decode"
    takes = "example"
    channels: int
    dct: Literal["fast", "accurate"] = "fast"
    ratio: Literal[1, 2, 4, 8] = 1
    crop: tuple[int, int] | None = None

    def shape(self, before: Shape) -> Shape:
        """Return the crop's shape; without a crop, `before`, or None if a ratio shrinks images."""
        if self.crop:
            return (*self.crop, self.channels)
        return before if self.ratio == 1 else None


class DecodeRaw(Op):
    """Read bytes as values of shape `size` (None: any): `decode` for arrays, tables and series."""

    name = "decode"
    size: tuple[int | None, ...]
    dtype: str = "uint8"


@register
class Resize(Op):
    """Resample to (height, width), or to a `shorter` side of that many pixels, which keeps the
    aspect; then round to uint8, so that no large floats are passed on. With `shorter`, an image
    longer than 8 times its shorter side is first cut to its center of that length.
    """

    name = "resize"
    takes = "example"
    height: int | None = Field(
        default=None, gt=0, le=LONGEST_SIDE, description="rows of the result, with `width`"
    )
    width: int | None = Field(
        default=None, gt=0, le=LONGEST_SIDE, description="columns of the result, with `height`"
    )
    shorter: int | None = Field(
        default=None,
        gt=0,
        le=LONGEST_SIDE,
        description="instead: shorter side of the result; images stay of variable size",
    )
    method: Literal["bilinear", "area", "nearest", "bicubic"] = Field(
        default="bilinear", description="interpolation: bilinear, area, nearest or bicubic"
    )
    antialias: bool = Field(
        default=False, description="low-pass before shrinking; slower, no moiré"
    )

    @model_validator(mode="after")
    def _has_one_size(self) -> Self:
        sides = (self.height, self.width)
        if (self.shorter is None and None in sides) or (self.shorter and any(sides)):
            raise ValueError("give `height` and `width`, or `shorter` alone")
        if self.antialias and self.method in ("area", "nearest"):
            raise ValueError(
                f"`antialias` has no effect with `method: {self.method}`; drop it, or use bilinear"
                " or bicubic"
            )
        return self

    @property
    def identity(self) -> dict[str, Any]:
        """Name, version and the arguments that are set, so that old keys survive new arguments."""
        given = {key: value for key, value in super().identity.items() if value is not None}
        return given if self.shorter is None else {**given, "longest_aspect": LONGEST_ASPECT}

    def shape(self, before: Shape) -> Shape:
        """Return the shape; with a `shorter` side it is known only if the shape before is."""
        if self.shorter is None:
            return (self.height, self.width, before[-1] if before else None)
        if before is None or None in before[:2]:
            return None
        height, width = self.scaled(*self.center(before[0] or 0, before[1] or 0))
        return (height, width, before[-1])

    def center(self, height: Any, width: Any) -> tuple[Any, Any]:
        """Return height and width of the center to be scaled, cut to `LONGEST_ASPECT`."""
        longest = LONGEST_ASPECT * _smaller(height, width)
        return _smaller(height, longest), _smaller(width, longest)

    def scaled(self, height: Any, width: Any) -> tuple[Any, Any]:
        """Return height and width, numbers or tensors, scaled to a shorter side of `shorter`."""
        shortest, shorter = _smaller(height, width), self.shorter or 0
        return height * shorter // shortest, width * shorter // shortest


def _smaller(one: Any, other: Any) -> Any:  # takes whole numbers or tensors
    return (one + other - abs(one - other)) // 2


@register
class CenterCrop(Sized):
    """Cut the central (height, width) out of the image; a smaller image is padded with zeros."""

    name = "center_crop"
    counts_pixels = True
    crops = True


@register
class Pad(Op):
    """Add a border on all four sides, usually before a random crop."""

    name = "pad"
    counts_pixels = True
    pixels: int = Field(gt=0, le=4096, description="width of the border [pixels]")
    mode: Literal["zeros", "reflect"] = Field(
        default="zeros",
        description="what the border shows: zeros, or reflect: the image mirrored at its edge",
    )

    def shape(self, before: Shape) -> Shape:
        if before is None:
            return None
        height, width, channels = before
        return height + 2 * self.pixels, width + 2 * self.pixels, channels  # pyright: ignore


@register
class Rescale(Op):
    """Cast to float32 and multiply, usually from [0, 255] to [0, 1]."""

    name = "rescale"
    device = True
    works_on = ("images", "numbers")
    scale: float = Field(default=1 / 255, gt=0, description="factor")
    offset: float = Field(default=0.0, description="added after the multiplication")


MEASURED: Any = Field(
    default=None, description="per channel; absent: measured when the snapshot is written"
)


@register
class Standardize(Op):
    """Subtract the mean and divide by the standard deviation: those of each channel or column of
    the training split, or `mean` and `deviation` if given.
    """

    name = "standardize"
    device = True
    works_on = ("images", "numbers")
    mean: tuple[float, ...] | None = MEASURED
    deviation: tuple[float, ...] | None = MEASURED

    @model_validator(mode="after")
    def _has_both(self) -> Self:
        if (self.mean is None) != (self.deviation is None):
            raise ValueError("give `mean` and `deviation`, or neither")
        mean, deviation = self.mean or (), self.deviation or ()
        if len(mean) != len(deviation) or any(value < 0 for value in deviation):
            raise ValueError("give as many `deviation` as `mean` values, and no negative deviation")
        return self

    def shape(self, before: Shape) -> Shape:
        """Return the shape unchanged.

        Raises:
          ImpossiblePlan: There is neither one mean per channel, nor one for all.
        """
        given = len(self.mean or ())
        if given > 1 and before and before[-1] not in (None, given):
            raise ImpossiblePlan(
                f"standardize: `mean` has {given} values, but the number of channels or columns is"
                f" {before[-1]}; give one value for each, or one for all"
            )
        return before

    def bind(self, facts: DataFacts) -> Op:
        measured = {"mean": facts.mean, "deviation": facts.deviation}
        return self if self.mean is not None else self.model_copy(update=measured)


@register
class OneHot(NeedsClasses):
    """Turn class numbers into vectors of ones and zeros as labels (for `mixup` and `cutmix`)."""

    name = "one_hot"
    works_on = ()
    on_labels = True


@register
class Categories(Op):
    """Turn the categories of a table, which follow its numeric columns, into ones and zeros."""

    name = "categories"
    device = True
    works_on = ("numbers",)
    sizes: tuple[int, ...] = Field(
        default=(), description="categories of each column; empty: as many as the data has"
    )

    def bind(self, facts: DataFacts) -> Op:
        return self if self.sizes else self.model_copy(update={"sizes": facts.categories})

    def shape(self, before: Shape) -> Shape:
        """Return the shape with one column per category instead of one per categorical column."""
        if before is None:
            return None
        return (*before[:-1], (before[-1] or 0) - len(self.sizes) + sum(self.sizes))
