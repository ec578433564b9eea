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
PREPARED = ("data/identities", "data/manifest", "data/shards", "data/snapshot")
WRITTEN = (*PREPARED, "runs", "race", "report")  # by the other stages


def find_source_encoding(data: DataSettings) -> Encoding:
    """Return the encoding of a source's examples, as far as known before they are read."""
    return find_encoding(SOURCES[data.source].encoding)


def _predicts_number(data: DataSettings) -> bool:
    return SOURCES[data.source].label_kind and data.label_kind == "number"


def _is_listed(data: DataSettings) -> bool:
    """Return whether a table lists the examples, which are images or texts, not its rows."""
    return SOURCES[data.source].in_table and find_source_encoding(data).modality != "numbers"


def _sees_columns(data: DataSettings) -> bool:
    return _is_listed(data) and bool(data.numeric or data.categorical)


def find_problems(params: Params) -> list[str]:
    """List problems that concern more than one key."""
    names = [op.name for op in params.preprocess]
    found = [
        f"preprocess: {op.name} is random, but its results are stored; move it to augment"
        for op in params.preprocess
        if op.random
    ]
    found += [
        f"augment: {op.name} is deterministic; move it to"
        f" {'postprocess' if op.device or op.on_labels else 'preprocess'}"
        for op in params.augment
        if not op.random
    ]
    found += [
        f"postprocess: {op.name} is random; move it to augment"
        for op in params.postprocess
        if op.random
    ]
    if names[:1] != ["decode"] or names.count("decode") != 1:
        found.append("preprocess: `decode` must come first and only once, or be left out")
    if params.data.split.validation + params.data.split.test >= 1:
        found.append("data.split: validation and test together leave nothing to train on")
    if params.data.split.validation == 0:
        found.append(
            "data.split.validation: must be above 0; every epoch is judged on held-out examples"
        )
    epochs, warm_up = params.train.epochs, params.train.warm_up_epochs
    if warm_up >= epochs:
        found.append(
            f"train.warm_up_epochs: {warm_up:g} of {epochs} epochs would leave none at"
            " train.learning_rate; use fewer"
        )
    if params.train.jit_compile and params.train.deterministic:
        found.append(
            "train.jit_compile: Keras turns XLA off with train.deterministic; set one of them to"
            " false"
        )
    found += _find_path_problems(params) + _find_source_problems(params)
    found += _find_bucket_problems(params)
    found += _find_storing_problems(params)
    mixing = [op.name for op in params.augment if op.mixes_labels]
    if mixing and "one_hot" not in [op.name for op in params.postprocess]:
        found.append(
            f"postprocess: {mixing[0]} mixes labels, so that all must be vectors; add `one_hot`"
        )
    for name, config in params.pipelines.items():
        if not name.isidentifier():
            found.append(
                f"pipelines.{name}: names are Python identifiers (letters, digits, underscores)"
            )
        reasons = (*_find_config_problems(config, params), *_find_reading_problems(config, params))
        found += [f"pipelines.{name}.{reason}" for reason in reasons]
    return [
        *found,
        *_find_task_problems(params),
        *_find_column_problems(params),
        *find_model_problems(params, find_source_encoding(params.data)),
    ]


def _find_config_problems(config: PipelineConfig, params: Params) -> list[str]:
    encoding = find_source_encoding(params.data)
    next_tokens = encoding.modality == "text" and params.window.tokens is not None
    return [
        *find_config_problems(config, params.ops, batch_size=params.batch_size),
        *find_data_problems(
            config,
            encoding,
            params.ops,
            windows=encoding.storage == "blocks" or next_tokens,
            predicts_number=_predicts_number(params.data),
            columns=_sees_columns(params.data),
        ),
    ]


