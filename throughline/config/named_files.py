"""Files besides data that parameters name. A new key that names a file is added here.

A run needs them, stages depend on them, and a run from the UI may not choose them freely.
"""

import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from throughline.shared.layout import MODEL_SPEC

TOKENIZER = "preprocess: tokenize.model"
LARGEST_SPEC = 64 << 20  # bytes of a model file's own description
NOT_OURS = (
    *(zipfile.BadZipFile, OSError, ValueError, KeyError, TypeError, AttributeError),
    RecursionError,  # for endlessly nested JSON
)
NETWORK = "model.from"
MODELS = {NETWORK: "from", "model.weights": "weights"}


def find_named_files(document: Mapping[str, object]) -> list[tuple[str, str]]:
    """List the files of tokenizers, models and weights that a document, valid or not, names."""
    model = document.get("model")
    named = model if isinstance(model, Mapping) else {}
    inner = [one for one in walk(document.get("preprocess")) if isinstance(one, Mapping)]
    tokenizers = [op for one in inner if isinstance(op := one.get("tokenize"), Mapping)]
    return [
        *((TOKENIZER, str(op["model"])) for op in tokenizers if op.get("model")),
        *((key, str(named[name])) for key, name in MODELS.items() if named.get(name)),
    ]


def walk(value: object) -> Iterator[object]:
    """Yield a value of a YAML document, and all keys and values in it."""
    yield value
    inner = (*value.keys(), *value.values()) if isinstance(value, Mapping) else value
    for one in inner if isinstance(inner, list | tuple) else ():
        yield from walk(one)


def read_model_objects(path: Path) -> list[str]:
    """Return the objects, as module:name, that a model's file needs. Imports no Keras.

    Empty if the file is missing, or was not written by this program; training reports that.
    """
    try:
        if not path.is_file():
            return []
        with zipfile.ZipFile(path) as file:
            if file.getinfo(MODEL_SPEC).file_size > LARGEST_SPEC:
                return []
            return [str(one) for one in json.loads(file.read(MODEL_SPEC))["objects"].values()]
    except NOT_OURS:
        return []
