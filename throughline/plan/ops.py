"""What an op is, and the ops of preprocessing: each is a frozen value that declares what it is.

No TensorFlow here, so that a plan can be made, checked and printed in milliseconds; what an op
computes stands in `kernels.py` under the same name. Changing what an op computes changes its
`version`, and with it every snapshot key. A new op is a class under `@register` here, a kernel
there and an equality test. `augmentations.py` has the ops that images are trained with.
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
OPENCV = "opencv-python-headless"  # the distribution
LONGEST_SIDE = 16384
# Times the shorter side: more of an image is cut off before it is scaled by its shorter side, so
# that a strip of 20,000 pixels by 40 does not become one of 128,000 by 256. Panoramas have less.
LONGEST_ASPECT = 8


REGISTRY: dict[str, type[Op]] = {}


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """What an op may take from the data: mean and standard deviation per channel or column of the
    training split (0 and 1 of categories), the number of classes, and of categories per column; and
    the folder of the snapshot, which holds the tokenizer of texts.
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    classes: int
    categories: tuple[int, ...]
    snapshot: Path


class _ClassName:
    """The name of an op that gives itself none: that of its class."""

    def __get__(self, op: Op | None, kind: type[Op]) -> str:
        return kind.__name__


class Op(BaseModel):
    """One step of work on an example's features; its repr and version are its identity.

    `takes` says whether the kernel accepts one example, a batch (a leading dimension on every
    feature), or both; `random` ops draw again each epoch as a pure function of (seed, epoch,
    example key); `device` ops can also run as the first layer of the model; `works_on` are the
    modalities of the data that it takes (`plan/schema.py`), empty: all; `on_labels` ops stay on
    the host; an op that `mixes_labels` needs them as vectors; one that `counts_pixels` means those
    of the full size.

    What an op that `crops` makes of an image is a rectangle of it, perhaps resized, which
    `draw_crop_windows` in `crop_windows.py` draws, so that a fetch from the snapshot reads nothing
    else; one that `flips` can be done on the way. The pixels of an `opencv` op are computed by
    OpenCV, in one Python call; a `host_only` op has no other form, which an accelerator could run
    within the train step.
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
        """Name, version and arguments: what a snapshot key is made from. Of a user's own op, also
        its module and the modules it imports.
        """
        identity = {"op": self.name, "version": self.version, **self.model_dump()}
        module = type(self).__module__
        return (
            identity
            if module.partition(".")[0] in PROGRAM
            else {**identity, "source": code_digest(module, without=PROGRAM)}
        )

    @property
    def libraries(self) -> tuple[str, ...]:
        """Distributions besides TensorFlow whose versions decide what it computes."""
        return (OPENCV,) if self.opencv else ()

    @property
    def prefers_single_examples(self) -> bool:
        """Whether the host does it better on one example at a time than on a batch, although its
        kernel takes both.
        """
        return False

    def shape(self, before: Shape) -> Shape:
        """Shape of the model's input after this op, from the shape before it (None: differs between
        examples).
        """
        return before

    def in_evaluation(self) -> Op | None:
        """What takes the place of a random op where nothing may be random; None: nothing."""
        return None

    def bind(self, facts: DataFacts) -> Op:
        """The op with what params.yaml leaves to the data."""
        return self


def register(kind: Kind) -> Kind:
    """Make an op known to params.yaml by its name."""
    REGISTRY[kind.name] = kind
    return kind


class NeedsClasses(Op):
    """An op on labels that are vectors, one number per class."""

    classes: int = Field(
        default=0, ge=0, description="length of a label; 0: as many as the data has classes"
    )

    def bind(self, facts: DataFacts) -> Op:
        """As many classes as the data has, where none are given."""
        return self if self.classes else self.model_copy(update={"classes": facts.classes})


class Sized(Op):
    """An op whose result has a size of its own."""

    height: int = Field(gt=0, le=LONGEST_SIDE, description="rows of the result")
    width: int = Field(gt=0, le=LONGEST_SIDE, description="columns of the result")

    def shape(self, before: Shape) -> Shape:
        """Height and width of the op; channels as before."""
        return (self.height, self.width, before[-1] if before else None)


class Load(Op):
    """Read the bytes of a file; planned by itself where a configuration reads files."""

    name = "load"
    takes = "example"
    feature: str


class Parse(Op):
    """Parse serialized tf.train.Example records into key, label and input; planned by itself where
    shards are read. `sizes` say how many numbers features have that hold several.
    """

    name = "parse"
    dtypes: tuple[tuple[str, str], ...]
    sizes: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, schema: Schema) -> Parse:
        """What parses records of a dataset: its features, each with the dtype in a record."""
        dtypes = tuple((one.name, one.record_dtype) for one in schema.features)
        several = [one for one in (schema.table_input, schema.target) if one and one.shape]
        return cls(dtypes=dtypes, sizes=tuple((one.name, one.channels) for one in several))


@register
class Decode(Op):
    """Turn stored bytes into a uint8 image (height, width, channels), or into numbers; how is known
    from the data, not typed here.
    """

    name = "decode"
    works_on = ()


class DecodeImage(Op):
    """Decode one JPEG or PNG; what `decode` means for image files. `crop`: (height, width) of a
    center crop done while decoding.
    """

    name = "decode"
    takes = "example"
    channels: int
    dct: Literal["fast", "accurate"] = "fast"
    ratio: Literal[1, 2, 4, 8] = 1
    crop: tuple[int, int] | None = None

    def shape(self, before: Shape) -> Shape:
        """The size of a crop; at a smaller size images differ, since only JPEG is decoded so."""
        if self.crop:
            return (*self.crop, self.channels)
        return before if self.ratio == 1 else None


class DecodeRaw(Op):
    """Reinterpret raw values of one fixed shape: `decode` for arrays, tables and series."""

    name = "decode"
    size: tuple[int | None, ...]
    dtype: str = "uint8"


@register
class Resize(Op):
    """Resample and round back to uint8, so that wide floats never travel: to (height, width), or to
    a `shorter` side of so many pixels, which keeps every image's aspect; of one longer than 8 times
    its shorter side, the center of that length.
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
                f"`antialias` changes nothing of `method: {self.method}`; drop it, or use bilinear"
                " or bicubic"
            )
        return self

    @property
    def identity(self) -> dict[str, Any]:
        """Name, version and the arguments that are given: as before there were others; by the
        shorter side, also what bounds the longer.
        """
        given = {key: value for key, value in super().identity.items() if value is not None}
        return given if self.shorter is None else {**given, "longest_aspect": LONGEST_ASPECT}

    def shape(self, before: Shape) -> Shape:
        """Height and width of the result; of a `shorter` side, known where those before it are."""
        if self.shorter is None:
            return (self.height, self.width, before[-1] if before else None)
        if before is None or None in before[:2]:
            return None
        height, width = self.scaled(*self.center(before[0] or 0, before[1] or 0))
        return (height, width, before[-1])

    def center(self, height: Any, width: Any) -> tuple[Any, Any]:
        """Height and width of the center of an image that is scaled by its shorter side, numbers or
        tensors: all of it, unless it is longer than `LONGEST_ASPECT` times that.
        """
        longest = LONGEST_ASPECT * _smaller(height, width)
        return _smaller(height, longest), _smaller(width, longest)

    def scaled(self, height: Any, width: Any) -> tuple[Any, Any]:
        """Height and width of an image once its shorter side is `shorter`: numbers or tensors; the
        longer side is rounded down.
        """
        shortest, shorter = _smaller(height, width), self.shorter or 0
        return height * shorter // shortest, width * shorter // shortest


