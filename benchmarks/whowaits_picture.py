"""Draws a terminal run of `whowaits --patch` as the SVG of whowaits/README.md.

    python -m benchmarks.whowaits_picture [--to FILE]

Fails if there is no patch, as on a machine that other programs keep busy.
"""

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from benchmarks.command_line import parse_by

SCRIPT = """\
import keras
import numpy as np
import tensorflow as tf

def decode(file, label):
    image = tf.image.decode_jpeg(file, channels=3)
    return tf.image.resize(image, (64, 64), "bicubic") / 255, label

def crop(image, label):
    return tf.image.random_crop(image, (56, 56, 3)), label

pixels = np.random.default_rng(0).integers(0, 255, (640, 256, 256, 3), "uint8")
files = [tf.io.encode_jpeg(image).numpy() for image in pixels]
data = tf.data.Dataset.from_tensor_slices((files, np.arange(640) % 2)).shuffle(640)
data = data.map(decode)
data = data.map(crop).batch(16)
layers = [keras.Input((56, 56, 3)), keras.layers.Conv2D(8, 3, 4), keras.layers.Flatten()]
model = keras.Sequential([*layers, keras.layers.Dense(2)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(data, epochs=20, verbose=0)
"""
STYLES = (
    (r"\+(?!\+)", "green"),
    (r"-(?!-)", "red"),
    (r"@@|---|\+\+\+", "cyan"),
    (r"train\.py: |  change first", "bold yellow"),
    (r"whowaits: ", "dim"),
)


def main() -> None:
    parser = parse_by(__doc__)
    parser.add_argument("--to", type=Path, default=Path("docs/images/whowaits.svg"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(SCRIPT)
        command = f"cd {folder} && {sys.executable} -m whowaits --patch train.py 2>&1"
        quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}
        said = subprocess.check_output(command, shell=True, text=True, env=quiet)
    print(said)
    console = Console(record=True, width=104, file=io.StringIO())
    console.print(Text("$ whowaits --patch train.py", "bold"))
    for line in said.splitlines():
        style = next((style for form, style in STYLES if re.match(form, line)), "")
        console.print(Text(line, style))
    drawn = console.export_svg(title="whowaits")
    # Any font of fixed width will do.
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)
    options.to.write_text(drawn + "\n")


if __name__ == "__main__":
    main()
