"""The one place that knows params.yaml: loading, overriding, and checking everything at once before
anything runs.

A problem is one line that begins with its path in the file. All problems are found together:
unknown keys (with the nearest valid one), wrong types, ops that do not exist, and combinations that
cannot be right.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, Field, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import AliasEvent

from tasks.errors import InvalidParams, did_you_mean
from tasks.pipelines.constraints import (
    batch_problems,
    config_problems,
    ops_problems,
    text_problems,
)
from tasks.pipelines.op_parsing import parse_op
from tasks.pipelines.ops import Op
from tasks.settings import (
    DataSettings,
    MeasureSettings,
    ModelSettings,
    PipelineConfig,
    Settings,
    ShardSettings,
    SnapshotSettings,
    TrainSettings,
    WindowSettings,
)
from tasks.source_kinds import SOURCES

PARAMS_FILE = Path("params.yaml")
RAW = "data/raw"  # where `fetch` puts known data sets, and nobody else anything
TEXT_MODELS = ("text_classifier", "transformer_encoder")
BUILT_IN_MODELS = ("small_cnn", "mlp", *TEXT_MODELS, "emulated")
# What `model: {name: auto}` is, and what else there is without writing one, by what examples are.
MODELS_FOR = {
    "images": ("small_cnn", "mlp"),
    "table": ("mlp",),
    "time series": ("mlp",),
    "text": TEXT_MODELS,
}
LONGEST_OVERRIDE, MOST_BRACKETS = 20_000, 200  # of one value; more belongs into a file
OpSpec = str | dict[str, Any]
# Keys of earlier versions, by their place, and what they are called now.
RENAMED = {
    "finish": "postprocess",
    "pipelines.*.finish": "postprocess_on",
    "pipelines.*.place": "snapshot_on",
    "pipelines.*.rewrites": "graph_rewrites",
    "pipelines.*.sample": "sampling: uniform, balanced, or {class: weight}",
}


class Document(Settings):
    """The shape of params.yaml."""

    data: DataSettings
    shard: ShardSettings = ShardSettings()
    preprocess: list[OpSpec] = Field(
        default=["decode"],
        description=(
            "deterministic ops, in order; what a snapshot stores and a cache may keep; `decode`"
            " comes first and may be left out"
        ),
    )
    augment: list[OpSpec] = Field(
        default=[], description="random ops, drawn again each epoch from (seed, epoch, example)"
    )
    snapshot: SnapshotSettings = SnapshotSettings()
    window: WindowSettings = WindowSettings()
    postprocess: list[OpSpec] = Field(
        default=["rescale"],
        description=(
            "ops that turn uint8 into floats, last; on the host or on the device as a configuration"
            " says"
        ),
    )
    batch_size: int = Field(default=256, ge=1, description="examples per train step")
    pipelines: dict[str, PipelineConfig] = Field(
        min_length=1, description="input-pipeline configurations by name"
    )
    model: ModelSettings = ModelSettings()
    train: TrainSettings = TrainSettings()
    measure: MeasureSettings = MeasureSettings()


@dataclass(frozen=True, kw_only=True)
class Params:
    """Checked parameters; ops are parsed."""

    data: DataSettings
    shard: ShardSettings
    preprocess: tuple[Op, ...]
    augment: tuple[Op, ...]
    postprocess: tuple[Op, ...]
    snapshot: SnapshotSettings
    window: WindowSettings
    batch_size: int
    pipelines: Mapping[str, PipelineConfig]
    model: ModelSettings
    train: TrainSettings
    measure: MeasureSettings


def load_params(path: Path = PARAMS_FILE, *, overrides: Sequence[str] = ()) -> Params:
    """Read, override and check the parameters.

    `overrides` are `KEY=VALUE` with a dotted key and a YAML value, such as `train.epochs=5`.

    Raises:
      InvalidParams: all problems at once.
    """
    document = read_document(path)
    apply_overrides(document, overrides)
    return check(document, name=path.name)


def read_document(path: Path) -> dict[str, Any]:
    """Read params.yaml without checking more than that it is a YAML mapping with unique keys."""
    return parse_document(read_yaml(path), path.name)


def read_yaml(path: Path) -> str:
    """Read the text of params.yaml.

    Raises:
      InvalidParams: it does not exist, or is no UTF-8.
    """
    if not path.exists():
        raise InvalidParams([f"{path} does not exist; run from the folder that holds it"])
    try:
        return path.read_text()
    except ValueError as error:
        raise InvalidParams([f"{path.name} is not valid YAML: {error}"]) from error


def parse_document(text: str, name: str) -> dict[str, Any]:
    """Parse the text of params.yaml, as `read_document` does; `name` is the file's, for errors."""
    try:
        document = YAML(typ="safe").load(text)
    except (
        YAMLError,
        ValueError,
        RecursionError,
    ) as error:  # not YAML; a date or number that cannot be; nested without end
        raise InvalidParams(
            [f"{name} is not valid YAML: {' '.join(str(error).split())}"]
        ) from error
    if not isinstance(document, dict):
        raise InvalidParams(
            [f"{name}: expected a mapping at the top, found {type(document).__name__}"]
        )
    return document


