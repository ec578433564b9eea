"""One file per kind of input. Each finds what is there and says it in one of three forms:
`ImageFiles`, `Arrays`, `Series`.

Sources only look; `tasks.ingest` examines every example, rejects what is unusable and writes the
manifest. A new kind of input is a file here and a line in `_SCANNERS`.
"""

from __future__ import annotations

from tasks.data.sources import arrays, fashion_mnist, image_folder, image_table, table, time_series
from tasks.data.sources.base import Arrays, ImageFile, ImageFiles, Rejected, Series
from tasks.settings import DataSettings

__all__ = ["Arrays", "ImageFile", "ImageFiles", "Rejected", "Series", "scan"]

_SCANNERS = {
    "fashion_mnist": fashion_mnist.scan,
    "arrays": arrays.scan,
    "image_folder": image_folder.scan,
    "image_table": image_table.scan,
    "table": table.scan,
    "time_series": time_series.scan,
}


def scan(settings: DataSettings) -> ImageFiles | Arrays | Series:
    """Look at the source that `data` describes.

    Raises:
      DataNotFound: nothing is at `data.path`.
      UnreadableSource: what is there is not what `data.source` says.
    """
    return _SCANNERS[settings.source](settings)
