"""One file per kind of input. Each finds what is there and says it in one of four forms: `Files`,
`Texts`, `Arrays`, `Series`.

Sources only look; ingest examines every example, rejects what is unusable and writes the manifest.
A new kind of input is a file here with a function `scan`, its name in `SCANNERS`, and a line in
`throughline/settings/source_kinds.py`; of files in class folders the line alone.
"""

from __future__ import annotations

from throughline.data.sources import (
    arrays,
    fashion_mnist,
    file_folder,
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
    ExampleFile,
    Files,
    Rejected,
    Series,
    Texts,
)
from throughline.settings import DataSettings

__all__ = [
    "SCANNERS",
    "Arrays",
    "ColumnReading",
    "ExampleFile",
    "Files",
    "Rejected",
    "Series",
    "Texts",
    "scan",
]

SCANNERS = {
    "arrays": arrays.scan,
    "fashion_mnist": fashion_mnist.scan,
    "image_table": image_table.scan,
    "table": table.scan,
    "text_folder": text_folder.scan,
    "text_lines": text_lines.scan,
    "text_table": text_table.scan,
    "tfds": tfds.scan,
    "tfrecord": tfrecord.scan,
    "time_series": time_series.scan,
}


def scan(settings: DataSettings) -> Files | Texts | Arrays | Series:
    """Look at the source that `data` describes.

    Raises:
      DataNotFound: nothing is at `data.path`.
      UnreadableSource: what is there is not what `data.source` says.
    """
    return SCANNERS.get(settings.source, file_folder.scan)(settings)
