"""One file per kind of input. Each finds what is there and says it in one of two forms, `ImageFiles` or `ImageArrays`.

Sources only look; `tasks.ingest` examines every example, rejects what is unusable and writes the manifest.
A new kind of input is a file here and a line in `find`.
"""

from __future__ import annotations

from tasks.data.sources import arrays, fashion_mnist, image_folder, image_table
from tasks.data.sources.forms import ImageArrays, ImageFile, ImageFiles, Rejected
from tasks.settings import DataSettings

__all__ = ["ImageArrays", "ImageFile", "ImageFiles", "Rejected", "find"]

_FINDERS = {
    "fashion_mnist": fashion_mnist.find,
    "arrays": arrays.find,
    "image_folder": image_folder.find,
    "image_table": image_table.find,
}


def find(settings: DataSettings) -> ImageFiles | ImageArrays:
    """Look at the source that `data` describes.

    Raises:
      DataNotFound: nothing is at `data.path`.
      UnreadableSource: what is there is not what `data.source` says.
    """
    return _FINDERS[settings.source](settings)
