"""A change of what decides results reruns what depends on it; and the stages say what helps."""

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from dvc.repo import Repo
from ruamel.yaml import YAML

from tasks.identities import write_identities
from tasks.own_code import watch_own_code
from tests.support.own_code import EVERY_RUN, MEASURED, OWN, PARAMS, differ, each, read_identities
from tests.support.project import SMALL, make_project, run, write_params
from tests.support.small_data import write_files
from throughline.shared import program
from throughline.shared.errors import WrongVersion
from throughline.shared.libraries import LIBRARIES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def commit(folder: Path, params: dict) -> Path:
    """Let DVC take everything for up to date without running it, whatever outputs hold."""
    write_params(folder, params)
    watch_own_code(folder)
    run_identities(folder)
    stages = YAML(typ="safe").load((folder / "dvc.yaml").read_text())["stages"]
    for stage, definition in stages.items():
        kinds = ("outs", "metrics", "plots")
        outs = [out for kind in kinds for out in definition.get(kind, ())]
        for out in outs if stage != "identities" else ():
            name = out if isinstance(out, str) else next(iter(out))
            name = name.replace("${data.fetch}", params["data"]["fetch"])
            for key in SMALL["pipelines"] if "matrix" in definition else ("",):
                write_files(folder, {name.replace("${key}", key): f"{name} {key}"})
    run(folder, "dvc", "commit", "--force", "--quiet")
    return folder


@pytest.fixture(scope="module")
def project(tmp_path_factory, array_file) -> Path:
    """A project with code of its own that DVC holds for up to date."""
    folder = make_project(tmp_path_factory.mktemp("stale") / "project", array_file)
    return commit(write_files(folder, OWN), PARAMS)


@pytest.fixture
def clean(project) -> Iterator[Path]:
    """The project, whose identities are put back afterwards: everything is up to date again."""
    files = [*(project / "data" / "identities").rglob("*.json")]
    before = {path: path.read_bytes() for path in files}
    yield project
    for path, content in before.items():
        if path.read_bytes() != content:
            path.write_bytes(content)


def status(folder: Path) -> set[str]:
    """Names of the stages that DVC holds for out of date."""
    with Repo(str(folder)) as repo:
        return {name.rpartition(":")[2] for name in repo.status()}


@contextmanager
def changed(folder: Path, name: str, old: str, new: str) -> Iterator[None]:
    """Change a file for the length of the block."""
    path = folder / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    try:
        yield
    finally:
        path.write_text(text)


def run_identities(folder: Path) -> None:
    """Run the stage with the program of the project."""
    run(folder, sys.executable, "-m", "tasks.identities")


NEW, CONSTANT = "\nfrom throughline", "\nNEW = 1\nfrom throughline"
DCT = 'dct: Literal["fast", "accurate"] = '
MULTIPLE = 'batch_multiple: Literal["auto"] | Annotated[int, Field(ge=1)] = '
# What is changed, and the stages that it concerns.
BY_DVC = [
    ("my_ops.py", "+ BY", "+ 7 * BY", EVERY_RUN),
    # A constant of a kernel decides what is made with kernels, and no more.
    ("throughline/kernels/randaugment.py", "MOST = 30", "MOST = 31", EVERY_RUN),
    ("throughline/reporting/report.html", "<body", "<body data-x", each("report")),
    ("uv.lock", 'name = "pytest"\nversion = "', 'name = "pytest"\nversion = "99.', set()),
]


@pytest.mark.parametrize(("name", "old", "new", "expected"), BY_DVC)
def test_dvc_sees_every_change_and_runs_the_stages_whose_identities_are_others(
    clean, name, old, new, expected
):
    with changed(clean, name, old, new):
        assert "identities" in status(clean)
        run_identities(clean)
        assert status(clean) - {"identities"} == expected


SETTINGS = [
    ("data", '"reject", "keep"] = "reject"', '"reject", "keep"] = "keep"', each("ingest")),
    ("pipeline", f'{DCT}"fast"', f'{DCT}"accurate"', each(*MEASURED, "race", "report")),
    ("training", f'{MULTIPLE}"auto"', f"{MULTIPLE}2", each(*MEASURED, "race")),
    ("training", "passes over the training split", "how often the training split is read", set()),
    # What is computed from settings concerns every stage.
    ("pipeline", "return self.model_dump() != EXACT_DECODING", "return True", each(*LIBRARIES)),
]


@pytest.mark.parametrize(("section", "old", "new", "expected"), SETTINGS)
def test_a_default_concerns_the_stages_whose_parameters_leave_it_out(
    clean, section, old, new, expected
):
    folder = clean / "data" / "identities"
    before = read_identities(folder)
    with changed(clean, f"throughline/settings/{section}.py", old, new):
        run_identities(clean)
    assert differ(before, read_identities(folder)) == expected


LEFT_OUT = [
    (("shard",), each("shard")),
    (("train", "seed"), set()),
    (("snapshot",), set()),
    (("train",), each("train", "profile", "race")),
]


