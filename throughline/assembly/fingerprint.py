"""The fingerprint by which an interrupted training is recognized, and the user's modules."""

from collections.abc import Mapping
from pathlib import Path

from throughline.config.named_files import read_model_objects
from throughline.config.params import Params
from throughline.data.columns.index import INDEX
from throughline.models.transformers import TransformerEncoder
from throughline.pipelines.read.prepared_data import PreparedData
from throughline.shared.code_identity import PROGRAM
from throughline.shared.files import digest_file, digest_json
from throughline.shared.libraries import LIBRARIES, installed_versions
from throughline.shared.program import digest_code

# Fields of `train` that affect neither weights nor batches. A checkpoint itself records the number
# that its batches are multiples of.
NO_PART = {"checkpoint_every", "processes", "batch_multiple", "start_timeout_s", "step_timeout_s"}


def training_fingerprint(
    params: Params,
    name: str,
    data: PreparedData,
    *,
    needs: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, str]:
    """Return the parts of a training, each as a digest; all must match to resume a checkpoint.

    Fields in `NO_PART` do not count. `code` covers the stage, and the user's modules of the model,
    its training and ops, with all project modules they import; `needs` are further files and
    libraries that the user's code needs.
    """
    needs = needs or {}
    libraries = {*LIBRARIES["train"], *(name for _, op in params.ops for name in op.libraries)}
    files = [Path(file) for file in (params.model.from_file, params.model.weights) if file]
    parts = {
        "data": [data.shards.data_digest, digest_file(data.snapshot_folder / INDEX)],
        "ops": [
            [op.identity for op in data.bind_to_data(ops)]
            for ops in (params.augment, params.postprocess)
        ],
        "window": params.window.model_dump(),
        "pipeline": params.pipelines[name].model_dump(),
        "batch_size": params.batch_size,
        "model": [params.model.model_dump(), *map(digest_file, files)],
        "train": params.train.model_dump(exclude=NO_PART),
        "code": digest_code("train", *sorted(user_modules(params))),
        "files": needs.get("files", {}),
        "versions": {**installed_versions(sorted(libraries)), **needs.get("libraries", {})},
    }
    return {part: digest_json(value) for part, value in parts.items()}


def user_modules(params: Params) -> set[str]:
    """Return the user's modules that define the model, the objects it is trained with, and ops."""
    train = params.train
    named = [params.model.name, train.schedule, train.optimizer, train.loss]
    named += [*train.metrics, *train.callbacks]
    paths = [one if isinstance(one, str) else next(iter(one)) for one in named]
    own = {path.partition(":")[0] for path in paths if ":" in path}
    others = {type(op).__module__ for _, op in params.ops} | _file_modules(params)
    return own | {module for module in others if module.partition(".")[0] not in PROGRAM}


def layer_modules(params: Params) -> set[str]:
    """Return the user's and built-in modules that may define layers unknown to Keras."""
    transformer = params.model.name in ("transformer_encoder", "transformer_decoder")
    built_in = {TransformerEncoder.__module__} if transformer else set()
    return user_modules(params) | _file_modules(params) | built_in


def _file_modules(params: Params) -> set[str]:
    return {path.partition(":")[0] for path in read_model_objects(Path(params.model.from_file))}
