"""The `postprocess` ops as Keras layers, which compute on the device as kernels do on the host.

Every op with `device = True` has its layers here. They compute in single precision under any
policy: half precision would keep only 8 bits of a year or a category.
"""

from functools import singledispatch
from typing import Any

import keras
from keras import layers

from throughline.kernels.kernels import affine
from throughline.plan.ops import Categories, Op, Rescale, Standardize
from throughline.shared.errors import UnknownModel

SINGLE = "float32"


@singledispatch
def apply_as_layer(op: Op, value: Any) -> Any:
    """Apply an op to a symbolic tensor (batch, …) by its layer; UnknownModel without one."""
    own = getattr(op, "layer", None)
    if own is None:
        raise UnknownModel(
            f"postprocess: {op.name} cannot be part of a model; give {type(op).__name__} a method"
            " layer() that returns a Keras layer"
        )
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy(SINGLE)
    try:
        return own()(value)
    finally:
        keras.config.set_dtype_policy(policy)


@apply_as_layer.register
def _(op: Rescale, value: Any) -> Any:
    return layers.Rescaling(op.scale, op.offset, name="rescale", dtype=SINGLE)(value)


@apply_as_layer.register
def _(op: Standardize, value: Any) -> Any:
    scale, offset = affine(op)
    return layers.Rescaling(scale, offset, name="standardize", dtype=SINGLE)(value)  # pyright: ignore[reportArgumentType] - one number per channel is taken, too


@apply_as_layer.register
def _(op: Categories, value: Any) -> Any:
    numeric = value.shape[-1] - len(op.sizes)
    coded = [
        layers.CategoryEncoding(size, output_mode="one_hot", dtype=SINGLE)(value[:, place])
        for place, size in enumerate(op.sizes, start=numeric)
    ]
    return layers.Concatenate(name="categories", dtype=SINGLE)([value[:, :numeric], *coded])
