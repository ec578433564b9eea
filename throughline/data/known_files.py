"""Checks, without reading them, whether the files of a manifest are unchanged since ingest."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import pandas as pd

from throughline.data.encodings.base import Root
from throughline.data.found import ExampleFile
from throughline.data.inspection_cache import (
    InspectionCache,
    key_of_inspections,
    open_inspection_cache,
)
from throughline.data.manifest import Manifest
from throughline.data.object_folder import ObjectFolder, open_folder
from throughline.settings import DataSettings
from throughline.shared.data_url import is_address
from throughline.shared.object_store import StoredObject


@contextmanager
def open_known_files(
    manifest: Manifest, settings: DataSettings, inspections: Path
) -> Iterator[Callable[[pd.DataFrame], bool]]:
    """Yield a function that returns whether the files of all given rows are unchanged.

    A file counts as unchanged if the cache has an inspection of its current state with the row's
    digest. The cache never has an inspection of a converted file, a link, an image in a table, or a
    file that has just changed. A bucket is listed once, at the first call.
    """
    key = key_of_inspections(manifest.schema.input.encoding.name, settings)
    with ExitStack() as opened:

        @cache
        def open_source() -> tuple[InspectionCache, Mapping[str, StoredObject]]:
            root, listed = _open_root(settings.path)
            known = open_inspection_cache(inspections, root=root, key=key)
            return opened.enter_context(known), listed

        def is_known(rows: pd.DataFrame) -> bool:
            known, listed = open_source()
            columns = rows[["id", "uri", "row", "bytes"]].itertuples(index=False)
            files = [
                ExampleFile(
                    id=example_id,
                    path=Path(uri),
                    label="",
                    offset=offset,
                    size=0 if offset < 0 else size,
                    object=listed.get(uri),
                )
                for example_id, uri, offset, size in columns
            ]
            found = [info.digest if info else "" for info in known.find(files)]
            return found == rows["digest"].tolist()

        yield is_known


def _open_root(path: str) -> tuple[Root | ObjectFolder, Mapping[str, StoredObject]]:
    if is_address(path):
        folder = open_folder(path)
        return folder, {folder.store.address(one.name): one for one in folder.objects}
    local = Path(path)
    return Root(local if local.is_dir() else local.parent), {}
