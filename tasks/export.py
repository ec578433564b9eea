"""Export a trained model as a SavedModel that takes what people have, for whatever serves it: image
files, values by column, windows of a series, texts.

Not a stage: it reads runs/NAME/model.keras, and nothing follows from it. Load it with
`tf.saved_model.load(FOLDER).serve(...)`; of text, unless tokens are bytes, `import tensorflow_text`
comes first.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tasks.cli import trained_model_cli
from tasks.errors import UnexpectedFiles
from tasks.progress import echo
from tasks.training.inference import open_trained_model
from tasks.training.serving import export_model


def export(trained: Path, out: Path) -> str:
    """Write the model of the file `trained` into the new folder `out`; returns what it takes.

    Raises:
      OutdatedModel: the file cannot be used any more.
      UnexpectedFiles: there is something at `out`.
    """
    if out.exists():
        raise UnexpectedFiles(f"{out} exists; name another folder with --out, or remove it")
    with open_trained_model(trained) as model:
        return export_model(model, out)


def declare_options(parser: argparse.ArgumentParser) -> None:
    """What the command line takes besides the model."""
    parser.add_argument(
        "--out", required=True, type=Path, metavar="FOLDER", help="a folder that is not there"
    )


def main() -> None:
    """Write a SavedModel that takes files, columns or texts."""
    with trained_model_cli(main, declare_options) as context:
        takes = export(context.model, context.options.out)
        echo(f"export {context.model}: {context.options.out}, serve({takes})")


if __name__ == "__main__":
    main()
