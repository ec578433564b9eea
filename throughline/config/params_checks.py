"""Problems of keys in combination. `model_checks.py` has those of the model."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from throughline.config.model_checks import find_model_problems
from throughline.data import encodings  # noqa: F401 - sources name them
from throughline.plan.constraints import find_config_problems
from throughline.plan.data_constraints import (
    find_data_problems,
    find_fraction_problems,
    find_ops_problems,
    find_text_problems,
)
from throughline.plan.schema import Encoding, find_encoding
from throughline.settings import DataSettings, PipelineConfig
from throughline.settings.source_kinds import SOURCES
from throughline.shared.data_url import is_address, to_store_url

if TYPE_CHECKING:
    from throughline.config.params import Params

RAW = "data/raw"  # for datasets of `fetch` only
UNCOMPRESSED = "set shard.compression to none"
PREPARED = ("data/identities", "data/manifest", "data/shards", "data/snapshot")
WRITTEN = (*PREPARED, "runs", "race", "report")  # by the other stages


def find_source_encoding(data: DataSettings) -> Encoding:
    """Return the encoding of a source's examples, as far as known before they are read."""
    return find_encoding(SOURCES[data.source].encoding)


def _predicts_number(data: DataSettings) -> bool:
    return SOURCES[data.source].label_kind and data.label_kind == "number"


def _is_listed(data: DataSettings) -> bool:
    """Return whether a table lists images or texts, so that its rows are not the examples."""
    return SOURCES[data.source].in_table and find_source_encoding(data).modality != "numbers"


def _sees_columns(data: DataSettings) -> bool:
    return _is_listed(data) and bool(data.numeric or data.categorical)


def find_problems(params: Params) -> list[str]:
    """List problems that concern more than one key."""
    return [
        *_find_op_problems(params),
        *_find_split_and_train_problems(params),
        *_find_path_problems(params),
        *_find_source_problems(params),
        *_find_storing_problems(params),
        *_find_pipeline_problems(params),
        *_find_task_problems(params),
        *_find_column_problems(params),
        *find_model_problems(params, find_source_encoding(params.data)),
    ]


def _find_op_problems(params: Params) -> Iterator[str]:
    for op in params.preprocess:
        if op.random:
            yield f"preprocess: {op.name} is random, but its results are stored; move it to augment"
    for op in params.augment:
        if not op.random:
            section = "postprocess" if op.device or op.on_labels else "preprocess"
            yield f"augment: {op.name} is deterministic; move it to {section}"
    for op in params.postprocess:
        if op.random:
            yield f"postprocess: {op.name} is random; move it to augment"
    names = [op.name for op in params.preprocess]
    if names[:1] != ["decode"] or names.count("decode") != 1:
        yield "preprocess: `decode` must come first and only once, or be left out"
    mixing = [op.name for op in params.augment if op.mixes_labels]
    if mixing and "one_hot" not in [op.name for op in params.postprocess]:
        yield f"postprocess: {mixing[0]} mixes labels, so that all must be vectors; add `one_hot`"


def _find_split_and_train_problems(params: Params) -> Iterator[str]:
    split, train = params.data.split, params.train
    if split.validation + split.test >= 1:
        yield "data.split: validation and test together leave nothing to train on"
    if split.validation == 0:
        yield "data.split.validation: must be above 0; every epoch is judged on held-out examples"
    if train.warm_up_epochs >= train.epochs:
        yield (
            f"train.warm_up_epochs: {train.warm_up_epochs:g} of {train.epochs} epochs would leave"
            " none at train.learning_rate; use fewer"
        )
    if train.jit_compile and train.deterministic:
        yield (
            "train.jit_compile: Keras turns XLA off with train.deterministic; set one of them to"
            " false"
        )


def _find_pipeline_problems(params: Params) -> Iterator[str]:
    for name, config in params.pipelines.items():
        key = f"pipelines.{name}"
        if not name.isidentifier():
            yield f"{key}: names are Python identifiers (letters, digits, underscores)"
        encoding, batch_size = find_source_encoding(params.data), params.batch_size
        next_tokens = encoding.modality == "text" and params.window.tokens is not None
        reasons = [
            *find_config_problems(config, params.ops, batch_size=batch_size),
            *find_data_problems(
                config,
                encoding,
                params.ops,
                windows=encoding.storage == "blocks" or next_tokens,
                predicts_number=_predicts_number(params.data),
                columns=_sees_columns(params.data),
            ),
            *_find_reading_problems(config, params),
        ]
        yield from (f"{key}.{reason}" for reason in reasons)


def _find_task_problems(params: Params) -> Iterator[str]:
    encoding = find_source_encoding(params.data)
    text = encoding.modality == "text"
    if params.window.tokens is not None and not text:
        yield (
            f"window.tokens: the source {params.data.source} is not text; remove this key, or set"
            " data.source to text_folder, text_table or text_lines"
        )
    kind, source = params.data.label_kind, params.data.source
    if encoding.storage != "blocks":
        for key in sorted(params.window.model_dump(exclude_defaults=True).keys() - {"tokens"}):
            yield (
                f"window.{key}: only time series have it, and the source {source} is not one;"
                " remove this key, or set data.source to time_series"
            )
    if kind in ("class", "number") and not SOURCES[source].label_kind:
        yield (
            f"data.label_kind: {kind} is for tables, JSON lines, records and arrays; the source"
            f" {source} itself determines what its labels are; remove this key"
        )
    if len(params.data.label_columns) > 1 and kind != "number":
        yield (
            "data.label_column: several columns must be numbers to predict; set data.label_kind:"
            " number, or name one column"
        )
    if kind == "none" and (not text or params.window.tokens is None):
        yield (
            "data.label_kind: none is only for predicting the next tokens of texts; for texts, set"
            " window.tokens, such as 256; else set another label_kind"
        )


