"""What a trained model needs besides its weights to be used: how files become its inputs, and what
its outputs mean.

It is kept within model.keras itself, as members of the file that Keras passes over: names of
classes, vocabularies of columns and the tokenizer cannot be those of another model.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import keras
from pydantic import TypeAdapter, ValidationError

from throughline.data import encodings  # noqa: F401 - a schema names them
from throughline.models.model_files import explain, load_model, save_model
from throughline.plan.op_parsing import describe_op, restore_op
from throughline.plan.ops import Op
from throughline.plan.schema import Schema
from throughline.plan.text_ops import Tokenize
from throughline.settings import DataSettings, WindowSettings
from throughline.shared.code_identity import project_files
from throughline.shared.errors import OutdatedModel, UntrustedModel
from throughline.shared.files import digest_json
from throughline.shared.layout import MODEL_SPEC

SPEC, TOKENIZER = MODEL_SPEC, "throughline/tokenizer"
PASSING = ("Identity", "Cast", "Reshape")  # layers and operations that leave values as they are
LOADING_ERRORS = ImportError, AttributeError, TypeError, ValueError, NotImplementedError
RETRAIN = "train it again: `dvc repro --force train@NAME`"


@dataclass(frozen=True, kw_only=True)
class StoredOp:
    """An op as `{name: arguments}`, and the digest of its identity."""

    op: Mapping[str, Any]
    identity: str


@dataclass(frozen=True, kw_only=True)
class InferenceSpec:
    """How a model is used.

    `ops` make the model's input of an example that is stored as `schema` says, as evaluation does.
    `classes` are in the order of the outputs; `targets` names the numbers of a regression. `data`
    says how tables and texts were read, `window` how long windows are. `objects` are the project's
    classes and functions that the file needs, as module:name by name; `safe`: Keras loads it in
    safe mode. `data_digest` identifies what it was trained on.
    """

    task: Literal["class", "regression", "next_token"]
    schema: Schema
    data: DataSettings
    window: WindowSettings
    ops: tuple[StoredOp, ...]
    classes: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    objects: Mapping[str, str] = field(default_factory=dict)
    safe: bool = True
    data_digest: str = ""


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A model from its file, how it is used, and the ops that make its inputs."""

    model: keras.Model
    spec: InferenceSpec
    ops: tuple[Op, ...]


def store_ops(ops: Sequence[Op]) -> tuple[StoredOp, ...]:
    """Ops as they are kept with a model."""
    return tuple(StoredOp(op=describe_op(op), identity=digest_json(op.identity)) for op in ops)


def save_trained_model(
    model: keras.Model, path: Path, spec: InferenceSpec, ops: Sequence[Op]
) -> None:
    """Save a model in Keras' own format, with `spec` and with the tokenizer among its `ops`,
    atomically.
    """
    members = {SPEC: _adapter().dump_json(spec, indent=1)}
    for op in ops:
        if isinstance(op, Tokenize) and op.file:
            members[TOKENIZER] = Path(op.model).read_bytes()
    save_model(model, path, members)


