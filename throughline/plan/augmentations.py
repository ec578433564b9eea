"""Ops that augment images. No TensorFlow: the modules of `throughline/kernels/` compute them."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from throughline.plan.ops import CenterCrop, NeedsClasses, Op, Sized, register

# Measured: from this many pixels, slicing one image is cheaper than indexing within a batch.
LARGE_CROP = 112 * 112

Method = Literal["area", "bilinear"]
METHOD: Any = Field(
    default="area",
    description=(
        "interpolation: area averages pixels where an image shrinks and is bilinear elsewhere;"
        " bilinear interpolates everywhere, which aliases where an image shrinks"
    ),
)


def _increasing(pair: tuple[float, float]) -> tuple[float, float]:
    if not pair[0] <= pair[1]:
        raise ValueError(f"the least comes first, as in ({pair[1]:g}, {pair[0]:g})")
    return pair


Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Sigma = Annotated[float, Field(gt=0, le=10)]  # [pixels]


@register
class RandomCrop(Sized):
    """Crop to (height, width) at random, in evaluation at the center; smaller images are padded."""

    name = "random_crop"
    random = True
    counts_pixels = True
    crops = True

    @property
    def prefers_single_examples(self) -> bool:
        """True for large crops: a single image is sliced, a batch must be picked pixel by pixel."""
        return self.height * self.width >= LARGE_CROP

    def in_evaluation(self) -> Op:
        return CenterCrop(height=self.height, width=self.width)


@register
class Flip(Op):
    """Mirror left to right with probability one half."""

    name = "flip"
    random = True
    flips = True


@register
class Rotation(Op):
    """Rotate about the center by a random angle; the corners are filled by reflection."""

    name = "rotation"
    version = 2
    random = True
    degrees: float = Field(
        default=15.0, gt=0, le=180, description="largest angle, to either side [degrees]"
    )


@register
class Brightness(Op):
    """Add a random offset, the same for all pixels of an image, saturating at 0 and 255."""

    name = "brightness"
    random = True
    delta: float = Field(
        default=0.1, ge=0, le=1, description="largest offset as a share of the full range"
    )


@register
class Contrast(Op):
    """Scale the distance of every pixel from the mean of its channel by a random factor."""

    name = "contrast"
    random = True
    delta: float = Field(
        default=0.2, ge=0, lt=1, description="the factor lies between 1 − delta and 1 + delta"
    )


@register
class Cutout(Op):
    """Blacken a square at a random place, cut at the edges. Source: DeVries and Taylor, 2017."""

    name = "cutout"
    random = True
    counts_pixels = True
    size: int = Field(default=8, gt=0, le=4096, description="side of the square [pixels]")


@register
class Mixup(NeedsClasses):
    """Blend every example of a batch, and its label, with the next one. Needs `one_hot`. Source:
    Zhang et al., ICLR 2018.

    An example's share is drawn from Beta(alpha, alpha) by the example's key; the epoch's order
    decides which example is the next.
    """

    name = "mixup"
    takes = "batch"
    random = True
    mixes_labels = True
    alpha: float = Field(
        default=0.2,
        gt=0,
        le=8,
        description="1: all shares are equally likely; toward 0: mostly one of the two",
    )


@register
class Cutmix(NeedsClasses):
    """Paste a rectangle of the next example of the batch into each one, and mix the labels by area.
    Needs `one_hot`. Source: Yun et al., ICCV 2019.
    """

    name = "cutmix"
    takes = "batch"
    random = True
    mixes_labels = True


class ResizedCrop(Sized):
    """Cut a rectangle out of the image and resize it to (height, width) in one step."""

    crops = True
    opencv = True
    method: Method = METHOD


@register
class ResizedCenterCrop(ResizedCrop):
    """Crop like `resize: {shorter: …}` and `center_crop`, without computing the dropped pixels."""

    name = "resized_center_crop"
    shorter: int = Field(
        gt=0, le=16384, description="shorter side that the whole image would have [pixels]"
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        least = max(self.height, self.width)
        if self.shorter < least:
            raise ValueError(
                f"a crop of {self.height}×{self.width} does not fit into a shorter side of"
                f" {self.shorter}; make `shorter` at least {least}"
            )
        return self


@register
class RandomResizedCrop(ResizedCrop):
    """Cut a rectangle of random area, aspect and place, and resize it to (height, width); in
    evaluation, use the center of the image. Source: Szegedy et al., CVPR 2015, drawn as in
    torchvision.

    Up to ten rectangles are drawn, and the first that fits is used; if none fits, the largest
    central rectangle of an allowed aspect is used.
    """

    name = "random_resized_crop"
    random = True
    scale: Annotated[tuple[Share, Share], AfterValidator(_increasing)] = Field(
        default=(0.08, 1.0), description="least and largest area, as shares of the image's"
    )
    ratio: Annotated[tuple[Positive, Positive], AfterValidator(_increasing)] = Field(
        default=(3 / 4, 4 / 3), description="least and largest aspect, width by height"
    )
    center: Share = Field(
        default=0.875, description="evaluation: side of the crop as a share of the shorter side"
    )

    def in_evaluation(self) -> Op:
        """Return a center crop of the same size, such as 224 pixels of a shorter side of 256."""
        return ResizedCenterCrop(
            height=self.height,
            width=self.width,
            shorter=round(max(self.height, self.width) / self.center),
            method=self.method,
        )


@register
class Grayscale(Op):
    """Replace the colors of random images by luma (BT.601); one-channel images are unchanged."""

    name = "grayscale"
    random = True
    probability: Share = Field(default=0.2, description="share of the images")


@register
class Saturation(Op):
    """Move colors toward or away from their luma by a random factor; gray images are unchanged."""

    name = "saturation"
    random = True
    delta: float = Field(
        default=0.4, ge=0, le=1, description="the factor lies between 1 − delta and 1 + delta"
    )


@register
class Hue(Op):
    """Rotate the hue of an image by a random angle; images of one channel are unchanged."""

    name = "hue"
    random = True
    delta: float = Field(
        default=0.1, ge=0, le=0.5, description="largest angle, to either side [turns]"
    )


@register
class Blur(Op):
    """Blur random images by a Gaussian of random width. Source: Chen et al., ICML 2020 (SimCLR)."""

    name = "blur"
    random = True
    counts_pixels = True
    opencv = True
    sigma: Annotated[tuple[Sigma, Sigma], AfterValidator(_increasing)] = Field(
        default=(0.1, 2.0), description="least and largest width [pixels]"
    )
    probability: Share = Field(default=0.5, description="share of the images")


@register
class RandAugment(Op):
    """Apply a few random changes of color or geometry in sequence, all of one strength. Areas from
    outside the image are black. Source: Cubuk et al., NeurIPS 2020, with the strengths of
    torchvision.
    """

    name = "randaugment"
    random = True
    opencv = True
    host_only = True
    ops: int = Field(default=2, ge=1, le=14, description="changes per image")
    magnitude: int = Field(default=9, ge=0, le=30, description="strength of the changes")
