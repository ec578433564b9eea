"""Check or clean up the shards and snapshots in the object store of `storage.url`.

verify compares every object of this project's shards and snapshot with its digests. gc lists the
snapshots and shards that no commit, branch, tag, stash, experiment or worktree of this clone
reaches and that nobody has written to for a day; with --yes it removes them. These include those of
other projects with the same storage.url, and those that others have pushed and this clone has not
fetched. If a part of the history cannot be read, nothing is removed.
"""

import argparse
import itertools
import json
import subprocess
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from ruamel.yaml import YAML, YAMLError

from tasks.earlier import find_cache, list_cached
from throughline.config.cli import command_cli
from throughline.config.params import Params
from throughline.data.columns.fetching import fetch_checked
from throughline.data.columns.index import INDEX
from throughline.data.columns.stored import is_of_snapshot, list_objects
from throughline.data.shards.files import is_of_shard, object_name, verify_stored
from throughline.data.storage import Storage
from throughline.pipelines.read.prepared_data import PreparedData, open_prepared_data
from throughline.shared.errors import InvalidParams, WorkspaceProblem
from throughline.shared.files import PARTIAL
from throughline.shared.layout import WORKSPACES, Layout
from throughline.shared.object_store import ObjectStore, StoredObject, open_store
from throughline.shared.progress import echo, echo_result, in_threads, progress
from throughline.shared.scratch import Scratch
from throughline.shared.wording import name_some

LEFT_ALONE = timedelta(days=1)  # after a snapshot's last write
SHOWN = 3
THREADS = 8
DELETED_TOGETHER = 500
NOTES = ".done-*.json"


def verify(params: Params, layout: Layout) -> str:
    """Compare every object of the project's shards and snapshot with its digests."""
    scratch = Scratch()
    data = open_prepared_data(
        manifest=layout.manifest,
        shards=layout.shards,
        snapshot=layout.snapshot,
        preprocess=params.preprocess,
        storage=Storage(url=params.storage.url, cache=scratch.new_folder()),
    )
    sizes = [*_verify_shards(data, open_store(params.storage.url)), *_verify_columns(data)]
    if not sizes:
        return "shards and columns are in files; `python -m tasks.verify` checks them"
    return f"{len(sizes):,} objects, {sum(sizes) / 2**20:,.1f} MiB: all digests match"


def _verify_shards(data: PreparedData, store: ObjectStore) -> Iterator[int]:
    """Check the shards in the store, and yield their sizes [bytes]."""
    shards = [shard for shard in data.shards.shards if data.shard_files.is_stored(shard)]
    checked = in_threads(partial(verify_stored, store), shards, workers=THREADS)
    shown = progress(checked, total=len(shards), label="verify shards", unit="objects")
    yield from (shard.bytes for shard, _ in zip(shards, shown, strict=True))


def _verify_columns(data: PreparedData) -> Iterator[int]:
    """Check the objects that hold columns, and yield their sizes [bytes]."""
    if data.fetched is None:
        return
    fetch, folder = partial(fetch_checked, data.fetched.store), data.fetched.folder
    for split, column in itertools.product(data.snapshot.splits, data.snapshot.columns):
        if column.ragged:  # the column's offsets give the sizes of its objects
            data.memmap(split, column.extent.name)
        objects = list(list_objects(data.snapshot, data.shards, split, column, folder))
        label = f"verify {split}/{column.name}"
        fetched = in_threads(fetch, objects, workers=THREADS)
        yield from map(len, progress(fetched, total=len(objects), label=label, unit="objects"))


def find_unreachable(
    objects: Sequence[StoredObject], reachable: set[str], *, now: datetime
) -> dict[str, list[StoredObject]]:
    """Group the unreachable objects of snapshots and shards by their first folder.

    Leaves out shards younger than LEFT_ALONE, and snapshots with any object that is younger.
    """
    found: dict[str, list[StoredObject]] = {}
    for one in objects:
        folder, is_old = one.name.partition("/")[0], now - one.modified_at >= LEFT_ALONE
        of_snapshot = is_of_snapshot(one.name) and folder not in reachable
        if of_snapshot or (is_of_shard(one.name) and one.name not in reachable and is_old):
            found.setdefault(folder, []).append(one)
    return {
        folder: group
        for folder, group in sorted(found.items())
        if now - max(one.modified_at for one in group) >= LEFT_ALONE
    }


