"""Writes the images of a table's column next to the manifest, to be read in any order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from throughline.data.encodings.base import Reason
from throughline.data.found import ListedColumns
from throughline.data.manifest import IMAGES
from throughline.data.sources import Files, Rejected
from throughline.data.tables.image_columns import ImageColumn
from throughline.shared.errors import UnreadableSource
from throughline.shared.progress import progress

_ROWS_AT_ONCE = 64


def pack_images(source: Files, column: ImageColumn, folder: Path) -> Files:
    """Write the images of a table's column into `folder`, a few at a time.

    Returns the source with these images: the `offset` of a file was its row in the column, and
    becomes its first byte in the written file.

    Raises:
      UnreadableSource: the column holds only the paths of images.
    """
    by_row = {file.offset: place for place, file in enumerate(source.files)}
    path, row, end = folder / IMAGES, 0, 0
    files, rejected, places = [], list(source.rejected), []
    names = [column.values, *([f"{column.name}.path"] if column.has_paths else [])]
    batches = column.files.read(names, rows=_ROWS_AT_ONCE)
    total = -(-column.files.count_rows() // _ROWS_AT_ONCE)
    with path.open("wb") as packed:
        for _, _, batch in progress(batches, total=total, label="images", unit="batches"):
            paths = batch.column(1) if column.has_paths else None
            for number, value in enumerate(batch.column(0)):
                place = by_row.get(row + number)
                if place is None:
                    continue
                file = source.files[place]
                if not value.is_valid:
                    named = paths[number].as_py() if paths else None
                    only = Reason("bytes missing", f": there is only the path {named}")
                    rejected.append(Rejected(id=file.id, reason=only if named else "image missing"))
                    continue
                data = value.as_buffer()
                packed.write(data)
                files.append(replace(file, path=path, offset=end, size=data.size))
                places.append(place)
                end += data.size
            row += batch.num_rows
    if source.files and not files and rejected[-1].reason.startswith("bytes missing"):
        raise UnreadableSource(
            f"{column.files.path}: column {column.name} holds the paths of images, and the bytes"
            " are not in the table",
            "write it again with the images in it (of `datasets`: save_to_disk, or push_to_hub"
            " with embed_external_files=True), or a column with the paths alone, which"
            " data.path_column names",
        )
    listed = source.listed
    if listed:
        listed = ListedColumns(columns=listed.columns, values=listed.values[places])
    return replace(source, files=files, rejected=rejected, listed=listed)
