"""Stage 0, fetch: put a known data set below data/raw, from a local copy or its official download.

Your own data needs no fetching: set `data.fetch: none` and point `data.path` at it.
"""

from __future__ import annotations

from pathlib import Path

from tasks.data.known import fetch_fashion_mnist, make_photos
from tasks.files import resumable_folder, write_json
from tasks.progress import say
from tasks.stage import Layout, door

FETCHERS = {"fashion_mnist": fetch_fashion_mnist, "photos": make_photos}


def fetch(name: str, out: Path) -> str:
    """Put the known data set `name` into `out/name` and return a line that says where it came from."""
    with resumable_folder(out, key=name) as folder:
        origin = "nothing to fetch" if name == "none" else FETCHERS[name](folder / name)
        write_json(folder / "origin.json", {"data_set": name, "origin": origin})
    return origin


def main() -> None:
    """Put a known data set (data.fetch) below data/raw/."""
    with door(main) as params:
        say(f"fetch: {fetch(params.data.fetch, Layout().raw)}")


if __name__ == "__main__":
    main()
