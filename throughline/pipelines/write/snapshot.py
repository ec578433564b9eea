"""Runs the deterministic preprocessing once and stores its results as memory-mapped columns.

The snapshot's key covers the contents of the shards, every op with arguments and version, and
library versions, so that stale data is never read. Shards finished before a kill are kept.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from throughline.data.columns.channel_stats import merge_moments
from throughline.data.columns.index import (
    Column,
    SnapshotIndex,
    allocate,
    count_stored,
    write_index,
)
from throughline.data.columns.stored import Destination, put_index
from throughline.data.shards.files import REPAIRED, ShardFiles
from throughline.data.shards.index import Shard, ShardIndex
from throughline.data.shards.repair import Damage, find_damaged_shards, repair_shards
from throughline.data.shards.tfrecord import read_records
from throughline.data.storage import check_put
from throughline.pipelines.read.prepared_data import compute_snapshot_key
from throughline.pipelines.write.earlier_rows import find_earlier_rows
from throughline.pipelines.write.rows import STATISTICS_OF, PlacedShard, WriteContext
from throughline.pipelines.write.snapshot_writer import NotDecoded, finish_split, write_or_resume
from throughline.plan.ops import Op, Parse
from throughline.plan.schema import Schema
from throughline.plan.shapes import resolve_decode, stored_shape
from throughline.settings import SnapshotSettings
from throughline.shared.engine import in_parallel
from throughline.shared.errors import CorruptShard
from throughline.shared.files import digest_blake3, digest_json, resumable_folder
from throughline.shared.limits import usable_cores
from throughline.shared.program import digest_program
from throughline.shared.progress import echo_problem, progress

if TYPE_CHECKING:
    from throughline.pipelines.write.tokenizer_fitting import PreparedTokenizer

UNKNOWN_SHARE = 0.05  # with more unknown tokens, the tokenizer does not seem to fit the texts


@dataclass(frozen=True, kw_only=True)
class WrittenSnapshot:
    """A snapshot's index, and the origin of its examples.

    `copied` counts examples from an earlier snapshot, `resumed` those from an interrupted run;
    writing the others took `rows_s` seconds.
    """

    index: SnapshotIndex
    copied: int
    resumed: int
    rows_s: float


def write_snapshot(
    shards: ShardIndex,
    files: ShardFiles,
    out: Destination,
    *,
    preprocess: Sequence[Op],
    settings: SnapshotSettings | None = None,
    names: Callable[[], Mapping[int, str]] = dict,
) -> WrittenSnapshot:
    """Write the preprocessed examples of all splits into `out`.

    Columns are image, features or text, the table input, label and key; tokens, and images of
    different sizes, make a ragged column. The rows of a series are time steps without labels. If
    `settings` store only the first images, all are still preprocessed, for the statistics and to
    find damage now. With an object store, the columns go there, and the folder holds the index and
    small files. Rows are copied from an earlier snapshot of the same shards, if it is in the same
    kind of place. `names` gives the ids of examples by key, for messages.

    Raises:
      CorruptShard: A record cannot be read or decoded (names shard and example), or the shard index
        is wrong. With `on_corrupt: skip`, only if too many cannot, or a series would have gaps.
      InvalidParams: The tokenizer's file is not of its kind, or none can be fitted on the texts.
      ImpossiblePlan: The results of preprocessing do not fit into their column.
      ObjectStoreFailed: The object store cannot be read or written.
    """
    settings = settings or SnapshotSettings()
    skips = settings.on_corrupt == "skip"
    damage = Damage(problems=find_damaged_shards(shards, files) if skips else {})
    for problem in itertools.chain.from_iterable(damage.problems.values()):
        echo_problem(f"damaged: {problem}")
    try:
        return _write_snapshot(shards, files, out, preprocess, settings, damage)
    except NotDecoded as error:
        searched = [shard for shard in shards.shards if skips or shard.name == error.shard]
        damage = _find_undecodable(searched, files, error.ops, damage, names())
        if not damage.unusable:
            raise CorruptShard(str(error)) from error
        if not skips:
            first, *others = damage.unusable.values()
            more = f", and {len(others)} more of this shard" if others else ""
            raise CorruptShard(
                f"{first}{more}; repair or remove the example's file and run `dvc repro`, or set"
                " snapshot.on_corrupt to skip"
            ) from error
    for problem in damage.unusable.values():
        echo_problem(problem)
    return _write_snapshot(shards, files, out, preprocess, settings, damage)


def _write_snapshot(
    shards: ShardIndex,
    files: ShardFiles,
    destination: Destination,
    preprocess: Sequence[Op],
    settings: SnapshotSettings,
    damage: Damage,
) -> WrittenSnapshot:
    schema, key = shards.schema, compute_snapshot_key(shards, preprocess)
    partial_key = _identify_partial(key, destination, settings, damage)
    with resumable_folder(destination.folder, key=partial_key) as folder:
        repaired = repair_shards(
            shards, files, damage, folder, max_lost_fraction=settings.max_corrupt_fraction
        )
        whole, shards = shards, shards.with_repaired(repaired)
        if repaired:
            lost = sum(whole.examples(split) - shards.examples(split) for split in shards.splits)
            echo_problem(
                f"examples dropped: {lost:,}; all configurations read the repaired shards in"
                f" {destination.folder / REPAIRED}"
            )
        files = replace(files, snapshot_folder=folder)
        tokens = _prepare_tokenizer(shards, files, folder, preprocess)
        ops = tuple(tokens.op if op.name == "tokenize" and tokens else op for op in preprocess)
        extra = tokens.files if tokens else {}
        counts = {split: shards.examples(split) for split in shards.splits}
        columns = _columns(ops, schema, tokens)
        context = WriteContext(
            folder=folder,
            shard_files=files,
            columns=columns,
            ops=(Parse.of(schema), *resolve_decode(ops, schema)),
            schema=schema,
            stored={
                split: count_stored(count, settings.stored_fraction)
                for split, count in counts.items()
            },
            key=key,
            store=destination.store,
        )
        earlier = find_earlier_rows(destination, key, preprocess, columns, extra)
        for split, count in counts.items() if context.store is None else ():
            allocate(folder, split, context.columns_of_all_rows, count)
            allocate(folder, split, context.value_columns, context.stored[split])
        placed = list[PlacedShard]()
        passed = dict.fromkeys(counts, 0)
        for shard in shards.shards:
            known = earlier.get((shard.split, shard.digest))
            placed.append(PlacedShard(shard=shard, start=passed[shard.split], earlier=known))
            passed[shard.split] += shard.examples
        written = in_parallel(partial(write_or_resume, context), placed, workers=usable_cores())
        started_at = time.perf_counter()
        done = list(progress(written, total=len(placed), label="snapshot", unit="shards"))
        rows_s = time.perf_counter() - started_at
        by_split = {split: [] for split in counts}
        for one, rows in zip(placed, done, strict=True):
            by_split[one.shard.split].append(rows)
        index = SnapshotIndex(
            key=key,
            statistics=merge_moments(part for rows in done for part in rows.moments),
            columns=columns,
            splits={split: finish_split(context, split, rows) for split, rows in by_split.items()},
            repaired=repaired,
            vocabulary=tokens.vocabulary if tokens else 0,
            files=extra,
        )
        _complete(context, index, itertools.chain.from_iterable(rows.objects for rows in done))
    copied = [rows.count for rows in done if rows.copied and not rows.resumed]
    resumed = [rows.count for rows in done if rows.resumed]
    return WrittenSnapshot(index=index, copied=sum(copied), resumed=sum(resumed), rows_s=rows_s)


def _find_undecodable(
    shards: Sequence[Shard],
    files: ShardFiles,
    ops: Sequence[Op],
    damage: Damage,
    names: Mapping[int, str],
) -> Damage:
    """Run the ops on each readable record; return `damage` with the failures added."""
    import tensorflow as tf

    from throughline.kernels.elements import TENSORFLOW_ERRORS, process_record, read_message

    def name(record: bytes) -> str:
        try:
            key = int(process_record(ops[:1], tf.constant(record))["key"])
        except TENSORFLOW_ERRORS:
            return ""
        return f" (example {names.get(key, f'with key {key}')})"

    run = tf.function(
        lambda record: process_record(ops, record),
        input_signature=[tf.TensorSpec((), tf.string)],
        autograph=False,
    )
    problems = {name: list(problem) for name, problem in damage.problems.items()}
    unusable = dict(damage.unusable)
    for shard in shards:
        path, broken = files.path(shard), list[str]()
        records = read_records(path, compression=shard.compression, damaged=broken)
        for count, record in enumerate(records):
            try:
                run(tf.constant(record))
            except TENSORFLOW_ERRORS as error:
                said = read_message(error).rpartition("}}")[2].strip()
                reason = next(iter(said.splitlines()), "")
                named = f"record {count + len(broken)}{name(record)}"
                problem = f"{path}: {named} cannot be decoded: {reason}"
                problems.setdefault(shard.name, []).append(problem)
                unusable[digest_blake3(record)] = problem
    return Damage(problems=problems, unusable=unusable)


def _identify_partial(
    key: str, destination: Destination, settings: SnapshotSettings, damage: Damage
) -> str:
    """Return the digest of everything that must be unchanged to resume an interrupted run."""
    return digest_json(
        {
            "key": key,
            "fraction": settings.stored_fraction,
            "problems": damage.problems,
            "program": digest_program("snapshot"),
            "needs": destination.needs,
            # A shard that is noted as written has its columns in this store only.
            "store": destination.store.url if destination.store else "",
        }
    )


def _complete(context: WriteContext, index: SnapshotIndex, objects: Iterable[str]) -> None:
    """Write the index, also next to the store's `objects`, and remove files only for resuming."""
    folder, store = context.folder, context.store
    if store:
        check_put(store, context.key, objects)
    write_index(folder, index)
    if store:
        put_index(store, context.key, folder)
    # Last, so that the same command can resume if a store failed before.
    for left in (*folder.glob(".done-*"), *folder.glob("*/.part-*")):
        left.unlink()