def _smaller(one: Any, other: Any) -> Any:
    """The smaller of two whole numbers or tensors of them."""
    return (one + other - abs(one - other)) // 2


@register
class CenterCrop(Sized):
    """Cut the central (height, width) out of the image, padding with zeros where it is smaller."""

    name = "center_crop"
    counts_pixels = True
    crops = True


@register
class Pad(Op):
    """Add a border on all four sides, as before a random crop."""

    name = "pad"
    counts_pixels = True
    pixels: int = Field(gt=0, le=4096, description="width of the border [pixels]")
    mode: Literal["zeros", "reflect"] = Field(
        default="zeros",
        description="what the border shows: zeros, or reflect for the image's own edge",
    )

    def shape(self, before: Shape) -> Shape:
        """Twice the border more in height and width."""
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


@register
class Standardize(Op):
    """Subtract the mean and divide by the standard deviation of each channel or column, taken over
    the training split only.
    """

    name = "standardize"
    device = True
    works_on = ("images", "numbers")
    mean: tuple[float, ...] | None = Field(
        default=None, description="per channel; absent: measured when the snapshot is written"
    )
    deviation: tuple[float, ...] | None = Field(
        default=None, description="per channel; absent: measured when the snapshot is written"
    )

    @model_validator(mode="after")
    def _has_both(self) -> Self:
        if (self.mean is None) != (self.deviation is None):
            raise ValueError("give `mean` and `deviation`, or neither")
        mean, deviation = self.mean or (), self.deviation or ()
        if len(mean) != len(deviation) or any(value < 0 for value in deviation):
            raise ValueError("give a `mean` and a `deviation`, from 0, for each channel or column")
        return self

    def shape(self, before: Shape) -> Shape:
        """As before; ImpossiblePlan unless there is one mean for each channel, or for all."""
        given = len(self.mean or ())
        if given > 1 and before and before[-1] not in (None, given):
            raise ImpossiblePlan(
                f"standardize has {given} means, and there are {before[-1]} channels or columns;"
                " give one for each, or one for all"
            )
        return before

    def bind(self, facts: DataFacts) -> Op:
        """The training split's statistics, where none are given."""
        measured = {"mean": facts.mean, "deviation": facts.deviation}
        return self if self.mean is not None else self.model_copy(update=measured)


@register
class OneHot(NeedsClasses):
    """Turn class numbers into vectors of ones and zeros: the label (for `mixup` and `cutmix`)."""

    name = "one_hot"
    works_on = ()
    on_labels = True


@register
class Categories(Op):
    """Turn the categories of a table, numbers after its numeric columns, into ones and zeros."""

    name = "categories"
    device = True
    works_on = ("numbers",)
    sizes: tuple[int, ...] = Field(
        default=(), description="how many each column has; empty: as many as the data has"
    )

    def bind(self, facts: DataFacts) -> Op:
        """As many as the data has, where none are given."""
        return self if self.sizes else self.model_copy(update={"sizes": facts.categories})

    def shape(self, before: Shape) -> Shape:
        """One column per category instead of one per categorical column."""
        return (
            before
            if before is None
            else (*before[:-1], (before[-1] or 0) - len(self.sizes) + sum(self.sizes))
        )
