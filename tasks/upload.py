"""Put a folder, or a file, into a bucket, from where `data.path` can read it.

A file keeps its name if the URL ends with a slash or names only a bucket. Every file becomes an
object and replaces one of the same name; other objects stay. Names that begin with a dot are left
out, as by ingest. Links are followed. A file that cannot be read, or a link out of the folder, is
refused before anything is uploaded.
"""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from throughline.config.cli import command_cli
from throughline.data.object_folder import READERS
from throughline.shared.data_url import to_store_url
from throughline.shared.errors import DataNotFound, InvalidParams, UnexpectedFiles
from throughline.shared.object_store import open_store
from throughline.shared.progress import echo_result, in_threads, progress


def upload(source: Path, url: str) -> str:
    """Upload a file as the object of this URL, or a folder's files below it."""
    try:
        address = to_store_url(url)
    except ValueError as error:
        raise InvalidParams([f"URL: {error}"]) from None
    if source.is_file():
        names_folder = url.endswith("/") or not urlsplit(address).path
        above, _, name = (f"{address}/{source.name}" if names_folder else address).rpartition("/")
        store, files = open_store(above), {name: source}
    elif not source.is_dir():
        raise DataNotFound(f"{source} does not exist, or is neither a file nor a folder")
    else:
        store = open_store(address)
        files = {path.relative_to(source).as_posix(): path for path in sorted(_list_files(source))}
    if not files:
        raise DataNotFound(f"{source} has no files in it")
    for name, path in files.items():
        _check_readable(name, path)

    def put(file: tuple[str, Path]) -> int:
        store.write_file(*file)
        return file[1].stat().st_size

    sizes = in_threads(put, files.items(), workers=READERS)
    size = sum(progress(sizes, total=len(files), label="upload", unit="files"))
    return f"{len(files):,} objects, {size / 2**20:,.1f} MiB, in {url}"


def _list_files(source: Path) -> Iterator[Path]:
    """Yield the files below a folder; those in linked folders come last."""
    root, starts, listed = source.resolve(), [source], set[Path]()
    for start in starts:
        if not start.resolve().is_relative_to(root) or start.resolve() in listed:
            raise UnexpectedFiles(
                f"{start} is a link out of {source}, or to a folder that is uploaded anyway; remove"
                " it, or put a copy in its place"
            )
        for name, folders, names in os.walk(start, onerror=_refuse):
            folder = Path(name)
            listed.add(folder.resolve())
            folders[:] = sorted(one for one in folders if not one.startswith("."))
            starts += [folder / one for one in folders if (folder / one).is_symlink()]
            for path in (folder / one for one in names if not one.startswith(".")):
                if not path.is_file():
                    raise UnexpectedFiles(f"{path} is not a regular file; remove it")
                if path.is_symlink() and not path.resolve().is_relative_to(root):
                    raise UnexpectedFiles(
                        f"{path} is a link out of {source}; remove it, or put a copy in its place"
                    )
                yield path


def _check_readable(name: str, path: Path) -> None:
    if os.fsencode(name).decode(errors="replace") != name:
        shown = os.fsencode(path).decode(errors="backslashreplace")
        raise UnexpectedFiles(f"the name of {shown} is not UTF-8, as objects need; rename it")
    try:
        path.open("rb").close()
    except OSError as error:
        raise UnexpectedFiles(
            f"{path} cannot be read: {error.strerror}; remove it, or let this user read it"
        ) from error


def _refuse(error: OSError) -> None:
    raise UnexpectedFiles(
        f"{error.filename} cannot be listed: {error.strerror}; remove it, or let this user list it"
    ) from error


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, help="folder or file, such as data/raw/photos")
    parser.add_argument("url", help="such as s3://my-bucket/photos")


def main() -> None:
    """Put a folder or file into a bucket."""
    with command_cli(main, _add_options) as (_, options):
        echo_result(upload(options.source, options.url))


if __name__ == "__main__":
    main()