def _columns(
    preprocess: Sequence[Op], schema: Schema, tokens: PreparedTokenizer | None
) -> tuple[Column, ...]:
    """Return the columns: input (with offsets if ragged), table input, label and key."""
    value, target = schema.input, schema.target
    stored = Column(
        name=value.name,
        dtype=tokens.dtype if tokens else value.dtype,
        shape=stored_shape(preprocess, schema),
    )
    others = [one for one in (schema.table_input, target) if one]
    return (
        stored,
        *((stored.extent,) if stored.ragged else ()),
        *(Column(name=one.name, dtype=one.dtype, shape=one.shape) for one in others),
        Column(name="key", dtype="int64", shape=()),
    )


def _prepare_tokenizer(
    shards: ShardIndex, files: ShardFiles, folder: Path, preprocess: Sequence[Op]
) -> PreparedTokenizer | None:
    """Return the tokenizer of texts, fitted on the training split or given; None for other data."""
    if not shards.schema.is_text:
        return None
    from throughline.kernels.elements import TENSORFLOW_ERRORS, read_message
    from throughline.pipelines.write.tokenizer_fitting import prepare_tokenizer

    training = shards.for_split(STATISTICS_OF)
    try:
        prepared = prepare_tokenizer(
            preprocess,
            folder,
            lambda: ((files.path(shard), shard.compression) for shard in training),
        )
    except TENSORFLOW_ERRORS as error:
        raise NotDecoded(
            f"{files.folder}: the training split cannot be read: {read_message(error)}",
            training[0].name,
            (Parse.of(shards.schema),),
        ) from error
    if prepared.unknown_share > UNKNOWN_SHARE:
        echo_problem(
            f"{prepared.unknown_share:.0%} of the tokens of the first training texts are unknown:"
            " the model learns nothing from their text. Use a tokenizer made for such texts, one"
            " fitted on them (without tokenize.model), or kind: bytes; see also tokenize.lower"
        )
    return prepared
