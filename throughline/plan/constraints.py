"""Why a configuration cannot be right: combinations of fields that would be wrong or useless, each
with its reason.

Each reason begins with the field it is about, and is in one place, by what decides it:

* one value: its type in `throughline/settings/`
* one configuration, with the ops: here, a `yield`
* several sections of params.yaml: `find_problems` in `throughline/config/params_checks.py`
* ops and the kind of data: `find_ops_problems` and `find_text_problems` here
* a configuration and the shape of the data: `find_variable_size_problems`,
  `find_sequence_problems`, `find_token_window_problems`, `find_batch_problems`,
  `find_fraction_problems` here
* the prepared data and the machine: `throughline/assembly/inputs.py`
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from throughline.plan.ops import Op
from throughline.plan.schema import Encoding
from throughline.plan.text_ops import Tokenize
from throughline.settings import PipelineConfig

# Orders that a stream does not have.
RANDOM_ACCESS = {
    "global": "a global permutation",
    "window": "a permutation within windows",
    "lanes": "a permutation within lanes",
}


def find_config_problems(
    config: PipelineConfig,
    *,
    preprocess: Sequence[Op],
    augment: Sequence[Op],
    postprocess: Sequence[Op],
) -> list[str]:
    """List every reason against a configuration."""
    about_ops = _of_ops(config, preprocess, augment, postprocess)
    return list(
        chain(
            _of_caches(config, preprocess, augment),
            _of_reading(config),
            _of_decoding(config),
            _of_placement(config),
            _of_lengths(config),
            _of_batches(config),
            about_ops,
        )
    )


def find_lane_problems(config: PipelineConfig, batch_size: int) -> list[str]:
    """What speaks against the lanes of a configuration, for batches of this size."""
    kind, lanes = config.shuffle.kind, config.shuffle.lanes
    if (kind == "lanes") != (lanes is not None):
        return [
            "shuffle.lanes: how many parts are there? Use a multiple of the number of processes"
            if kind == "lanes"
            else f"shuffle.lanes: `kind: {kind}` has none; drop it, or use `kind: lanes`"
        ]
    if lanes and batch_size % lanes:
        return [
            f"shuffle.lanes: every batch takes as many rows of each, and batch_size, {batch_size},"
            f" is no multiple of {lanes}"
        ]
    return []


def find_variable_size_problems(
    config: PipelineConfig, ops_to_uniform_shape: Sequence[Op]
) -> list[str]:
    """What cannot be done before these ops, while images differ in size."""
    unbatched = [op.name for op in ops_to_uniform_shape if op.takes == "batch"]
    problems = [
        f"augment: {name} needs batches, and images must have the same size before: put the crop"
        " first"
        for name in unbatched
    ]
    if ops_to_uniform_shape and config.snapshot_on == "device":
        problems.append(
            "snapshot_on: variable-size images are cropped per example on the host; resize them in"
            " preprocess, or use host"
        )
    return problems


def find_sequence_problems(config: PipelineConfig) -> list[str]:
    """What cannot be done with batches of texts, each padded to its longest."""
    problems = []
    if config.service:
        problems.append(
            "service: its workers' batches differ in length and cannot be joined; drop `service`"
        )
    if config.snapshot_on == "device":
        problems.append(
            "snapshot_on: texts differ in length and are gathered on the host; use host"
        )
    return problems


def find_token_window_problems(config: PipelineConfig) -> list[str]:
    """What cannot be done with windows of text, which cross from one document into the next."""
    refused = {
        "batch: windows of text have one length; drop `batch`, their number is batch_size": (
            config.batch is not None
        ),
        "read: a window of text is made of several records; use `read: snapshot`, or `shards`": (
            config.read == "indexed_shards"
        ),
        "interleave: windows of text need the documents in their order; drop `interleave`": (
            config.interleave is not None
        ),
        "deterministic: windows of text need the documents in their order; drop `deterministic`": (
            not config.deterministic
        ),
        "sampling: windows of text have no class; drop `sampling`": config.sampling != "uniform",
        "vectorize: windows are batched when they exist; drop `vectorize`": config.vectorize,
        "service: its workers would cut windows out of different documents; drop `service`": (
            config.service is not None
        ),
        "snapshot_on: windows of text are gathered on the host; use host": (
            config.snapshot_on == "device"
        ),
    }
    return [problem for problem, holds in refused.items() if holds]


def find_ops_problems(encoding: Encoding, ops: Sequence[tuple[str, Op]]) -> list[str]:
    """Ops, with the section of each, that do not work on data of this encoding."""
    takes = " and ".join
    return [
        f"{section}: {op.name} works on {takes(op.works_on)}, not on {encoding.noun}; drop it"
        for section, op in ops
        if ":" not in op.name and op.works_on and encoding.modality not in op.works_on
    ]


def find_text_problems(preprocess: Sequence[Op]) -> list[str]:
    """What the ops of text lack, or have in the wrong order."""
    names = [op.name for op in preprocess]
    if names.count("tokenize") != 1:
        return [
            "preprocess: text needs one `tokenize`, such as `- tokenize: {kind: sentencepiece,"
            " vocabulary: 8000}`"
        ]
    early = [name for name in names[: names.index("tokenize")] if name != "decode"]
    for name, what in (("truncate", "counts"), ("end_document", "follows the last of the")):
        if name in early:
            return [f"preprocess: {name} {what} tokens; put it after `tokenize`"]
    return [
        f"preprocess: tokenize.model: {reason}"
        for op in preprocess
        if isinstance(op, Tokenize) and op.model and (reason := _problem_of_file(op))
    ]


def _problem_of_file(op: Tokenize) -> str:
    if not op.file:
        return f"{op.kind} need no file; drop `model`, or set kind"
    return "" if Path(op.model).is_file() else f"{op.model} does not exist"


def find_fraction_problems(fraction: float, encoding: Encoding) -> list[str]:
    """What speaks against storing, or reading, a `fraction` of the rows of a snapshot."""
    if fraction == 1 or encoding.modality == "images":
        return []
    return [
        f"snapshot.fraction: a part of the rows can be stored of images, not of {encoding.noun};"
        " drop it"
    ]


def find_batch_problems(config: PipelineConfig) -> list[str]:
    """What cannot be done with batches of examples that do not differ in length."""
    if config.batch is None:
        return []
    return [
        "batch: only text differs in length; drop `batch`, the number of examples is batch_size"
    ]


def _of_caches(
    config: PipelineConfig, preprocess: Sequence[Op], augment: Sequence[Op]
) -> Iterator[str]:
    if config.cache is None:
        return
    names, after = [op.name for op in preprocess], config.cache.after
    if after in [op.name for op in augment]:
        yield (
            f"cache.after: {after} is random; cached, every epoch would repeat the first one's"
            " draws"
        )
    elif after not in [*names, "preprocess"]:
        yield (
            f"cache.after: {after} is not one of the preprocess ops ({', '.join(names) or 'none'})"
        )
    if config.read == "snapshot":
        yield (
            "cache: a snapshot is already the stored result of preprocessing and is cached by the"
            " operating system; drop `cache`"
        )
    if config.read == "indexed_shards":
        yield (
            "cache: it would keep the order of the first epoch, and indexed shards come in another"
            " one each epoch; drop `cache`, or use `read: shards` with a buffer"
        )
    if config.service:
        yield (
            "cache: every epoch is a new job of the service, so its workers would fill a cache that"
            " is never read; drop `cache` or `service`"
        )


def _of_reading(config: PipelineConfig) -> Iterator[str]:
    reads_snapshot = config.read == "snapshot"
    in_any_order = config.read in ("snapshot", "indexed_shards")
    if reads_snapshot and config.vectorize:
        yield "vectorize: reading a snapshot always works on whole batches; drop `vectorize`"
    if in_any_order and config.shuffle.kind == "buffer":
        what = "a snapshot" if reads_snapshot else "indexed shards"
        yield (
            f"shuffle.kind: {what} can be permuted as a whole; use `global`, `window` or"
            " `none` instead of a buffer"
        )
    what = RANDOM_ACCESS.get(config.shuffle.kind)
    if not in_any_order and what:
        yield (
            f"shuffle.kind: {what} needs random access; `read: {config.read}` is a stream, use"
            " `buffer`, or `read: snapshot` or `indexed_shards`"
        )
    if config.snapshot.fraction < 1 and not reads_snapshot:
        yield (
            f"snapshot.fraction: `read: {config.read}` reads none of the snapshot; drop `snapshot`,"
            " or use `read: snapshot`"
        )
    if config.interleave and config.read != "shards":
        yield f"interleave: only shards can be interleaved, not `read: {config.read}`"
    if config.interleave and isinstance(config.interleave.parallel, int):
        readers, shards = config.interleave.parallel, config.interleave.cycle_length
        if readers > shards:
            yield (
                f"interleave.parallel: {readers} readers have no more than `cycle_length: {shards}`"
                " shards to read; raise cycle_length, or use fewer, or `cores`"
            )
    if config.sampling == {}:
        yield "sampling: weights need at least one class, such as `{rare: 5}`"
    if config.sampling != "uniform" and in_any_order and config.shuffle.kind != "global":
        yield "shuffle.kind: sampling by class reorders the whole split; use `global`"


def _of_decoding(config: PipelineConfig) -> Iterator[str]:
    if config.read == "snapshot" and config.decode.approximate:
        yield "decode: a snapshot is decoded already; drop `decode`"
    if config.decode.ratio > 1 and config.decode.crop == "fused":
        yield "decode: a crop cannot be fused with decoding at a smaller size; choose one"


def _of_placement(config: PipelineConfig) -> Iterator[str]:
    if config.snapshot_on == "device" and config.read != "snapshot":
        yield f"snapshot_on: only a snapshot can live on the device, not `read: {config.read}`"
    if config.snapshot_on == "device" and config.snapshot.fraction < 1:
        yield (
            "snapshot.fraction: rows that are not stored are decoded on the host; use"
            " `snapshot_on: host`, or drop `snapshot`"
        )
    if config.snapshot_on == "device" and config.prefetch != "none":
        yield (
            "prefetch: with `snapshot_on: device` the train step gathers its batch itself; there is"
            " nothing to prepare ahead"
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
        yield (
            "service: sampling by class needs one stream over all examples; drop `sampling` or"
            " `service`"
        )


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


def _of_batches(config: PipelineConfig) -> Iterator[str]:
    if config.batch is None:
        return
    if config.read == "indexed_shards":
        yield (
            "batch: tf.data's buckets cannot be entered at any step, as `read: indexed_shards` is;"
            " use `read: snapshot`, or `read: shards` without that"
        )
    if config.vectorize:
        yield "vectorize: lengths are known after the ops; drop `vectorize` or `batch`"
    if config.sampling != "uniform":
        yield "sampling: batches by length draw every example once; drop `sampling` or `batch`"
    if config.shuffle.kind in ("window", "lanes"):
        yield "shuffle.kind: batches by length are permuted as a whole; use `global` or `none`"


def _of_ops(
    config: PipelineConfig,
    preprocess: Sequence[Op],
    augment: Sequence[Op],
    postprocess: Sequence[Op],
) -> Iterator[str]:
    sized = [op.name for op in preprocess if op.counts_pixels]
    if config.decode.ratio > 1 and sized:
        yield (
            f"decode.ratio: {sized[0]} counts pixels of the full size; decoded at another size it"
            " would cut something else"
        )
    if config.service:
        yield from (
            f"service: {op.name} is computed by OpenCV in a Python call, which cannot be sent to"
            f" the workers of a tf.data service; drop `service`, or {op.name}"
            for op in (*preprocess, *augment, *postprocess)
            if op.opencv
        )
    if config.snapshot_on == "device":
        yield from (
            f"snapshot_on: {op.name} runs on the host alone; use host, or drop {op.name}"
            for op in augment
            if op.host_only
        )
    if config.postprocess_on == "device":
        yield from (
            f"postprocess: {op.name} cannot run on the device"
            for op in postprocess
            if not (op.device or op.on_labels)
        )
    ops = [*augment, *postprocess]
    first = next((index for index, op in enumerate(ops) if op.takes == "batch"), len(ops))
    yield from (
        f"augment: {op.name} takes one example at a time, so it must come before {ops[first].name}"
        for op in ops[first:]
        if op.takes == "example"
    )
