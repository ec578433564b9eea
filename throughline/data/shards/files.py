"""Files of a set of shards: in data/shards/, or in an object store and fetched when first read.

An object `shards/DIGEST` is named by the digest of its bytes, so it never changes: two writers put
the same bytes, and an existing object need not be put again. `index.json`, with all digests, and
the offsets of records stay in data/shards/. Shards of an earlier set that were made of the same
examples are reused.
"""

import errno
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from throughline.data.object_folder import RANGE_BYTES, READERS, write_at
from throughline.data.shards.index import INDEX, Shard, ShardIndex
from throughline.data.shards.tfrecord import Compression, read_records
from throughline.data.storage import Storage, has_size, hold_fetch, name_unfinished, open_unfinished
from throughline.plan.schema import Schema
from throughline.results.base import read_value
from throughline.shared.errors import (
    CorruptShard,
    MissingInput,
    ObjectStoreFailed,
    UserError,
    explain_index_alone,
    rebuild_hint,
)
from throughline.shared.files import clear_leftovers, copy_whole, digest_file
from throughline.shared.object_store import RETRIES, ObjectStore, open_store
from throughline.shared.progress import echo_fact, in_threads, progress

REPAIRED = "repaired"  # folder within the snapshot's folder
OBJECTS = "shards"  # prefix of the objects, and folder within `storage.cache`
_NAME = re.compile(rf"{OBJECTS}/[0-9a-f]{{32}}")


def object_name(digest: str) -> str:
    return f"{OBJECTS}/{digest}"


def is_of_shard(name: str) -> bool:
    """Return whether an object may be a shard, by its name."""
    return bool(_NAME.fullmatch(name))


def offsets_path(shard: Path) -> Path:
    return shard.with_suffix(".offsets.npy")


@dataclass(frozen=True, kw_only=True)
class ShardFiles:
    """The places of shards: `folder` or `storage`; `snapshot_folder`/repaired for repaired ones."""

    folder: Path
    snapshot_folder: Path | None = None
    storage: Storage | None = None

    def path(self, shard: Shard) -> Path:
        """Return the path of a shard; fetch it first if it is in a store.

        Raises ObjectStoreFailed if the store lacks it or has it damaged, and DiskRefused.
        """
        return self.paths((shard,))[0]

    def paths(self, shards: Sequence[Shard]) -> list[Path]:
        lacking = [shard for shard in shards if not self.is_here(shard)]
        if self.storage and lacking:
            size_mib = sum(shard.bytes for shard in lacking) / 2**20
            echo_fact(f"{len(lacking)} shards, {size_mib:,.1f} MiB, from {self.storage.url}")
            store = open_store(self.storage.url)
            for shard in progress(lacking, total=len(lacking), label="fetch", unit="shards"):
                _fetch(store, shard, self._fetched(shard))
        return [self._fetched(one) if self.is_stored(one) else self._local(one) for one in shards]

    def check(self, shards: ShardIndex, *, sizes: bool = True) -> None:
        """Check that local shards are there and, with `sizes`, as long as the index says.

        Raises MissingInput if none is there, CorruptShard if one is missing or has another size.
        """
        if not self.storage and not any(self._local(one).exists() for one in shards.shards):
            raise MissingInput(explain_index_alone(self.folder, "shards"))
        for shard in shards.shards:
            path = self._local(shard)
            found = path.stat().st_size if path.exists() else None
            if self.is_stored(shard):
                continue
            if found is None or (sizes and found != shard.bytes):
                state = "is missing" if found is None else f"has {found} bytes, not {shard.bytes}"
                raise CorruptShard(f"{path} {state}; {self.fix_hint(shard)}")

    def is_stored(self, shard: Shard) -> bool:
        return bool(self.storage) and not shard.repaired and not self._local(shard).exists()

    def is_whole(self, shard: Shard) -> bool:
        """Return whether a shard's bytes match the index; True for a stored shard, unread."""
        if self.is_stored(shard):
            return True
        with suppress(OSError):
            return digest_file(self._local(shard)) == shard.digest
        return False

    def is_here(self, shard: Shard) -> bool:
        """Return whether a shard need not be fetched."""
        return not self.is_stored(shard) or has_size(self._fetched(shard), shard.bytes)

    def drop_if_damaged(self, shard: Shard) -> None:
        """Remove a fetched file that is damaged, so that it is fetched again."""
        path = self._fetched(shard)
        if path.exists() and digest_file(path) != shard.digest:
            path.unlink()

    def find_damage(self, shard: Shard) -> list[str]:
        """Return the problems of a shard: damaged records, or else a wrong digest."""
        path = self.path(shard)
        if digest_file(path) == shard.digest:
            return []
        problems: list[str] = []
        count = sum(1 for _ in read_records(path, compression=shard.compression, damaged=problems))
        return problems or [
            f"{path}: has {count} readable records, but its digest does not match index.json"
        ]

    def fix_hint(self, shard: Shard) -> str:
        if self.is_stored(shard):
            return f"delete {self._fetched(shard)} to fetch it again"
        folder = self._local(shard).parent
        return rebuild_hint(folder, "snapshot" if shard.repaired else "shard")

    def _local(self, shard: Shard) -> Path:
        if shard.repaired and self.snapshot_folder:
            return self.snapshot_folder / REPAIRED / shard.name
        return self.folder / shard.name

    def _fetched(self, shard: Shard) -> Path:
        return path_in_cache(self.storage, shard) if self.storage else self._local(shard)


