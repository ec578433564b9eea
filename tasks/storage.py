"""Look after the snapshots in the object store of `storage.url`.

verify reads every object of this project's snapshot and compares it with its digests; nothing is
kept. gc lists snapshots that no commit, branch, tag, stash or experiment of this clone reaches and
that nobody has written to for a day; with --yes it removes them. Where a part of the history cannot
be read, nothing is removed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ruamel.yaml import YAML, YAMLError

from tasks.earlier import find_cache, list_cached
from throughline.config.cli import command_cli
from throughline.config.params import Params
from throughline.data.columns.fetching import Storage, fetch_checked
from throughline.data.columns.index import INDEX
from throughline.data.columns.stored import is_of_snapshot, list_objects
from throughline.pipelines.read.prepared_data import open_prepared_data
from throughline.shared.errors import InvalidParams, WorkspaceProblem
from throughline.shared.layout import Layout
from throughline.shared.object_store import ObjectStore, StoredObject, open_store
from throughline.shared.progress import echo, echo_result, in_threads, progress

LEFT_ALONE = timedelta(days=1)  # since the last object of a snapshot: somebody may be writing it
SHOWN = 3
THREADS = 8
DELETED_TOGETHER = 500


def verify(params: Params, layout: Layout) -> str:
    """Read every object of the project's snapshot and compare it with its digests; returns what
    was found in order.

    Raises:
      ObjectStoreFailed: an object is missing or damaged; names it and the rows.
    """
    with tempfile.TemporaryDirectory(dir=layout.snapshot.parent) as scratch:
        data = open_prepared_data(
            manifest=layout.manifest,
            shards=layout.shards,
            snapshot=layout.snapshot,
            preprocess=params.preprocess,
            storage=Storage(url=params.storage.url, cache=Path(scratch)),
        )
        fetched = data.fetched
        if not fetched:
            return (
                f"{layout.snapshot} has its columns in files; `python -m tasks.verify` checks them"
            )
        count = size = 0
        for split in data.snapshot.splits:
            for column in data.snapshot.columns:
                if column.ragged:  # its offsets say how long its objects are
                    data.memmap(split, column.extent.name)
                objects = list(
                    list_objects(data.snapshot, data.shards, split, column, fetched.folder)
                )
                sizes = in_threads(
                    lambda one: len(fetch_checked(fetched.store, one)), objects, workers=THREADS
                )
                label = f"verify {split}/{column.name}"
                size += sum(progress(sizes, total=len(objects), label=label, unit="objects"))
                count += len(objects)
    return f"{count:,} objects, {size / 2**20:,.1f} MiB: all digests match"


def find_unreachable(
    objects: Sequence[StoredObject], reachable: set[str], *, now: datetime
) -> dict[str, list[StoredObject]]:
    """The objects of the snapshots, by key, that are not reachable and that nobody has written to
    of late; what else is in the bucket is none of them.
    """
    by_key: dict[str, list[StoredObject]] = {}
    for one in filter(lambda one: is_of_snapshot(one.name), objects):
        by_key.setdefault(one.name.partition("/")[0], []).append(one)
    return {
        key: found
        for key, found in sorted(by_key.items())
        if key not in reachable and now - max(one.modified_at for one in found) >= LEFT_ALONE
    }


def find_reachable_keys(root: Path) -> set[str]:
    """Keys of the snapshots that a commit or experiment of the project in `root` has, of its
    worktree, and of its runs.

    Raises:
      WorkspaceProblem: a part of the history cannot be read; says which, and what to do.
    """
    indexes = [*root.glob("data/snapshot*/index.json")]
    indexes += root.glob(".throughline/workspaces/*/data/snapshot*/index.json")
    unreadable, keys = [], {json.loads(path.read_bytes())["key"] for path in indexes}
    if _git(root, "rev-parse", "--is-shallow-repository").strip() == "true":
        unreadable.append("the commits before this shallow clone")
    cache = find_cache(root)
    locks = {
        commit: _git(root, "show", f"{commit}:./dvc.lock") for commit in _commits_of_lock(root)
    }
    here = root / "dvc.lock"
    locks |= {"dvc.lock": here.read_text()} if here.exists() else {}
    for commit, lock in locks.items():
        try:
            keys |= set(_read_keys(lock, cache))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, YAMLError):
            unreadable.append(commit[:10])
    if unreadable:
        more = f" and {len(unreadable) - SHOWN} more" if len(unreadable) > SHOWN else ""
        raise WorkspaceProblem(
            f"which snapshots {', '.join(unreadable[:SHOWN])}{more} need cannot be read, so none is"
            " removed; get the history (`git fetch --unshallow`, `dvc exp pull`) and what it"
            " needs of DVC's cache (`dvc fetch --all-commits snapshot`) first"
        )
    return keys


def _commits_of_lock(root: Path) -> list[str]:
    """Commits of all refs, DVC's experiments and the reflog among them, in which dvc.lock changed
    and is there.
    """
    words = ("rev-list", "--all", "--reflog", "--full-history", "HEAD", "--", "dvc.lock")
    changed = _git(root, *words).split()
    return [one for one in changed if _git(root, "ls-tree", "--name-only", one, "dvc.lock")]


def _read_keys(lock: str, cache: Path) -> Iterator[str]:
    """Keys of the snapshots that a dvc.lock names, from DVC's cache."""
    for stage in (YAML(typ="safe").load(lock) or {}).get("stages", {}).values():
        for out in stage.get("outs", []):
            if out["path"] == "data/snapshot":
                for name, file in list_cached(cache, out["md5"]):
                    if name == INDEX:
                        yield json.loads(file.read_bytes())["key"]


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WorkspaceProblem(f"git {words[0]}: {done.stderr.strip()}")
    return done.stdout


def collect_garbage(
    store: ObjectStore, root: Path, *, now: datetime, removes: bool
) -> Iterator[str]:
    """Remove, or only list, the snapshots in a store that nothing reaches; yields a line for each.

    Raises:
      WorkspaceProblem: a part of the history cannot be read.
    """
    reachable = find_reachable_keys(root)
    unreachable = find_unreachable([*store.list()], reachable, now=now)
    for key, objects in unreachable.items():
        # The index first: what lacks some objects is not complete.
        names = sorted((one.name for one in objects), key=lambda name: "/index/" not in name)
        for start in range(0, len(names) if removes else 0, DELETED_TOGETHER):
            store.delete(names[start : start + DELETED_TOGETHER])
        size = sum(one.bytes for one in objects) / 2**20
        state = "removed" if removes else "can be removed"
        yield f"{store.url}/{key}: {len(objects):,} objects, {size:,.1f} MiB, {state}"


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("work", choices=("verify", "gc"), help="what to do")
    parser.add_argument("--yes", action="store_true", help="gc: remove, and do not only list")


def main() -> None:
    """Look after the snapshots in the object store: `verify` or `gc`."""
    with command_cli(main, _add_options) as (params, options):
        url = params.storage.url
        if not url:
            raise InvalidParams(["params.yaml: storage.url is empty: no snapshot is in a store"])
        if options.work == "verify":
            echo_result(verify(params, Layout()))
            return
        lines = list(
            collect_garbage(open_store(url), Path(), now=datetime.now(UTC), removes=options.yes)
        )
        for line in lines:
            echo(line)
        rest = "" if options.yes or not lines else "; --yes removes them"
        echo_result(f"{len(lines)} snapshots that nothing reaches{rest}")


if __name__ == "__main__":
    main()
