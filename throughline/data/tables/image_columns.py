"""The column of a table that holds encoded images: `{bytes, path}`, as Hugging Face's `datasets`
writes them, or bytes alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from throughline.data.tables.table_files import TableFiles, count_rows
from throughline.shared.errors import UnreadableSource

BYTES, PATH = "bytes", "path"  # fields of an image


@dataclass(frozen=True, kw_only=True)
class ImageColumn:
    """A column of encoded images: its bytes themselves, or a field of it next to their `path`."""

    files: TableFiles
    name: str

    @property
    def has_paths(self) -> bool:
        """Whether images have paths next to their bytes."""
        kind = self.files.schema.field(self.name).type
        return pa.types.is_struct(kind) and kind.get_field_index(PATH) >= 0

    @property
    def values(self) -> str:
        """The column, or the field of it, that holds the bytes."""
        is_struct = pa.types.is_struct(self.files.schema.field(self.name).type)
        return f"{self.name}.{BYTES}" if is_struct else self.name

    def name_examples(self) -> list[str]:
        """What each example is called: the path of its image, if all have one of their own, else
        its file and the number of its row.
        """
        folder, rows, paths = self.files.path, [], []
        for file in self.files.splits:
            name = file.relative_to(folder).as_posix() if file != folder else file.name
            rows += [f"{name}/{number:08d}" for number in range(count_rows(file))]
        if self.has_paths:
            for _, _, batch in self.files.read([f"{self.name}.{PATH}"], rows=4096):
                paths += batch.column(0).to_pylist()
        usable = len({*paths}) == len(rows) and all(paths)
        return paths if usable else rows


def find_image_column(files: TableFiles, named: str) -> ImageColumn | None:
    """The column that may hold encoded images, `{bytes, path}`, as `datasets` writes them, or bytes
    alone: the one that is `named`, or the only one; None where a column lists their paths.

    Raises:
      UnreadableSource: several may.
    """
    found = [
        field.name
        for field in files.schema
        if pa.types.is_binary(field.type)
        or (pa.types.is_struct(field.type) and _has_bytes(field.type))
    ]
    if not found or (named in files.schema.names and named not in [*found, PATH]):
        return None
    if named not in found and found[1:]:
        raise UnreadableSource(
            f"{files.path}: the columns {', '.join(found)} may all hold the images",
            f"set data.path_column: {found[0]}, or another one of them",
        )
    return ImageColumn(files=files, name=named if named in found else found[0])


def _has_bytes(kind: pa.StructType) -> bool:
    place = kind.get_field_index(BYTES)
    return place >= 0 and (
        pa.types.is_binary(kind.field(place).type)
        or (pa.types.is_null(kind.field(place).type) and kind.get_field_index(PATH) >= 0)
    )