@pytest.mark.parametrize(("key", "expected"), LEFT_OUT)
def test_what_params_yaml_leaves_out_has_its_default_under_dvc(clean, key, expected):
    params = copy.deepcopy(PARAMS)
    section = params[key[0]] if len(key) > 1 else params
    del section[key[-1]]
    try:
        write_params(clean, params)
        run_identities(clean)
        assert status(clean) - {"identities"} == expected
    finally:
        write_params(clean, PARAMS)


PROGRAM = [
    # What is written about code decides nothing, wherever it stands.
    ("kernels/kernels.py", NEW, "\n# A comment.\nfrom throughline", set()),
    ("config/cli.py", NEW, CONSTANT, set()),
    ("data/shards/tfrecord.py", "1 << 31", "1 << 30", each(*LIBRARIES) - {"fetch"}),
    ("training/checkpoint_store.py", NEW, CONSTANT, each("train")),
    ("reporting/headline.py", NEW, CONSTANT, each("report")),
    ("shared/allocator.py", "\nimport", "\nNEW = 1\nimport", each(*MEASURED, "race")),
]


@pytest.mark.parametrize(("name", "old", "new", "expected"), PROGRAM)
def test_a_change_of_the_program_concerns_what_it_decides(
    project, tmp_path, monkeypatch, name, old, new, expected
):
    monkeypatch.setattr(program, "ROOTS", (project, project / "whowaits" / "src"))
    with changed(project, f"throughline/{name}", old, new):
        write_identities(project, tmp_path)
    before = read_identities(project / "data" / "identities")
    assert differ(before, read_identities(tmp_path)) == expected


def test_another_version_of_a_library_concerns_the_stages_that_it_decides(
    clean, tmp_path, monkeypatch
):
    before = read_identities(clean / "data" / "identities")
    lock = (clean / "uv.lock").read_text()
    for library in sorted({name for names in LIBRARIES.values() for name in names}):
        version = f'name = "{library}"\nversion = "'
        locked = lock[lock.index(version) + len(version) :].partition('"')[0]
        with changed(clean, "uv.lock", version, f"{version}99."), monkeypatch.context() as patched:
            if library == "keras":
                assert status(clean) == {"identities"}
                with pytest.raises(WrongVersion, match="uv sync"):
                    write_identities(clean, tmp_path / "refused")
            patched.syspath_prepend(str(install(tmp_path / library, library, f"99.{locked}")))
            write_identities(clean, tmp_path / "identities")
            # Models and ops of one's own count with the libraries that they import.
            imported = {"train", "profile", "race"} if library == "keras" else set()
            decided = {stage for stage, names in LIBRARIES.items() if library in names}
            after = read_identities(tmp_path / "identities")
            assert differ(before, after) == each(*decided, *imported), library


def install(folder: Path, library: str, version: str) -> Path:
    """Put a library of a version into a folder, as far as it is asked for that; returns it."""
    information = f"{library.replace('-', '_')}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {library}\nVersion: {version}\n"
    return write_files(folder, {f"{information}/METADATA": metadata})


@pytest.fixture
def small(tmp_path, array_file) -> Path:
    """A project with an op of its own that has not run yet."""
    folder = make_project(tmp_path / "project", array_file)
    names = ("my_ops.py", "helpers/__init__.py", "helpers/amounts.py")
    write_files(folder, {name: OWN[name] for name in names})
    write_params(folder, copy.deepcopy(SMALL) | {"preprocess": ["decode", "my_ops:Shift"]})
    return folder


def test_what_a_stale_snapshot_advises_helps(small):
    run(small, "dvc", "repro", "snapshot")
    (small / "helpers" / "amounts.py").write_text("BY = 7\n")
    build = ("python", "-m", "tasks.build", "--pipeline", "optimized")
    assert "run `dvc repro snapshot`" in run(small, *build, code=2)
    output = run(small, "dvc", "repro", "snapshot")
    assert "Running stage 'snapshot'" in output and "Running stage 'shard'" not in output
    run(small, *build)
    assert not status(small) & {"identities", "ingest", "shard", "snapshot"}


def test_an_interrupted_stage_does_not_go_on_with_other_code(small):
    """A mark in what ingest leaves shows whether the next run goes on with it."""
    params = copy.deepcopy(SMALL)
    params["data"] |= {"source": "image_folder", "path": "source", "max_reject_fraction": 0.0}
    write_params(small, params)
    write_files(small / "source", {"a/x.jpg": "no picture", "b/x.jpg": "no picture"})

    def interrupted() -> bool:
        """Whether a run that stops goes on with what is there."""
        before = [*(small / "data").glob("manifest.*.partial")]
        for partial in before:
            (partial / "mark").write_text("")
        assert "TooManyRejects" in run(small, "python", "-m", "tasks.ingest", code=2)
        (after,) = (small / "data").glob("manifest.*.partial")
        return (after / "mark").exists()

    interrupted()
    assert interrupted()
    for name, goes_on in (("shared/errors.py", True), ("data/encodings/images.py", False)):
        with (small / "throughline" / name).open("a") as file:
            file.write("\n\nADDED = 1\n")
        assert interrupted() == goes_on, "messages decide nothing"