def apply_overrides(document: dict[str, Any], overrides: Sequence[str]) -> None:
    """Set dotted keys of the document in place; a part that is missing on the way becomes a
    mapping.
    """
    problems = []
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            problems.append(f"--set {override}: expected KEY=VALUE, such as train.epochs=5")
            continue
        try:
            value = _read_value(text)
        except (YAMLError, ValueError, RecursionError):
            # Not YAML; a date or number that cannot be; nested without end.
            problems.append(f"--set {override[:200]}: {text[:200]} is not a YAML value")
            continue
        target: Any = document
        *parents, last = key.strip().split(".")
        for part in parents:
            target = target.setdefault(part, {}) if isinstance(target, dict) else None
        if isinstance(target, dict):
            target[last] = value
        else:
            problems.append(f"--set {override}: {'.'.join(parents)} is not a mapping")
    if problems:
        raise InvalidParams(problems)


def _read_value(text: str) -> Any:
    """Read a YAML value without aliases, which make gigabytes of a few lines, and of bounded depth,
    which the parser pays for dearly.
    """
    if not text.strip():
        return None
    if len(text) > LONGEST_OVERRIDE or text.count("[") + text.count("{") > MOST_BRACKETS:
        raise ValueError("too long or too deep")
    if any(isinstance(event, AliasEvent) for event in YAML(typ="safe").parse(text)):
        raise ValueError("aliases are not expanded here")
    return YAML(typ="safe").load(text)


def check(document: Mapping[str, Any], *, name: str = PARAMS_FILE.name) -> Params:
    """Validate a parameter document.

    Raises:
      InvalidParams: every problem found, each beginning with the file and the path of the key.
    """
    problems: list[str] = []
    ops = {
        section: _parse_ops(document.get(section), section, problems)
        for section in ("preprocess", "augment", "postprocess")
    }
    try:
        parsed = Document.model_validate(document)
    except ValidationError as error:
        problems = [
            _format_error(item)
            for item in error.errors()
            if item["loc"][:1] not in [(s,) for s, p in ops.items() if p is None]
        ] + problems
        raise InvalidParams(
            [f"{name}: {problem}" for problem in dict.fromkeys(problems)]
        ) from error
    preprocess = (
        ops["preprocess"]
        if "preprocess" in document
        else _parse_ops(parsed.preprocess, "preprocess", problems)
    )
    if preprocess is not None and not any(op.name == "decode" for op in preprocess):
        # It goes without saying: there is nothing else that a stored example could begin with.
        preprocess = (*(_parse_ops(["decode"], "preprocess", problems) or ()), *preprocess)
    postprocess = (
        ops["postprocess"]
        if "postprocess" in document
        else _parse_ops(_default_postprocess(parsed), "postprocess", problems)
    )
    params = Params(
        **{
            key: getattr(parsed, key)
            for key in (
                "data",
                "shard",
                "snapshot",
                "window",
                "batch_size",
                "pipelines",
                "train",
                "measure",
            )
        },
        model=_model_for(parsed),
        preprocess=tuple(preprocess or ()),
        augment=tuple(ops["augment"] or ()),
        postprocess=tuple(postprocess or ()),
    )
    problems += _cross_field_problems(params)
    if problems:
        raise InvalidParams([f"{name}: {problem}" for problem in problems])
    return params