def _find_task_problems(params: Params) -> Iterator[str]:
    """Check the settings of windows and labels against the kind of data."""
    encoding = find_source_encoding(params.data)
    text = encoding.modality == "text"
    if params.window.tokens is not None and not text:
        yield (
            f"window.tokens: the source {params.data.source} is not text; remove this key, or set"
            " data.source to text_folder, text_table or text_lines"
        )
    if encoding.storage != "blocks":
        set_here = params.window.model_dump(exclude_defaults=True).keys() - {"tokens"}
        yield from (
            f"window.{key}: only time series have it, and the source {params.data.source} is not"
            " one; remove this key, or set data.source to time_series"
            for key in sorted(set_here)
        )
    kind, source = params.data.label_kind, params.data.source
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
    """Check settings of columns that the data do not have, or that no model would see."""
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
    """Check that data and training have what a configuration needs."""
    if config.read == "files" and is_address(params.data.path):
        yield "read: files are read from a local folder only, and data.path is a bucket; use shards"
    if config.read == "files" and find_source_encoding(params.data).storage != "files":
        yield (
            f"read: the source {params.data.source} has no image files; use arrays, shards or"
            " snapshot"
        )
    if config.read == "indexed_shards" and params.shard.compression == "gzip":
        yield (
            "read: records of compressed shards cannot be read one by one; set shard.compression"
            " to none"
        )
    stored, gzip = params.snapshot.stored_fraction, params.shard.compression == "gzip"
    if config.read == "snapshot" and config.snapshot.fraction < 1 and stored == 1 and gzip:
        yield (
            "snapshot.fraction: rows that are not read from the snapshot are decoded from"
            " uncompressed shards; set shard.compression to none"
        )
    if config.read == "snapshot" and config.snapshot.fraction > stored:
        yield (
            f"snapshot.fraction: reads {config.snapshot.fraction:g} of the rows, but the snapshot"
            f" stores {stored:g}; raise the top-level snapshot.fraction, or set it to auto"
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
        return [
            "snapshot.fraction: rows that are not stored are decoded from uncompressed shards; set"
            " shard.compression to none"
        ]
    if stored in [config.snapshot.fraction for config in params.pipelines.values()]:
        return []
    return list(find_fraction_problems(stored, find_source_encoding(params.data)))


def _find_path_problems(params: Params) -> list[str]:
    """Check that user data is outside the folders of stages, or in a readable bucket."""
    if is_address(params.data.path):
        return _find_address_problems(params)
    raw, path = Path(RAW).resolve(), Path(params.data.path).resolve()
    for name in WRITTEN:
        written = Path(name).resolve()
        if path.is_relative_to(written) or written.is_relative_to(path):
            return [
                f"data.path: {params.data.path} is where stages write ({name}); put the data into a"
                " folder of its own, such as my/data, and set data.path to it"
            ]
    if not path.is_relative_to(raw) or (
        params.data.fetch != "none" and path.is_relative_to(raw / params.data.fetch)
    ):
        return []
    fetched = (
        ""
        if params.data.fetch == "none"
        else f" `fetch: {params.data.fetch}` writes {RAW}/{params.data.fetch}."
    )
    return [
        f"data.path: {params.data.path} is in {RAW}, which is for data.fetch only.{fetched}"
        " Move data of your own elsewhere, such as my/data, and set data.path to it"
    ]


def _find_address_problems(params: Params) -> list[str]:
    path, source, found = params.data.path, params.data.source, list[str]()
    scheme = path.partition("://")[0]
    if importlib.util.find_spec(f"dvc_{scheme}") is None:
        found.append(
            f"data.path: DVC, which watches the bucket for changes, needs dvc-{scheme} for"
            f" {scheme}://; `pip install dvc-{scheme}`"
        )
    if not SOURCES[source].in_bucket:
        found.append(
            f"data.source: {source} is read from a local folder only; copy {path} to this machine,"
            " and set data.path to the copy"
        )
    return found


def _find_source_problems(params: Params) -> list[str]:
    encoding = find_source_encoding(params.data)
    predicts_number, columns = _predicts_number(params.data), _sees_columns(params.data)
    about = {"predicts_number": predicts_number, "columns": columns}
    found = list(find_ops_problems(encoding, params.ops, **about))
    if encoding.modality == "text":
        found += find_text_problems(params.preprocess)
    return found


def _find_bucket_problems(params: Params) -> list[str]:
    """Check that neither of `storage.url` and `data.path` is below the other."""
    url, path = params.storage.url, params.data.path
    if not url or not is_address(path):
        return []
    columns, data = f"{url}/", f"{to_store_url(path)}/"
    apart = not columns.startswith(data) and not data.startswith(columns)
    return [] if apart else ["storage.url: it overlaps with data.path; name a separate prefix"]
