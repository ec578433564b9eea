"""The registry of preprocessing and augmentation: each op is a frozen value that declares what it is.

No TensorFlow here, so that a plan can be made, checked and printed in milliseconds; what an op computes stands in
`kernels.py` under the same name. Changing what an op computes changes its `version`, and with it every snapshot key.
A new op is a class here, a kernel there and an equality test.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tasks.errors import nearest


class Op(BaseModel):
    """One step of work on an example's features; its repr and version are its identity.

    `batchable` says whether the kernel also accepts a batch (a leading dimension on every feature); `random` ops draw anew
    each epoch as a pure function of (seed, epoch, example key); `device` ops can also run as the first layer of the model.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: ClassVar[str]
    version: ClassVar[int] = 1
    batchable: ClassVar[bool] = True
    random: ClassVar[bool] = False
    device: ClassVar[bool] = False

    @property
    def identity(self) -> dict[str, Any]:
        """Name, version and arguments: what a snapshot key is made from."""
        return {"op": self.name, "version": self.version, **self.model_dump()}


class Load(Op):
    """Read the bytes of an image file; planned by itself where a configuration reads files."""

    name = "load"
    batchable = False


class Parse(Op):
    """Parse serialized tf.train.Example records into key, label and image; planned by itself where shards are read."""

    name = "parse"
    payload: Literal["encoded", "raw"]


class Decode(Op):
    """Turn stored bytes into a uint8 image (height, width, channels); how is known from the data, not typed here."""

    name = "decode"


class DecodeImage(Op):
    """Decode one JPEG or PNG; what `decode` means for image files."""

    name = "decode"
    batchable = False
    channels: Literal[1, 3]


class DecodeRaw(Op):
    """Reinterpret raw pixels of one fixed shape; what `decode` means for arrays."""

    name = "decode"
    shape: tuple[int, int, int]


class Resize(Op):
    """Resample to (height, width) and round back to uint8, so that wide floats never travel."""

    name = "resize"
    batchable = False
    height: int = Field(gt=0, le=16384, description="rows of the result")
    width: int = Field(gt=0, le=16384, description="columns of the result")
    method: Literal["bilinear", "area", "nearest", "bicubic"] = Field(default="bilinear", description="interpolation")
    antialias: bool = Field(default=False, description="low-pass before shrinking; slower, no moiré")


class CenterCrop(Op):
    """Cut the central (height, width) out of the image, padding with zeros where it is smaller."""

    name = "center_crop"
    batchable = False
    height: int = Field(gt=0, description="rows of the result")
    width: int = Field(gt=0, description="columns of the result")


class Flip(Op):
    """Mirror left to right with probability one half."""

    name = "flip"
    random = True


class Brightness(Op):
    """Add a random offset, the same for all pixels of an image, saturating at 0 and 255."""

    name = "brightness"
    random = True
    delta: float = Field(default=0.1, ge=0, le=1, description="largest offset as a share of the full range")


class Rescale(Op):
    """Cast to float32 and multiply, usually from [0, 255] to [0, 1]."""

    name = "rescale"
    device = True
    scale: float = Field(default=1 / 255, description="factor")
    offset: float = Field(default=0.0, description="added after the multiplication")


REGISTRY: Mapping[str, type[Op]] = {op.name: op for op in (Decode, Resize, CenterCrop, Flip, Brightness, Rescale)}


def parse_op(spec: str | Mapping[str, Any], *, where: str) -> tuple[Op | None, list[str]]:
    """Turn `name` or `{name: {argument: value}}` into an op.

    A name with a colon, `package.module:Class`, is a user's own `Op`. Returns the op, or None and the list of problems,
    each beginning with `where` (the path in params.yaml).
    """
    if isinstance(spec, Mapping):
        if len(spec) != 1:
            return None, [f"{where}: an op is one name with its arguments, such as `resize: {{height: 224, width: 224}}`"]
        name, arguments = next(iter(spec.items()))
        arguments = {} if arguments is None else arguments
    else:
        name, arguments = spec, {}
    if not isinstance(name, str) or not isinstance(arguments, Mapping):
        return None, [f"{where}: expected an op name, or a name with a mapping of arguments; found {spec!r}"]
    kind = _import_op(name) if ":" in name else REGISTRY.get(name)
    if kind is None:
        return None, [f"{where}: {name} is not an op; {nearest(name, list(REGISTRY))}"]
    try:
        return kind(**arguments), []
    except ValidationError as error:
        return None, [_problem(f"{where}.{name}", kind, item) for item in error.errors()]


def _import_op(path: str) -> type[Op] | None:
    module, _, attribute = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ImportError:
        return None
    return found if isinstance(found, type) and issubclass(found, Op) else None


def _problem(where: str, kind: type[Op], item: Any) -> str:
    key = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        return f"{where}.{key} is not an argument; {nearest(key, list(kind.model_fields)) if kind.model_fields else 'it takes none'}"
    if item["type"] == "missing":
        return f"{where}.{key} is missing"
    return f"{where}.{key}: {item['msg'].lower()}; found {item['input']!r}"
