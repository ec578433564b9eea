"""Writes all examples into TFRecord shards, in a global shuffle keyed by content.

The same examples give the same files, whatever the number of writers. Finished shards survive a
kill and are not written again, nor are shards that an earlier run made of the same examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd

from throughline.data.manifest import (
    DOCUMENTS,
    EXAMPLES,
    SPLITS,
    Manifest,
    map_documents,
    map_values,
    read_manifest,
)
from throughline.data.shards.file_parts import FilePart, read_parts
from throughline.data.shards.files import (
    OBJECTS,
    EarlierShard,
    find_earlier_shards,
    is_put,
    object_name,
    put_shard,
    take_stored_shard,
)
from throughline.data.shards.index import Shard, ShardIndex, write_shard_index
from throughline.data.shards.record_offsets import write_offsets
from throughline.data.shards.records import encode_examples, encode_head_and_tail
from throughline.data.shards.tfrecord import (
    Compression,
    frame,
    frame_buffer,
    seal_frames,
    shard_name,
    write_frames,
)
from throughline.data.splits import block_ranges, first_of_digests, shard_order, shard_ranges
from throughline.data.storage import Storage, check_put
from throughline.plan.schema import Schema
from throughline.results.base import read_value
from throughline.settings import ShardSettings
from throughline.shared.engine import in_parallel
from throughline.shared.errors import DamagedFile, DataNotFound
from throughline.shared.files import (
    copy_whole,
    digest_blake2b,
    digest_file,
    digest_json,
    resumable_folder,
    write_json,
)
from throughline.shared.object_store import open_store
from throughline.shared.program import digest_program
from throughline.shared.progress import progress

BLOCK_BYTES = 1 << 20  # records of one size are encoded together in blocks of this size


class OrderedExamples:
    """The examples of a manifest in the order of shards.

    `values` memory-maps the array of all examples, or the bytes of texts; it is empty if examples
    are files. A pickle only names the manifest, which another process opens once.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.manifest, self.values = manifest, np.empty(0)
        if (storage := manifest.schema.input.encoding.storage) != "files":
            open_values = map_documents if storage == "documents" else map_values
            self.values = open_values(manifest.folder)
        self._of: dict[str, pd.DataFrame] = {}

    def __reduce__(self) -> tuple[Callable[..., OrderedExamples], tuple[Path, str]]:
        return _open_examples, (self.manifest.folder.absolute(), self._file_digest)

    @cached_property
    def _file_digest(self) -> str:  # with files' locations, unlike the manifest's digest
        return digest_file(self.manifest.folder / EXAMPLES)

    def of(self, split: str) -> pd.DataFrame:
        if split not in self._of:
            rows, schema = self.manifest.for_split(split), self.manifest.schema
            # A series keeps the order of time.
            order = np.argsort(rows["row"]) if schema.is_series else shard_order(rows)
            more = ["id", "uri"] if schema.input.encoding.storage == "files" else []
            names = ["digest", "key", "row", "label", "bytes", *more]
            self._of[split] = rows[names].iloc[order]
        return self._of[split]

    def columns_of(self, rows: pd.DataFrame) -> np.ndarray | None:
        """Return the table input of some rows, (rows, columns) float32, if there is one."""
        columns = self.manifest.columns
        return None if columns is None else columns[rows.index.to_numpy()]


@lru_cache(maxsize=1)
def _open_examples(folder: Path, digest: str) -> OrderedExamples:
    manifest = read_manifest(folder)
    if digest_file(folder / EXAMPLES) != digest:
        raise DataNotFound(f"{folder} has changed since the stage read it; run `dvc repro`")
    return OrderedExamples(manifest)


@dataclass(frozen=True, kw_only=True)
class ShardJob:
    """The examples of one shard: [first, end) in the order of its split.

    `made_of` is their digest. `earlier` is a shard of the same examples in an earlier set, if any.
    """

    path: Path
    examples: OrderedExamples
    split: str
    first: int
    end: int
    compression: Compression
    made_of: str
    earlier: EarlierShard | None

    def __str__(self) -> str:
        return self.path.name

    @property
    def schema(self) -> Schema:
        return self.examples.manifest.schema

    @property
    def rows(self) -> pd.DataFrame:
        return self.examples.of(self.split).iloc[self.first : self.end]


