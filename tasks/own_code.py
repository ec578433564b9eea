"""Finds the user's own code that params.yaml names, and its requirements. Keeps the list of its
files in dvc.yaml up to date, by which DVC sees changes.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from throughline.config.named_files import MODELS, TOKENIZER, find_named_files, read_model_objects
from throughline.config.params import OP_SECTIONS
from throughline.config.params_file import PARAMS_FILE, parse_yaml, read_yaml
from throughline.shared.code_identity import PROGRAM, imported_packages, project_files
from throughline.shared.errors import InvalidParams, WorkspaceProblem
from throughline.shared.files import atomic_file, digest_file
from throughline.shared.libraries import find_distributions, installed_versions
from throughline.tracking.lineage import LISTED

PIPELINE_FILE = Path("dvc.yaml")
# The sections of params.yaml that may name user code, by the stages that run it.
CODE: Mapping[str, tuple[str, ...]] = {
    "snapshot": ("preprocess",),
    "build": OP_SECTIONS,
    "train": (*OP_SECTIONS, "model", "train"),
    "profile": (*OP_SECTIONS, "model", "train"),
    "race": (*OP_SECTIONS, "model", "train"),
}
TRAINED_WITH = ("schedule", "optimizer", "loss", "metrics", "callbacks")  # keys of `train`
_ITEM = "      - "


def find_needs(root: Path, stage: str) -> dict[str, dict[str, str]]:
    """Return the digests of `files` and the versions of `libraries` that a stage's own code needs.

    Work that began with other digests or versions must not be continued.
    """
    if not (root / PIPELINE_FILE).exists():  # a project that DVC does not run
        return {"files": {}, "libraries": {}}
    document = read_yaml(root / PARAMS_FILE)
    own = find_own_modules(document, stage, root)
    packages = imported_packages(*own, roots=[root])
    sections, keys = CODE.get(stage, ()), {key for key, _ in find_named_files(document)}
    reads_files = "preprocess" in sections and TOKENIZER in keys
    reads_files |= "model" in sections and bool(keys & {*MODELS})
    watched = list_watched_files(root) if own or reads_files else []
    return {
        "files": {name: digest_file(root / name) for name in watched},
        "libraries": installed_versions(find_distributions(packages) if packages else ()),
    }


def find_own_modules(document: Mapping[str, Any], stage: str, root: Path) -> list[str]:
    sections = [_find_code(document, section, root) for section in CODE.get(stage, ())]
    named = {module for section in sections for module in named_modules(section)}
    return sorted(module for module in named if module.partition(".")[0] not in PROGRAM)


def named_modules(section: Any) -> Iterator[str]:
    """Yield the user modules that a section of params.yaml names: `my_ops` for `my_ops:Sharpen`."""
    if isinstance(section, str):
        if ":" in section:
            yield section.partition(":")[0]
    elif isinstance(section, Mapping):
        yield from named_modules(section.get("name"))
        yield from (key.partition(":")[0] for key in section if isinstance(key, str) and ":" in key)
    elif isinstance(section, list):
        for item in section:
            yield from named_modules(item)


def find_own_code(document: Mapping[str, Any], root: Path) -> list[str]:
    """List the non-empty files of user modules that params.yaml names, and of their imports."""
    modules = find_own_modules(document, "train", root)
    found = project_files(*modules, roots=[root], without=PROGRAM).values()
    return sorted(file.relative_to(root).as_posix() for file in found if file.stat().st_size)


def watch_own_code(root: Path) -> Sequence[str]:
    """Bring the list of own files in dvc.yaml up to date, and return each change as a sentence.

    Adds the files of own ops and models, of their imports, and others that params.yaml names;
    removes Python files that are gone. DVC sees no changes of files that it does not list, and
    refuses to run if a listed file is gone.

    Raises:
      WorkspaceProblem: a listed file that is not Python is gone; it may have been listed by hand.
      InvalidParams: dvc.yaml lacks the line above the list.
    """
    document = read_yaml(root / PARAMS_FILE)
    path = root / PIPELINE_FILE
    before, listed, after = _split(path.read_text(encoding="utf-8"))
    needed = find_own_code(document, root)
    needed += [file for _, file in find_named_files(document) if (root / file).is_file()]
    kept = [name for name in listed if (root / name).exists()]
    added = [name for name in dict.fromkeys(needed) if name not in kept]
    gone = [name for name in listed if name not in kept]
    if missed := [name for name in gone if not name.endswith(".py")]:
        raise WorkspaceProblem(
            f"{missed[0]} is gone, but {PIPELINE_FILE} lists it, below own code, as a file that"
            f" decides results; put it back, or remove its line from {PIPELINE_FILE}"
        )
    if added or gone:
        lines = "".join(f"{_ITEM}{_quote(name)}\n" for name in [*kept, *added])
        with atomic_file(path) as temporary:
            temporary.write_text(before + lines + after, encoding="utf-8")
    return [
        *(f"{name} is gone, and removed from {PIPELINE_FILE}" for name in gone),
        *(f"{name} decides results and is now listed in {PIPELINE_FILE}" for name in added),
    ]


def list_watched_files(root: Path) -> list[str]:
    listed = _split((root / PIPELINE_FILE).read_text(encoding="utf-8"))[1]
    return [name for name in listed if not name.endswith(".py")]


def _find_code(document: Mapping[str, Any], section: str, root: Path) -> Any:
    """Return a section's values that may name user code, and the code that a model's file needs."""
    value = document.get(section)
    if section == "model" and isinstance(value, Mapping) and value.get("from"):
        return read_model_objects(root / value["from"])
    if section == "train" and isinstance(value, Mapping):
        keys = [value.get(key) for key in TRAINED_WITH]
        return [item for key in keys for item in (key if isinstance(key, list) else [key])]
    return value


def _quote(name: str) -> str:
    """Quote a file's name if YAML would read it as anything else."""
    try:
        plain = parse_yaml(f"it:\n{_ITEM}{name}\n", "") == {"it": [name]}
    except InvalidParams:
        plain = False
    return name if plain else json.dumps(name, ensure_ascii=False)


def _split(text: str) -> tuple[str, list[str], str]:
    """Return dvc.yaml's text before the list of own code, the list, and the text after it."""
    found = LISTED.search(text)
    if found is None:
        lacks = "the deps of the stage `identities` lack the line `# Own ops and models …`"
        raise InvalidParams([f"{PIPELINE_FILE}: {lacks}, below which own code is listed"])
    start, stop = found.end(1), found.end()
    listed = parse_yaml(f"it:\n{text[start:stop]}", str(PIPELINE_FILE))["it"] or []
    return text[:start], [str(name) for name in listed], text[stop:]
