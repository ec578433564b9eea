"""Combinations of fields that would be wrong or useless in a configuration, each with its reason.

A reason begins with the field it concerns. The place of a check depends on the values it needs:

* one value: its type in `throughline/settings/`
* one configuration, with the ops: here, a `yield`
* several sections of params.yaml: `find_problems` in `throughline/config/params_checks.py`
* the data: `data_constraints.py`; with ops alone, `find_ops_problems` and `find_text_problems`;
  with a configuration, `find_data_problems` and `find_fraction_problems`
* the prepared data and the machine: `throughline/assembly/inputs.py`
"""

from collections.abc import Iterator, Sequence

from throughline.plan.ops import Op
from throughline.settings import PipelineConfig

# Kinds of shuffle that are impossible for a stream.
RANDOM_ACCESS = {
    "global": "a global permutation",
    "window": "a permutation within windows",
    "lanes": "a permutation within lanes",
}


def find_config_problems(
    config: PipelineConfig, ops: Sequence[tuple[str, Op]], *, batch_size: int
) -> list[str]:
    """List the reasons against a configuration, whatever the data; `ops` are (section, op)."""
    return [
        *_of_caches(config, ops),
        *_of_reading(config),
        *_of_order(config),
        *_of_decoding(config, [op.name for section, op in ops if section == "preprocess"]),
        *_of_placement(config),
        *_of_lengths(config),
        *_of_places_of_ops(config, ops),
        *_of_batches_of_ops(ops),
        *_of_lanes(config, batch_size),
    ]


def _of_caches(config: PipelineConfig, ops: Sequence[tuple[str, Op]]) -> Iterator[str]:
    if config.cache is None:
        return
    names, after = [op.name for section, op in ops if section == "preprocess"], config.cache.after
    if after in [op.name for section, op in ops if section == "augment"]:
        yield f"cache.after: a cache would repeat the draws of {after}; name an op of preprocess"
    elif after not in [*names, "preprocess"]:
        yield f"cache.after: {after} is none of the preprocess ops ({', '.join(names) or 'none'})"
    if config.read == "snapshot":
        yield (
            "cache: a snapshot is already the stored result of preprocessing, and the operating"
            " system caches it; drop `cache`"
        )
    if config.read == "indexed_shards":
        yield (
            "cache: it keeps the order of the first epoch, but indexed shards have a new one each"
            " epoch; drop `cache`, or use `read: shards` with a buffer"
        )
    if config.service:
        yield (
            "cache: every epoch is a new job of the service, so its workers would fill a cache that"
            " is never read; drop `cache` or `service`"
        )


def _of_reading(config: PipelineConfig) -> Iterator[str]:
    reads_snapshot, read = config.read == "snapshot", f"`read: {config.read}`"
    in_any_order = config.read in ("snapshot", "indexed_shards")
    if reads_snapshot and config.vectorize:
        yield "vectorize: reading a snapshot always works on whole batches; drop `vectorize`"
    if in_any_order and config.shuffle.kind == "buffer":
        what = "a snapshot" if reads_snapshot else "indexed shards"
        yield f"shuffle.kind: {what} can be permuted as a whole; use `global`, `window` or `none`"
    what = RANDOM_ACCESS.get(config.shuffle.kind)
    if not in_any_order and what:
        yield (
            f"shuffle.kind: {what} needs random access, and {read} is a stream; use `buffer`, or"
            " `read: snapshot` or `indexed_shards`"
        )
    if config.snapshot.fraction < 1 and not reads_snapshot:
        yield f"snapshot.fraction: {read} reads none of the snapshot; drop it, or read the snapshot"
    if config.interleave and config.read != "shards":
        yield f"interleave: only shards can be interleaved, not {read}; drop it"
    if config.interleave and isinstance(config.interleave.parallel, int):
        readers, shards = config.interleave.parallel, config.interleave.cycle_length
        if readers > shards:
            yield (
                f"interleave.parallel: {readers} readers have only `cycle_length: {shards}` shards"
                " to read at a time; raise cycle_length, use fewer readers, or `cores`"
            )


def _of_order(config: PipelineConfig) -> Iterator[str]:
    kind, in_any_order = config.shuffle.kind, config.read in ("snapshot", "indexed_shards")
    if in_any_order and not config.deterministic:
        yield (
            f"deterministic: a step of `read: {config.read}` always has the same examples, so that"
            " training can resume at any step; drop `deterministic`"
        )
    if config.shuffle.size != "auto" and kind not in ("buffer", "window"):
        yield f"shuffle.size: `kind: {kind}` has no size; drop it, or use `buffer` or `window`"
    if config.sampling == {}:
        yield "sampling: weights need at least one class, such as `{rare: 5}`"
    if config.sampling != "uniform" and in_any_order and config.shuffle.kind != "global":
        yield "shuffle.kind: sampling by class reorders the whole split; use `global`"