def shard(
    manifest: Manifest,
    out: Path,
    *,
    settings: ShardSettings,
    earlier: Path | None = None,
    is_known: Callable[[pd.DataFrame], bool] = lambda rows: True,
    storage: Storage | None = None,
) -> ShardIndex:
    """Write the shards of all splits into `out`, replacing it only when all are complete.

    With `storage`, shards are put there, and `out` holds their index and offsets. Shards of the
    same examples are reused from the set in the folder `earlier`, which the same program must have
    written with the same settings. If examples are files, shards are reused only if `is_known` says
    that the files of their rows have not changed since ingest.

    Raises DataNotFound or DamagedFile if files or texts are not those of ingest, and
    ObjectStoreFailed if a bucket cannot be read or does not accept a shard.
    """
    same_work = digest_json(
        {
            "data": manifest.digest,
            "settings": settings.model_dump(exclude={"writers"}),
            "program": digest_program("shard"),
            # The note that a shard is done (`.done-*`) is about this storage only.
            "storage": storage.url if storage else "",
        }
    )
    with resumable_folder(out, key=same_work) as folder:
        jobs = list(_plan_jobs(manifest, folder, settings, earlier, is_known))
        # Threads, not processes: reading, hashing and writing release the GIL, and records of one
        # size are encoded as arrays.
        work = partial(write_stored_shard, storage) if storage else write_shard
        written = in_parallel(work, jobs, workers=settings.writers)
        shards = tuple(progress(written, total=len(jobs), label="shard", unit="shards"))
        index = ShardIndex(
            schema=manifest.schema,
            classes=manifest.classes,
            data_digest=manifest.digest,
            shards=shards,
            cuts=manifest.cuts,
        )
        if storage:
            check_put(open_store(storage.url), OBJECTS, (object_name(one.digest) for one in shards))
        write_shard_index(folder, index)
        for note in folder.glob(".done-*"):
            note.unlink()
    return index


def write_stored_shard(storage: Storage, job: ShardJob) -> Shard:
    """Write one shard and put it into the store, unless an earlier run has; its note comes last."""
    note, store = job.path.with_name(f".done-{job.path.name}.json"), open_store(storage.url)
    if note.exists():
        done = read_value(Shard, note, "shard")
        if is_put(store, done):
            return done
    if taken := take_stored_shard(job.earlier, job.path, store):
        made = replace(taken, name=job.path.name, split=job.split)
    else:
        made = write_shard(job)
        put_shard(storage, job.path, made)
    write_json(note, made)
    return made


def write_shard(job: ShardJob) -> Shard:
    """Write one shard, unless an interrupted or an earlier run has finished it."""
    held = job.earlier
    if job.path.exists():
        digest = digest_file(job.path)
    elif held and copy_whole(held.path, job.path, digest=held.shard.digest):
        digest = held.shard.digest
    else:
        digest = write_frames(job.path, _frames(job), compression=job.compression)
    records = job.end - job.first
    return Shard(
        name=job.path.name,
        split=job.split,
        records=records,
        examples=sum(job.rows["label"].tolist()) if job.schema.is_series else records,
        bytes=job.path.stat().st_size,
        digest=digest,
        compression=job.compression,
        offsets_digest=write_offsets(job.path) if job.compression == "none" else "",
        made_of=job.made_of,
    )


def _plan_jobs(
    manifest: Manifest,
    folder: Path,
    settings: ShardSettings,
    earlier: Path | None,
    is_known: Callable[[pd.DataFrame], bool],
) -> Iterator[ShardJob]:
    examples = OrderedExamples(manifest)
    known = find_earlier_shards(earlier, manifest.schema, settings.compression)
    files = manifest.schema.input.encoding.storage == "files"
    for split in SPLITS:
        if manifest.for_split(split).empty:
            continue
        rows = examples.of(split)
        bounds = _cut(rows, manifest.schema, settings)
        for number, (first, end) in enumerate(bounds):
            part = rows.iloc[first:end]
            made_of = _digest_examples(part, examples.columns_of(part))
            held = known.get(made_of)
            if held and files and not is_known(part):
                held = None
            yield ShardJob(
                path=folder / shard_name(split, number, len(bounds), settings.compression),
                examples=examples,
                split=split,
                first=first,
                end=end,
                compression=settings.compression,
                made_of=made_of,
                earlier=held,
            )


