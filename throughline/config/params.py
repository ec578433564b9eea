"""Loads params.yaml, applies overrides, and checks everything at once before anything runs.

A problem is one line that begins with the path of its key. Problems are found together: unknown
keys (with the nearest valid one), wrong types, unknown ops; if there are none, impossible
combinations.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

from pydantic import Field, ValidationError

from throughline.config.model_checks import list_fitting_models
from throughline.config.params_checks import find_problems, find_source_encoding
from throughline.config.params_file import PARAMS_FILE, apply_overrides, read_yaml
from throughline.config.source_guess import name_source
from throughline.plan.op_parsing import parse_op
from throughline.plan.ops import Op
from throughline.settings import (
    DataSettings,
    EngineSettings,
    MeasureSettings,
    ModelSettings,
    PipelineConfig,
    Settings,
    ShardSettings,
    SnapshotSettings,
    StorageSettings,
    TrainSettings,
    WindowSettings,
)
from throughline.settings.source_kinds import SOURCES
from throughline.shared.errors import InvalidParams, UnknownPipeline, did_you_mean

OpSpec = str | dict[str, Any]
OP_SECTIONS = ("preprocess", "augment", "postprocess")
# Default ops by the encoding of examples; `ParamsDocument` has the defaults for images.
USUAL_OPS: Mapping[str, Mapping[str, list[OpSpec]]] = {
    "numbers": {"postprocess": ["standardize", "categories"]},
    "series": {"postprocess": ["standardize"]},
    "text": {
        "preprocess": [{"tokenize": {"kind": "bytes"}}, {"truncate": {"tokens": 512}}],
        "postprocess": [],
    },
}
# Keys of earlier versions, by path, and their present names.
RENAMED = {
    "data.class_level": "data.layout, such as */class",
    "data.folders": "data.layout, such as split/class or class/**",
    "finish": "postprocess",
    "measure.input_max_seconds": "measure.seconds, of the race of all configurations",
    "measure.input_passes": "measure.seconds, of the race of all configurations",
    "measure.rounds": "measure.seconds, of the race of all configurations",
    "measure.stall_max_seconds": "measure.seconds, of the race of all configurations",
    "pipelines.*.decode.scale": "ratio",
    "pipelines.*.finish": "postprocess_on",
    "pipelines.*.place": "snapshot_on",
    "pipelines.*.rewrites": "graph_rewrites",
    "pipelines.*.sample": "sampling: uniform, balanced, or {class: weight}",
}


class ParamsDocument(Settings):
    """The structure of params.yaml."""

    data: DataSettings
    shard: ShardSettings = ShardSettings()
    preprocess: list[OpSpec] = Field(default=["decode"])
    """deterministic ops, in order; a snapshot stores their results, and a cache may keep them;
    `decode` comes first and may be left out; auto, or left out: for texts, the first 512 bytes as
    tokens, or all bytes where `window.tokens` is set; else `decode` alone
    """
    augment: list[OpSpec] = Field(default=[])
    """random ops, drawn again each epoch from (seed, epoch, example); auto, or left out: none"""
    snapshot: SnapshotSettings = SnapshotSettings()
    storage: StorageSettings = StorageSettings()
    window: WindowSettings = WindowSettings()
    postprocess: list[OpSpec] = Field(default=["rescale"])
    """last ops, which turn stored values into floats, on the host or on the device
    (`postprocess_on`); auto, or left out: [standardize, categories] for tables, [standardize] for
    series, none for texts, else [rescale]
    """
    batch_size: int = Field(default=256, ge=1)
    """examples per train step"""
    pipelines: dict[str, PipelineConfig] = Field(min_length=1)
    """input-pipeline configurations by name"""
    model: ModelSettings = ModelSettings()
    train: TrainSettings = TrainSettings()
    measure: MeasureSettings = MeasureSettings()
    engine: EngineSettings = EngineSettings()


@dataclass(frozen=True, kw_only=True)
class Params:
    """Checked parameters with parsed ops."""

    data: DataSettings
    shard: ShardSettings
    preprocess: tuple[Op, ...]
    augment: tuple[Op, ...]
    postprocess: tuple[Op, ...]
    snapshot: SnapshotSettings
    storage: StorageSettings
    window: WindowSettings
    batch_size: int
    pipelines: Mapping[str, PipelineConfig]
    model: ModelSettings
    train: TrainSettings
    measure: MeasureSettings
    engine: EngineSettings

    @property
    def ops(self) -> list[tuple[str, Op]]:
        return [(section, op) for section in OP_SECTIONS for op in getattr(self, section)]


def load_params(path: Path = PARAMS_FILE, *, overrides: Sequence[str] = ()) -> Params:
    """Read, override and check the parameters.

    `overrides` are `KEY=VALUE` with a dotted key and a YAML value, such as `train.epochs=5`.

    Raises:
      InvalidParams: Lists all problems.
    """
    document = read_yaml(path)
    apply_overrides(document, overrides)
    return check(document, name=path.name)


def check(document: Mapping[str, Any], *, name: str = PARAMS_FILE.name) -> Params:
    """Validate a parameter document.

    Raises:
      InvalidParams: Lists every problem as file, path of the key, and what is wrong.
    """
    problems: list[str] = []
    document = _drop_automatic_ops(document)
    given = document.keys() & {*OP_SECTIONS}
    ops = {one: _parse_ops(document[one], one, problems) for one in OP_SECTIONS if one in given}
    try:
        parsed = parse_document(document)
    except ValidationError as error:
        others = [item for item in error.errors() if item["loc"][0] not in given]
        found = dict.fromkeys([*map(_format_error, others), *problems])
        raise InvalidParams([f"{name}: {problem}" for problem in found]) from error
    for section in {*OP_SECTIONS} - given:
        ops[section] = _parse_ops(getattr(parsed, section), section, problems)
    if not any(op.name == "decode" for op in ops["preprocess"]):
        # `decode` is implied: a stored example needs it first.
        ops["preprocess"] = [*_parse_ops(["decode"], "preprocess", problems), *ops["preprocess"]]
    parsed_ops = {section: tuple(parsed) for section, parsed in ops.items()}
    params = Params(**{**dict(parsed), **parsed_ops})
    problems += find_problems(params)
    if problems:
        raise InvalidParams([f"{name}: {problem}" for problem in problems])
    return params


def check_pipelines_exist(
    known: Iterable[str], names: Sequence[str], *, option: str = "--pipeline"
) -> None:
    """Raise UnknownPipeline if a name given with `option` is not a configuration."""
    known = list(known)
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            there = f"; there are: {', '.join(known)}" if hint.startswith("did") else ""
            raise UnknownPipeline(f"{option} {name}: there is no such configuration{there}; {hint}")


def parse_document(document: Mapping[str, Any]) -> ParamsDocument:
    """Parse a document of params.yaml and resolve its defaults, without parsing ops.

    Raises:
      InvalidParams: The path of the data does not determine their kind.
      ValidationError: A value is wrong.
    """
    document = name_source(_drop_automatic_ops(document))
    return _resolve_defaults(ParamsDocument.model_validate(document))


def _drop_automatic_ops(document: Mapping[str, Any]) -> dict[str, Any]:
    """Remove sections of ops that are `auto`, so that the data decide them."""
    automatic = {key for key in OP_SECTIONS if document.get(key) == "auto"}
    return {key: value for key, value in document.items() if key not in automatic}


def _resolve_defaults(document: ParamsDocument) -> ParamsDocument:
    """Resolve `auto` of the snapshot's fraction and the model, and the default ops of the data."""
    resolved: dict[str, Any] = {}
    encoding = find_source_encoding(document.data)
    if document.snapshot.fraction == "auto":
        resolved["snapshot"] = document.snapshot.model_copy(
            update={"fraction": find_read_fraction(document.pipelines.values())}
        )
    if document.model.name == "auto" and not document.model.from_file:
        fitting = list_fitting_models(encoding, document.window)
        name = SOURCES[document.data.source].auto_model or next(iter(fitting), "auto")
        resolved["model"] = document.model.model_copy(update={"name": name})
    for section, usual in USUAL_OPS.get(encoding.name, {}).items():
        if section not in document.model_fields_set:
            resolved[section] = usual
    if "preprocess" in resolved and document.window.tokens is not None:
        resolved["preprocess"] = resolved["preprocess"][:1]  # windows contain all of a text
    return document.model_copy(update=resolved)


