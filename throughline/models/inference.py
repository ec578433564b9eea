"""The inputs of a trained model and the meaning of its outputs, as its file describes them.

model.keras holds them as members that Keras ignores, so class names, vocabularies of columns and
the tokenizer always belong to the model.
"""

import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import keras
import numpy as np
from pydantic import TypeAdapter

from throughline.data import encodings  # noqa: F401 - a schema names them
from throughline.models.model_files import explain, load_model, save_model
from throughline.plan.op_parsing import restore_op
from throughline.plan.ops import Op
from throughline.plan.schema import Schema
from throughline.plan.text_ops import Tokenize
from throughline.results.base import parse
from throughline.settings import DataSettings, WindowSettings
from throughline.shared.code_identity import project_files
from throughline.shared.errors import OutdatedModel, UntrustedModel
from throughline.shared.files import digest_json
from throughline.shared.layout import MODEL_SPEC

SPEC, TOKENIZER = MODEL_SPEC, "throughline/tokenizer"
PASSING = ("Identity", "Cast", "Reshape")  # operations that keep values as they are
TRIES = 8  # logits of two classes are all from 0 to 1 in (1/4)^8 of the cases
SUMS = 3  # number of batches whose outputs must sum to 1 to be probabilities
LOADING_ERRORS = ImportError, AttributeError, TypeError, ValueError, NotImplementedError
RETRAIN = "train it again: `dvc repro --force train@NAME`"


@dataclass(frozen=True, kw_only=True)
class StoredOp:
    """An op as `{name: arguments}`, and the digest of its identity."""

    op: Mapping[str, Any]
    identity: str


@dataclass(frozen=True, kw_only=True)
class InferenceSpec:
    """How to use a trained model.

    Attributes:
      data: How tables and texts were read.
      ops: Make the model's input from a stored example, as in evaluation.
      classes: In the order of the outputs.
      targets: The names of a regression's numbers.
      objects: The project's classes and functions that the file needs: module:name by name.
      safe: Whether Keras loads the file in safe mode.
      data_digest: Identifies the data that the model was trained on.
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
    model: keras.Model
    spec: InferenceSpec
    ops: tuple[Op, ...]


def save_trained_model(
    model: keras.Model, path: Path, spec: InferenceSpec, ops: Sequence[Op]
) -> None:
    """Save a model in Keras' format, with its `spec` and its tokenizer, atomically."""
    members = {SPEC: TypeAdapter(InferenceSpec).dump_json(spec, indent=1)}
    for op in ops:
        if isinstance(op, Tokenize) and op.file:
            members[TOKENIZER] = Path(op.model).read_bytes()
    save_model(model, path, members)


def read_spec(path: Path) -> InferenceSpec:
    """Read the spec in a model's file; OutdatedModel if it is damaged, or not of this version."""
    try:
        with zipfile.ZipFile(path) as file:
            return parse(InferenceSpec, json.loads(file.read(SPEC)))
    except KeyError as error:
        raise OutdatedModel(
            f"{path} does not describe its inputs and classes: it was saved by an earlier version,"
            f" or by other means than the train stage; {RETRAIN}"
        ) from error
    except (TypeError, ValueError) as error:
        raise OutdatedModel(
            f"{path} was saved by another version of the program ({error}); {RETRAIN}"
        ) from error
    except zipfile.BadZipFile as error:
        raise _refuse_damaged(path, error) from error


def _refuse_damaged(path: Path, error: Exception) -> OutdatedModel:
    return OutdatedModel(f"{path} is damaged, or not a model.keras ({error}); {RETRAIN}")


def find_spec(path: Path) -> InferenceSpec | None:
    """Read the spec in a model's file like `read_spec`; None if this program did not save it."""
    if not zipfile.is_zipfile(path):
        return None
    with zipfile.ZipFile(path) as file:
        own = SPEC in file.namelist()
    return read_spec(path) if own else None


