"""Export a trained model as a SavedModel that accepts raw inputs: image files, values by column,
windows of a series, or texts.

Not a stage: nothing depends on its result. Load the result with
`tf.saved_model.load(FOLDER).serve(...)`; for text, `import tensorflow_text` first, unless the
tokens are bytes.
"""

import argparse
from pathlib import Path

from throughline.config.cli import trained_model_cli
from throughline.shared.progress import echo


def declare_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", required=True, type=Path, metavar="FOLDER", help="a folder that does not exist"
    )


def main() -> None:
    """Write a SavedModel that accepts image files, columns, windows of a series or texts."""
    with trained_model_cli(main, declare_options) as context:
        from throughline.assembly.inference import describe_changed_data  # TensorFlow
        from throughline.models.inference import open_trained_model
        from throughline.models.serving import export_model

        options = context.options
        with open_trained_model(context.model, trusted=context.trusted) as trained:
            if options.pipeline and (
                changed := describe_changed_data(trained, options.pipeline, context.layout)
            ):
                echo(f"export: {changed}")
            takes = export_model(trained, options.out)
            echo(f"export {context.model}: {options.out}, serve({takes})")


if __name__ == "__main__":
    main()
