"""The identities stage: write the values that decide results but are in no file that DVC could
watch for a single stage, such as settings with their defaults, own code and library versions.

DVC runs this stage first. It writes one small file per stage and configuration, on which that stage
depends. If a default, an own op or model, anything that these import, or a library's version
changes, DVC reruns the stages concerned and no others.
"""

import sys
from collections.abc import Collection, Iterator, Mapping
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tasks.own_code import (
    PIPELINE_FILE,
    find_needs,
    find_own_code,
    find_own_modules,
    named_modules,
    watch_own_code,
)
from throughline import settings
from throughline.config.cli import parse_command
from throughline.config.params import check, parse_document
from throughline.config.params_file import PARAMS_FILE, read_yaml
from throughline.plan.op_parsing import parse_op
from throughline.shared.code_identity import (
    PROGRAM,
    code_digest,
    computation_digest,
)
from throughline.shared.errors import InvalidParams, WorkspaceProblem
from throughline.shared.failures import report_user_errors
from throughline.shared.files import write_json
from throughline.shared.layout import Layout
from throughline.shared.libraries import (
    LIBRARIES,
    check_versions,
    installed_versions,
    stage_libraries,
)
from throughline.shared.program import digest_code
from throughline.shared.progress import echo, echo_fact
from throughline.shared.store_address import check_store_address
from throughline.shared.wording import name_some


def write_identities(root: Path, out: Path) -> None:
    """Write the identities of all stages of the project in `root` into the folder `out`."""
    for name, identity in find_identities(root):
        write_json(out / f"{name}.json", identity)


def find_identities(
    root: Path, stages: Collection[str] = tuple(LIBRARIES)
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the identities of these stages of the project in `root`, each with its name.

    The name is `STAGE`, or `STAGE/CONFIGURATION` for stages that run once per configuration.

    Raises:
      InvalidParams: params.yaml is not valid.
      WrongVersion: an installed library is not the one that uv.lock names.
    """
    document = read_yaml(root / PARAMS_FILE)
    defined = read_yaml(root / PIPELINE_FILE)["stages"]
    values = resolve_settings(document)
    rules = computation_digest(sorted(Path(settings.__file__).parent.glob("*.py")))
    of_ops: list[str] = []  # built-in ops' libraries; own ops' code imports the others
    for number, spec in enumerate(values["preprocess"]):
        if not [*named_modules([spec])]:
            op, _ = parse_op(spec, where=f"preprocess[{number}]")
            of_ops += op.libraries if op else ()
    for stage in stages:
        libraries = stage_libraries(stage, of_ops)
        check_versions(libraries, root=root)
        own = find_own_modules(document, stage, root)
        needs = find_needs(root, stage)
        identity = {
            "code": {module: code_digest(module, roots=[root], without=PROGRAM) for module in own},
            "files": needs["files"],
            "libraries": {**installed_versions(libraries), **needs["libraries"]},
            "program": digest_code(stage),
            "rules": rules,
        }
        keys = defined[stage].get("meta", {}).get("settings", [])
        each = "matrix" in defined[stage]
        for pipeline in document["pipelines"] if each else [""]:
            named = [key.replace("${key}", str(pipeline)) for key in keys]
            chosen = {key: reduce(getitem, key.split("."), values) for key in named}
            yield f"{stage}/{pipeline}" if each else stage, {"settings": chosen, **identity}


def resolve_settings(document: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in defaults and derived values, without running user code."""
    try:
        return parse_document(document).model_dump()
    except ValidationError as error:
        check(document)  # says what is wrong, ops included
        raise InvalidParams([str(error)]) from error


def read_edited(root: Path) -> dict[str, bytes]:
    """Return the contents of params.yaml and of the user's own code."""
    own = find_own_code(read_yaml(root / PARAMS_FILE), root)
    return {name: (root / name).read_bytes() for name in (PARAMS_FILE.name, *own)}


def find_left_results(layout: Layout) -> list[str]:
    """List results folders of configurations that params.yaml lacks now; empty in a worktree."""
    if layout.project.resolve() != layout.root.resolve():  # a run of some configurations
        return []
    named = read_yaml(layout.root / PARAMS_FILE)["pipelines"]
    return [str(one) for one in sorted(layout.results("").glob("*/")) if one.name not in named]


def main() -> None:
    """Write data/identities/: values that decide a stage's results, but are in no watched file."""
    with report_user_errors():
        parse_command(main)
        check_store_address()  # before the first stage of a `dvc repro`
        sys.path.insert(0, str(Path.cwd()))
        before = read_edited(Path())
        for change in watch_own_code(Path()):
            echo(f"identities: {change}")
        write_identities(Path(), Layout().identities)
        # DVC would take the present files for those that were read.
        if edited := sorted({name for name, _ in before.items() ^ read_edited(Path()).items()}):
            raise WorkspaceProblem(
                f"{name_some(edited)} changed while it was read; run the same command again"
            )
        if left := find_left_results(Layout()):
            echo_fact(
                f"these results belong to no configuration: {name_some(left)}; other clones race"
                " again until you remove them"
            )


if __name__ == "__main__":
    main()
