"""A change of what decides results reruns what depends on it, and the stages say what helps; what
the last run has written is found in the cache while it would be written today.
"""

import copy
import hashlib
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from dvc.repo import Repo

from tasks.earlier import open_earlier
from tasks.identities import write_identities
from tasks.own_code import watch_own_code
from tests.support.own_code import EVERY_RUN, MEASURED, OWN, PARAMS, differ, each, read_identities
from tests.support.project import SMALL, copy_project, make_project, run, write_params
from tests.support.small_data import read_files, save_photos, write_files
from throughline.config.params_file import read_yaml
from throughline.results.snapshot import SnapshotCost
from throughline.shared.errors import WrongVersion
from throughline.shared.layout import Layout
from throughline.shared.libraries import LIBRARIES
from throughline.shared.scratch import Scratch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
IDENTITIES = ("python", "-m", "tasks.identities")  # the stage, with the program of the project


@pytest.fixture(scope="module")
def project(tmp_path_factory, array_file) -> Path:
    """A project with own code that DVC takes for up to date although nothing has run."""
    folder = make_project(tmp_path_factory.mktemp("stale") / "project", array_file, PARAMS)
    watch_own_code(write_files(folder, OWN))
    run(folder, *IDENTITIES)
    for stage, definition in read_yaml(folder / "dvc.yaml")["stages"].items():
        kinds = ("outs", "metrics", "plots")
        outs = [out for kind in kinds for out in definition.get(kind, ())]
        for out in outs if stage != "identities" else ():
            name = out if isinstance(out, str) else next(iter(out))
            name = name.replace("${data.fetch}", "none")
            for key in SMALL["pipelines"] if "matrix" in definition else ("",):
                write_files(folder, {name.replace("${key}", key): f"{name} {key}"})
    run(folder, "dvc", "commit", "--force", "--quiet")
    return folder


@pytest.fixture
def clean(project) -> Iterator[Path]:
    """The project, whose identities are put back afterwards: everything is up to date again."""
    before = read_files(project / "data" / "identities")
    yield project
    write_files(project / "data" / "identities", before)


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


JUDGED = (*MEASURED, "race")
NEW, CONSTANT = "\nfrom throughline", "\nNEW = 1\nfrom throughline"
EMPTY = '"reject", "keep"] = '
DCT = 'dct: Literal["fast", "accurate"] = '
MULTIPLE = 'batch_multiple: Literal["auto"] | Annotated[int, Field(ge=1)] = '


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        ("my_ops.py", "+ BY", "+ 7 * BY", EVERY_RUN),
        ("uv.lock", 'name = "pytest"\nversion = "', 'name = "pytest"\nversion = "99.', set()),
        # A default concerns the stages whose parameters leave it out, and no words about it.
        ("settings/data.py", f'{EMPTY}"reject"', f'{EMPTY}"keep"', each("ingest")),
        ("settings/pipeline.py", f'{DCT}"fast"', f'{DCT}"accurate"', each(*JUDGED, "report")),
        ("settings/training.py", f'{MULTIPLE}"auto"', f"{MULTIPLE}2", each(*JUDGED)),
        ("settings/training.py", "passes over the training split", "how often", set()),
        # What is computed from settings concerns every stage.
        ("settings/pipeline.py", "self != Jpeg", "0 != Jpeg", each(*LIBRARIES)),
        # Code concerns the stages that it decides, and what is written about it none.
        ("kernels/randaugment.py", "MOST = 30", "MOST = 31", EVERY_RUN),
        ("kernels/kernels.py", NEW, "\n# A comment.\nfrom throughline", set()),
        ("config/cli.py", NEW, CONSTANT, set()),
        ("data/shards/tfrecord.py", "1 << 31", "1 << 30", each(*LIBRARIES) - {"fetch"}),
        ("training/checkpoint_store.py", NEW, CONSTANT, each("train")),
        ("reporting/headline.py", NEW, CONSTANT, each("report")),
        ("reporting/report.html", "<body", "<body data-x", each("report")),
        ("shared/allocator.py", "\nimport", "\nNEW = 1\nimport", each(*JUDGED)),
    ],
)
def test_dvc_sees_every_change_and_runs_the_stages_whose_identities_are_others(
    clean, name, old, new, expected
):
    place = name if (clean / name).exists() else f"throughline/{name}"
    with changed(clean, place, old, new):
        assert "identities" in status(clean)
        run(clean, *IDENTITIES)
        assert status(clean) - {"identities"} == expected


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("shard", each("shard")),
        ("train.seed", set()),
        ("snapshot", set()),
        ("train", each("train", "profile", "race")),
    ],
)
def test_what_params_yaml_leaves_out_has_its_default_under_dvc(clean, key, expected):
    params = copy.deepcopy(PARAMS)
    section, _, name = key.rpartition(".")
    del (params[section] if section else params)[name]
    try:
        write_params(clean, params)
        run(clean, *IDENTITIES)
        assert status(clean) - {"identities"} == expected
    finally:
        write_params(clean, PARAMS)


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
            # The library of that version, as far as it is asked for that.
            information = f"{library.replace('-', '_')}-99.{locked}.dist-info/METADATA"
            metadata = f"Metadata-Version: 2.1\nName: {library}\nVersion: 99.{locked}\n"
            patched.syspath_prepend(write_files(tmp_path / library, {information: metadata}))
            write_identities(clean, tmp_path / "identities")
            # Models and ops of one's own count with the libraries that they import.
            imported = {"train", "profile", "race"} if library == "keras" else set()
            decided = {stage for stage, names in LIBRARIES.items() if library in names}
            after = read_identities(tmp_path / "identities")
            assert differ(before, after) == each(*decided, *imported), library