def find_read_fraction(configs: Iterable[PipelineConfig]) -> float:
    """Return the largest fraction of the snapshot that any configuration reads; 1 if none does."""
    read = [config.snapshot.fraction for config in configs if config.read == "snapshot"]
    return max(read, default=1.0)


def _parse_ops(specs: Any, section: str, problems: list[str]) -> list[Op]:
    """Parse a list of ops, and add to `problems`."""
    if not isinstance(specs, list):
        problems.append(f"{section}: expected a list of ops, such as [decode]; found {specs!r}")
        return []
    ops = []
    for index, spec in enumerate(specs):
        op, wrong = parse_op(spec, where=f"{section}[{index}]")
        ops += [op] if op else []
        problems += wrong
    return ops


def _format_error(item: Any) -> str:
    """Format a pydantic error as one line with its path; unknown keys get the nearest valid one."""
    within = ("function-", "literal", "constrained")  # parts that name a type
    loc = [part for part in item["loc"] if not str(part).startswith(within)]
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)[1:]
    if item["type"] == "extra_forbidden":
        *section, key = map(str, loc)
        general = [section[0], "*", *section[2:]] if section[:1] == ["pipelines"] else section
        if now := RENAMED.get(".".join([*general, key])):
            return f"{where} is now called {now}"
        fields = _fields_at(section)
        hint = did_you_mean(key, fields)
        if "options" in fields:
            hint += f" An argument of the builder goes to {'.'.join(section)}.options.{key}"
        return f"{where} is not a field; {hint}"
    if item["type"] == "missing":
        return f"{where} is missing"
    message = item["msg"].removeprefix("Value error, ")
    shown = "" if "found" in message else f"; found {item['input']!r}"
    return f"{where}: {message[0].lower()}{message[1:]}{shown}"


def _fields_at(section: Sequence[str]) -> list[str]:
    kind: Any = ParamsDocument
    for part in section:
        if get_origin(kind) is dict:  # configurations by name
            kind = get_args(kind)[1]
        else:
            kind = kind.model_fields[part].annotation
            kind = get_args(kind)[0] if NoneType in get_args(kind) else kind
    return [field.alias or name for name, field in kind.model_fields.items()]
