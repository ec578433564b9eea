"""Problems of model, optimizer, loss, metrics and early stopping. Does not import Keras."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from throughline.plan.ops import Rescale, Standardize
from throughline.plan.schema import COLUMNS, Encoding
from throughline.settings import ModelSettings, TrainSettings, WindowSettings
from throughline.shared.code_identity import find_source, parse_source
from throughline.shared.errors import did_you_mean
from throughline.shared.layout import Layout

if TYPE_CHECKING:
    from throughline.config.params import Params

NEXT_TOKENS = "next tokens"
# The kinds of data that each built-in model takes, or NEXT_TOKENS if it predicts next tokens.
# `emulated` takes everything.
BUILT_IN_MODELS: Mapping[str, tuple[str, ...]] = {
    "small_cnn": ("images",),
    "mlp": ("images", "numbers"),
    "text_classifier": ("text",),
    "transformer_encoder": ("text",),
    "transformer_decoder": (NEXT_TOKENS,),
    "emulated": (),
}
VALUES = ("tfds", "tfrecord", "arrays")  # sources whose labels decide between class and number
# Arguments of keras.applications that follow from the data, or have keys of their own.
FROM_DATA = ("weights", "input_shape", "input_tensor", "classes", "classifier_activation", "name")


def list_fitting_models(encoding: Encoding, window: WindowSettings) -> tuple[str, ...]:
    """List built-in models that fit, without `emulated`; `auto` is the source's, or the first."""
    wanted = encoding.modality if window.tokens is None else NEXT_TOKENS
    return tuple(name for name, takes in BUILT_IN_MODELS.items() if wanted in takes)


def find_model_problems(params: Params, encoding: Encoding) -> list[str]:
    """List problems of model, optimizer, loss, metrics and early stopping for this encoding."""
    return [
        *_find_file_problems(params.model),
        *([*_find_name_problems(params, encoding)] or find_option_problems(params.model)),
        *_find_scaling_problems(params),
        *_find_compile_problems(params.train),
        *_find_monitor_problems(params, encoding),
    ]


def _find_file_problems(model: ModelSettings) -> Iterator[str]:
    layout = Layout()
    for key, name in (("from", model.from_file), ("weights", model.weights)):
        path = Path(name).resolve()
        outputs = (root.resolve() / "runs" for root in (layout.root, layout.project))
        if name and any(map(path.is_relative_to, outputs)):
            yield (
                f"model.{key}: {name} is an output of train, which DVC removes before it trains;"
                f" copy it first: `cp {name} pretrained.keras`, and `git add --force"
                " pretrained.keras`"
            )
        elif name and not path.is_file():
            yield f"model.{key}: {name} is not a file (absolute, or relative to the project)"
    if model.from_file and (model.name != "auto" or model.options or model.weights):
        yield (
            "model.from: the file defines the network; leave out model.name, model.options and"
            " model.weights"
        )


def _find_scaling_problems(params: Params) -> Iterator[str]:
    """Report ops that scale the input of a keras.applications model that scales it itself."""
    model = params.model
    within = model.options.get("include_preprocessing") and ":" not in model.name
    if within or model.name.startswith("EfficientNetB"):
        yield from (
            f"postprocess: {model.name} scales its input itself, from 0 to 255; leave out"
            f" {op.name}; without other ops, write `postprocess: []`"
            for op in params.postprocess
            if isinstance(op, Rescale | Standardize)
        )


def _find_name_problems(params: Params, encoding: Encoding) -> Iterator[str]:
    name = params.model.name
    tokens, own = params.window.tokens, "package.module:function"
    if params.model.from_file:
        return
    if ":" in name:
        yield from _find_module_problems("model.name", name)
        return
    known = model_names()
    takes = BUILT_IN_MODELS.get(name, ("images",))  # other names are from keras.applications
    predicts = NEXT_TOKENS in takes
    if name == "auto":
        yield f"model.name: no built-in model takes {encoding.noun}; name your own as {own}"
    elif name not in known:
        hint = did_you_mean(name, known)
        yield f"model.name: {name} is not a model; {hint} (name your own as {own})"
    elif predicts != (tokens is not None):
        yield (
            f"model.name: {name} {'predicts' if predicts else 'does not predict'} next tokens, but"
            f" window.tokens is {tokens or 'absent'}; use auto, or a model of your own"
        )
    elif takes and not predicts and encoding.modality not in takes:
        fitting = ", ".join(list_fitting_models(encoding, params.window))
        yield (
            f"model.name: {name} takes {' and '.join(takes)}, but the source has {encoding.noun};"
            f" use auto, {fitting}, or a model of your own"
        )


def _find_module_problems(key: str, named: str) -> Iterator[str]:
    module = named.partition(":")[0]
    with suppress(ImportError, ValueError):
        if importlib.util.find_spec(module):
            return
    yield (
        f"{key}: module {module} cannot be found; run from the folder that holds it, or install it"
    )