def _model_for(document: Document) -> ModelSettings:
    """The model of a document; `auto` is the one that takes what the source gives."""
    if document.model.name != "auto":
        return document.model
    fitting = MODELS_FOR[SOURCES[document.data.source].content]
    return document.model.model_copy(update={"name": fitting[0]})


def _default_postprocess(document: Document) -> list[OpSpec]:
    """What makes floats of images and tables; tokens stay numbers."""
    text = SOURCES[document.data.source].content == "text"
    return [] if text else document.postprocess


def model_names() -> list[str]:
    """Names that `model.name` may have besides import paths; Keras is read, not imported."""
    spec = importlib.util.find_spec("keras")
    if spec is None or not spec.submodule_search_locations:
        return list(BUILT_IN_MODELS)
    source = Path(spec.submodule_search_locations[0], "applications", "__init__.py").read_text()
    imports = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom))
    names = {alias.name for node in imports for alias in node.names if alias.name[0].isupper()}
    return [*BUILT_IN_MODELS, *sorted(names)]


def _parse_ops(specs: Any, section: str, problems: list[str]) -> list[Op] | None:
    """Parse one list of ops, adding to `problems`; None where it is no list (the schema says so) or
    has problems.
    """
    if not isinstance(specs, list):
        return None
    ops, found = [], []
    for index, spec in enumerate(specs):
        op, wrong = parse_op(spec, where=f"{section}[{index}]")
        ops += [op] if op else []
        found += wrong
    problems += found
    return ops


def _cross_field_problems(params: Params) -> list[str]:
    """Problems that concern more than one key."""
    names = [op.name for op in params.preprocess]
    found = [
        f"preprocess: {op.name} is random; what is stored must be deterministic, move it to augment"
        for op in params.preprocess
        if op.random
    ]
    found += [
        f"augment: {op.name} is deterministic; do it once, in preprocess"
        for op in params.augment
        if not op.random
    ]
    found += [
        f"postprocess: {op.name} is random; move it to augment"
        for op in params.postprocess
        if op.random
    ]
    if names[:1] != ["decode"] or names.count("decode") != 1:
        found.append("preprocess: `decode` comes first, once, or is left out, which means the same")
    if params.data.split.validation + params.data.split.test >= 1:
        found.append("data.split: validation and test together leave nothing to train on")
    if params.data.split.validation == 0:
        found.append(
            "data.split.validation: must be above 0; every epoch is judged on held-out examples"
        )
    found += _path_problems(params) + _source_problems(params)
    mixing = [op.name for op in params.augment if op.mixes_labels]
    if mixing and "one_hot" not in [op.name for op in params.postprocess]:
        found.append(
            f"postprocess: {mixing[0]} mixes labels, which needs them as vectors everywhere; add"
            " `one_hot`"
        )
    for name, config in params.pipelines.items():
        if not name.isidentifier():
            found.append(
                f"pipelines.{name}: names are Python identifiers (letters, digits, underscores)"
            )
        reasons = config_problems(
            config,
            preprocess=params.preprocess,
            augment=params.augment,
            postprocess=params.postprocess,
        )
        if SOURCES[params.data.source].content != "text":
            reasons += batch_problems(config)
        found += [f"pipelines.{name}.{reason}" for reason in reasons]
        found += [f"pipelines.{name}.{reason}" for reason in _reading_problems(config, params)]
    return found + _model_problems(params.model.name, SOURCES[params.data.source].content)


def _reading_problems(config: PipelineConfig, params: Params) -> Iterator[str]:
    """What a configuration asks for that the data or the training does not have."""
    if config.read == "files" and not SOURCES[params.data.source].has_files:
        yield (
            f"read: the source {params.data.source} has no image files; use arrays, shards or"
            " snapshot"
        )
    if config.read == "gzip_shards" and params.shard.compression == "none":
        yield ("read: there are no compressed shards; set shard.compression to gzip or both")
    if config.read == "indexed_shards" and params.shard.compression == "gzip":
        yield (
            "read: records of compressed shards cannot be read one by one; set shard.compression"
            " to none or both"
        )
    if config.snapshot_on == "device" and params.train.jit_compile:
        yield ("snapshot_on: the index shuffle has no XLA form; set train.jit_compile to false")


