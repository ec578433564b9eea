"""A change of what decides results reruns what depends on it, and the stages say what helps; what
the last run has written is found in the cache while it would be written today.
"""

import hashlib
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tasks.earlier import open_earlier
from tasks.identities import write_identities
from tasks.own_code import watch_own_code
from tests.support.own_code import EVERY_RUN, MEASURED, OWN, PARAMS, differ, each, read_identities
from tests.support.project import SMALL, make_project, run
from tests.support.small_data import read_files, write_files
from throughline.results.snapshot import SnapshotCost
from throughline.shared.errors import WrongVersion
from throughline.shared.libraries import LIBRARIES
from throughline.shared.scratch import Scratch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
IDENTITIES = ("python", "-m", "tasks.identities")  # the stage, with the program of the project


@pytest.fixture(scope="module")
def project(tmp_path_factory, array_file) -> tuple[Path, dict[str, str]]:
    """A project with own code, and the identities of its stages."""
    folder = make_project(tmp_path_factory.mktemp("stale") / "project", array_file, PARAMS)
    watch_own_code(write_files(folder, OWN))
    run(folder, *IDENTITIES)
    return folder, read_identities(folder / "data" / "identities")


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


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        ("my_ops.py", "+ BY", "+ 7 * BY", EVERY_RUN),
        ("uv.lock", 'name = "pytest"\nversion = "', 'name = "pytest"\nversion = "99.', set()),
        # What params.yaml leaves out has its default.
        ("params.yaml", "  min_shards: 2\n", "", each("shard")),
        ("params.yaml", "  seed: 0\n  deterministic", "  deterministic", set()),
        ("params.yaml", "  learning_rate: 0.01\n", "", each("train", "profile", "race")),
        # A default concerns the stages whose parameters leave it out, and no words about it.
        ("settings/data.py", f'{EMPTY}"reject"', f'{EMPTY}"keep"', each("ingest")),
        ("settings/pipeline.py", f'{DCT}"fast"', f'{DCT}"accurate"', each(*JUDGED, "report")),
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
    ],
)
def test_a_change_concerns_the_stages_that_it_decides(project, name, old, new, expected):
    folder, before = project
    place = name if (folder / name).exists() else f"throughline/{name}"
    with changed(folder, place, old, new):
        run(folder, *IDENTITIES)
        assert differ(before, read_identities(folder / "data" / "identities")) == expected


def test_another_version_of_a_library_concerns_the_stages_that_it_decides(
    project, tmp_path, monkeypatch
):
    folder, before = project
    lock = (folder / "uv.lock").read_text()
    for library in sorted({name for names in LIBRARIES.values() for name in names}):
        version = f'name = "{library}"\nversion = "'
        locked = lock[lock.index(version) + len(version) :].partition('"')[0]
        # The library of that version, as far as it is asked for that.
        information = f"{library.replace('-', '_')}-99.{locked}.dist-info/METADATA"
        metadata = f"Metadata-Version: 2.1\nName: {library}\nVersion: 99.{locked}\n"
        installed = write_files(tmp_path / library, {information: metadata})
        with changed(folder, "uv.lock", version, f"{version}99."), monkeypatch.context() as patched:
            with pytest.raises(WrongVersion, match="uv sync"):
                write_identities(folder, tmp_path / "refused")
            patched.syspath_prepend(installed)
            write_identities(folder, tmp_path / "identities")
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
    assert "Running stage" not in run(folder, "dvc", "repro", "snapshot")


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


@pytest.fixture
def folder(first, monkeypatch) -> Path:
    """That of a project that DVC has run."""
    monkeypatch.chdir(first[0])
    monkeypatch.syspath_prepend(str(first[0]))
    return first[0]


def test_outputs_are_found_after_dvc_has_removed_them(folder):
    expected = {name: read_files(folder / "data" / name) for name in ("shards", "snapshot")}
    shutil.rmtree(folder / "data" / "shards")
    for stage, names in (("shard", ["shards"]), ("snapshot", ["shards", "snapshot"])):
        scratch = Scratch(folder)
        earlier = open_earlier(stage, Path(), scratch)
        folders = [path for path in (earlier.root / "data").iterdir() if path.is_dir()]
        found = {path.name: read_files(path) for path in folders}
        assert found == {name: expected[name] for name in names}
        assert (earlier.root / "data" / "snapshot.json").exists() == (stage == "snapshot")
        cached = [path.resolve() for path in earlier.shards.iterdir()]
        del scratch
        assert not earlier.root.exists() and all(path.exists() for path in cached)


def test_what_another_identity_has_made_is_not_opened(folder):
    """Also where nobody has run the stage that writes identities since."""
    with changed(folder, "params.yaml", "min_shards: 2", "min_shards: 3"):
        assert open_earlier("shard", Path(), Scratch(folder)) is None
        assert open_earlier("snapshot", Path(), Scratch(folder)) is not None


def test_without_a_record_or_a_cache_there_is_none(folder):
    lock = folder / "dvc.lock"
    for damage in ("{", "stages: {shard: [1]}\n"):
        with changed(folder, lock.name, lock.read_text(), damage):
            assert open_earlier("shard", Path(), Scratch(folder)) is None
    shutil.rmtree(folder / ".dvc" / "cache")
    assert open_earlier("shard", Path(), Scratch(folder)) is None


def read_prepared(folder: Path) -> list[dict[str, bytes]]:
    return [read_files(folder / "data" / name) for name in ("manifest", "shards", "snapshot")]


def read_copied(said: str) -> int:
    found = re.search(r"([\d,]+) of them copied", said)
    return int(found[1].replace(",", "")) if found else 0


def test_one_example_less_changes_one_shard_and_its_rows(folder):
    before, file = SnapshotCost.read(folder / "data"), folder / "source" / "data.npz"
    with np.load(file) as arrays:
        less = {name: arrays[name][:-1] for name in arrays}
    np.savez(file, **less)
    assert 0 < read_copied(run(folder, "dvc", "repro", "snapshot")) < 199
    # It is what a fresh one would take, by the rate of that in which nothing was copied.
    after = SnapshotCost.read(folder / "data")
    assert after.examples_per_s == pytest.approx(before.examples_per_s)
    incremental = read_prepared(folder)
    fresh = ("env", "THROUGHLINE_FRESH=1", "dvc", "repro", "--force", "snapshot")
    assert not read_copied(run(folder, *fresh)), "everything is computed where that is asked for"
    assert read_prepared(folder) == incremental
    digest = hashlib.md5((folder / "data/snapshot/train/image.bin").read_bytes()).hexdigest()
    (folder / ".dvc" / "cache" / "files" / "md5" / digest[:2] / digest[2:]).unlink()
    assert 0 < read_copied(run(folder, "python", "-m", "tasks.snapshot")) < 100
    assert read_prepared(folder) == incremental, "a cache that lacks a column costs time alone"