def _find_compile_problems(train: TrainSettings) -> Iterator[str]:
    named = {
        ("optimizer", "optimizers"): [train.optimizer],
        ("loss", "losses"): [train.loss],
        ("metrics", "metrics"): train.metrics,
    }
    for (key, module), objects in named.items():
        known = _list_keras_names(module)
        for one in objects:
            name = one if isinstance(one, str) else next(iter(one), "")
            plain = _plain(name)
            if ":" in name:
                yield from _find_module_problems(f"train.{key}", name)
            elif known and name != "auto" and plain not in known:
                close = get_close_matches(plain, known, n=1)
                hint = f"did you mean {known[close[0]]}?" if close else "see keras.io/api"
                yield (
                    f"train.{key}: {name} is not one of Keras' {module}; {hint} (name your own as"
                    " package.module:name)"
                )


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


@cache
def _list_keras_names(module: str) -> Mapping[str, str]:
    """Return a Keras module's names and aliases by plain name; empty without Keras' source."""
    keras = find_source("keras")
    if keras is None:
        return {}
    public = parse_source(keras.parent / module / "__init__.py")
    source = parse_source(keras.parent / "src" / module / "__init__.py")
    imports = [node for node in ast.walk(public) if isinstance(node, ast.ImportFrom)]
    short = [key for node in ast.walk(source) if isinstance(node, ast.Dict) for key in node.keys]
    names = [alias.name for node in imports for alias in node.names]
    names += [str(key.value) for key in short if isinstance(key, ast.Constant)]
    return {_plain(name): name for name in names}


def _find_monitor_problems(params: Params, encoding: Encoding) -> Iterator[str]:
    """Check early stopping's metric, unless the user's builder, file or `metrics` add others."""
    stopping, model = params.train.early_stopping, params.model
    if not stopping or ":" in model.name or model.from_file or params.train.metrics != ["auto"]:
        return
    kind, table = params.data.label_kind, encoding.name == "numbers"
    undecided = kind == "auto" and (table or params.data.source in VALUES)
    number = encoding.storage == "blocks" or kind == "number"
    metrics = ["accuracy", "mae"] if undecided else ["mae" if number else "accuracy"]
    if problem := find_monitor_problem(stopping.monitor, ["loss", *metrics]):
        yield problem


def find_monitor_problem(monitor: str, metrics: Collection[str]) -> str | None:
    """Return why early stopping cannot monitor this; None for `metrics`, with or without val_."""
    known = [*(f"val_{name}" for name in metrics), *metrics]
    if monitor in known:
        return None
    close = did_you_mean(monitor, known).partition("known:")[0]
    return (
        f"train.early_stopping.monitor: {monitor} is not a metric of this training, which has"
        f" {', '.join(known)}{close and f'; {close}'}"
    )


def find_option_problems(model: ModelSettings) -> Iterator[str]:
    """List options that the model's builder does not accept, by its source, which is not run.

    Raises:
      InvalidCode: The source is not Python.
    """
    taken = _read_arguments(model.name) if model.name != "emulated" else None
    if taken is None:
        return
    for key in (key for key in model.options if key not in taken):
        hint = did_you_mean(key, taken) if taken else "it has none"
        yield f"model.options.{key}: {model.name} has no such option; {hint}"


def _read_arguments(name: str) -> list[str] | None:
    module, _, function = name.partition(":")
    if function:
        sources = [module]
    elif name in BUILT_IN_MODELS:
        sources, function = ["throughline.models.builders", "throughline.models.transformers"], name
    else:
        sources, function = [], name
    paths = [find_source(module) for module in sources]
    if not sources and (keras := find_source("keras")):
        paths = sorted((keras.parent / "src" / "applications").glob("*.py"))
    for path in filter(None, paths):
        for node in parse_source(path).body:
            if isinstance(node, ast.FunctionDef) and node.name == function:
                first = 2 if sources else 0  # skip a builder's input_shape and outputs
                positional = [*node.args.posonlyargs, *node.args.args]
                taken = [*positional[first:], *node.args.kwonlyargs]
                from_data = (COLUMNS,) if sources else FROM_DATA
                options = [one.arg for one in taken if one.arg not in from_data]
                return None if node.args.kwarg else options
    return None


def model_names() -> list[str]:
    """Return the names that `model.name` may have besides import paths, without importing Keras."""
    keras = find_source("keras")
    if keras is None:
        return list(BUILT_IN_MODELS)
    source = parse_source(keras.parent / "applications" / "__init__.py")
    imports = (node for node in ast.walk(source) if isinstance(node, ast.ImportFrom))
    names = {alias.name for node in imports for alias in node.names if alias.name[0].isupper()}
    return [*BUILT_IN_MODELS, *sorted(names)]
