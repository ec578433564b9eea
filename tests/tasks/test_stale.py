"""A change of anything that decides results makes DVC rerun what depends on it, and nothing else;
and the stages say what helps.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from dvc.repo import Repo
from project import ROOT, SMALL, environment, make_project, run, write_params
from ruamel.yaml import YAML

from tasks.identities import find_needs, watch_own_code, write_identities
from throughline.shared.errors import WorkspaceProblem, WrongVersion
from throughline.shared.libraries import LIBRARIES
from throughline.shared.program import digest_code

OWN = {
    "my_ops.py": (
        "from throughline.plan.ops import Op\nfrom helpers.amounts import BY\n\n\n"
        "class Shift(Op):\n"
        "    name = 'shift'\n\n    def compute(self, element, draw):\n        return {**element,"
        " 'image': element['image'] + BY}\n"
    ),
    "helpers/__init__.py": "",
    "helpers/amounts.py": "BY = 1\n",
    "my_augmentation.py": (
        "from throughline.plan.ops import Op\n\n\nclass Noise(Op):\n    name = 'noise'\n"
        "    random = True\n    STRENGTH = 1\n"
    ),
    "my_models.py": (
        "WIDTH = 8\n\n\ndef build(input_shape, outputs):\n    import keras\n    import"
        " layers_of_mine\n\n    return layers_of_mine\n"
    ),
    "layers_of_mine.py": "DEPTH = 1\n",
    "unused.py": "NUMBER = 1\n",
}
PARAMS = copy.deepcopy(SMALL) | {
    "preprocess": ["decode", "my_ops:Shift"],
    "augment": ["flip", {"my_augmentation:Noise": {}}],
    "model": {"name": "my_models:build"},
}
BOTH = tuple(SMALL["pipelines"])

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def each(*stages: str) -> set[str]:
    """Stages by the names that DVC gives them: those of each configuration, for both."""
    return {
        name
        for stage in stages
        for name in (
            [f"{stage}@{key}" for key in BOTH]
            if stage in ("build", "train", "profile")
            else [stage]
        )
    }


def commit(folder: Path, params: dict) -> Path:
    """Let DVC take everything for up to date, without running it: what outputs hold does not matter
    to what depends on their inputs.
    """
    write_params(folder, params)
    watch_own_code(folder)
    subprocess.run(
        [sys.executable, "-m", "tasks.identities"],
        cwd=folder,
        env=environment(folder),
        check=True,
        capture_output=True,
    )
    stages = YAML(typ="safe").load((folder / "dvc.yaml").read_text())["stages"]
    for stage, definition in stages.items():
        outs = [
            *definition.get("outs", ()),
            *definition.get("metrics", ()),
            *(next(iter(plot)) for plot in definition.get("plots", ())),
        ]
        for out in outs if stage != "identities" else ():
            for key in BOTH if "matrix" in definition else ("",):
                name = (
                    (out if isinstance(out, str) else next(iter(out)))
                    .replace("${key}", key)
                    .replace("${data.fetch}", params["data"]["fetch"])
                )
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(name)
    run(folder, "dvc", "commit", "--force", "--quiet")
    return folder


@pytest.fixture(scope="module")
def project(tmp_path_factory, array_file) -> Path:
    """A project with code of its own that DVC holds for up to date."""
    folder = make_project(tmp_path_factory.mktemp("stale") / "project", array_file)
    for name, text in OWN.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return commit(folder, PARAMS)


@pytest.fixture
def clean(project) -> Iterator[Path]:
    """The project, put back afterwards into the state in which everything is up to date."""
    with kept_identities(project):
        yield project


@contextmanager
def kept_identities(project: Path) -> Iterator[None]:
    """Put the identities back after the block."""
    files = [*(project / "data" / "identities").rglob("*.json")]
    before = {path: path.read_bytes() for path in files}
    yield
    for path, content in before.items():
        if path.read_bytes() != content:
            path.write_bytes(content)


def status(folder: Path) -> set[str]:
    """Names of the stages that DVC holds for out of date."""
    with Repo(str(folder)) as repo:
        return {name.rpartition(":")[2] for name in repo.status()}


def stale_after(folder: Path, name: str, old: str, new: str) -> set[str]:
    """Change a file, let DVC and `identities` look, and put the file back; returns what is out of
    date but for `identities` itself.
    """
    path = folder / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    try:
        before = status(folder)
        assert "identities" in before, (
            "DVC sees that something has changed, which it asks `identities` about"
        )
        if name.startswith(("throughline/", "tasks/")):
            subprocess.run(
                [sys.executable, "-m", "tasks.identities"],
                cwd=folder,
                env=environment(folder),
                check=True,
                capture_output=True,
            )
        else:
            write_identities(folder, folder / "data" / "identities")
        return status(folder) - {"identities"}
    finally:
        path.write_text(text)


EVERY_RUN = each("snapshot", "build", "train", "profile")
OWN_CODE = [
    ("my_ops.py", "+ BY", "+ 7 * BY", EVERY_RUN),
    ("helpers/amounts.py", "1", "7", EVERY_RUN),
    ("helpers/amounts.py", "BY = 1", "# by how much\nBY = 1", set()),
    ("my_augmentation.py", "1", "2", each("build", "train", "profile")),
    ("my_models.py", "8", "9", each("train", "profile")),
    ("layers_of_mine.py", "1", "2", each("train", "profile")),
]


@pytest.mark.parametrize(("name", "old", "new", "expected"), OWN_CODE)
def test_own_code_and_what_it_imports_concerns_the_stages_that_run_it(
    clean, name, old, new, expected
):
    assert stale_after(clean, name, old, new) == expected


def test_identity_and_interrupted_folders_compare_the_same_program(project):
    for stage in LIBRARIES:
        name = f"{stage}/{BOTH[0]}" if stage in ("build", "train", "profile") else stage
        identity = json.loads((project / "data" / "identities" / f"{name}.json").read_text())
        assert identity["program"] == digest_code(stage) != digest_code(stage, "my_models")


def test_other_modules_of_the_project_concern_nothing(clean):
    (clean / "unused.py").write_text("NUMBER = 2\n")
    assert status(clean) == set()


DCT_ACCURATE = 'dct: Literal["fast", "accurate"] = Field(\n        default="accurate"'
DEFAULTS = [
    (
        "data",
        '"reject", "keep"] = Field(\n        default="reject"',
        '"reject", "keep"] = Field(\n        default="keep"',
        each("ingest"),
    ),
    (
        "pipeline",
        'dct: Literal["fast", "accurate"] = Field(\n        default="fast"',
        DCT_ACCURATE,
        each("build", "train", "profile", "report"),
    ),
    (
        "training",
        "mixed_precision: bool = Field(\n        default=False",
        "mixed_precision: bool = Field(\n        default=True",
        each("train"),
    ),
    (
        "training",
        'default="auto",\n        description=(\n            "what the last batch',
        'default=2,\n        description=(\n            "what the last batch',
        each("build", "train"),
    ),
    # params.yaml says 1
    (
        "data",
        "writers: int = Field(\n        default=4",
        "writers: int = Field(\n        default=5",
        set(),
    ),
    (
        "training",
        "passes over the training split",
        "how often the training split is read",
        set(),
    ),
]


@pytest.mark.parametrize(("section", "old", "new", "expected"), DEFAULTS)
def test_a_default_concerns_the_stages_whose_parameters_leave_it_out(
    clean, section, old, new, expected
):
    assert stale_after(clean, f"throughline/settings/{section}.py", old, new) == expected


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return self.model_dump() != EXACT_DECODING", "return True"),
        ('EXACT_DECODING = {"dct": "fast"', 'EXACT_DECODING = {"dct": "accurate"'),
    ],
)
def test_what_settings_compute_concerns_every_stage(clean, old, new):
    assert stale_after(clean, "throughline/settings/pipeline.py", old, new) == each(*LIBRARIES)


NEW, CONSTANT = "\nfrom throughline", "\nNEW = 1\nfrom throughline"
PROGRAM = [
    # A constant of a kernel decides what is made with kernels, and no more.
    ("throughline/kernels/randaugment.py", "MOST = 30", "MOST = 31", EVERY_RUN),
    # What is written about code decides nothing, wherever it stands.
    (
        "throughline/kernels/kernels.py",
        "\nfrom throughline",
        "\n# A comment.\nfrom throughline",
        set(),
    ),
    ("throughline/data/columns/index.py", '"""', '"""Said in other words. ', set()),
    ("throughline/config/cli.py", NEW, CONSTANT, set()),
    ("throughline/data/shards/tfrecord.py", "1 << 31", "1 << 30", each(*LIBRARIES) - {"fetch"}),
    ("throughline/measurement/throughput.py", NEW, CONSTANT, each("build")),
    ("throughline/training/checkpoint_store.py", NEW, CONSTANT, each("train")),
    ("throughline/diagnosis/rules/base.py", NEW, CONSTANT, each("profile")),
    ("throughline/reporting/headline.py", NEW, CONSTANT, each("report")),
    ("throughline/reporting/report.html", "<body", "<body data-x", each("report")),
    (
        "throughline/shared/allocator.py",
        "\nimport",
        "\nNEW = 1\nimport",
        each("build", "train", "profile"),
    ),
]


@pytest.mark.parametrize(("name", "old", "new", "expected"), PROGRAM)
def test_a_change_of_the_program_concerns_what_it_decides(clean, name, old, new, expected):
    assert stale_after(clean, name, old, new) == expected


def test_another_version_of_a_library_concerns_the_stages_that_it_decides(
    clean, tmp_path, monkeypatch
):
    """Locked and not installed: DVC sees the lock file change, and nothing runs until both agree;
    installed, too: what it decides reruns.
    """
    lock, folder = clean / "uv.lock", clean / "data" / "identities"
    text = lock.read_text()
    before = read_identities(folder)
    try:
        for library in sorted({name for names in LIBRARIES.values() for name in names}):
            start = text.index(f'name = "{library}"\nversion = "')
            changed = text[start:].replace('version = "', 'version = "99.', 1)
            lock.write_text(text[:start] + changed)
            if library == "keras":
                assert status(clean) == {"identities"}
            if library != "numpy":  # of which another version is locked for another Python
                with pytest.raises(WrongVersion, match="uv sync"):
                    write_identities(clean, folder)
            locked = changed.split('"')[3]
            information = tmp_path / library / f"{library.replace('-', '_')}-{locked}.dist-info"
            information.mkdir(parents=True)
            (information / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {library}\nVersion: {locked}\n"
            )
            with monkeypatch.context() as patched, kept_identities(clean):
                patched.syspath_prepend(str(information.parent))
                write_identities(clean, folder)
                # Models and ops of one's own count with the libraries that they import.
                imported = {"train", "profile"} if library == "keras" else set()
                decided = {stage for stage, names in LIBRARIES.items() if library in names}
                now = read_identities(folder)
                assert {name for name in now if now[name] != before[name]} == each(
                    *decided, *imported
                ), library
                if library == "keras":
                    assert status(clean) - {"identities"} == each(*decided, *imported)
    finally:
        lock.write_text(text)


def read_identities(folder: Path) -> dict[str, str]:
    """The identities in a folder by the names that DVC gives their stages."""
    return {
        path.relative_to(folder).with_suffix("").as_posix().replace("/", "@"): path.read_text()
        for path in folder.rglob("*.json")
    }


def test_another_package_in_the_lock_file_concerns_nothing(clean):
    assert (
        stale_after(
            clean, "uv.lock", 'name = "pytest"\nversion = "', 'name = "pytest"\nversion = "99.'
        )
        == set()
    )


def test_files_that_own_code_reads_count_where_they_are_listed(clean, tmp_path):
    for name in ("dvc.yaml", "params.yaml", *OWN):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((clean / name).read_text())
    definition = tmp_path / "dvc.yaml"
    definition.write_text(
        definition.read_text().replace(
            "      - my_ops.py\n", "      - my_ops.py\n      - table.csv\n"
        )
    )
    written, needs = [], []
    for content in ("1", "2"):
        (tmp_path / "table.csv").write_text(content)
        assert watch_own_code(tmp_path) == [] and "table.csv" in definition.read_text()
        write_identities(tmp_path, tmp_path / content)
        needs.append([find_needs(tmp_path, stage)["files"] for stage in ("snapshot", "train")])
        written.append(
            {
                path.relative_to(tmp_path / content): path.read_text()
                for path in (tmp_path / content).rglob("*.json")
            }
        )
    assert [{*files} for files in needs[0]] == [{"table.csv"}] * 2
    assert all(one != other for one, other in zip(*needs, strict=True))
    one, other = written
    changed = {path.as_posix() for path in one if one[path] != other[path]}
    assert changed == {
        "snapshot.json",
        *(f"{stage}/{key}.json" for stage in ("build", "train", "profile") for key in BOTH),
    }


def write_text_project(folder: Path, **tokenize: str) -> None:
    """Write what the identities of a project of texts with this tokenizer follow from."""
    (folder / "dvc.yaml").write_text((ROOT / "dvc.yaml").read_text())
    text = {
        **PARAMS,
        "data": {**PARAMS["data"], "source": "text_folder"},
        "preprocess": [{"tokenize": tokenize}],
        "augment": [],
        "postprocess": [],
        "model": {"name": "text_classifier"},
    }
    write_params(folder, text)


@pytest.mark.parametrize("library", ["sentencepiece", "tensorflow-text"])
def test_another_version_of_what_tokenizes_concerns_the_stages_that_tokenize(tmp_path, library):
    (tmp_path / "uv.lock").write_text(f'[[package]]\nname = "{library}"\nversion = "0.1"\n')
    write_text_project(tmp_path, kind="bytes")
    write_identities(tmp_path, tmp_path / "bytes")
    write_text_project(tmp_path, kind="sentencepiece")
    with pytest.raises(WrongVersion, match=f"{library} .* is installed"):
        write_identities(tmp_path, tmp_path / "out")
    (tmp_path / "uv.lock").unlink()
    write_identities(tmp_path, tmp_path / "out")
    for folder, stages in (("bytes", set[str]()), ("out", EVERY_RUN)):
        identities = read_identities(tmp_path / folder)
        assert {name for name, text in identities.items() if library in text} == stages


def test_the_file_of_a_tokenizer_counts_for_the_stages_that_run_it(tmp_path):
    (tmp_path / "words.txt").write_text("[UNK]\nwolf\n")
    write_text_project(tmp_path, kind="wordpiece", model="words.txt")
    listed = "words.txt decides results and is listed in dvc.yaml now"
    assert watch_own_code(tmp_path) == [listed]
    written = []
    for words in ("[UNK]\nwolf\n", "[UNK]\nlamb\n"):
        (tmp_path / "words.txt").write_text(words)
        write_identities(tmp_path, tmp_path / "out")
        files = (tmp_path / "out").rglob("*.json")
        written.append({path: path.read_text() for path in files})
    changed = {path for path, text in written[0].items() if text != written[1][path]}
    stages = {path.relative_to(tmp_path / "out").parts[0] for path in changed}
    assert stages == {"snapshot.json", "build", "train", "profile"}


def test_the_largest_fraction_that_is_read_concerns_the_snapshot(tmp_path):
    (tmp_path / "dvc.yaml").write_text((ROOT / "dvc.yaml").read_text())

    def identities(*fractions):
        pipelines = {
            f"part{number}": {**SMALL["pipelines"]["optimized"], "snapshot": {"fraction": fraction}}
            for number, fraction in enumerate(fractions)
        }
        write_params(tmp_path, {**SMALL, "pipelines": {**pipelines, "naive": {"read": "shards"}}})
        write_identities(tmp_path, tmp_path / "out")
        return {
            path.relative_to(tmp_path / "out").as_posix(): path.read_text()
            for path in (tmp_path / "out").rglob("*.json")
        }

    before = identities(0.3, 0.5)
    assert identities(0.3, 0.5) == before
    smaller, larger = identities(0.2, 0.5), identities(0.3, 0.6)
    stages = [
        {name for name, text in after.items() if text != before[name]}
        for after in (smaller, larger)
    ]
    own = {f"{stage}/part{{}}.json" for stage in ("build", "train", "profile")} | {"report.json"}
    assert stages[0] == {name.format(0) for name in own}
    assert stages[1] == {name.format(1) for name in own} | {"snapshot.json"}


def test_own_code_is_listed_by_itself_and_taken_off_when_it_is_gone(project, tmp_path):
    for name in ("dvc.yaml", "params.yaml", *OWN):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((project / name).read_text())
    (tmp_path / "dvc.yaml").write_text((ROOT / "dvc.yaml").read_text())
    expected = sorted(name for name, text in OWN.items() if text and name != "unused.py")
    assert [change.split()[0] for change in watch_own_code(tmp_path)] == expected
    assert watch_own_code(tmp_path) == []
    (tmp_path / "layers_of_mine.py").unlink()
    assert watch_own_code(tmp_path) == ["layers_of_mine.py is gone, and taken off dvc.yaml"]
    listed = YAML(typ="safe").load((tmp_path / "dvc.yaml").read_text())["stages"]["identities"][
        "deps"
    ]
    assert set(expected) - set(listed) == {"layers_of_mine.py"}


@pytest.mark.parametrize(
    "name", ["a #1.h5", "a: b.h5", "[a].h5", "{a", "*a.h5", "&a", "it's", 'a"b', "größe.h5", "1.5"]
)
def test_a_file_of_any_name_is_listed_until_it_is_gone(tmp_path, name):
    (tmp_path / "dvc.yaml").write_text((ROOT / "dvc.yaml").read_text())
    write_params(tmp_path, PARAMS | {"model": {"name": "mlp", "weights": name}})
    (tmp_path / name).touch()
    assert watch_own_code(tmp_path) == [f"{name} decides results and is listed in dvc.yaml now"]
    assert watch_own_code(tmp_path) == []
    stages = YAML(typ="safe").load((tmp_path / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    assert stages["identities"]["deps"][-1] == name
    (tmp_path / name).rename(tmp_path / "renamed.h5")
    with pytest.raises(WorkspaceProblem, match=r"is gone, which dvc\.yaml lists"):
        watch_own_code(tmp_path)


@pytest.fixture
def small(tmp_path, array_file) -> Path:
    """A project with an op of its own that has not run yet."""
    folder = make_project(tmp_path / "project", array_file)
    for name in ("my_ops.py", "helpers/__init__.py", "helpers/amounts.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(OWN[name])
    write_params(folder, copy.deepcopy(SMALL) | {"preprocess": ["decode", "my_ops:Shift"]})
    return folder


def test_what_a_stale_snapshot_advises_helps(small):
    run(small, "dvc", "repro", "build@optimized")
    (small / "helpers" / "amounts.py").write_text("BY = 7\n")
    build = ("python", "-m", "tasks.build", "--pipeline", "optimized")
    assert "run `dvc repro snapshot`" in run(small, *build, code=2)
    output = run(small, "dvc", "repro", "snapshot")
    assert "Running stage 'snapshot'" in output and "Running stage 'shard'" not in output
    run(small, *build)
    run(small, "dvc", "repro", "build@optimized")
    assert not status(small) & {"identities", "ingest", "shard", "snapshot", "build@optimized"}


def test_an_interrupted_stage_does_not_go_on_with_other_code(small):
    """Ingest leaves what it has done where it stops; a mark in it shows whether the next run goes
    on with it.
    """
    params = copy.deepcopy(SMALL)
    params["data"] |= {"source": "image_folder", "path": "source", "max_reject_fraction": 0.0}
    write_params(small, params)
    for label in ("a", "b"):
        (small / "source" / label).mkdir()
        (small / "source" / label / "x.jpg").write_text("no picture")

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
    (small / "throughline" / "shared" / "errors.py").write_text(
        (small / "throughline" / "shared" / "errors.py").read_text() + "\n\nSAID = 1\n"
    )
    assert interrupted(), "messages decide nothing"
    (small / "throughline" / "data" / "encodings" / "images.py").write_text(
        (small / "throughline" / "data" / "encodings" / "images.py").read_text() + "\nCHANGED = 1\n"
    )
    assert not interrupted()
