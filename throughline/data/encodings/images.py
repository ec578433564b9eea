"""Images in files; `image_files.py` examines them."""

from collections.abc import Collection
from contextlib import AbstractContextManager
from importlib import import_module

from throughline.data.encodings.base import FileEncoding, Inspect
from throughline.plan.ops import DecodeImage, Op
from throughline.plan.schema import Feature, Shape, find_encoding, register
from throughline.settings import DataSettings, PipelineConfig

_BEGINNINGS = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"BM")


@register
class ImageEncoding(FileEncoding):
    """JPEG and PNG files, gray or in color; other images are converted to PNG."""

    name = "image"
    modality = "images"
    noun = "images"
    suffixes = frozenset({".jpg", ".jpeg", ".jfif", ".jpe", ".png", ".gif", ".bmp", ".webp"})

    def looks_like(self, name: str, first: bytes) -> bool:
        return first.startswith(_BEGINNINGS) or (first[:4], first[8:12]) == (b"RIFF", b"WEBP")

    def decode(self, feature: Feature, config: PipelineConfig | None) -> Op:
        how = {"dct": config.decode.dct, "ratio": config.decode.ratio} if config else {}
        return DecodeImage(channels=feature.channels, **how)

    def open_inspector(self, settings: DataSettings) -> AbstractContextManager[Inspect]:
        """Open the inspector of `image_files`; only ingest is to import that, and Pillow."""
        image_files = import_module("throughline.data.encodings.image_files")
        return image_files.ImageInspector(settings.max_pixels)

    def describe(self, shapes: Collection[tuple[int, ...]]) -> Feature:
        """Return the feature of images of one size or several; in color if any of them is."""
        channels = max((shape[-1] for shape in shapes), default=1)
        sizes = {shape[:2] for shape in shapes}
        height, width = sizes.pop() if len(sizes) == 1 else (None, None)
        return image_feature((height, width, channels))


def image_feature(shape: Shape = (None, None, 3)) -> Feature:
    return Feature(
        name="image", role="input", encoding=find_encoding("image"), shape=shape, dtype="uint8"
    )