def _path_problems(params: Params) -> list[str]:
    """Data of one's own must not be where `fetch` writes."""
    raw, path = Path(RAW).resolve(), Path(params.data.path).resolve()
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
        f"data.path: {params.data.path} is in {RAW}, which is for what data.fetch gets.{fetched}"
        " Move data of your own elsewhere, such as my/data, and set data.path to it"
    ]


def _source_problems(params: Params) -> list[str]:
    """Problems of ops and sampling with this kind of data."""
    content = SOURCES[params.data.source].content
    sections = ("preprocess", "augment", "postprocess")
    ops = [(section, op) for section in sections for op in getattr(params, section)]
    found = ops_problems(content, ops)
    if content == "text":
        found += text_problems(params.preprocess)
    if content == "time series":
        sampled = [
            name for name, config in params.pipelines.items() if config.sampling != "uniform"
        ]
        found += [f"pipelines.{name}.sampling: a time series has no classes" for name in sampled]
        indexed = [
            name for name, config in params.pipelines.items() if config.read == "indexed_shards"
        ]
        found += [
            f"pipelines.{name}.read: a record of a time series is a block of time steps, not an"
            " example; use snapshot or shards"
            for name in indexed
        ]
        cached = [name for name, config in params.pipelines.items() if config.vectorize]
        found += [
            f"pipelines.{name}.vectorize: windows are batched when they exist; drop `vectorize`"
            for name in cached
        ]
    return found


def _model_problems(name: str, content: str) -> list[str]:
    if ":" not in name:
        known = model_names()
        if name not in known:
            return [
                f"model.name: {name} is not a model; {did_you_mean(name, known)} Your own:"
                " package.module:function"
            ]
        fitting = MODELS_FOR[content]
        takes_images = content == "images" and name not in TEXT_MODELS
        if name not in (*fitting, "emulated") and not takes_images:
            takes = "text" if name in TEXT_MODELS else "images"
            return [
                f"model.name: {name} takes {takes}, the source is {content}; use auto,"
                f" {', '.join(fitting)}, or your own"
            ]
        return []
    module = name.partition(":")[0]
    try:
        missing = importlib.util.find_spec(module) is None
    except (ImportError, ValueError):
        missing = True
    return (
        [
            f"model.name: module {module} cannot be found; run from the folder that holds it, or"
            " install it"
        ]
        if missing
        else []
    )


def _format_error(item: Any) -> str:
    """One pydantic error as one line with its path; unknown keys get the nearest valid one."""
    loc = [
        part
        for part in item["loc"]
        if not (isinstance(part, str) and part.startswith(("function-", "literal", "constrained")))
    ]
    where = ""
    for part in loc:
        where += f"[{part}]" if isinstance(part, int) else f".{part}" if where else str(part)
    if item["type"] == "extra_forbidden":
        general = ".".join(
            "*" if number == 1 and loc[0] == "pipelines" else str(part)
            for number, part in enumerate(loc)
        )
        if general in RENAMED:
            return f"{where} is now called {RENAMED[general]}"
        return f"{where} is not a field; {did_you_mean(str(loc[-1]), _fields_at(loc[:-1]))}"
    if item["type"] == "missing":
        return f"{where} is missing"
    message = item["msg"].removeprefix("Value error, ")
    shown = "" if "found" in message else f"; found {item['input']!r}"
    return f"{where}: {message[0].lower()}{message[1:]}{shown}"


def _fields_at(loc: Sequence[str | int]) -> list[str]:
    """Names of the fields that are valid at a path of the document."""
    kind: Any = Document
    for part in loc:
        kind = (
            kind.model_fields[str(part)].annotation
            if isinstance(kind, type) and issubclass(kind, BaseModel)
            else get_args(kind)[-1]
        )
        options = [
            option
            for option in get_args(kind)
            if isinstance(option, type) and issubclass(option, BaseModel)
        ]
        kind = options[0] if options and not str(kind).startswith("dict") else kind
    return list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []
