"""Files that parameters name besides data, which a run needs, stages depend on, and a run from the
UI may not choose freely. A new key that names a file is added here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

TOKENIZER = "preprocess: tokenize.model"
MODELS = {"model.from": "from", "model.weights": "weights"}


def find_named_files(document: Mapping[str, object]) -> list[tuple[str, str]]:
    """The files of tokenizers, models and weights by their keys, as a document of params.yaml names
    them, which need not be valid.
    """
    model = document.get("model")
    named = model if isinstance(model, Mapping) else {}
    return [
        *((TOKENIZER, file) for file in _tokenizer_files(document.get("preprocess"))),
        *((key, str(named[name])) for key, name in MODELS.items() if named.get(name)),
    ]


def _tokenizer_files(value: object) -> Iterator[str]:
    """Every file that a section gives to `tokenize`, however deep."""
    if isinstance(value, Mapping):
        arguments = value.get("tokenize")
        if isinstance(arguments, Mapping) and (file := arguments.get("model")):
            yield str(file)
        for inner in value.values():
            yield from _tokenizer_files(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _tokenizer_files(inner)