def path_in_cache(storage: Storage, shard: Shard) -> Path:
    return storage.cache / OBJECTS / shard.digest / shard.name


def put_shard(storage: Storage, path: Path, shard: Shard) -> None:
    """Put a shard that was written at `path` into the store; raise ObjectStoreFailed if it refuses.

    The file moves into the cache or, if that lacks room, is removed, to be fetched when needed.
    """
    store, name = open_store(storage.url), object_name(shard.digest)
    if not is_put(store, shard):
        store.write_file(name, path)
    cached = path_in_cache(storage, shard)
    cached.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.replace(path, cached)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        clear_leftovers(cached.parent)
        with suppress(OSError), hold_fetch(cached, shard.name):  # on another disk
            copy_whole(path, cached, digest=shard.digest)
        path.unlink()


def is_put(store: ObjectStore, shard: Shard) -> bool:
    found = store.find(object_name(shard.digest))
    return found is not None and found.bytes == shard.bytes


def verify_stored(store: ObjectStore, shard: Shard) -> None:
    """Read a shard's object; raise ObjectStoreFailed if that fails or its digest is another."""
    state = blake3()
    for piece in store.stream(object_name(shard.digest)):
        state.update(piece)
    if state.hexdigest(length=16) != shard.digest:
        raise _damaged(store, shard)


def _damaged(store: ObjectStore, shard: Shard, also: str = "") -> ObjectStoreFailed:
    return ObjectStoreFailed(
        f"{store.address(object_name(shard.digest))} does not match its digest{also} (shard"
        f" {shard.name}); remove the object and run `dvc repro --force shard`, which puts it there"
        " again"
    )


def _fetch(store: ObjectStore, shard: Shard, path: Path) -> None:
    name, unfinished = object_name(shard.digest), name_unfinished(path)

    def copy(start: int) -> None:
        length = min(RANGE_BYTES, shard.bytes - start)
        write_at(descriptor, store.read_range(name, start=start, length=length), start)

    with hold_fetch(path, shard.name):
        if has_size(path, shard.bytes):
            return
        with open_unfinished(path, shard.bytes, end=shard.bytes) as descriptor:
            for _ in range(1 + RETRIES):
                try:
                    starts = range(0, shard.bytes, RANGE_BYTES)
                    for _ in in_threads(copy, starts, workers=READERS):
                        pass
                except ObjectStoreFailed as error:
                    raise ObjectStoreFailed(
                        f"{error} (shard {shard.name}; if it is gone, `dvc repro --force shard`"
                        " puts it there again)"
                    ) from None
                if digest_file(unfinished) == shard.digest:
                    return
            unfinished.unlink()
            raise _damaged(store, shard, f", even after {RETRIES} more fetches")


@dataclass(frozen=True, kw_only=True)
class EarlierShard:
    path: Path
    shard: Shard


def find_earlier_shards(
    folder: Path | None, schema: Schema, compression: Compression
) -> Mapping[str, EarlierShard]:
    """Return an earlier set's shards of this schema and compression, by `made_of`, if any."""
    if folder is None:
        return {}
    with suppress(UserError, OSError):
        index = read_value(ShardIndex, folder / INDEX, "shard")
        return {
            shard.made_of: EarlierShard(path=folder / shard.name, shard=shard)
            for shard in (index.shards if index.schema == schema else ())
            if shard.compression == compression
        }
    return {}


def take_stored_shard(earlier: EarlierShard | None, path: Path, store: ObjectStore) -> Shard | None:
    """Return an earlier shard and copy its offsets; None unless it is stored and has them whole."""
    if earlier is None or not is_put(store, earlier.shard):
        return None
    source, digest = offsets_path(earlier.path), earlier.shard.offsets_digest
    if digest and not copy_whole(source, offsets_path(path), digest=digest):
        return None
    return earlier.shard
