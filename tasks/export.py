"""Export what was trained on text as a SavedModel that takes strings, for whatever serves it.

Not a stage: it reads runs/NAME/model.keras and the tokenizer in data/snapshot/, and nothing follows
from it. Load it with `tf.saved_model.load(FOLDER).serve(texts)`; unless tokens are bytes,
`import tensorflow_text` comes first.
"""

from __future__ import annotations

from pathlib import Path

from tasks.assembly.inputs import make_token_window, open_inputs
from tasks.assembly.model import build_models_for
from tasks.cli import pipeline_stage_cli
from tasks.errors import ImpossiblePlan, MissingInput, UnexpectedFiles
from tasks.layout import Layout
from tasks.params import Params
from tasks.pipelines.shapes import resolve_decode
from tasks.progress import echo
from tasks.training.serving import export_text_model


def export(params: Params, name: str, out: Path, *, layout: Layout) -> None:
    """Write the model of configuration `name` into the new folder `out`.

    Raises:
      ImpossiblePlan: the data are no text; a model of anything else holds its preprocessing.
      MissingInput: the configuration has not been trained, or with other parameters.
      UnexpectedFiles: there is something at `out`.
    """
    trained, data = layout.results(name) / "model.keras", open_inputs(params, layout)
    if data.shards.schema.payload != "text":
        raise ImpossiblePlan(
            f"{params.data.source} is no text; {trained} takes what is stored as it is: load it"
            " with keras.saving.load_model"
        )
    if not trained.exists():
        raise MissingInput(f"{trained} does not exist; run `dvc repro train@{name}`")
    if out.exists():
        raise UnexpectedFiles(f"{out} exists; name another folder with --out, or remove it")
    model, window = build_models_for(params, data).full_model, make_token_window(params, data)
    try:
        model.load_weights(trained)
    except ValueError as error:
        raise MissingInput(
            f"{trained} was trained with other parameters or tokens"
            f" ({str(error).splitlines()[0]}); run `dvc repro train@{name}`"
        ) from error
    export_text_model(
        model,
        resolve_decode(data.bind_to_data(params.preprocess), data.shards.schema),
        out,
        classes=data.shards.classes if window is None else (),
        context=None if window is None else window.length,
    )


def main() -> None:
    """Write a SavedModel that takes strings."""
    with pipeline_stage_cli(
        main,
        lambda parser: parser.add_argument(
            "--out", required=True, type=Path, metavar="FOLDER", help="a folder that is not there"
        ),
    ) as context:
        export(context.params, context.name, context.options.out, layout=Layout())
        echo(f"export {context.name}: {context.options.out}, serve(text: string)")


if __name__ == "__main__":
    main()