def read_spec(path: Path) -> InferenceSpec:
    """Read how the model of a file is used.

    Raises:
      OutdatedModel: the file does not say so, or not as this version of the program reads it.
    """
    try:
        with zipfile.ZipFile(path) as file:
            return _adapter().validate_json(file.read(SPEC))
    except KeyError as error:
        raise OutdatedModel(
            f"{path} does not say what its inputs and classes are: it was saved by an earlier"
            f" version, or by other means than the train stage; {RETRAIN}"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise OutdatedModel(
            f"{path} was saved by another version of the program ({where}: {first['msg']});"
            f" {RETRAIN}"
        ) from error
    except zipfile.BadZipFile as error:
        raise _refuse_damaged(path, error) from error


def _refuse_damaged(path: Path, error: Exception) -> OutdatedModel:
    return OutdatedModel(f"{path} is no model.keras, or damaged ({error}); {RETRAIN}")


def find_spec(path: Path) -> InferenceSpec | None:
    """How the model of a file is used; None where it is no file of this program.

    Raises:
      OutdatedModel: it is one of another version.
    """
    if not zipfile.is_zipfile(path):
        return None
    with zipfile.ZipFile(path) as file:
        own = SPEC in file.namelist()
    return read_spec(path) if own else None


def read_tokenizer(path: Path, spec: InferenceSpec) -> tuple[Tokenize, bytes] | None:
    """The `tokenize` of a model's file, and the tokenizer itself, empty where tokens are bytes;
    None where the model takes no text.
    """
    arguments = next((one.op["tokenize"] for one in spec.ops if "tokenize" in one.op), None)
    if arguments is None:
        return None
    op = Tokenize.model_validate(arguments)
    with zipfile.ZipFile(path) as file:
        return op, file.read(TOKENIZER) if op.file else b""


def gives_probabilities(model: keras.Model) -> bool:
    """Whether a model ends with a softmax, as one of your own may, instead of giving logits."""
    return find_last_activation(model) == "softmax"


def find_last_activation(model: keras.Model) -> str | None:
    """The name of what a model applies to its outputs at last, as far as layers and operations of
    Keras show it, with what only casts, reshapes or averages them passed over; else None.
    """
    outputs: Any = getattr(model, "outputs", None)
    return _find_activation(outputs[0]) if outputs else None


def _find_activation(tensor: Any) -> str | None:
    operation, node, index = tensor._keras_history
    if isinstance(operation, keras.Model) and (outputs := getattr(operation, "outputs", None)):
        return _find_activation(outputs[index])
    kind = type(operation)
    if not kind.__module__.startswith("keras."):
        return None
    applied = getattr(operation, "activation", None)
    if applied is None:  # a layer of its own, such as Softmax, or what a function of Keras makes
        applied = getattr(keras.activations, kind.__name__.lower(), None)
    before = operation._inbound_nodes[node].input_tensors
    passes = kind.__name__ in PASSING or (
        isinstance(operation, keras.layers.Activation) and applied is keras.activations.linear
    )
    if passes or isinstance(operation, keras.layers.Average):
        found = {_find_activation(one) for one in before}
        return found.pop() if len(found) == 1 else None
    return getattr(applied, "__name__", None)


def describe_outputs(path: Path) -> dict[str, Any] | None:
    """What the outputs of a model mean, by its file: its task, and the names of classes or targets
    in their order; None where the file does not say.
    """
    try:
        spec = read_spec(path)
    except OutdatedModel:
        return None
    return {"task": spec.task, "classes": list(spec.classes), "targets": list(spec.targets)}


@contextmanager
def open_trained_model(path: Path, *, trusted: bool = True) -> Iterator[TrainedModel]:
    """Load the model of a file for the length of the block.

    A file that is not `trusted` may name code of this project alone, and holds none that is run.

    Raises:
      OutdatedModel: it cannot be used any more; says why.
      UntrustedModel: it names other code, or holds some.
    """
    spec = read_spec(path)
    if not trusted:
        _check_code(spec, path)
    with TemporaryDirectory(prefix="throughline-") as folder:
        tokenizer = Path(folder) / "tokenizer"
        try:
            with zipfile.ZipFile(path) as file:
                if TOKENIZER in file.namelist():
                    tokenizer.write_bytes(file.read(TOKENIZER))
            ops = tuple(_restore(stored, spec.schema, tokenizer, path) for stored in spec.ops)
            model = load_model(path, spec.objects, safe=spec.safe)
        except (zipfile.BadZipFile, OSError) as error:  # HDF5's own errors are OSErrors
            raise _refuse_damaged(path, error) from error
        except LOADING_ERRORS as error:
            raise OutdatedModel(
                f"{path} cannot be loaded ({explain(error)}); run from"
                " the project whose code it needs, or train it again"
            ) from error
        outputs = getattr(model, "outputs", None)
        if spec.task == "class" and outputs and outputs[0].shape[-1] != len(spec.classes):
            raise OutdatedModel(
                f"{path} gives {outputs[0].shape[-1]} numbers for {len(spec.classes)} classes:"
                f" its file was changed; {RETRAIN}"
            )
        yield TrainedModel(model=model, spec=spec, ops=ops)


def _check_code(spec: InferenceSpec, path: Path) -> None:
    """Refuse a model that would import or run anything but this project's code."""
    named = [reference.partition(":")[0] for reference in spec.objects.values()]
    named += [name.partition(":")[0] for stored in spec.ops for name in stored.op if ":" in name]
    foreign = sorted({module for module in named if module not in project_files(module)})
    if foreign or not spec.safe:
        what = f"names code of {', '.join(foreign)}" if foreign else "holds code, a Lambda layer"
        raise UntrustedModel(
            f"{path} {what}, which --model does not run; use --pipeline NAME with a model that this"
            " project has trained"
        )


def _restore(stored: StoredOp, schema: Schema, tokenizer: Path, path: Path) -> Op:
    """The op as the model was trained with it."""
    op, problems = restore_op(stored.op, schema)
    if isinstance(op, Tokenize) and op.file:
        op = op.model_copy(update={"model": str(tokenizer)})
    if op is None or digest_json(op.identity) != stored.identity:
        name = next(iter(stored.op))
        why = "; ".join(problems) or "its code or version has changed since"
        raise OutdatedModel(
            f"{path} was trained with another {name} than there is now ({why}); {RETRAIN}"
        )
    return op


@cache
def _adapter() -> TypeAdapter[InferenceSpec]:
    return TypeAdapter(InferenceSpec)
