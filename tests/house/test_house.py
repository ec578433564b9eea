"""The rules of the house, run: layers, names, sizes, and that DVC watches what decides a stage."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.support.project import run_python
from throughline.shared.code_identity import project_files
from throughline.shared.libraries import LIBRARIES
from throughline.shared.program import ROOTS, SUPPORTING, stage_modules

ROOT = Path(__file__).parents[2]
CODE = sorted(
    path
    for package in ("throughline", "tasks", "flows", "benchmarks", "whowaits/src/whowaits")
    for path in ROOT.glob(f"{package}/**/*.py")
)
STAGES = (
    "identities",
    "fetch",
    "ingest",
    "shard",
    "snapshot",
    "build",
    "train",
    "profiling",
    "report",
)
LONGEST_FILE = 500
MOST_ARGUMENTS = 6

# A module may import its own layer's row and every row above it.
LAYERS = (
    ("whowaits",),
    ("throughline.shared",),
    ("throughline.settings", "throughline.results"),
    ("throughline.plan",),
    ("throughline.data",),
    ("throughline.kernels",),
    ("throughline.pipelines",),
    ("throughline.models",),
    ("throughline.training",),
    ("throughline.measurement",),
    ("throughline.tracking",),
    ("throughline.reporting",),
    ("throughline.diagnosis",),
    ("throughline.config",),
    ("throughline.assembly",),
    ("throughline.tuning",),
    ("throughline.prediction",),
    ("throughline",),
    ("tasks",),
    ("flows.run",),
    ("flows.servers",),
    ("flows.orchestration",),
    ("flows",),
)
OURS = ("throughline", "tasks", "flows")
FLOWS_MAY_IMPORT = (
    "whowaits.timing.verdict",
    "flows",
    "tasks.own_code",
    "throughline.tuning.budgets",
    "throughline.tuning.preparation",
    *(
        f"throughline.{package}"
        for package in ("config", "reporting", "results", "shared", "tracking")
    ),
)
# What tests run without naming the module.
UNNAMED = {
    "flows.orchestration.forms": "`make ui` runs it; tests/flows/test_ui_stack.py changes its file",
    "tasks.shard": "the DAG runs it: tests/tasks/test_dag.py",
    "infra.shape": "a test of this file runs it",
}
# Words that the glossary replaces, with what to say instead.
OUTDATED_WORDS = {
    r"by turns": "interleaved, in alternation",
    r"laid over|lay over": "merged into",
    r"mend(s|ed|ing)?": "repair, fix",
    r"one behind the other": "back to back",
    r"Python's lock": "GIL",
    r"reservoir": "shuffle buffer",
    r"told|tells? plainly|said plainly": "reported, inferred",
    r"deal(s|t|ing)?": "assign, distribute, share",
    r"verbs?": "the function that builds a step",
    r"(of|in) (this|a|each|the) room|rooms": "module, package",
    r"unlike (sizes|shapes)": "variable size",
    r"anew": "again, each epoch",
    r"beside": "next to, concurrently",
    r"behind": "after",
    r"data sets?": "dataset",
    r"plain shards?": "uncompressed shard",
    r"foreign (shard|file|record)s?|ForeignShard": "external shard, another dataset's",
    r"utilisation|colour|centre|neighbour\w*|labelled": "American English",
    r"(serial|vector|initial)ised|parallelis(e|es|ed|ing|ation)": "American English",
    r"told_plainly|made_anew|known_form|damage_named|pipeline_door|Workplace": (
        "see docs/glossary.md"
    ),
}
PACKAGES = {
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "google_crc32c": "google-crc32c",
}


def name_of(path: Path) -> str:
    """Dotted module name of a file."""
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return name.removeprefix("whowaits.src.")


def imports_of(path: Path) -> set[str]:
    """Our own modules that a file imports, lazily or not; `from a.b import c` counts as a.b.c where
    that is a module.
    """
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {
                (
                    f"{node.module}.{alias.name}"
                    if file_of(f"{node.module}.{alias.name}")
                    else node.module
                )
                for alias in node.names
            }
    return {name for name in found if name.split(".")[0] in (*OURS, "whowaits")}


def file_of(module: str) -> Path | None:
    """File of one of our modules, or None."""
    root = ROOT / "whowaits" / "src" if module.startswith("whowaits") else ROOT
    stem = root.joinpath(*module.split("."))
    return next(
        (path for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.exists()), None
    )


def layer_of(module: str) -> int:
    """Index of the layer with the longest matching prefix."""
    matches = [
        (len(prefix), level)
        for level, row in enumerate(LAYERS)
        for prefix in row
        if module == prefix or module.startswith(prefix + ".")
    ]
    return max(matches)[1]


def test_imports_go_one_way():
    imports = [
        (name_of(path), other)
        for path in CODE
        if not name_of(path).startswith("benchmarks")
        for other in imports_of(path)
    ]
    assert not [pair for pair in imports if layer_of(pair[1]) > layer_of(pair[0])]


def test_flows_import_no_stage_and_stages_meet_in_files_only():
    flows = {name_of(path): imports_of(path) for path in CODE if ROOT / "flows" in path.parents}
    for module, imported in flows.items():
        assert not [name for name in imported if not name.startswith(FLOWS_MAY_IMPORT)], module
    stages = {f"tasks.{stage}" for stage in STAGES}
    for stage in stages:
        assert not imports_of(file_of(stage)) & (stages - {stage}), stage


def test_only_flows_import_prefect_and_only_tracking_imports_mlflow():
    for path in CODE:
        module, packages = name_of(path), packages_of(path)
        assert "prefect" not in packages or module.startswith("flows."), module
        if module.startswith(("throughline", "tasks")):
            assert "mlflow" not in packages or path.parent.name == "tracking", module


def normalize(distribution: str) -> str:
    """The name of a distribution as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def packages_of(path: Path) -> set[str]:
    """Top-level packages that a file imports, lazily or not."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {
        node.module
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
    }
    return {name.partition(".")[0] for name in names}


def test_every_library_that_is_imported_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lists = [project["project"]["dependencies"], *project["dependency-groups"].values()]
    declared = {
        re.split(r"[^\w.-]", item.lower())[0]
        for one in lists
        for item in one
        if isinstance(item, str)
    }
    ours = {*OURS, "whowaits", "infra", "benchmarks", "tests"}
    imported = {
        package
        for path in [*CODE, *ROOT.glob("infra/**/*.py")]
        if not name_of(path).startswith("benchmarks")  # other loaders are compared where they are
        for package in packages_of(path) - ours - sys.stdlib_module_names
    }
    distributions = packages_distributions()
    undeclared = {
        package
        for package in imported
        if not set(map(normalize, distributions[package])) & declared
    }
    assert not undeclared


def test_files_and_signatures_stay_small():
    for path in CODE:
        lines = path.read_text().splitlines()
        assert len(lines) <= LONGEST_FILE, path
        for node in ast.walk(ast.parse("\n".join(lines))):
            if isinstance(node, ast.FunctionDef) and "PLR0913" not in lines[node.lineno - 1]:
                names = [each.arg for each in (*node.args.args, *node.args.kwonlyargs)]
                assert len([name for name in names if name != "self"]) <= MOST_ARGUMENTS, (
                    path,
                    node.name,
                )


def test_no_module_hides_one_of_the_standard_library():
    tops = [path for path in CODE if path.stem != "__init__"]
    hidden = [name_of(path) for path in tops if path.stem in sys.stdlib_module_names]
    assert not hidden


def test_public_things_have_docstrings():
    for path in CODE:
        tree = ast.parse(path.read_text())
        assert ast.get_docstring(tree) or path.stem == "__init__", f"{path} says what it is for"
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                assert ast.get_docstring(node), (path, node.name)


def test_a_stage_depends_on_its_identity_and_on_no_module_and_identities_on_all_of_the_program():
    stages = YAML(typ="safe").load((ROOT / "dvc.yaml").read_text())["stages"]
    for stage in LIBRARIES:
        name = f"{stage}/${{key}}" if "matrix" in stages[stage] else stage
        assert f"data/identities/{name}.json" in stages[stage]["deps"]
        assert not [path for path in stages[stage]["deps"] if path.endswith(".py")], stage
    program = {"params.yaml", "tasks", "throughline", "uv.lock", "whowaits/src/whowaits"}
    assert program <= set(stages["identities"]["deps"])


@pytest.mark.parametrize("stage", [stage for stage in LIBRARIES if stage != "fetch"])
def test_the_libraries_of_a_stage_are_those_that_its_modules_import(stage):
    nodes = [
        node
        for path in project_files(*stage_modules(stage), roots=ROOTS, without=SUPPORTING).values()
        for node in ast.walk(ast.parse(path.read_text()))
    ]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    imported = {PACKAGES.get(top, top) for top in (name.partition(".")[0] for name in names)}
    listed = set(LIBRARIES[stage])
    assert listed <= imported
    decoders = {"keras", "pillow", "tensorflow"}
    assert imported & decoders == listed & decoders


def test_help_is_quick_because_it_imports_no_tensorflow():
    quick = [stage for stage in STAGES if stage not in ("build", "train", "profiling")]
    code = f"""
