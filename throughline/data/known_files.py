"""Whether the files of a manifest are still those that ingest has read, without reading them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

from throughline.data.encodings.base import Root
from throughline.data.inspection_cache import key_of_inspections, open_inspection_cache
from throughline.data.manifest import Manifest
from throughline.data.sources import ExampleFile
from throughline.settings import DataSettings


@contextmanager
def open_known_files(
    manifest: Manifest, settings: DataSettings, inspections: Path
) -> Iterator[Callable[[pd.DataFrame], bool]]:
    """A function that says of rows of a manifest whether ingest knows all of their files, as they
    are now, with the same digests. It knows none that lies in a bucket, was converted, or has just
    changed.
    """
    root = Path(settings.path)
    root = root if root.is_dir() else root.parent
    key = key_of_inspections(manifest.schema.input.encoding.name, settings)
    with open_inspection_cache(inspections, root=Root(root), key=key) as cache:

        def is_known(rows: pd.DataFrame) -> bool:
            columns = rows[["id", "uri", "row", "bytes"]].itertuples(index=False)
            files = [
                ExampleFile(
                    id=example_id,
                    path=Path(uri),
                    label="",
                    offset=offset,
                    size=0 if offset < 0 else size,
                )
                for example_id, uri, offset, size in columns
            ]
            found = [info.digest if info else "" for info in cache.find(files)]
            return found == rows["digest"].tolist()

        yield is_known