def _digest_examples(rows: pd.DataFrame, columns: np.ndarray | None) -> str:
    contents = "\n".join(rows["digest"].tolist()).encode()
    numbers = [np.asarray(rows[name].tolist()) for name in ("key", "label", "bytes")]
    numbers += [] if columns is None else [columns]
    return digest_blake2b(contents, *(each.tobytes() for each in numbers))


def _cut(rows: pd.DataFrame, schema: Schema, settings: ShardSettings) -> list[tuple[int, int]]:
    sizes, target_bytes = rows["bytes"].tolist(), settings.target_size_mib * 2**20
    if schema.is_series:
        return block_ranges(sizes, target_bytes=target_bytes, min_shards=settings.min_shards)
    first = first_of_digests(rows["digest"].tolist())
    return shard_ranges(first, sizes, target_bytes=target_bytes, min_shards=settings.min_shards)


def _frames(job: ShardJob) -> Iterable[bytes | memoryview]:
    values = {"blocks": _read_blocks, "documents": _read_documents, "files": _read_files}
    storage = job.schema.input.encoding.storage
    if storage == "rows":
        return _framed_rows(job)
    return chain.from_iterable(_framed_values(job, values[storage](job)))


def _framed_rows(job: ShardJob) -> Iterator[memoryview]:
    """Encode examples of one size as arrays of records, without a Python call for each."""
    dtype = job.schema.target.dtype if job.schema.target else "int64"
    labels = np.asarray(job.rows["label"].tolist(), dtype)
    keys, rows, values = job.rows["key"].to_numpy(), job.rows["row"].to_numpy(), job.examples.values
    bytes_each, label, feature = values[0].nbytes, labels[0].tolist(), job.schema.input.name
    around = encode_head_and_tail(bytes_each, key=0, label=label, feature=feature)
    size = bytes_each + sum(map(len, around))
    buffer = frame_buffer(max(1, min(len(rows), BLOCK_BYTES // size)), size)
    for start in range(0, len(rows), len(buffer)):
        part = slice(start, start + len(buffer))
        block = buffer[: len(rows[part])]
        encode_examples(
            block["record"],
            keys=keys[part],
            labels=labels[part],
            values=values[rows[part]],
            feature=feature,
        )
        yield seal_frames(block)


def _framed_values(job: ShardJob, values: Iterable[bytes]) -> Iterator[tuple[bytes, ...]]:
    """Encode examples one by one; `values` are those of the rows of the shard, in order."""
    rows, columns = job.rows, job.examples.columns_of(job.rows)
    examples = zip(rows["key"].tolist(), rows["label"].tolist(), values, strict=True)
    for number, (key, label, value) in enumerate(examples):
        head, tail = encode_head_and_tail(
            len(value),
            key=key,
            label=label,
            feature=job.schema.input.name,
            columns=b"" if columns is None else columns[number].tobytes(),
        )
        yield frame(head, value, tail)


def _read_blocks(job: ShardJob) -> Iterator[bytes]:
    for row, steps in job.rows[["row", "label"]].itertuples(index=False):
        yield job.examples.values[row : row + steps].tobytes()


def _read_documents(job: ShardJob) -> Iterator[bytes]:
    for begin, size, digest in job.rows[["row", "bytes", "digest"]].itertuples(index=False):
        value = job.examples.values[begin : begin + size].tobytes()
        if digest != digest_blake2b(value):
            raise DamagedFile(
                f"{job.examples.manifest.folder / DOCUMENTS} has other contents than ingest wrote;"
                " run `dvc repro --force ingest`"
            )
        yield value


def _read_files(job: ShardJob) -> Iterator[bytes]:
    rows = job.rows[["id", "uri", "row", "bytes"]].itertuples(index=False)
    parts = [
        FilePart(example_id=example_id, uri=uri, offset=row, bytes=size)
        for example_id, uri, row, size in rows
    ]
    for part, value, digest in zip(parts, read_parts(parts), job.rows["digest"], strict=True):
        if digest_blake2b(value) != digest:
            raise DataNotFound(
                f"{part.uri} (example {part.example_id}) has other contents than at ingest;"
                " run `dvc repro` or, if that sees no change, `python -m tasks.ingest --verify`"
            )
        yield value