def _find_column_problems(params: Params) -> Iterator[str]:
    data, encoding = params.data, find_source_encoding(params.data)
    in_table, series = SOURCES[data.source].in_table, encoding.storage == "blocks"
    key = "numeric" if data.numeric else "categorical" if data.categorical else ""
    if data.missing != "reject" and not (in_table or series):
        yield f"data.missing: the source {data.source} is not a table; remove this key"
    if key and not (in_table or series):
        yield f"data.{key}: a model sees no columns of the source {data.source}; remove this key"
    if not _is_listed(data):
        return
    if not key and data.missing != "reject":
        yield "data.missing: data.numeric and data.categorical name no column; remove this key"
    if data.ignore:
        yield f"data.ignore: {data.source} ignores all columns that are not named; remove this key"
    if params.window.tokens is not None and (key or data.label_kind == "number"):
        yield (
            f"data.{key or 'label_kind'}: window.tokens trains on the texts alone, without other"
            " columns; drop one of the two"
        )


def _find_reading_problems(config: PipelineConfig, params: Params) -> Iterator[str]:
    read, gzip = config.read, params.shard.compression == "gzip"
    if read == "files" and is_address(params.data.path):
        yield "read: files are read from a local folder only, and data.path is a bucket; use shards"
    if read == "files" and find_source_encoding(params.data).storage != "files":
        source = params.data.source
        yield f"read: the source {source} has no image files; use arrays, shards or snapshot"
    if read == "indexed_shards" and gzip:
        yield f"read: records of compressed shards cannot be read one by one; {UNCOMPRESSED}"
    part, stored = config.snapshot.fraction, params.snapshot.stored_fraction
    if read == "snapshot" and part < 1 and stored == 1 and gzip:
        yield (
            "snapshot.fraction: rows that are not read from the snapshot are decoded from"
            f" uncompressed shards; {UNCOMPRESSED}"
        )
    if read == "snapshot" and part > stored:
        yield (
            f"snapshot.fraction: reads {part:g} of the rows, but the snapshot stores {stored:g};"
            " raise the top-level snapshot.fraction, or set it to auto"
        )
    if config.service and params.train.deterministic:
        yield (
            "service: its workers race each other, so the order of batches is not repeatable; drop"
            " `service`, or set train.deterministic to false"
        )
    if config.snapshot_on == "device" and params.train.jit_compile:
        yield "snapshot_on: XLA cannot compile the index shuffle; set train.jit_compile to false"


def _find_storing_problems(params: Params) -> list[str]:
    """List problems of the top-level `snapshot.fraction` that no configuration reports."""
    stored = params.snapshot.stored_fraction
    if stored < 1 and params.shard.compression == "gzip":
        decoded = "rows that are not stored are decoded from uncompressed shards"
        return [f"snapshot.fraction: {decoded}; {UNCOMPRESSED}"]
    if stored in [config.snapshot.fraction for config in params.pipelines.values()]:
        return []
    return list(find_fraction_problems(stored, find_source_encoding(params.data)))


def _find_path_problems(params: Params) -> Iterator[str]:
    """Check that user data is outside the folders of stages, or in a readable bucket."""
    data = params.data
    if is_address(data.path):
        yield from _find_address_problems(params)
        return
    raw, path = Path(RAW).resolve(), Path(data.path).resolve()
    for name in WRITTEN:
        written = Path(name).resolve()
        if path.is_relative_to(written) or written.is_relative_to(path):
            yield (
                f"data.path: {data.path} is where stages write ({name}); put the data into a folder"
                " of its own, such as my/data, and set data.path to it"
            )
            return
    fetched = f" `fetch: {data.fetch}` writes {RAW}/{data.fetch}."
    if data.fetch == "none":
        fetched = ""
    elif path.is_relative_to(raw / data.fetch):
        return
    if path.is_relative_to(raw):
        yield (
            f"data.path: {data.path} is in {RAW}, which is for data.fetch only.{fetched} Move data"
            " of your own elsewhere, such as my/data, and set data.path to it"
        )


def _find_address_problems(params: Params) -> Iterator[str]:
    path, source, url = params.data.path, params.data.source, params.storage.url
    scheme = path.partition("://")[0]
    if importlib.util.find_spec(f"dvc_{scheme}") is None:
        yield (
            f"data.path: DVC, which watches the bucket for changes, needs dvc-{scheme} for"
            f" {scheme}://; `pip install dvc-{scheme}`"
        )
    if not SOURCES[source].in_bucket:
        yield (
            f"data.source: {source} is read from a local folder only; copy {path} to this machine,"
            " and set data.path to the copy"
        )
    columns, data = f"{url}/", f"{to_store_url(path)}/"
    if url and (columns.startswith(data) or data.startswith(columns)):
        yield "storage.url: it overlaps with data.path; name a separate prefix"


def _find_source_problems(params: Params) -> list[str]:
    encoding = find_source_encoding(params.data)
    number, columns = _predicts_number(params.data), _sees_columns(params.data)
    found = list(find_ops_problems(encoding, params.ops, predicts_number=number, columns=columns))
    if encoding.modality == "text":
        found += find_text_problems(params.preprocess)
    return found
