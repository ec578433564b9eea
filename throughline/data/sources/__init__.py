"""One file per kind of input. Each finds what is there and says it in one of five forms:
`ImageFiles`, `StoredImages`, `Texts`, `Arrays`, `Series`.

Sources only look; `tasks.ingest` examines every example, rejects what is unusable and writes the
manifest. A new kind of input is a file here with a function `scan`, its name in `SCANNERS`, and a
line in `throughline/settings/source_kinds.py`.
"""

from __future__ import annotations

from throughline.data.sources import (
    arrays,
    fashion_mnist,
    image_folder,
    image_table,
    table,
    text_folder,
    text_lines,
    text_table,
    tfds,
    tfrecord,
    time_series,
)
from throughline.data.sources.base import (
    Arrays,
    ColumnReading,
    ImageFile,
    ImageFiles,
    Rejected,
    Series,
    StoredImage,
    StoredImages,
    Texts,
)
from throughline.settings import DataSettings

__all__ = [
    "SCANNERS",
    "Arrays",
    "ColumnReading",
    "ImageFile",
    "ImageFiles",
    "Rejected",
    "Series",
    "StoredImage",
    "StoredImages",
    "Texts",
    "scan",
]

SCANNERS = {
    "arrays": arrays.scan,
    "fashion_mnist": fashion_mnist.scan,
    "image_folder": image_folder.scan,
    "image_table": image_table.scan,
    "table": table.scan,
    "text_folder": text_folder.scan,
    "text_lines": text_lines.scan,
    "text_table": text_table.scan,
    "tfds": tfds.scan,
    "tfrecord": tfrecord.scan,
    "time_series": time_series.scan,
}


def scan(settings: DataSettings) -> ImageFiles | StoredImages | Texts | Arrays | Series:
    """Look at the source that `data` describes.

    Raises:
      DataNotFound: nothing is at `data.path`.
      UnreadableSource: what is there is not what `data.source` says.
    """
    return SCANNERS[settings.source](settings)
