"""The ops that photos are trained with at scale: random resized crops, changes of color, blur and
RandAugment. No TensorFlow; `cropping.py`, `color_kernels.py` and `host_kernels.py` compute them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from throughline.plan.ops import Op, Sized, register

Method = Literal["area", "bilinear"]
METHOD: Any = Field(
    default="area",
    description=(
        "interpolation: area averages the pixels where an image shrinks and is bilinear elsewhere;"
        " bilinear is so everywhere, and aliases"
    ),
)
LARGEST_KERNEL = 10.0  # sigma [pixels]


def _increasing(pair: tuple[float, float]) -> tuple[float, float]:
    if not pair[0] <= pair[1]:
        raise ValueError(f"the least comes first, as in ({pair[1]:g}, {pair[0]:g})")
    return pair


Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Probability = Annotated[float, Field(gt=0, le=1)]


class ResizedCrop(Sized):
    """Cut a rectangle out of the image and resize it to (height, width), in one go."""

    crops = True
    opencv = True
    method: Method = METHOD


@register
class ResizedCenterCrop(ResizedCrop):
    """What `resize: {shorter: …}` and then `center_crop` show, without computing the pixels that
    the crop drops.
    """

    name = "resized_center_crop"
    shorter: int = Field(
        gt=0, le=16384, description="shorter side that the whole image would have [pixels]"
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.shorter < max(self.height, self.width):
            raise ValueError(
                f"a crop of {self.height}×{self.width} does not fit into a shorter side of"
                f" {self.shorter}; make `shorter` at least {max(self.height, self.width)}"
            )
        return self


@register
class RandomResizedCrop(ResizedCrop):
    """Cut a rectangle of random area, aspect and place, and resize it to (height, width); in
    evaluation, the center of the image. Source: Szegedy et al., CVPR 2015, as torchvision draws it.

    Ten rectangles are drawn, and the first that fits is taken; where none does, the largest central
    one of an allowed aspect.
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
        """The center crop of the same size: of 224 pixels, once the shorter side is 256."""
        return ResizedCenterCrop(
            height=self.height,
            width=self.width,
            shorter=round(max(self.height, self.width) / self.center),
            method=self.method,
        )


@register
class Grayscale(Op):
    """Replace the colors by their luma (ITU-R BT.601) at random; images of one channel stay as they
    are.
    """

    name = "grayscale"
    random = True
    probability: Probability = Field(default=0.2, description="share of the images")


@register
class Saturation(Op):
    """Blend every image with its luma, or away from it, by a random factor; images of one channel
    stay as they are.
    """

    name = "saturation"
    random = True
    delta: float = Field(
        default=0.4, ge=0, le=1, description="the factor lies between 1 − delta and 1 + delta"
    )


@register
class Hue(Op):
    """Turn the colors of an image about the color wheel by a random angle; images of one channel
    stay as they are.
    """

    name = "hue"
    random = True
    delta: float = Field(
        default=0.1, ge=0, le=0.5, description="largest angle, to either side [turns]"
    )


@register
class Blur(Op):
    """Blur images at random, by a Gaussian of random width. Source: Chen et al., ICML 2020
    (SimCLR).
    """

    name = "blur"
    random = True
    opencv = True
    sigma: Annotated[
        tuple[
            Annotated[float, Field(gt=0, le=LARGEST_KERNEL)],
            Annotated[float, Field(gt=0, le=LARGEST_KERNEL)],
        ],
        AfterValidator(_increasing),
    ] = Field(default=(0.1, 2.0), description="least and largest width [pixels]")
    probability: Probability = Field(default=0.5, description="share of the images")


@register
class RandAugment(Op):
    """Do a few random changes, of color or of place, one after another, all of one strength. What
    comes from outside of the image is black. Source: Cubuk et al., NeurIPS 2020; the strengths are
    those of torchvision.
    """

    name = "randaugment"
    random = True
    opencv = True
    host_only = True
    ops: int = Field(default=2, ge=1, le=14, description="changes per image")
    magnitude: int = Field(default=9, ge=0, le=30, description="their strength")