import runpy, sys
sys.argv = ["x", "--help"]
for stage in {[*quick, "predict", "export", "tune"]}:
    try:
        runpy.run_module(f"tasks.{{stage}}", run_name="__main__")
    except SystemExit:
        assert "tensorflow" not in sys.modules, stage
    else:
        raise AssertionError(stage)
"""
    run_python(code)


def test_words_that_the_glossary_replaces_do_not_come_back():
    pages = [page for page in ROOT.glob("docs/*.md") if page.name != "log.md"]
    texts = {
        path.relative_to(ROOT).as_posix(): path.read_text()
        for path in [*CODE, *pages, ROOT / "README.md"]
    }
    pattern = re.compile("|".join(rf"\b({words})\b" for words in OUTDATED_WORDS), re.IGNORECASE)
    found = [
        f"{name}:{number}: {match[0]}"
        for name, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
        for match in pattern.finditer(line)
        if not name.startswith("benchmarks")
    ]
    assert not found


def test_every_module_is_named_by_a_test():
    """By its dotted name, as what is imported from its parent, or by its path."""
    lists = {"mutations.py", Path(__file__).name}  # they name modules without testing them
    texts = [path.read_text() for path in ROOT.glob("tests/**/*.py") if path.name not in lists]
    tests = "\n".join(texts)
    named = set(re.findall(r"(?:throughline|tasks|flows|infra|whowaits)(?:\.\w+)+", tests))
    for parent, names in re.findall(r"^from ([\w.]+) import (\([^)]*\)|.*)", tests, re.MULTILINE):
        named |= {f"{parent}.{name}" for name in re.findall(r"\w+", names)}
    modules = {
        name_of(path)
        for package in ("throughline", "tasks", "flows", "infra", "whowaits/src/whowaits")
        for path in ROOT.glob(f"{package}/**/*.py")
        if path.stem != "__init__" and path.relative_to(ROOT).as_posix() not in tests
    }
    # The sections of params.yaml are imported from their package.
    sections = {module for module in modules if module.startswith("throughline.settings.")}
    assert modules - named - sections == set(UNNAMED)


def test_the_figures_of_the_shape_show_no_package_that_imports_upward():
    shown = subprocess.run(
        [sys.executable, "infra/shape.py"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    levels = {
        name.removeprefix("throughline."): int(level)
        for name, level in re.findall(r"^ (\S+) +(\d+) +\d+ +[\d,]+", shown, re.MULTILINE)
    }
    assert levels["flows"] > levels["tasks"] > levels["diagnosis"] > levels["measurement"]
    assert levels["training"] > levels["pipelines"] > levels["data"] > levels["plan"]
    assert levels["plan"] > levels["shared"] == 0


def test_the_generated_references_are_up_to_date():
    sys.path.insert(0, str(ROOT / "infra"))
    import reference

    configurations = (ROOT / "docs" / "configurations.md").read_text()
    assert reference.configurations(configurations) == configurations, (
        "run: python infra/reference.py"
    )
    diagnosis = (ROOT / "docs" / "diagnosis.md").read_text()
    assert reference.rules(diagnosis) == diagnosis, "run: python infra/reference.py"
    assert reference.error_reference() == (ROOT / "docs" / "errors.md").read_text(), (
        "run: python infra/reference.py"
    )
