"""Describes how to use a trained model; the train stage stores this within model.keras."""

from pathlib import Path

from throughline.assembly.inputs import make_input_spec, make_token_window, name_targets
from throughline.config.params import Params
from throughline.data.shards.index import INDEX, read_shard_index
from throughline.models.inference import InferenceSpec, StoredOp, TrainedModel
from throughline.models.model_files import LoadRequirements
from throughline.pipelines.read.prepared_data import PreparedData
from throughline.plan.op_parsing import describe_op
from throughline.plan.ops import Op
from throughline.plan.shapes import resolve_decode
from throughline.plan.text_ops import Tokenize
from throughline.shared.files import digest_json
from throughline.shared.layout import Layout


def inference_ops(params: Params, name: str, data: PreparedData) -> tuple[Op, ...]:
    """Return the ops between a stored example and the full model in configuration `name`."""
    config, spec = params.pipelines[name], make_input_spec(params, data, "evaluate")
    read = None if config.read == "snapshot" else config  # how a configuration decodes on its own
    return (*resolve_decode(spec.preprocess, spec.schema, read), *spec.augment)


def make_inference_spec(
    params: Params, name: str, data: PreparedData, needs: LoadRequirements | None = None
) -> InferenceSpec:
    """Describe the use of a configuration's model; `needs` are requirements of loading its file."""
    targets = name_targets(params, data)
    next_token = make_token_window(params, data) is not None
    return InferenceSpec(
        task="regression" if targets else "next_token" if next_token else "class",
        schema=data.shards.schema,
        data=params.data,
        window=params.window,
        ops=tuple(
            StoredOp(op=describe_op(op), identity=digest_json(op.identity))
            for op in inference_ops(params, name, data)
        ),
        classes=() if next_token or targets else tuple(data.shards.classes),
        targets=targets,
        objects=dict(needs.objects) if needs else {},
        safe=needs.safe if needs else True,
        data_digest=data.shards.data_digest,
    )


def describe_changed_data(trained: TrainedModel, name: str, layout: Layout) -> str | None:
    """Say which parts of the data have changed since the training; None if none has."""
    changed = []
    if (layout.shards / INDEX).exists():
        index = read_shard_index(layout.shards)
        named = trained.spec.classes and trained.spec.classes != index.classes
        changed += ["the classes"] if named else []
        columns, of_model = index.schema.columns, trained.spec.schema.columns
        named = (columns.names, columns.categories) != (of_model.names, of_model.categories)
        changed += ["the columns or their categories"] if named else []
        changed += ["the medians of empty cells"] if columns.medians != of_model.medians else []
    for op in trained.ops:
        if isinstance(op, Tokenize) and op.file and (layout.snapshot / op.file).exists():
            same = (layout.snapshot / op.file).read_bytes() == Path(op.model).read_bytes()
            changed += [] if same else ["the tokenizer"]
    if not changed:
        return None
    return (
        f"the data has changed since {name} was trained: {' and '.join(changed)}. The model is used"
        f" with those of its training; `dvc repro train@{name}` trains it with the new ones"
    )