def test_what_a_stale_snapshot_advises_helps(tmp_path, array_file):
    params = SMALL | {"preprocess": ["decode", "my_ops:Shift"]}
    folder = write_files(make_project(tmp_path / "project", array_file, params), OWN)
    run(folder, "dvc", "repro", "snapshot")
    (folder / "helpers" / "amounts.py").write_text("BY = 7\n")
    build = ("python", "-m", "tasks.build", "--pipeline", "optimized")
    assert "run `dvc repro snapshot`" in run(folder, *build, code=2)
    output = run(folder, "dvc", "repro", "snapshot")
    assert "Running stage 'snapshot'" in output and "Running stage 'shard'" not in output
    run(folder, *build)
    assert not status(folder) & {"identities", "ingest", "shard", "snapshot"}


def test_an_interrupted_stage_does_not_go_on_with_other_code(tmp_path, array_file):
    """A mark in what ingest leaves shows whether the next run goes on with it."""
    data = {"source": "image_folder", "path": "source", "max_reject_fraction": 0.0}
    params = SMALL | {"data": SMALL["data"] | data}
    folder = make_project(tmp_path / "project", array_file, params)
    write_files(folder / "source", {"a/x.jpg": "no picture", "b/x.jpg": "no picture"})

    def interrupted() -> bool:
        """Whether a run that stops goes on with what is there."""
        for partial in (folder / "data").glob("manifest.*.partial"):
            (partial / "mark").write_text("")
        assert "TooManyRejects" in run(folder, "python", "-m", "tasks.ingest", code=2)
        (after,) = (folder / "data").glob("manifest.*.partial")
        return (after / "mark").exists()

    interrupted()
    assert interrupted()
    for name, goes_on in (("shared/errors.py", True), ("data/encodings/images.py", False)):
        with (folder / "throughline" / name).open("a") as file:
            file.write("\n\nADDED = 1\n")
        assert interrupted() == goes_on, "messages decide nothing"


@pytest.fixture(scope="module")
def done(finished, tmp_path_factory) -> Path:
    """A project that DVC has run."""
    return copy_project(finished[0], tmp_path_factory.mktemp("earlier") / "project")