def _of_decoding(config: PipelineConfig, preprocess: Sequence[str]) -> Iterator[str]:
    if config.read == "snapshot" and config.decode.approximate:
        yield "decode: a snapshot is decoded already; drop `decode`"
    if config.decode.ratio > 1 and config.decode.crop == "fused":
        yield "decode: no crop is fused with decoding at a smaller size; drop `crop` or `ratio`"
    elif config.decode.crop == "fused" and preprocess[1:2] != ["center_crop"]:
        yield "decode.crop: only a `center_crop` right after `decode` fuses; add it, or drop `crop`"


def _of_placement(config: PipelineConfig) -> Iterator[str]:
    if config.snapshot_on == "device":
        if config.read != "snapshot":
            yield "snapshot_on: only a snapshot can live on the device; use host or read a snapshot"
        if config.snapshot.fraction < 1:
            yield (
                "snapshot.fraction: rows that are not stored are decoded on the host; use"
                " `snapshot_on: host`, or drop `snapshot`"
            )
        if config.prefetch != "none":
            yield (
                "prefetch: with `snapshot_on: device` the train step gathers its batch itself, so"
                " there is nothing to prepare ahead; use `prefetch: none`"
            )
    if config.service and config.read == "indexed_shards":
        yield (
            "service: `read: indexed_shards` picks its records in this process, by a function that"
            " cannot be sent to a worker; use `read: shards`"
        )
    if config.service and config.read in ("snapshot", "arrays"):
        yield (
            f"service: `read: {config.read}` holds its data in this process, and the whole of it"
            " would be sent to every worker; use shards or files"
        )
    if config.service and config.sampling != "uniform":
        yield "service: sampling by class needs one stream over all examples; drop one of the two"


def _of_lengths(config: PipelineConfig) -> Iterator[str]:
    batch = config.batch
    if batch is None:
        return
    if batch.pack and (batch.pad_to or batch.tokens):
        yield "batch: packed rows have one length; use `pack` without `pad_to` and `tokens`"
    elif not (batch.pack or batch.pad_to or batch.tokens):
        yield "batch: needs `pad_to: [64, 128, 256]`, `tokens: 8192` or `pack: 512`"
    if batch.pack and config.read != "snapshot":
        yield (
            f"batch.pack: rows are planned from all lengths, which `read: {config.read}` does not"
            " know; use `read: snapshot`"
        )
    if config.read == "indexed_shards":
        yield (
            "batch: `read: indexed_shards` can start at any step, which tf.data's buckets cannot;"
            " use `read: snapshot`, or `read: shards`"
        )
    if config.vectorize:
        yield "vectorize: lengths are known only after the ops; drop `vectorize` or `batch`"
    if config.sampling != "uniform":
        yield "sampling: batches by length draw every example once; drop `sampling` or `batch`"
    if config.shuffle.kind in ("window", "lanes"):
        yield "shuffle.kind: batches by length are permuted as a whole; use `global` or `none`"


def _of_places_of_ops(config: PipelineConfig, ops: Sequence[tuple[str, Op]]) -> Iterator[str]:
    for section, op in ops:
        if config.service and op.opencv:
            yield (
                f"service: {op.name} is computed by OpenCV in a Python call, which cannot be sent"
                f" to the workers of a tf.data service; drop `service`, or {op.name}"
            )
        if section == "augment" and config.snapshot_on == "device":
            if op.host_only:
                yield f"snapshot_on: {op.name} runs only on the host; use host, or drop {op.name}"
            if op.takes == "example":
                yield (
                    f"snapshot_on: {op.name} takes one example at a time, and the train step has"
                    " whole batches; use host"
                )
        on_device = section == "postprocess" and config.postprocess_on == "device"
        if on_device and not (op.device or op.on_labels):
            yield f"postprocess: {op.name} cannot run on the device; use `postprocess_on: host`"


def _of_batches_of_ops(ops: Sequence[tuple[str, Op]]) -> Iterator[str]:
    of_batches = ""
    for section, op in ops:
        if section == "preprocess":
            if op.takes == "batch":
                yield (
                    f"preprocess: {op.name} needs whole batches, and what is stored is made of"
                    " single examples; move it to augment or postprocess"
                )
        elif op.takes == "batch":
            of_batches = of_batches or op.name
        elif of_batches and op.takes == "example":
            yield (
                f"{section}: {op.name} takes one example at a time, so put it before {of_batches},"
                " which needs batches"
            )


def _of_lanes(config: PipelineConfig, batch_size: int) -> Iterator[str]:
    kind, lanes = config.shuffle.kind, config.shuffle.lanes
    if kind == "lanes" and lanes is None:
        yield "shuffle.lanes: `kind: lanes` needs it; use a multiple of the number of processes"
    elif kind != "lanes" and lanes is not None:
        yield f"shuffle.lanes: `kind: {kind}` has no lanes; drop it, or use `kind: lanes`"
    elif lanes and batch_size % lanes:
        yield (
            f"shuffle.lanes: every batch takes equally many rows of each lane, but batch_size,"
            f" {batch_size}, is not a multiple of {lanes}; change one of the two"
        )
