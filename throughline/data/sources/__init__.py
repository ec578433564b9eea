"""Sources, one file per kind of input. Each returns `Files`, `Texts`, `Arrays` or a `Series`.

Sources only find examples; ingest examines each and writes the manifest. A source refuses what it
cannot read, or could read in more than one way: `UnreadableSource` names the file, and the key,
line or record. `DataNotFound` says that no input of the kind is at `data.path`.

A new kind of input is a file here with a function `scan`, its name in `SCANNERS`, and a line in
`throughline/settings/source_kinds.py`. Files in class folders need only that line.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath

from throughline.data.encodings.base import Root
from throughline.data.found import Arrays, Files, Series, Texts
from throughline.data.local_files import LocalFiles, list_files
from throughline.data.object_folder import ObjectFolder, open_folder
from throughline.data.sources import (
    arrays,
    class_folders,
    fashion_mnist,
    image_table,
    table,
    text_folder,
    text_lines,
    text_table,
    tfds,
    tfrecord,
    time_series,
)
from throughline.settings import DataSettings
from throughline.settings.source_kinds import SOURCES
from throughline.shared.data_url import is_address
from throughline.shared.errors import UserError
from throughline.shared.scratch import Scratch

Source = Files | Texts | Arrays | Series
SCANNERS: dict[str, Callable[..., Source]] = {
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


def scan(settings: DataSettings) -> Source:
    """Scan the source that `data` describes, on this machine.

    Raises:
      DataNotFound: nothing of the source's kind is at `data.path`.
      UnreadableSource: the files do not fit `data.source`, or can be read in several ways.
    """
    return SCANNERS.get(settings.source, class_folders.scan)(settings)


@contextmanager
def open_source(
    settings: DataSettings, *, out: Path
) -> Iterator[tuple[Source, LocalFiles | ObjectFolder]]:
    """Scan the source that `data` describes, and keep it readable within the block.

    Also yields a listing of `data.path`, made before the scan, without the output folder `out`.

    Raises:
      DataNotFound, UnreadableSource: as `scan`; also for links and Git LFS pointers.
      ObjectStoreFailed: the store was not reached or refused a request; the message names it.
      DiskRefused: the disk has no room for a copy of the objects.
    """
    if not is_address(settings.path):
        listed = list_files(Path(settings.path), out=out)
        listed.refuse_pointers(settings.leave_out)
        if SOURCES[settings.source].in_bucket != "objects":  # others reject links one by one
            Root(Path(settings.path), follow_links=settings.follow_links).refuse_links(
                listed.links()
            )
        yield scan(settings), listed
        return
    objects = open_folder(settings.path)
    if SOURCES[settings.source].in_bucket == "objects":
        yield SCANNERS.get(settings.source, class_folders.scan)(settings, objects), objects
        return
    name = PurePosixPath(settings.path).name
    scratch = Scratch()
    copy = scratch.new_folder() / ("" if objects.single else name)
    copy.mkdir(exist_ok=True)
    objects = objects.copy_into(copy)
    path = copy / name if objects.single else copy
    try:
        source = scan(settings.model_copy(update={"path": str(path)}))
        if isinstance(source, Files):
            by_path = {copy / one.name: one for one in objects.objects}
            files = [replace(file, object=by_path[file.path]) for file in source.files]
            source = replace(source, files=files, objects=objects)
        yield source, objects
    except UserError as error:
        error.args = tuple(  # to name the address instead of the local copy
            one.replace(str(path), settings.path) if isinstance(one, str) else one
            for one in error.args
        )
        raise