def open_in(folder: Path, stage: str, monkeypatch) -> tuple[Layout | None, Scratch]:
    scratch = Scratch(folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    return open_earlier(stage, Path(), scratch), scratch


@pytest.mark.parametrize("stage", ["shard", "snapshot"])
def test_outputs_are_found_after_dvc_has_removed_them(done, stage, monkeypatch):
    names = ("shards", "snapshot") if stage == "snapshot" else ("shards",)
    expected = {name: read_files(done / "data" / name) for name in names}
    shutil.rmtree(done / "data" / "shards")
    try:
        earlier, scratch = open_in(done, stage, monkeypatch)
        folders = [path for path in (earlier.root / "data").iterdir() if path.is_dir()]
        assert {path.name: read_files(path) for path in folders} == expected
        assert (earlier.root / "data" / "snapshot.json").exists() == (stage == "snapshot")
        cached = [path.resolve() for path in earlier.shards.iterdir()]
        del scratch
        assert not earlier.root.exists() and all(path.exists() for path in cached)
    finally:
        run(done, "dvc", "checkout", "data/shards")


def test_what_another_identity_has_made_is_not_opened(done, monkeypatch):
    """Also where nobody has run the stage that writes identities since."""
    with changed(done, "params.yaml", "min_shards: 2", "min_shards: 3"):
        assert open_in(done, "shard", monkeypatch)[0] is None
        assert open_in(done, "snapshot", monkeypatch)[0] is not None


@pytest.mark.parametrize("damage", ["{", "stages: {shard: [1]}\n", "cache"])
def test_without_a_record_or_a_cache_there_is_none(done, tmp_path, monkeypatch, damage):
    folder = copy_project(done, tmp_path / "project")
    if damage == "cache":
        shutil.rmtree(folder / ".dvc" / "cache")
    else:
        (folder / "dvc.lock").write_text(damage)
    assert open_in(folder, "shard", monkeypatch)[0] is None


GROWING = {
    **SMALL,
    "data": {**SMALL["data"], "source": "image_folder", "path": "source/photos"},
    "shard": {**SMALL["shard"], "min_shards": 4},
    "preprocess": ["decode", "my_ops:Stamp", {"resize": {"height": 16, "width": 18}}],
}
STAMP = """
from pathlib import Path

from throughline.plan.ops import Op


class Stamp(Op):
    name = "stamp"

    def compute(self, element, draw):
        return {**element, "image": element["image"] // 2 + int(Path("stamp.txt").read_text())}
"""


def read_prepared(folder: Path) -> list[dict[str, bytes]]:
    return [read_files(folder / "data" / name) for name in ("manifest", "shards", "snapshot")]


def read_copied(said: str) -> int:
    found = re.search(r"([\d,]+) of them copied", said)
    return int(found[1].replace(",", "")) if found else 0


@pytest.fixture(scope="module")
def growing(array_file, tmp_path_factory) -> Path:
    """Photos, and an op of one's own that reads a file, through DVC as far as the snapshot."""
    folder = make_project(tmp_path_factory.mktemp("growing") / "project", array_file, GROWING)
    save_photos(folder / "source" / "photos", 60, "a", "b")
    write_files(folder, {"my_ops.py": STAMP, "stamp.txt": "3"})
    text, mark = (folder / "dvc.yaml").read_text(), r"(      # Own ops and models.*\n)"
    (folder / "dvc.yaml").write_text(re.sub(mark, r"\1      - stamp.txt\n", text))
    run(folder, "dvc", "repro", "snapshot")
    return folder


def test_one_file_less_changes_one_shard_and_its_rows(growing):
    before = SnapshotCost.read(growing / "data")
    (growing / "source" / "photos" / "b" / "07.jpg").unlink()
    assert 0 < read_copied(run(growing, "dvc", "repro", "snapshot")) < 59
    # It is what a fresh one would take, by the rate of that in which nothing was copied.
    after = SnapshotCost.read(growing / "data")
    assert after.examples_per_s == pytest.approx(before.examples_per_s)
    incremental = read_prepared(growing)
    fresh = ("env", "THROUGHLINE_FRESH=1", "dvc", "repro", "--force", "snapshot")
    assert not read_copied(run(growing, *fresh)), "everything is computed where that is asked for"
    assert read_prepared(growing) == incremental


def test_what_own_code_reads_is_not_forgotten(growing):
    before = read_prepared(growing)
    (growing / "stamp.txt").write_text("4")
    assert not read_copied(run(growing, "dvc", "repro", "snapshot"))
    assert read_prepared(growing) != before


def test_a_cache_that_lacks_a_column_costs_time_alone(growing, tmp_path):
    folder = tmp_path / "project"
    shutil.copytree(growing, folder, symlinks=True)
    expected = read_prepared(folder)
    digest = hashlib.md5((folder / "data/snapshot/train/image.bin").read_bytes()).hexdigest()
    (folder / ".dvc" / "cache" / "files" / "md5" / digest[:2] / digest[2:]).unlink()
    assert 0 < read_copied(run(folder, "python", "-m", "tasks.snapshot")) < 30
    assert read_prepared(folder) == expected


def test_dvc_records_no_other_identity_than_that_which_the_results_have(growing):
    with changed(growing, "my_ops.py", "// 2", "// 3"):
        said = run(growing, "dvc", "repro", "--force", "--single-item", "snapshot", code=255)
    assert "values that decide the results of snapshot have changed since" in said
