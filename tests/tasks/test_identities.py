"""Own code and what it reads are listed in dvc.yaml; what stages run and read is in identities."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tasks import identities as stage
from tasks.identities import write_identities
from tasks.own_code import find_needs, watch_own_code
from tests.support.lanes import slow_but_first
from tests.support.own_code import (
    EVERY_RUN,
    MEASURED,
    OWN,
    PARAMS,
    differ,
    each,
    read_identities,
)
from tests.support.project import ROOT, SMALL, write_params
from throughline.config.params_file import read_yaml
from throughline.shared.errors import WorkspaceProblem, WrongVersion

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _one_program(monkeypatch) -> None:
    """The program itself, which takes a second to read, is the same throughout."""
    monkeypatch.setattr(stage, "digest_code", lambda name: name)


@pytest.fixture
def own(tmp_path) -> Path:
    """A folder with what the identities of a project with code of its own follow from."""
    for name, text in OWN.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    shutil.copy(ROOT / "dvc.yaml", tmp_path)
    write_params(tmp_path, PARAMS)
    return tmp_path


def identities_of(folder: Path) -> dict[str, str]:
    """By the names that DVC gives the stages."""
    shutil.rmtree(folder / "out", ignore_errors=True)
    write_identities(folder, folder / "out")
    return read_identities(folder / "out")


def test_files_that_own_code_reads_count_where_they_are_listed(own):
    watch_own_code(own)
    definition = own / "dvc.yaml"
    one = "      - my_ops.py\n"
    definition.write_text(definition.read_text().replace(one, f"{one}      - table.csv\n"))
    written, needs = [], []
    for content in ("1", "2"):
        (own / "table.csv").write_text(content)
        assert watch_own_code(own) == [] and "table.csv" in definition.read_text()
        written.append(identities_of(own))
        needs.append([find_needs(own, stage)["files"] for stage in ("snapshot", "train")])
    assert differ(*written) == EVERY_RUN
    assert [{*files} for files in needs[0]] == [{"table.csv"}] * 2
    assert all(one != other for one, other in zip(*needs, strict=True))


OWN_CODE = [
    ("helpers/amounts.py", "1", "7", EVERY_RUN),
    ("helpers/amounts.py", "BY = 1", "# by how much\nBY = 1", set()),
    ("my_augmentation.py", "1", "2", each("build", "train", "profile", "race")),
    ("layers_of_mine.py", "1", "2", each("train", "profile", "race")),
]


def test_own_code_and_what_it_imports_concerns_the_stages_that_run_it(own):
    watch_own_code(own)
    before = identities_of(own)
    for name, old, new, expected in OWN_CODE:
        text = (own / name).read_text()
        assert old in text
        (own / name).write_text(text.replace(old, new, 1))
        assert differ(before, identities_of(own)) == expected, name
        (own / name).write_text(text)


def write_text_project(folder: Path, **tokenize: str) -> None:
    """Write what the identities of a project of texts with this tokenizer follow from."""
    shutil.copy(ROOT / "dvc.yaml", folder)
    text = {"data": {**PARAMS["data"], "source": "text_folder"}, "augment": [], "postprocess": []}
    text |= {"preprocess": [{"tokenize": tokenize}], "model": {"name": "text_classifier"}}
    write_params(folder, PARAMS | text)


@pytest.mark.parametrize("library", slow_but_first(["sentencepiece", "tensorflow-text"]))
def test_another_version_of_what_tokenizes_concerns_the_stages_that_tokenize(tmp_path, library):
    (tmp_path / "uv.lock").write_text(f'[[package]]\nname = "{library}"\nversion = "0.1"\n')
    write_text_project(tmp_path, kind="bytes")
    assert not [text for text in identities_of(tmp_path).values() if library in text]
    write_text_project(tmp_path, kind="sentencepiece")
    with pytest.raises(WrongVersion, match=f"{library} .* is installed"):
        identities_of(tmp_path)
    (tmp_path / "uv.lock").unlink()
    identities = identities_of(tmp_path)
    assert {name for name, text in identities.items() if library in text} == EVERY_RUN


def test_the_file_of_a_tokenizer_counts_for_the_stages_that_run_it(tmp_path):
    (tmp_path / "words.txt").write_text("[UNK]\nwolf\n")
    write_text_project(tmp_path, kind="wordpiece", model="words.txt")
    listed = "words.txt decides results and is listed in dvc.yaml now"
    assert watch_own_code(tmp_path) == [listed]
    written = []
    for words in ("[UNK]\nwolf\n", "[UNK]\nlamb\n"):
        (tmp_path / "words.txt").write_text(words)
        written.append(identities_of(tmp_path))
    assert differ(*written) == EVERY_RUN


def test_the_largest_fraction_that_is_read_concerns_the_snapshot(tmp_path):
    shutil.copy(ROOT / "dvc.yaml", tmp_path)

    def identities(*fractions):
        pipelines = {
            f"part{number}": SMALL["pipelines"]["optimized"] | {"snapshot": {"fraction": fraction}}
            for number, fraction in enumerate(fractions)
        }
        write_params(tmp_path, SMALL | {"pipelines": pipelines | {"naive": {"read": "shards"}}})
        return identities_of(tmp_path)

    before = identities(0.3, 0.5)
    own = [
        {"race", "report", *(f"{stage}@part{number}" for stage in MEASURED)} for number in range(2)
    ]
    assert differ(before, identities(0.2, 0.5)) == own[0]
    assert differ(before, identities(0.3, 0.6)) == own[1] | {"snapshot"}


def test_own_code_is_listed_by_itself_and_taken_off_when_it_is_gone(own):
    expected = sorted(name for name, text in OWN.items() if text and name != "unused.py")
    assert [change.split()[0] for change in watch_own_code(own)] == expected
    assert watch_own_code(own) == []
    (own / "layers_of_mine.py").unlink()
    assert watch_own_code(own) == ["layers_of_mine.py is gone, and taken off dvc.yaml"]
    listed = read_yaml(own / "dvc.yaml")["stages"]["identities"]["deps"]
    assert set(expected) - set(listed) == {"layers_of_mine.py"}


@pytest.mark.parametrize("name", ["a #1.h5", "a: b.h5", "[a].h5", 'it\'s "größe".h5', "1.5"])
def test_a_file_of_any_name_is_listed_until_it_is_gone(tmp_path, name):
    shutil.copy(ROOT / "dvc.yaml", tmp_path)
    write_params(tmp_path, PARAMS | {"model": {"name": "mlp", "weights": name}})
    (tmp_path / name).touch()
    assert watch_own_code(tmp_path) == [f"{name} decides results and is listed in dvc.yaml now"]
    assert watch_own_code(tmp_path) == []
    assert read_yaml(tmp_path / "dvc.yaml")["stages"]["identities"]["deps"][-1] == name
    (tmp_path / name).rename(tmp_path / "renamed.h5")
    with pytest.raises(WorkspaceProblem, match=r"is gone, which dvc\.yaml lists"):
        watch_own_code(tmp_path)
