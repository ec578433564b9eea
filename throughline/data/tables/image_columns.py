"""Columns of encoded images: bytes, or `{bytes, path}` as Hugging Face's `datasets` writes them."""

from dataclasses import dataclass

import pyarrow as pa

from throughline.data.tables.table_files import TableFiles, count_rows
from throughline.shared.errors import UnreadableSource

BYTES, PATH = "bytes", "path"  # fields of an image


@dataclass(frozen=True, kw_only=True)
class ImageColumn:
    """A column of encoded images: bytes, or a struct that has bytes and perhaps a `path`."""

    files: TableFiles
    name: str

    @property
    def has_paths(self) -> bool:
        kind = self.files.schema.field(self.name).type
        return pa.types.is_struct(kind) and kind.get_field_index(PATH) >= 0

    @property
    def values(self) -> str:
        """The column, or the field of it, that holds the bytes."""
        is_struct = pa.types.is_struct(self.files.schema.field(self.name).type)
        return f"{self.name}.{BYTES}" if is_struct else self.name

    def name_examples(self) -> list[str]:
        """Return the images' paths if all are different; otherwise table files and row numbers."""
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
    """Return the column of encoded images that is `named`, or the only one; refuse several.

    Returns None if there is none, or `named` holds no images, unless it is `path` beside `bytes`.
    """
    found = [field.name for field in files.schema if _holds_images(field.type)]
    flattened = found == [BYTES] and named == PATH
    if not found or (named in files.schema.names and named not in found and not flattened):
        return None
    if named not in found and found[1:]:
        raise UnreadableSource(
            f"{files.path}: the columns {', '.join(found)} may all hold the images",
            f"set data.path_column: {found[0]}, or another one of them",
        )
    return ImageColumn(files=files, name=named if named in found else found[0])


def _holds_images(kind: pa.DataType) -> bool:
    if not pa.types.is_struct(kind):
        return pa.types.is_binary(kind)
    fields = {field.name: field.type for field in kind}
    held = fields.get(BYTES)
    return held is not None and (pa.types.is_binary(held) or (held == pa.null() and PATH in fields))