def read_tokenizer(path: Path, spec: InferenceSpec) -> tuple[Tokenize, bytes] | None:
    """Read `tokenize` and the tokenizer's bytes, empty if tokens are bytes; None without text."""
    arguments = next((one.op["tokenize"] for one in spec.ops if "tokenize" in one.op), None)
    if arguments is None:
        return None
    op = Tokenize.model_validate(arguments)
    with zipfile.ZipFile(path) as file:
        return op, file.read(TOKENIZER) if op.file else b""


def gives_probabilities(model: keras.Model) -> bool:
    """Return whether a model ends with a softmax, as a user's may, instead of giving logits."""
    return find_last_activation(model) == "softmax"


def find_last_activation(model: keras.Model) -> str | None:
    """Return the name of the activation that a model applies last, or None if unknown.

    Casts, reshapes and averages are skipped. If the last operation is not Keras', only a softmax
    or a sigmoid is found, by the outputs for random inputs.
    """
    return _find_activation_of(model, 0)


def _find_activation_of(model: keras.Model, index: int) -> str | None:
    outputs: Any = getattr(model, "outputs", None)
    return (_find_activation(outputs[index]) if outputs else None) or _try_activation(model, index)


def _try_activation(model: Any, index: int) -> str | None:
    """Return `softmax` or `sigmoid` by the outputs for random inputs and weights, else None."""
    draw, sums = np.random.default_rng(0), []
    try:
        for _ in range(TRIES):
            weights = [
                one * draw.choice([-1.0, 1.0], one.shape).astype(one.dtype)
                for one in map(np.asarray, model.trainable_variables)
            ]
            inputs = keras.tree.map_structure(lambda one: _draw_batch(one, draw), model.input)
            answer, _ = model.stateless_call(
                weights, model.non_trainable_variables, inputs, training=False
            )
            outputs = np.asarray(keras.tree.flatten(answer)[index], np.float32)
            if not ((outputs >= 0) & (outputs <= 1)).all() or not outputs.any():
                return None
            sums.append(outputs.sum(axis=-1))
            if len(sums) == SUMS and np.allclose(sums, 1, atol=0.02):  # of bfloat16, too
                return "softmax"
    except Exception:  # noqa: BLE001 - a user's layers may raise anything for these inputs
        return None
    return "sigmoid"


def _draw_batch(tensor: Any, draw: np.random.Generator) -> np.ndarray:
    shape = (2, *(size or 64 for size in tensor.shape[1:]))
    whole = keras.backend.is_int_dtype(tensor.dtype)
    return (draw.integers(0, 2, shape) if whole else draw.normal(size=shape)).astype(tensor.dtype)


def _find_activation(tensor: Any) -> str | None:
    operation, node, index = tensor._keras_history
    if isinstance(operation, keras.Model):
        return _find_activation_of(operation, index)
    kind = type(operation)
    if not kind.__module__.startswith("keras."):
        return None
    applied = getattr(operation, "activation", None)
    if applied is None:  # a layer such as Softmax, or a function of Keras
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
    """Return a model's task, and classes or targets in order; None if `read_spec` cannot tell."""
    try:
        spec = read_spec(path)
    except OutdatedModel:
        return None
    return {"task": spec.task, "classes": list(spec.classes), "targets": list(spec.targets)}


@contextmanager
def open_trained_model(path: Path, *, trusted: bool = True) -> Iterator[TrainedModel]:
    """Load the model of a file, with its tokenizer, for the length of the block.

    Raises OutdatedModel if it cannot be used any more, and UntrustedModel if a file that is not
    `trusted` contains code, or names code outside this project.
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
                f"{path} cannot be loaded ({explain(error)}); run from the project whose code it"
                " needs, or train it again"
            ) from error
        outputs = getattr(model, "outputs", None)
        if spec.task == "class" and outputs and outputs[0].shape[-1] != len(spec.classes):
            raise OutdatedModel(
                f"{path} gives {outputs[0].shape[-1]} numbers for {len(spec.classes)} classes:"
                f" its file was changed; {RETRAIN}"
            )
        yield TrainedModel(model=model, spec=spec, ops=ops)


def _check_code(spec: InferenceSpec, path: Path) -> None:
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
    """Restore an op, and check that it is the one that the model was trained with."""
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