def find_reachable(root: Path, *, with_shards: bool = True) -> set[str]:
    """Collect the keys of snapshots, and names of shards, that any commit or worktree uses.

    Raises:
      WorkspaceProblem: a part of the history cannot be read, or a locked worktree is not there.
    """
    outputs = ("snapshot", "shards") if with_shards else ("snapshot",)
    cache, folders, keys, unreadable = find_cache(root), _list_worktrees(root), set[str](), []
    if _git(root, "rev-parse", "--is-shallow-repository").strip() == "true":
        unreadable.append("the commits before this shallow clone")
    # Indexes, also unfinished ones, and the notes of finished shards.
    names = f"/{INDEX}", f".*{PARTIAL}/{INDEX}", f".*{PARTIAL}/{NOTES}"
    patterns = [f"data/{output}{name}" for output in outputs for name in names]
    present = [path for folder in folders for each in patterns for path in folder.glob(each)]
    reads = {str(path): partial(_read_names, path) for path in present}
    # Commits of refs, experiments and the reflog that change dvc.lock without deleting it.
    words = ("rev-list", "--all", "--reflog", "--full-history", "HEAD", "--", "dvc.lock")
    commits = _git(root, *words).split()
    locks = {
        one: _git(root, "show", f"{one}:./dvc.lock")
        for one in commits
        if _git(root, "ls-tree", "--name-only", one, "dvc.lock")
    }
    files = [folder / "dvc.lock" for folder in folders]
    locks |= {str(file): file.read_text() for file in files if file.exists()}
    reads |= {where: partial(_read_lock, lock, cache, outputs) for where, lock in locks.items()}
    for where, read in reads.items():
        try:
            keys |= read()
        except (OSError, ValueError, KeyError, TypeError, AttributeError, YAMLError):
            unreadable.append(where[:10] if where in commits else where)
    if unreadable:
        raise WorkspaceProblem(
            f"cannot read which objects {name_some(unreadable, most=SHOWN)} need, so nothing is"
            " removed; first get the history (`git fetch --unshallow`, `dvc exp pull`) and its"
            " files in DVC's cache (`dvc fetch --all-commits shard snapshot`)"
        )
    return keys


def _list_worktrees(root: Path) -> set[Path]:
    """Return the project's folder in every worktree of its repository, and those of its runs."""
    folders, runs = {root.absolute()}, root.absolute() / WORKSPACES
    below = _git(root, "rev-parse", "--show-prefix").strip()
    for entry in filter(None, _git(root, "worktree", "list", "--porcelain").split("\n\n")):
        top = Path(entry.partition("\n")[0].removeprefix("worktree "))
        if "\nlocked" in entry and not top.exists() and not top.is_relative_to(runs):
            raise WorkspaceProblem(
                f"the locked worktree {top} is not there, so nothing is removed: it alone may use"
                f" some objects. Mount its disk, or run `git worktree unlock {top}`"
            )
        folders.add(top / below)
    return folders.union(runs.glob("*"))


def _read_lock(lock: str, cache: Path, outputs: Sequence[str]) -> set[str]:
    """Return the keys and objects' names of the outputs in a dvc.lock, read from DVC's cache."""
    stages = (YAML(typ="safe").load(lock) or {}).get("stages", {}).values()
    outs = [out for stage in stages for out in stage.get("outs", [])]
    wanted = [out["md5"] for out in outs if out["path"] in [f"data/{one}" for one in outputs]]
    cached = (one for digest in wanted for one in list_cached(cache, digest))
    return set().union(*(_read_names(file) for name, file in cached if name == INDEX))


def _read_names(path: Path) -> set[str]:
    """Read a snapshot's key, or the names of shards' objects, from an index or a shard's note."""
    index = json.loads(path.read_bytes())
    if "key" in index:
        return {index["key"]}
    if "objects" in index:
        return {name.partition("/")[0] for name in index["objects"]}
    shards = index.get("shards", [index])
    return {object_name(shard["digest"]) for shard in shards}


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WorkspaceProblem(f"`git {words[0]}` failed: {done.stderr.strip()}")
    return done.stdout


def collect_garbage(
    store: ObjectStore, root: Path, *, now: datetime, removes: bool
) -> Iterator[str]:
    """List unreachable objects of a store, a line per folder; remove them if `removes`."""
    objects = [*store.list()]
    with_shards = any(is_of_shard(one.name) for one in objects)
    unreachable = find_unreachable(objects, find_reachable(root, with_shards=with_shards), now=now)
    for key, objects in unreachable.items():
        # The index first: a snapshot that lacks objects must not look complete.
        names = sorted((one.name for one in objects), key=lambda name: "/index/" not in name)
        for start in range(0, len(names) if removes else 0, DELETED_TOGETHER):
            store.delete(names[start : start + DELETED_TOGETHER])
        size = sum(one.bytes for one in objects) / 2**20
        newest = max(one.modified_at for one in objects).astimezone(UTC)
        yield (
            f"{store.url}/{key}: {len(objects):,} objects, {size:,.1f} MiB, the last of"
            f" {newest:%Y-%m-%d}, {'removed' if removes else 'can be removed'}"
        )


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("work", choices=("verify", "gc"), help="what to do")
    parser.add_argument("--yes", action="store_true", help="gc: remove instead of only listing")


def main() -> None:
    """Check or clean up shards and snapshots in the object store: `verify` or `gc`."""
    with command_cli(main, _add_options) as (params, options):
        url = params.storage.url
        if not url:
            raise InvalidParams(["params.yaml: storage.url is empty: nothing is in a store"])
        if options.work == "verify":
            echo_result(verify(params, Layout()))
            return
        now, removes = datetime.now(UTC), options.yes
        lines = list(collect_garbage(open_store(url), Path(), now=now, removes=removes))
        for line in lines:
            echo(line)
        said = "nothing to remove: everything is in use, or less than a day old"
        if lines:
            more = "; --yes removes them, even if another project or clone needs them"
            said = "nothing in this clone reaches these" + more * (not removes)
        echo_result(said)


if __name__ == "__main__":
    main()
